//! What engines do, compared with what they may do. The ledger knows where messages are; this knows why.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use garenne_amqp::Message;
use garenne_protocol::{
    task::{DeadReason, Directive, header},
    topology::{Ladder, Names},
};

use serde::Deserialize;

use crate::{
    history::StopMode,
    id::{OwnerId, Serial},
    known::KnownDirectives,
    message::{self, Delivery},
    plan::{Does, LONG, LONG_LANE, MAX_ATTEMPTS, SHORT, SHORT_LANE, Work, group_name},
};

/// How long a worker may start tasks after a command to stop, or after it has read a directive.
const STOP_TAKES: Duration = Duration::from_millis(20);
/// How long a task that ends when it is cancelled may run after its worker has read that it is stopped.
const CANCEL_TAKES: Duration = Duration::from_millis(500);
/// Most deliveries of a paused lane, or of one of its tasks in the quarantine, that a worker may get. Those that are on their
/// way when it cancels its consumer are at most its prefetch.
const MOST_OF_PAUSED: u32 = 20;

/// Most runs of a task, for each of its messages. Each has a reason: a failed attempt, an interruption, a crash. Only a task
/// that is put back again and again without being charged for it, or that crashes worker after worker, has more.
const MOST_RUNS: u32 = 30;

/// A handler that runs.
struct Run {
    id: String,
    owner: OwnerId,
    number: u64,
    /// Since when it has been waiting for its cancellation.
    hangs_since: Option<Duration>,
}

/// A record of the lifecycle stream about a run in the quarantine, or about the end of a worker.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum LifecycleRecord {
    Goodbye,
    RunStarted { task: String },
    RunEnded { task: String },
}

impl LifecycleRecord {
    fn of(message: &Message) -> Option<Self> {
        serde_json::from_slice(&message.body).ok()
    }
}

/// The last run of a task in the quarantine that a process has recorded as begun.
struct Recorded {
    /// The record of its end was published.
    has_ended: bool,
}

/// What happened in a history, for the rules that need the reasons.
#[derive(Default)]
pub(crate) struct Watch {
    /// Attempts that failed, by task.
    charged: HashMap<String, u32>,
    /// Runs that began, by task.
    begun: HashMap<String, u32>,
    running: Vec<Run>,
    runs: u64,
    /// Runs in the quarantine that are on record as begun and not as ended, by process. Such a run counts even if the
    /// process crashed before the handler started: the record is all that is known after the crash.
    recorded: HashMap<(OwnerId, String), Recorded>,
    /// Recorded runs during which the process crashed, or that it could not record as ended before it ended itself.
    crashed_alone: HashMap<String, u32>,
    /// Processes whose end is not on record: they crashed, or what they published last was blocked or refused.
    crashes: u32,
    /// Processes whose end is on record, or that count among the crashes.
    left: HashSet<OwnerId>,
    /// The most returns that a delivery of a task said.
    returns: HashMap<String, u32>,
    /// The stored messages that a process got for a task.
    got: HashMap<(OwnerId, String), BTreeSet<Serial>>,
    /// Tasks whose last delivery came from the quarantine.
    in_quarantine: HashSet<String>,
    /// Groups of tasks, and when the task was published.
    groups: HashMap<String, (String, Duration)>,
    /// When delayed tasks are due.
    due: HashMap<String, Duration>,
    stopped_tasks: HashSet<String>,
    /// Tasks that a worker held when their queue was deleted, or may have been.
    orphans: HashSet<String>,
    /// When a group was stopped last.
    stopped_groups: HashMap<String, Duration>,
    /// Handlers that ended since their worker was told to stop.
    ended_late: HashMap<OwnerId, usize>,
    stopping: HashMap<OwnerId, (StopMode, Duration)>,
    /// Tasks that a worker handed back since it was told to stop.
    handed_back: HashSet<(OwnerId, String)>,
    /// The directives that each process has read.
    directives: HashMap<OwnerId, KnownDirectives>,
    /// Deliveries that a worker got of a paused lane, or of one of its tasks in the quarantine, since it has read of the pause.
    of_paused: HashMap<(OwnerId, String, Duration), u32>,
    /// Messages that a worker got and returned only to make the broker apply its settlements.
    flushed: HashMap<OwnerId, u64>,
    pub(crate) problems: Vec<(Duration, String)>,
}

impl Watch {
    fn problem(&mut self, now: Duration, text: String) {
        self.problems.push((now, text));
    }

    /// A client published a task of a group.
    pub(crate) fn grouped(&mut self, id: &str, group: u8, now: Duration) {
        self.groups.entry(id.to_owned()).or_insert((group_name(group), now));
    }

    /// A client published a task that is due later.
    pub(crate) fn delayed(&mut self, id: &str, due: Duration) {
        self.due.entry(id.to_owned()).or_insert(due);
    }

    pub(crate) fn task_stopped(&mut self, id: &str) {
        self.stopped_tasks.insert(id.to_owned());
    }

    pub(crate) fn orphaned(&mut self, id: &str) {
        self.orphans.insert(id.to_owned());
    }

    pub(crate) fn group_stopped(&mut self, group: u8, now: Duration) {
        self.stopped_groups.insert(group_name(group), now);
    }

    pub(crate) fn told_to_stop(&mut self, owner: OwnerId, mode: StopMode, now: Duration) {
        let (stricter, since) = self.stopping.entry(owner).or_insert((mode, now));
        if mode != StopMode::Light && *stricter == StopMode::Light {
            (*stricter, *since) = (mode, now);
        }
    }

    pub(crate) fn is_stopping(&self, owner: OwnerId) -> bool {
        self.stopping.contains_key(&owner)
    }

    pub(crate) fn handed_back(&mut self, owner: OwnerId, id: &str) {
        if self.is_stopping(owner) {
            self.handed_back.insert((owner, id.to_owned()));
        }
    }

    pub(crate) fn flushed(&mut self, owner: OwnerId) {
        *self.flushed.entry(owner).or_default() += 1;
    }

    pub(crate) fn flushes(&self, owner: OwnerId) -> u64 {
        self.flushed.get(&owner).copied().unwrap_or(0)
    }

    /// A worker reads a delivery of a queue. The queue is [`None`] if the channel has ended meanwhile.
    pub(crate) fn delivered(
        &mut self,
        owner: OwnerId,
        delivery: &Delivery,
        queue: Option<&str>,
        now: Duration,
    ) {
        let id = delivery.message.id();
        self.got.entry((owner, id.to_owned())).or_default().insert(delivery.serial);
        let Some(queue) = queue else { return };
        if delivery.redelivered && self.handed_back.contains(&(owner, id.to_owned())) {
            self.problem(now, format!("{id} was handed back by a worker that stops, and it got it again"));
        }
        let copied = header::get(delivery.message.properties.headers(), header::RETURNS);
        let copied = copied.and_then(header::integer).unwrap_or(0) as u32;
        let returns = self.returns.entry(id.to_owned()).or_default();
        *returns = (*returns).max(delivery.delivery_count + copied);
        if queue.ends_with(".quarantine") {
            self.in_quarantine.insert(id.to_owned());
        } else {
            self.in_quarantine.remove(id);
        }
        let Some(lane) = lane_of(&delivery.message) else { return };
        let Some(since) = self.knows(owner, |known| known.lane_paused_since(lane)) else { return };
        let what = if queue.ends_with(".quarantine") { id } else { lane };
        let count = self.of_paused.entry((owner, what.to_owned(), since)).or_default();
        *count += 1;
        if *count == MOST_OF_PAUSED {
            self.problem(
                now,
                format!("{what} is delivered {MOST_OF_PAUSED} times to a worker that knows of its pause"),
            );
        }
    }

    /// A worker reads a record of a stream.
    pub(crate) fn record_read(&mut self, owner: OwnerId, message: &message::Message, now: Duration) {
        if *message.routing_key == *Directive::ROUTING_KEY
            && let Ok(directive) = serde_json::from_slice(&message.body)
        {
            self.directives.entry(owner).or_default().read(directive, now);
        }
    }

    /// Since when a directive has been in force that a worker knows of.
    fn knows(
        &self,
        owner: OwnerId,
        since: impl Fn(&KnownDirectives) -> Option<Duration>,
    ) -> Option<Duration> {
        self.directives.get(&owner).and_then(since)
    }

    /// A handler starts. Returns the number of the run, and how often its task ran before. `messages` are those that the task
    /// had to have by now: one, and one for each fork.
    pub(crate) fn begin(
        &mut self,
        owner: OwnerId,
        (id, messages): (&str, u32),
        attempt: u32,
        is_long: bool,
        now: Duration,
    ) -> (u64, u32) {
        let charged = self.charged.get(id).copied().unwrap_or(0);
        if attempt > charged + 1 {
            self.problem(now, format!("{id} starts attempt {attempt}, but {charged} attempts failed"));
        }
        if let Some((mode, since)) = self.stopping.get(&owner)
            && *mode != StopMode::Light
            && now > *since + STOP_TAKES
        {
            self.problem(now, format!("{id} starts on a worker that was told to stop: {mode:?}"));
        }
        let group = self.groups.get(id).map(|(group, _)| group.as_str());
        let lane = if is_long { LONG_LANE } else { SHORT_LANE };
        let paused = self.knows(owner, |known| {
            group.and_then(|group| known.group_paused_since(group)).or_else(|| known.lane_paused_since(lane))
        });
        if paused.is_some_and(|since| now > since + STOP_TAKES) {
            self.problem(
                now,
                format!("{id} starts on a worker that knows of the pause of its group or lane"),
            );
        }
        let stopped = self.knows(owner, |known| known.stopped_since(id));
        if stopped.is_some_and(|since| now > since + STOP_TAKES) {
            self.problem(now, format!("{id} starts on a worker that knows that it is stopped"));
        }
        // The due time in the message has milliseconds.
        if let Some(due) = self.due.get(id).copied().filter(|due| now + Duration::from_millis(1) < *due) {
            self.problem(now, format!("{id} starts before {:.3} s, when it is due", due.as_secs_f64()));
        }
        // A copy is another message, and the worker cannot know whether it is one of what it runs.
        let is_one = self.got.get(&(owner, id.to_owned())).is_none_or(|serials| serials.len() == 1);
        let is_same = |run: &Run| run.owner == owner && run.id == id;
        if is_long && is_one && self.running.iter().any(is_same) {
            self.problem(now, format!("{id} runs twice at once on one worker"));
        }
        self.runs += 1;
        self.running.push(Run { id: id.to_owned(), owner, number: self.runs, hangs_since: None });
        let begun = self.begun.entry(id.to_owned()).or_default();
        *begun += 1;
        let begun = *begun;
        if begun == MOST_RUNS * messages {
            self.problem(now, format!("{id} runs for the {begun}th time"));
        }
        (self.runs, begun - 1)
    }

    /// A handler waits until it is cancelled, since `now`.
    pub(crate) fn hangs(&mut self, number: u64, now: Duration) {
        if let Some(run) = self.running.iter_mut().find(|run| run.number == number) {
            run.hangs_since = Some(now);
        }
    }

    /// A handler's future ended, or was dropped. `is_charged` says that the attempt failed.
    pub(crate) fn end(&mut self, number: u64, is_charged: bool, now: Duration) {
        let Some(at) = self.running.iter().position(|run| run.number == number) else { return };
        let run = self.running.swap_remove(at);
        let stopped = self.knows(run.owner, |known| known.stopped_since(&run.id));
        if let (Some(stopped), Some(hangs)) = (stopped, run.hangs_since)
            && now > stopped.max(hangs) + CANCEL_TAKES
        {
            self.problem(now, format!("{} was stopped at {stopped:?}, and its run went on", run.id));
        }
        if self.is_stopping(run.owner) {
            *self.ended_late.entry(run.owner).or_default() += 1;
        }
        if is_charged {
            self.charge(&run.id);
        }
    }

    /// An attempt failed.
    pub(crate) fn charge(&mut self, id: &str) {
        *self.charged.entry(id.to_owned()).or_default() += 1;
    }

    /// A process crashed.
    pub(crate) fn crashed(&mut self, owner: OwnerId) {
        self.running.retain(|run| run.owner != owner);
        self.exited(owner);
    }

    /// A process ended. If it could not tell the broker of that, or of the end of a run, the fleet takes it for crashed.
    pub(crate) fn exited(&mut self, owner: OwnerId) {
        self.crashes += u32::from(self.left.insert(owner));
        for ((_, id), _) in self.recorded.extract_if(|(by, _), _| *by == owner) {
            *self.crashed_alone.entry(id).or_default() += 1;
        }
    }

    /// Handlers of a process that run, or have run since it was told to stop: those that it may abandon.
    pub(crate) fn running(&self, owner: OwnerId) -> usize {
        let ended = self.ended_late.get(&owner).copied().unwrap_or(0);
        self.running.iter().filter(|run| run.owner == owner).count() + ended
    }

    /// A process publishes a message. A worker whose control queue is gone may have crashed: the quarantine does not wait
    /// until that is known.
    pub(crate) fn published(&mut self, owner: OwnerId, message: &Message, lost_queues: u32, now: Duration) {
        match LifecycleRecord::of(message) {
            Some(LifecycleRecord::RunStarted { task }) => {
                self.recorded.insert((owner, task), Recorded { has_ended: false });
            }
            Some(LifecycleRecord::RunEnded { task }) => {
                if let Some(run) = self.recorded.get_mut(&(owner, task)) {
                    run.has_ended = true;
                }
            }
            Some(LifecycleRecord::Goodbye) | None => {}
        }
        let Some(id) = message.properties.message_id().as_ref().map(|id| id.as_str()) else { return };
        let headers = message.properties.headers();
        let key = message.target.routing_key.as_str();
        if let Some(reason) = header::get(headers, header::REASON).and_then(header::text)
            && let Ok(reason) = reason.parse::<DeadReason>()
        {
            if let Some(problem) = self.unfounded(id, reason, &message.body) {
                self.problem(now, format!("{id} becomes a dead letter: {reason:?}, but {problem}"));
            }
        } else if key == Names::new("garenne").quarantine_retry(Ladder::of_quarantine().rungs()[0])
            && header::get(headers, header::QUARANTINE_RUNS).is_none()
            && !self.in_quarantine.contains(id)
        {
            let returns = self.returns.get(id).copied().unwrap_or(0);
            if returns < 2 || self.crashes + lost_queues < 2 {
                let crashes = self.crashes + lost_queues;
                self.problem(
                    now,
                    format!("{id} is quarantined after {returns} redeliveries and {crashes} crashes"),
                );
            }
        }
    }

    /// The broker has confirmed a message of a process.
    pub(crate) fn confirmed(&mut self, owner: OwnerId, message: &Message) {
        match LifecycleRecord::of(message) {
            Some(LifecycleRecord::RunEnded { task }) => {
                // The next run may begin before the end of the last one is confirmed.
                let key = (owner, task);
                if self.recorded.get(&key).is_some_and(|run| run.has_ended) {
                    self.recorded.remove(&key);
                }
            }
            Some(LifecycleRecord::Goodbye) => _ = self.left.insert(owner),
            Some(LifecycleRecord::RunStarted { .. }) | None => {}
        }
    }

    /// Why a task must not be a dead letter for this reason.
    fn unfounded(&self, id: &str, reason: DeadReason, body: &[u8]) -> Option<String> {
        let count = |of: &HashMap<String, u32>| of.get(id).copied().unwrap_or(0);
        let work: Work = serde_json::from_slice(body).ok()?;
        match reason {
            DeadReason::AttemptsExhausted => {
                let charged = count(&self.charged);
                (charged < MAX_ATTEMPTS).then(|| format!("{charged} attempts failed"))
            }
            DeadReason::Poison => {
                let crashed = count(&self.crashed_alone);
                (crashed < 2).then(|| format!("its worker crashed in {crashed} runs alone"))
            }
            DeadReason::Rejected | DeadReason::Conflict => {
                // An orphan whose queue is still missing when its worker stops.
                let is_founded = work.does == Does::Reject || work.is_refused || self.orphans.contains(id);
                (!is_founded).then(|| "neither handler nor sink refuses it".to_owned())
            }
            DeadReason::Stopped => {
                let by_group = self.groups.get(id).is_some_and(|(group, published)| {
                    // The record of a group's stop has milliseconds.
                    let stopped = self.stopped_groups.get(group);
                    stopped.is_some_and(|at| *published <= *at + Duration::from_millis(1))
                });
                // The groups of follow-ups are not known here.
                let is_founded = by_group || self.stopped_tasks.contains(id) || !id.starts_with('t');
                (!is_founded).then(|| "no operator stopped it".to_owned())
            }
            // Expired, malformed, too large, of an unknown kind, and reasons that a history has not.
            _ => Some("nothing of it is so".to_owned()),
        }
    }

    /// Tasks that began, for progress reports.
    pub(crate) fn runs(&self) -> u64 {
        self.runs
    }
}

/// The lane that a task is of, by its kind: copies have it as their type, others as their routing key.
fn lane_of(message: &message::Message) -> Option<&'static str> {
    let kind = message.properties.kind().as_ref().map_or(&*message.routing_key, |kind| kind.as_str());
    match kind {
        LONG => Some(LONG_LANE),
        SHORT => Some(SHORT_LANE),
        _ => None,
    }
}
