//! Computes the sample of a lane from its queue, the workers' heartbeats and earlier samples.

use garenne_operator::{
    operator::Operator,
    queues::{LaneStatus, QueueStatus, Source},
};
use garenne_protocol::heartbeat::{Heartbeat, LaneBeat, Program};

use super::{backlog::LaneWork, history::SampleHistory, sample::Sample};
use crate::{
    fleet::{Roster, State, count_unacked, hangs, is_overdue, unhandled_in},
    lane_sample::LaneSample,
    scale::Load,
};

/// Window of the rates, milliseconds. Long enough to even out the delay of the broker's statistics.
const RATE_WINDOW: i64 = 60_000;

/// The sum of all workers' reports about a lane.
#[derive(Default)]
struct LaneWorkers {
    slots: u64,
    running: u64,
    /// Tasks that they put off because no running worker has a handler for them.
    unhandled: u64,
    replicas: u32,
    /// Workers of the lane that are not silent.
    heard: u64,
    /// Slots of open workers without a task.
    free: u64,
    /// Ages of the tasks that run in slots of open workers, seconds, each with the number of tasks.
    ages: Vec<(f64, u64)>,
    /// Whether an open worker reports that the lane is paused.
    paused: bool,
}

impl LaneWorkers {
    fn of(roster: &Roster, lane: &str, now: i64) -> Self {
        let members = roster.members(Program::Worker, now);
        let mut sum = Self { unhandled: unhandled_in(&members, lane), ..Self::default() };
        for member in members {
            let Some(whole) = member.process.heartbeat() else { continue };
            let Some(beat) = whole.lanes.get(lane) else { continue };
            // The tasks of a silent worker may still run.
            if !member.state.runs() {
                continue;
            }
            sum.heard += u64::from(member.state != State::Silent);
            sum.running += beat.busy as u64;
            if member.state == State::Open {
                sum.slots += beat.slots as u64;
                sum.replicas += 1;
                sum.paused |= beat.paused;
                sum.free += beat.slots.saturating_sub(beat.busy) as u64;
                sum.ages.extend(ages(whole, lane, beat));
            }
        }
        sum
    }
}

/// The ages of a worker's running tasks in a lane. A heartbeat lists the oldest ones; the others get their mean age.
fn ages(beat: &Heartbeat, lane: &str, counts: &LaneBeat) -> Vec<(f64, u64)> {
    let listed = beat.tasks.iter().filter(|task| task.lane == lane).map(|task| (task.seconds.max(0.0), 1));
    let mut ages: Vec<_> = listed.take(counts.busy).collect();
    let others = counts.busy - ages.len();
    if others > 0 {
        let left = counts.running_for - ages.iter().map(|(age, _)| age).sum::<f64>();
        ages.push((left.max(0.0) / others as f64, others as u64));
    }
    ages
}

/// How long tasks have been waiting in a lane although none was removed from its queue, seconds.
fn stalled_seconds(history: &SampleHistory, lane: &str, removed: u64, now: i64) -> f64 {
    let waits = |sample: &&Sample| {
        let waits = sample.lanes.get(lane).is_some_and(|it| it.load.backlog > it.load.running);
        waits && sample.removed(lane) == removed
    };
    let since = history.iter().rev().take_while(waits).last();
    since.map_or(0.0, |sample| age(sample, now))
}

/// The age of the oldest task that waits in a lane, seconds: at least this, as far as the history reaches. `passed` tasks
/// have left the queue or run.
///
/// The tasks that were in the queue at an earlier sample have all passed if as many have. Tasks that came after it are younger.
fn oldest_seconds(history: &SampleHistory, lane: &str, passed: u64, now: i64) -> f64 {
    let waits = |sample: &&Sample| {
        let load = sample.lanes.get(lane).filter(|lane| lane.problem.is_none()).map(|lane| lane.load);
        load.is_some_and(|Load { backlog, running, .. }| {
            backlog > running && backlog.saturating_add(sample.removed(lane)) > passed
        })
    };
    let since = history.iter().rev().take_while(waits).last();
    since.map_or(0.0, |sample| age(sample, now))
}

fn age(sample: &Sample, now: i64) -> f64 {
    now.saturating_sub(sample.at).max(0) as f64 / 1e3
}

pub(super) fn sample(
    operator: &Operator,
    roster: &Roster,
    history: &SampleHistory,
    status: &LaneStatus,
    now: i64,
) -> LaneSample {
    let workers = LaneWorkers::of(roster, &status.name, now);
    let mut queue = status.queue;
    count_unacked(roster, &status.name, &mut queue, now);
    let problem = missing(status).or_else(|| unheard(&status.name, &queue, workers.heard));
    let unacked = queue.unacked.unwrap_or(0);
    let backlog = queue.ready + unacked;
    let configured = operator.settings.lanes.defined().find(|(name, _)| *name == status.name);
    let configured = configured.map_or(1, |(_, lane)| lane.concurrency.max);
    let slots_per_replica = match workers.replicas {
        0 => configured as f64,
        replicas => workers.slots as f64 / f64::from(replicas),
    };
    let removed = roster.totals().removed.get(&status.name).copied().unwrap_or(0);
    let (mut arrival_rate, mut removal_rate) = (0.0, 0.0);
    if let Some(before) = history.at_or_after(now - RATE_WINDOW)
        && let Some(lane) = before.lanes.get(&status.name)
        && now > before.at
    {
        let seconds = (now - before.at) as f64 / 1e3;
        let done = removed.saturating_sub(before.removed(&status.name)) as f64;
        removal_rate = done / seconds;
        // Arrivals = growth of the backlog + removals.
        arrival_rate = ((backlog as f64 - lane.load.backlog as f64 + done) / seconds).max(0.0);
    }
    let service_seconds = service_seconds(operator, roster, &status.name, now);
    let LaneWorkers { running, unhandled, replicas, free, ages, paused, .. } = workers;
    let waiting = backlog.saturating_sub(running);
    let oldest = match waiting {
        0 => 0.0,
        _ => oldest_seconds(history, &status.name, removed.saturating_add(running), now),
    };
    // With every slot busy nothing has ended since the youngest task started.
    let youngest = ages.iter().map(|(age, _)| *age).reduce(f64::min).filter(|_| free == 0 && waiting > 0);
    let stalled = stalled_seconds(history, &status.name, removed, now).max(youngest.unwrap_or(0.0));
    let count = |is_counted: &dyn Fn(f64) -> bool| {
        ages.iter().filter(|(age, _)| is_counted(*age)).map(|(_, tasks)| tasks).sum()
    };
    let hung = count(&|age| service_seconds.is_some_and(|service| hangs(age, service)));
    let overdue = count(&|age| service_seconds.is_none_or(|service| is_overdue(age, service)));
    let work = LaneWork { waiting, free, ages, service: service_seconds, stalled };
    let backlog_seconds = match (&problem, backlog) {
        (Some(_), _) => None,
        (None, 0) => Some(0.0),
        (None, _) => work.seconds(),
    };
    LaneSample {
        oldest_seconds: problem.is_none().then_some(oldest),
        ready: queue.ready,
        unacked,
        consumers: queue.consumers,
        retrying: status.retrying,
        removal_rate,
        load: Load {
            arrival_rate,
            backlog,
            unhandled,
            running,
            hung,
            overdue,
            backlog_seconds,
            service_seconds,
            slots_per_replica,
            replicas,
            paused,
        },
        slots: workers.slots,
        stalled_seconds: stalled,
        problem,
    }
}

/// Why the load of a lane is not known: a queue of it does not exist.
fn missing(lane: &LaneStatus) -> Option<String> {
    let (LaneStatus { name, missing, .. }, are) = (lane, if lane.missing.len() == 1 { "is" } else { "are" });
    (!missing.is_empty())
        .then(|| format!("what waits in lane {name} is not known: {} {are} missing", missing.join(", ")))
}

/// The same: more programs consume its queue than workers are heard, and the broker does not
/// count what they hold.
fn unheard(lane: &str, queue: &QueueStatus, heard: u64) -> Option<String> {
    let counted = queue.unacked_from.is_some_and(|from| from.source == Source::Management);
    (!counted && queue.consumers > heard).then(|| {
        let consumers = queue.consumers;
        format!(
            "lane {lane} has {consumers} consumers and {heard} of them are heard, so what the others run is not known; \
             with management_url the broker counts it"
        )
    })
}

/// So many attempts tell how long those last that run now.
const ENOUGH_ATTEMPTS: u64 = 10;

/// Mean duration of an attempt at the lane's kinds, as the workers that are heard tell it: of the latest ones if they are enough, of
/// those within the last minutes, or since the workers started if none ended in that time. Only without any of them it is the
/// mean since this console started.
fn service_seconds(operator: &Operator, roster: &Roster, lane: &str, now: i64) -> Option<f64> {
    let lanes = &operator.settings.lanes;
    let is_of_lane = |kind: &str| lanes.taking(kind) == Some(lane);
    let members = roster.members(Program::Worker, now);
    let heard = members.iter().filter(|member| member.state.runs() && member.state != State::Silent);
    let kinds = heard.filter_map(|member| member.process.heartbeat()).flat_map(|beat| &beat.kinds);
    let kinds: Vec<_> = kinds.filter(|(kind, _)| is_of_lane(kind)).map(|(_, counted)| counted).collect();
    let latest = kinds.iter().map(|kind| (kind.recent.latest_ended, kind.recent.latest_seconds));
    let recent = kinds.iter().map(|kind| (kind.recent.ended, kind.recent.seconds));
    let of_workers = kinds.iter().map(|kind| (kind.ended(), kind.seconds));
    let totals = roster.totals().kinds.iter().filter(|(kind, _)| is_of_lane(kind));
    let of_console = totals.map(|(_, kind)| (kind.ended(), kind.seconds));
    mean(latest, ENOUGH_ATTEMPTS)
        .or_else(|| mean(recent, 1))
        .or_else(|| mean(of_workers, 1))
        .or_else(|| mean(of_console, 1))
}

/// The mean of at least so many durations, of which each part has a count and a sum in seconds.
fn mean(parts: impl Iterator<Item = (u64, f64)>, at_least: u64) -> Option<f64> {
    let (count, seconds) =
        parts.fold((0_u64, 0.0), |sum, part| (sum.0.saturating_add(part.0), sum.1 + part.1));
    (count >= at_least).then(|| seconds / count as f64)
}
