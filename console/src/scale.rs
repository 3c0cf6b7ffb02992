//! How many workers a lane needs to meet its objective. `docs/scaling.md` derives the rule.
//!
//! Pure: no clock, no state. What was needed over a window is computed from the loads of that window.

use std::time::Duration;

use garenne_common::config::Invalid;
use serde::{Deserialize, Serialize};

/// A lane at one moment, as measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Load {
    /// Tasks that arrive, per second.
    pub arrival_rate: f64,
    /// Tasks in the lane's queue, those that workers hold included.
    pub backlog: u64,
    /// Tasks that run.
    pub running: u64,
    /// Mean time in an attempt, seconds; unknown until one has ended.
    pub service_seconds: Option<f64>,
    /// Tasks that one worker runs at once.
    pub slots_per_replica: f64,
    /// Workers that answer and take work.
    pub replicas: u32,
}

/// What is to be met, and within which bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Goal {
    /// How long a task that arrives now may wait: what is there is worked off within this time.
    #[serde(with = "humantime_serde")]
    pub objective: Duration,
    /// Fewest workers; 0 lets a lane without work have none.
    pub min: u32,
    /// Most workers.
    pub max: u32,
    /// The share of its slots that the arrivals alone may keep busy, over 0 and at most 1; the rest is for
    /// their chance order.
    pub utilization: f64,
    /// How long fewer workers must have been enough before fewer are asked for.
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

/// The longest window: what is kept of the past.
const LONGEST_WINDOW: Duration = Duration::from_secs(3600);

impl Goal {
    /// # Errors
    /// The first field that is out of its bounds.
    pub fn validate(&self) -> Result<(), Invalid> {
        let span = |name: &str, span: Duration, least: Duration| {
            if (least..=LONGEST_WINDOW).contains(&span) {
                return Ok(());
            }
            let (value, least) = (humantime::format_duration(span), humantime::format_duration(least));
            Err(Invalid::new(name, value, format!("expected {least} to 1h")))
        };
        span("scale.objective", self.objective, Duration::from_secs(1))?;
        span("scale.window", self.window, Duration::ZERO)?;
        if self.min > self.max {
            let problem = format!("expected at most scale.max = {}", self.max);
            return Err(Invalid::new("scale.min", self.min, problem));
        }
        if !(self.utilization > 0.0 && self.utilization <= 1.0) {
            return Err(Invalid::new("scale.utilization", self.utilization, "expected over 0, at most 1"));
        }
        Ok(())
    }
}

/// A measured figure that cannot be one counts as nothing.
fn measured(figure: f64) -> f64 {
    if figure.is_finite() { figure.max(0.0) } else { 0.0 }
}

/// The workers that this load needs: slots for what arrives (Little's law: rate × service time, over the
/// utilization) and for what is there (backlog × service time over the objective), by the slots of a
/// worker; never fewer than what runs takes, never under `min`, never over `max`.
pub fn needed(load: &Load, goal: &Goal) -> u32 {
    let slots_of_one = measured(load.slots_per_replica).max(1.0);
    let (rate, backlog) = (measured(load.arrival_rate), load.backlog as f64);
    let busy = rate > 0.0 || load.backlog > 0 || load.running > 0;
    let slots = match load.service_seconds {
        Some(service) => {
            let service = measured(service);
            let objective = goal.objective.as_secs_f64().max(f64::MIN_POSITIVE);
            rate * service / goal.utilization.clamp(f64::MIN_POSITIVE, 1.0) + backlog * service / objective
        }
        // Nothing to reckon with: as many as there are, until a task has ended.
        None if busy => f64::from(load.replicas) * slots_of_one,
        None => 0.0,
    };
    // `as` saturates: what is beyond all bounds is `max`.
    let for_slots = (slots.max(load.running as f64) / slots_of_one).ceil() as u32;
    let least = goal.min.max(u32::from(busy));
    for_slots.max(least).min(goal.max)
}

/// What the newest load needs, and not fewer than any load of the window did, so that a lull does not end
/// workers that the next burst wants back. `history` is oldest first, the newest last; `complete` says
/// whether it spans the window: until it does, nobody is let go.
pub fn settled(history: &[Load], complete: bool, goal: &Goal) -> u32 {
    let most = history.iter().map(|load| needed(load, goal)).max().unwrap_or(goal.min);
    let hold = if complete { 0 } else { history.last().map_or(0, |load| load.replicas) };
    most.max(hold).min(goal.max)
}

#[cfg(test)]
mod tests;
