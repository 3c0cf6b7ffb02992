//! How many workers a lane needs to meet its objective. `docs/scaling.md` derives the rule.
//!
//! Pure functions without clock and state: the result for a window is computed from its loads.

use std::time::Duration;

use garenne_common::config::Invalid;
use serde::{Deserialize, Serialize};

/// The measured load of a lane at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Load {
    /// Arriving tasks per second.
    pub arrival_rate: f64,
    /// Tasks in the lane's queue, including unacknowledged ones.
    pub backlog: u64,
    /// Tasks in the lane's retry queues that wait for a worker with a handler for their kind.
    pub unhandled: u64,
    /// Running tasks.
    pub running: u64,
    /// Those among them that have been running for much longer than the mean, so that their slots serve no others.
    pub hung: u64,
    /// Running tasks that have been running for more than ten times the mean; all of them until a task has ended.
    pub overdue: u64,
    /// Time until a task that arrives now starts, seconds: the tasks before it are worked off by slots that become free
    /// as the ages of their tasks let expect. At least the age of the oldest waiting task while none of them starts.
    /// Unknown until a task has run and while the load is not known, infinite without a slot.
    pub backlog_seconds: Option<f64>,
    /// Mean duration of an attempt, seconds; unknown until one has ended.
    pub service_seconds: Option<f64>,
    /// Slots of one worker.
    pub slots_per_replica: f64,
    /// Workers in state `open`.
    pub replicas: u32,
    /// Whether an operator has paused the lane.
    pub paused: bool,
}

/// The scaling objective and its bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Goal {
    /// Longest wait of a task that arrives now: the backlog is worked off within this time.
    #[serde(with = "humantime_serde")]
    pub objective: Duration,
    /// Minimum number of workers; 0 scales an idle lane to zero.
    pub min: u32,
    /// Maximum number of workers.
    pub max: u32,
    /// Share of the slots that arrivals may keep busy, above 0 and at most 1. The rest absorbs random variation.
    pub utilization: f64,
    /// How long a lower number must have been sufficient before the result decreases.
    #[serde(with = "humantime_serde")]
    pub window: Duration,
}

impl Default for Goal {
    fn default() -> Self {
        Self {
            objective: Duration::from_secs(30),
            min: 1,
            max: 20,
            utilization: 0.8,
            window: Duration::from_secs(300),
        }
    }
}

/// Upper bound of the objective and the window: the length of the history.
const MAX_WINDOW: Duration = Duration::from_secs(3600);

impl Goal {
    /// Checks the bounds of every field.
    pub fn validate(&self) -> Result<(), Invalid> {
        let check = |name: &str, value: Duration, min: Duration| {
            if (min..=MAX_WINDOW).contains(&value) {
                return Ok(());
            }
            let (value, min) = (humantime::format_duration(value), humantime::format_duration(min));
            Err(Invalid::new(name, value, format!("expected {min} to 1h")))
        };
        check("scale.objective", self.objective, Duration::from_secs(1))?;
        check("scale.window", self.window, Duration::ZERO)?;
        if self.min > self.max {
            let problem = format!("expected at most scale.max = {}", self.max);
            return Err(Invalid::new("scale.min", self.min, problem));
        }
        if !(self.utilization > 0.0 && self.utilization <= 1.0) {
            return Err(Invalid::new("scale.utilization", self.utilization, "expected above 0, at most 1"));
        }
        Ok(())
    }
}

/// Replaces NaN, infinite and negative values by 0.
fn measured(value: f64) -> f64 {
    if value.is_finite() { value.max(0.0) } else { 0.0 }
}

/// The number of workers that a load needs.
///
/// Slots for arrivals are rate × service time ÷ utilization (Little's law); slots for the backlog are backlog ×
/// service time ÷ objective. While tasks wait, slots of tasks that hang are added, because they serve nothing else. While a
/// task that arrives now waits for longer than the objective, those of overdue tasks are added as well. The sum is divided
/// by the slots of a worker. The result covers the running tasks and is within `min` and `max`. Tasks whose kind no running worker has count as backlog, because the workers that have it may be
/// scaled to zero. A paused lane keeps its workers: more would not help, and fewer could not serve it when it
/// is resumed.
pub fn needed(load: &Load, goal: &Goal) -> u32 {
    if load.paused {
        return load.replicas.max(goal.min).min(goal.max);
    }
    let slots_of_one = measured(load.slots_per_replica).max(1.0);
    let waiting = load.backlog.saturating_add(load.unhandled);
    let (rate, backlog) = (measured(load.arrival_rate), waiting as f64);
    let busy = rate > 0.0 || waiting > 0 || load.running > 0;
    let objective = goal.objective.as_secs_f64().max(f64::MIN_POSITIVE);
    let occupied = match load.backlog_seconds {
        _ if waiting <= load.running => 0,
        Some(wait) if wait > objective => load.overdue,
        _ => load.hung,
    };
    let slots = match load.service_seconds {
        Some(service) => {
            let service = measured(service);
            rate * service / goal.utilization.clamp(f64::MIN_POSITIVE, 1.0) + backlog * service / objective
        }
        // The service time is unknown: keep the current number until a task has ended.
        None if busy => f64::from(load.replicas) * slots_of_one,
        None => 0.0,
    };
    let slots = slots + occupied as f64;
    // `as` saturates.
    let for_slots = (slots.max(load.running as f64) / slots_of_one).ceil() as u32;
    let min = goal.min.max(u32::from(busy));
    for_slots.max(min).min(goal.max)
}

/// The highest need in a window, so that a short lull does not stop workers that the next burst needs.
///
/// `history` is oldest first. `complete` tells whether it covers the window; until then the result is at least the
/// current number of workers.
pub fn settled(history: &[Load], complete: bool, goal: &Goal) -> u32 {
    let most = history.iter().map(|load| needed(load, goal)).max().unwrap_or(goal.min);
    let hold = if complete { 0 } else { history.last().map_or(0, |load| load.replicas) };
    most.max(hold).min(goal.max)
}

#[cfg(test)]
mod tests;
