//! Decides what is wrong with a fleet, from everything that a console knows of it. `status`, `top`, the dashboard's page,
//! `GET /v1/problems` and the metric `garenne_problems` show its result first.

mod broker;
mod handlers;
mod paused;
mod problem;
mod producers;
mod rights;
#[cfg(test)]
mod tests;
mod topology;

use std::{collections::BTreeMap, time::Duration};

use garenne_operator::{
    operator::Operator,
    queues::{LaneStatus, Snapshot},
    table::{duration, grouped},
};
use garenne_protocol::{
    heartbeat::{Program, RecentBeat, UnhandledBeat},
    topology::Difference,
};

pub use problem::{Code, Problem, Severity, needs_attention, text, verdict};
use problem::{
    Code::*,
    Severity::{Critical, Notice, Warning},
};

use crate::{
    audit_log::PauseRecords,
    fleet::{MIN_HUNG, MemberView, Roster, State, add_buckets, beats, hangs, quantile, unhandled},
    lane_sample::LaneSample,
};

/// A lane that ends nothing for this long stands still, if its tasks usually end earlier.
const MIN_STALL: Duration = Duration::from_secs(10);
/// The same for a lane of which no task has ended yet.
const MIN_FIRST_STALL: Duration = Duration::from_secs(600);
/// Tasks whose retry is this far ahead are named.
const FAR_AHEAD: Duration = Duration::from_secs(3600);
/// The largest difference of two clocks, in milliseconds. Alarms and expiry compare times of several hosts.
const MAX_SKEW: u64 = 2_000;
/// A process that starts this often within the roster's window restarts again and again.
const RESTART_LOOP: usize = 4;

/// What a console knows of a fleet.
pub struct Facts<'f> {
    /// The time, in milliseconds since 1970.
    pub now: i64,
    /// The settings by which it is reached.
    pub operator: &'f Operator,
    /// Why the queues cannot be read.
    pub queue_problem: Option<&'f str>,
    /// Why no heartbeats arrive.
    pub fleet_problem: Option<&'f str>,
    /// What the broker lacks, while an alarm blocks publishers.
    pub alarm: Option<&'f str>,
    /// Why the workers' database does not answer.
    pub database_problem: Option<&'f str>,
    /// The newest counts of its queues.
    pub snapshot: Option<&'f Snapshot>,
    /// What is known of each lane, by name.
    pub lanes: &'f BTreeMap<String, LaneSample>,
    /// The processes that send heartbeats, or should.
    pub roster: &'f Roster,
    /// The longest wait of a task that arrives now.
    pub objective: Duration,
    /// How the broker differs from the settings, or why that is not known.
    pub differences: Result<&'f [Difference], &'f str>,
    /// Why an alarm could not be seen.
    pub alarms_unseen: Option<&'f str>,
    /// Who paused what, or why that is not known.
    pub pauses: Result<&'f PauseRecords, &'f str>,
    /// By how much the queue of dead letters grew, and since when; unknown to a console that looks once.
    pub new_letters: Option<(u64, i64)>,
}

impl Facts<'_> {
    /// Whether heartbeats arrive.
    fn is_heard(&self) -> bool {
        self.fleet_problem.is_none() && self.alarm.is_none()
    }
}

/// What is wrong, the worst first.
pub fn diagnose(facts: &Facts<'_>) -> Vec<Problem> {
    let mut problems = broker::problems(facts);
    let workers = facts.roster.members(Program::Worker, facts.now);
    let (paused, unready) = (paused::objects(facts, &workers), handlers::Unready::of(facts, &workers));
    let is_paused = |lane: &str| paused.iter().any(|(noun, name)| noun == "lane" && name == lane);
    // What is not heard cannot be judged: every worker would be silent, and every lane would lack workers.
    let is_heard = facts.is_heard();
    if let Some(snapshot) = facts.snapshot.filter(|_| facts.queue_problem.is_none()) {
        for lane in &snapshot.lanes {
            let is_explained = is_paused(&lane.name) || unready.lanes.contains(&*lane.name);
            problems.extend(unconsumed(lane).filter(|_| !is_explained));
            problems.extend(far_ahead(facts.operator, lane));
        }
        problems.extend(topology::problems(facts, snapshot));
        problems.extend(dead_letters(facts, snapshot, &workers));
        if snapshot.unroutable.ready > 0 {
            let count = grouped(snapshot.unroutable.ready);
            let problem = Problem::new(Unroutable, Warning, "");
            problems.push(
                problem
                    .detail(format!("{count} messages match no binding"))
                    .next("`garenne unroutable list` shows them"),
            );
        }
    }
    let programs = [Program::Worker, Program::Gateway, Program::Bridge];
    let members: Vec<_> = programs.into_iter().flat_map(|it| facts.roster.members(it, facts.now)).collect();
    problems.extend(rights::problems(facts, beats(&members).filter(|_| is_heard)));
    if is_heard {
        let durations = Durations::of(&workers);
        let sinks = sinks(&workers);
        for (name, lane) in facts.lanes {
            // Tasks whose results cannot be stored are done and wait in the workers.
            let waits_for_sink = !sinks.is_empty() && lane.load.running < lane.slots;
            // The sample may be from before the pause.
            problems.extend(
                progress(facts, name, lane, &durations).filter(|_| !waits_for_sink && !is_paused(name)),
            );
        }
        problems.extend(workers.iter().flat_map(|worker| worker_problems(facts, worker)));
        problems.extend(restart_loops(facts));
        problems.extend(hung_tasks(&workers, &durations, &problems));
        problems.extend(sinks);
        problems.extend(unready.problems);
        problems.extend(kinds_without_worker(facts, &workers));
        for program in [Program::Gateway, Program::Bridge] {
            let members = facts.roster.members(program, facts.now);
            problems.extend(members.iter().flat_map(|member| producers::problems(facts, member)));
        }
    }
    if facts.queue_problem.is_none() {
        problems.extend(paused::problems(facts, paused));
    }
    problems.sort_by(|a, b| (a.severity, a.key()).cmp(&(b.severity, b.key())));
    problems
}

/// Queues of a lane with tasks and without a consumer.
fn unconsumed(lane: &LaneStatus) -> impl Iterator<Item = Problem> {
    let queues = match lane.shards.is_empty() {
        true => vec![(format!("lane {}", lane.name), lane.queue)],
        false => lane.shards.iter().map(|(name, queue)| (name.clone(), *queue)).collect(),
    };
    let without = queues.into_iter().filter(|(_, queue)| queue.ready > 0 && queue.consumers == 0);
    let start = "start a worker that has handlers for the kinds of its bindings (`lanes.<name>.bindings`)";
    let left = lane.leftovers.iter().map(|(name, ready)| {
        let detail = format!("{} tasks are waiting in a queue of a former shard", grouped(*ready));
        let next = "run a worker with the former number of shards until it is empty";
        Problem::new(LaneWithoutWorker, Critical, name.clone()).detail(detail).next(next)
    });
    let without = without.map(move |(subject, queue)| {
        let detail = format!("{} tasks are waiting and no worker consumes them", grouped(queue.ready));
        Problem::new(LaneWithoutWorker, Critical, subject).detail(detail).next(start)
    });
    without.chain(left.collect::<Vec<_>>())
}

/// Tasks whose retry is far ahead.
fn far_ahead(operator: &Operator, lane: &LaneStatus) -> Option<Problem> {
    let rungs = operator.ladder.rungs().iter().filter(|rung| rung.as_duration() >= FAR_AHEAD);
    let waiting = rungs.filter_map(|rung| Some((rung.to_string(), *lane.rungs.get(&rung.to_string())?)));
    let waiting: Vec<_> = waiting.map(|(rung, n)| format!("{} in {rung}", grouped(n))).collect();
    let problem = Problem::new(RetriesFarAhead, Notice, format!("lane {}", lane.name));
    (!waiting.is_empty()).then(|| {
        problem
            .detail(format!("tasks wait long for their next attempt: {}", waiting.join(", ")))
            .next("`garenne task waiting` lists them; the error of a task that failed is in its worker's log")
    })
}

/// Dead letters are growing if workers tell of new ones, or the queue grew: others write letters too.
fn dead_letters(facts: &Facts<'_>, snapshot: &Snapshot, workers: &[MemberView]) -> Option<Problem> {
    let held = snapshot.dead.held();
    let list = "`garenne dead list` shows the reasons, `garenne dead replay` tries them again";
    let kinds = workers.iter().filter_map(|it| it.process.heartbeat()).flat_map(|beat| beat.kinds.values());
    let recent = kinds.fold(0_u64, |sum, kind| sum.saturating_add(kind.recent.dead));
    let (grown, since) = facts.new_letters.unwrap_or_default();
    let (new, since) = match recent >= grown {
        true => (recent, facts.now - RecentBeat::WINDOW_MS),
        false => (grown, since),
    };
    if new > 0 {
        let time = duration(facts.now.saturating_sub(since).max(0).unsigned_abs());
        let detail = format!("{} new dead letters in {time}, {} in the queue", grouped(new), grouped(held));
        return Some(Problem::new(DeadLettersGrowing, Warning, "").detail(detail).next(list));
    }
    let problem = Problem::new(DeadLetters, Notice, "");
    (held > 0).then(|| problem.detail(format!("{} dead letters", grouped(held))).next(list))
}

/// Durations of attempts, in seconds, by kind: what the running workers have counted.
struct Durations<'w>(BTreeMap<&'w str, Vec<u64>>);

impl<'w> Durations<'w> {
    fn of(workers: &'w [MemberView]) -> Self {
        let mut kinds = BTreeMap::<&str, Vec<u64>>::new();
        for beat in workers.iter().filter_map(|worker| worker.process.heartbeat()) {
            for (name, kind) in &beat.kinds {
                add_buckets(kinds.entry(name).or_default(), &kind.buckets);
            }
        }
        Self(kinds)
    }

    /// The 99th percentile of the kinds that this matches.
    fn p99(&self, is_wanted: impl Fn(&str) -> bool) -> Option<f64> {
        let mut all = Vec::new();
        self.0
            .iter()
            .filter(|(kind, _)| is_wanted(kind))
            .for_each(|(_, buckets)| add_buckets(&mut all, buckets));
        quantile(&all, 0.99)
    }
}

/// Whether a lane stands still or is late.
fn progress(facts: &Facts<'_>, name: &str, lane: &LaneSample, durations: &Durations<'_>) -> Option<Problem> {
    let waiting = lane.load.backlog.saturating_sub(lane.load.running);
    if lane.load.paused || waiting == 0 || lane.slots == 0 {
        return None;
    }
    let (subject, count) = (format!("lane {name}"), grouped(waiting));
    let since = |seconds: f64| facts.now.saturating_sub((seconds * 1e3) as i64);
    let p99 = durations.p99(|kind| facts.operator.settings.lanes.taking(kind) == Some(name));
    let usual = p99.unwrap_or(MIN_FIRST_STALL.as_secs_f64()).max(MIN_STALL.as_secs_f64());
    if lane.stalled_seconds > usual {
        let slots = match lane.load.running >= lane.slots {
            true => format!("all {} slots are busy", grouped(lane.slots)),
            false => format!("{} of {} slots are busy", grouped(lane.load.running), grouped(lane.slots)),
        };
        let ends = p99.map(|p99| format!("; 99 % of its tasks end within {}", seconds(p99)));
        let detail = format!("nothing ends, {count} tasks wait, {slots}{}", ends.unwrap_or_default());
        let next = "`garenne status` names the longest task of each worker, `garenne task stop` ends it";
        let problem = Problem::new(LaneStalled, Critical, subject).since(since(lane.stalled_seconds));
        return Some(problem.detail(detail).next(next));
    }
    let objective = facts.objective.as_secs_f64();
    let beyond = |wait: &f64| *wait > objective;
    let waits = match (lane.load.backlog_seconds.filter(beyond), lane.oldest_seconds.filter(beyond)) {
        (Some(wait), _) => format!("one that arrives now waits for {}", seconds(wait)),
        (None, Some(oldest)) => format!("the oldest one has waited for {}", seconds(oldest)),
        (None, None) => return None,
    };
    let detail = format!("{count} tasks wait, {waits}; the objective is {}", seconds(objective));
    let next = format!("start more workers; `/scale/{name}` of the dashboard says how many");
    Some(Problem::new(LaneLate, Warning, subject).detail(detail).next(next))
}

/// A duration in seconds, as text.
fn seconds(seconds: f64) -> String {
    if seconds.is_finite() { duration((seconds * 1e3) as u64) } else { "ever".to_owned() }
}

/// Workers that start again and again. One that ended properly is no member any more.
fn restart_loops(facts: &Facts<'_>) -> impl Iterator<Item = Problem> {
    let starts = facts.roster.worker_starts(facts.now).into_iter();
    starts.filter(|(_, starts)| *starts >= RESTART_LOOP).map(|(id, starts)| {
        Problem::new(RestartLoop, Warning, format!("worker {id}"))
            .detail(format!("it started {starts} times within 10 minutes"))
            .next("its log and the exit code of its last run say why it ended")
    })
}

fn worker_problems(facts: &Facts<'_>, worker: &MemberView) -> Vec<Problem> {
    let (id, mut problems) = (worker.process.id(), Vec::new());
    let subject = || format!("worker {id}");
    if worker.state == State::Silent {
        let heard = worker.heard_ms_ago.map(|ms| facts.now.saturating_sub_unsigned(ms));
        problems.push(
            Problem::new(SilentWorker, Warning, subject())
                .since(heard)
                .detail("it sends no heartbeats: it has crashed, hangs, or cannot reach the broker")
                .next(
                    "look at its log; the broker gives its tasks to other workers when its connection ends",
                ),
        );
    }
    if worker.clock_ahead_ms.unsigned_abs() > MAX_SKEW && worker.state.runs() {
        let host = worker.process.heartbeat().map_or("", |beat| beat.host.as_str());
        let word = if worker.clock_ahead_ms > 0 { "ahead of" } else { "behind" };
        let skew = duration(worker.clock_ahead_ms.unsigned_abs());
        problems.push(
            Problem::new(ClockSkew, Warning, subject())
                .detail(format!("the clock of its host {host:?} is {skew} {word} this one"))
                .next(
                    "synchronize the clocks of both hosts (NTP): expiry, schedules and alarms compare times",
                ),
        );
    }
    for (lane, beat) in worker.process.heartbeat().iter().flat_map(|beat| &beat.lanes) {
        let Some(trouble) = beat.trouble.as_ref().filter(|_| worker.state == State::Open) else { continue };
        problems.push(
            Problem::new(LaneNotConsumed, Critical, format!("lane {lane} at worker {id}"))
                .detail(trouble.clone())
                .next("the worker tries again by itself; `garenne topology check` compares the broker with the settings"),
        );
    }
    problems
}

/// Tasks that ignore their cancellation, or run for much longer than their kind usually does. A lane that stands still is
/// named already.
fn hung_tasks(workers: &[MemberView], durations: &Durations<'_>, known: &[Problem]) -> Vec<Problem> {
    let stalled = |lane: &str| {
        let of_lane = |it: &&Problem| it.subject.strip_prefix("lane ") == Some(lane);
        known.iter().filter(of_lane).any(|it| it.problem == LaneStalled)
    };
    let mut hung = BTreeMap::<(&str, &str), (u64, f64, &str)>::new();
    for beat in beats(workers) {
        for task in beat.tasks.iter().filter(|task| !stalled(&task.lane)) {
            let usual = durations.0.get(task.kind.as_str()).and_then(|buckets| quantile(buckets, 0.99));
            if usual.is_some_and(|usual| hangs(task.seconds, usual))
                || task.stopping && task.seconds > MIN_HUNG
            {
                let sum = hung.entry((&task.lane, &task.kind)).or_insert((0, 0.0, &task.id));
                if task.seconds > sum.1 {
                    (sum.1, sum.2) = (task.seconds, &task.id);
                }
                sum.0 += 1;
            }
        }
    }
    let problem = |((lane, kind), (count, age, id)): ((&str, &str), (u64, f64, &str))| {
        Problem::new(HungTasks, Warning, format!("kind {kind}"))
            .detail(format!(
                "{count} tasks in lane {lane} run for much longer than usual, {id} for {}",
                seconds(age)
            ))
            .next(format!(
                "`garenne task stop {id}` ends it; one that ignores that needs a restart of its worker"
            ))
    };
    hung.into_iter().map(problem).collect()
}

/// Sinks that take no results, each with the workers that say so.
fn sinks(workers: &[MemberView]) -> Vec<Problem> {
    let mut down = BTreeMap::<&str, (usize, Option<i64>, &str)>::new();
    let heard = workers.iter().filter(|it| matches!(it.state, State::Open | State::Quiet | State::Stopping));
    for (name, sink) in heard.filter_map(|it| it.process.heartbeat()).flat_map(|beat| &beat.sinks) {
        if !sink.up {
            let sum = down.entry(name).or_default();
            sum.0 += 1;
            sum.1 = sum.1.into_iter().chain(sink.away_since).min();
            sum.2 = sink.trouble.as_deref().map_or(sum.2, |trouble| bare(name, trouble));
        }
    }
    let problem = |(name, (count, since, trouble)): (&str, (usize, Option<i64>, &str))| {
        Problem::new(SinkDown, Critical, format!("sink {name}"))
            .since(since)
            .detail(format!("{count} workers cannot store results: {trouble}"))
            .next("results wait in the workers and are stored when it is back; check the server behind it")
    };
    down.into_iter().map(problem).collect()
}

/// The trouble of a sink without its name and time, which the problem has.
fn bare<'t>(sink: &str, trouble: &'t str) -> &'t str {
    let mut bare = trouble.split(" (since ").next().unwrap_or(trouble);
    for prefix in ["takes no results: ", "is unavailable: "] {
        bare = bare.strip_prefix(&format!("sink {sink} {prefix}")).unwrap_or(bare);
    }
    bare
}

fn kinds_without_worker(facts: &Facts<'_>, workers: &[MemberView]) -> Vec<Problem> {
    let problem = |kind: UnhandledBeat| {
        let tasks = grouped(kind.tasks);
        Problem::new(KindWithoutWorker, Critical, format!("kind {}", kind.kind))
            .since(kind.since.min(facts.now))
            .detail(format!(
                "{tasks} tasks wait in lane {}, and no running worker has a handler for them",
                kind.lane
            ))
            .next("start a worker that has it; after unknown_kind_wait they become dead letters")
    };
    unhandled(workers).into_iter().map(problem).collect()
}
