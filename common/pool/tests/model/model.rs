//! A model of the pool: lists of tasks and a clock.

use std::{collections::BTreeMap, time::Duration};

use garenne_pool::{Cause, Ending, Refusal};

pub(crate) const QUEUE: usize = 12;
pub(crate) const WORKERS: usize = 3;
// Orders are sent at whole seconds. The other durations and their sums are not whole seconds, so that nothing is due
// at the moment at which pool and model are compared.
pub(crate) const TICK: Duration = Duration::from_millis(1_000);
const DEADLINE: Duration = Duration::from_millis(5_001);
/// The difference between the deadlines of two tasks in the pool. If two tasks ended at the same moment, their order
/// would be undefined.
const APART: Duration = Duration::from_millis(13);
pub(crate) const GRACE: Duration = Duration::from_millis(3_010);
pub(crate) const TIMEOUT: Duration = Duration::from_millis(4_100);
pub(crate) const HARD_GRACE: Duration = Duration::from_millis(1_010);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Short; returns at once.
    Quick,
    /// Short; panics.
    Panics,
    /// Short; returns when released.
    Holds,
    /// Long; returns when cancelled.
    AwaitsCancel,
    /// Long; never returns.
    IgnoreCancel,
    /// Long; returns when cancelled, but every shard except the first panics.
    ShardsPanic,
}

impl Kind {
    pub(crate) fn is_long(self) -> bool {
        matches!(self, Self::AwaitsCancel | Self::IgnoreCancel | Self::ShardsPanic)
    }
}

/// A task, or one shard of it.
#[derive(Clone, Copy)]
struct Waiting {
    number: usize,
    kind: Kind,
    group: Option<usize>,
    deadline: Duration,
    shard: u32,
    width: u32,
}

/// A task and its shard.
pub(crate) type Key = (usize, u32);

impl Waiting {
    fn key(&self) -> Key {
        (self.number, self.shard)
    }
}

/// A task of several shards, some of which have started.
struct Sharded {
    remaining: u32,
    cancelled_by: Option<Cause>,
    failure: Option<Ending<()>>,
}

struct Running {
    task: Waiting,
    deadline: Duration,
    /// Why it was cancelled, and when it is given up.
    limit: Option<(Cause, Duration)>,
}

#[derive(Default, Clone, Copy)]
struct Group {
    paused: bool,
    cap: Option<usize>,
}

pub(crate) struct Model {
    now: Duration,
    waiting: Vec<Waiting>,
    /// Shards whose task has started. They alternate with the waiting tasks.
    shards: Vec<Waiting>,
    shard_next: bool,
    wide: BTreeMap<usize, Sharded>,
    pub(crate) any_wide: bool,
    running: Vec<Running>,
    groups: Vec<Group>,
    /// The phase of the shutdown: none, then the modes in their order.
    phase: Option<u8>,
    hard_at: Option<Duration>,
    pub(crate) submitted: usize,
    pub(crate) admitted: u64,
    pub(crate) starts: Vec<usize>,
    pub(crate) endings: BTreeMap<usize, Ending<()>>,
}

impl Model {
    pub(crate) fn new(groups: usize) -> Self {
        Self {
            now: Duration::ZERO,
            waiting: Vec::new(),
            shards: Vec::new(),
            shard_next: false,
            wide: BTreeMap::new(),
            any_wide: false,
            running: Vec::new(),
            groups: vec![Group::default(); groups],
            phase: None,
            hard_at: None,
            submitted: 0,
            admitted: 0,
            starts: Vec::new(),
            endings: BTreeMap::new(),
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len() + self.shards.len()
    }

    /// The numbers of the running tasks, once for each running shard.
    pub(crate) fn running_numbers(&self) -> Vec<usize> {
        self.running_keys().into_iter().map(|(number, _)| number).collect()
    }

    fn running_keys(&self) -> Vec<Key> {
        let mut keys: Vec<_> = self.running.iter().map(|running| running.task.key()).collect();
        keys.sort_unstable();
        keys
    }

    /// The deadline of the next task.
    pub(crate) fn next_deadline(&self) -> Duration {
        DEADLINE + APART * (self.admitted % QUEUE as u64) as u32
    }

    pub(crate) fn submit(&mut self, kind: Kind, group: Option<usize>, width: u32) -> Option<Refusal> {
        let number = self.submitted;
        self.submitted += 1;
        if width as usize > WORKERS {
            return Some(Refusal::TooManyWorkers { asked: width, max: WORKERS });
        }
        if self.phase.is_some() {
            return Some(Refusal::PoolClosed);
        }
        if self.admitted - self.endings.len() as u64 >= QUEUE as u64 {
            return Some(Refusal::QueueFull { limit: QUEUE });
        }
        let deadline = self.next_deadline();
        self.any_wide |= width > 1;
        self.admitted += 1;
        self.waiting.push(Waiting { number, kind, group, deadline, shard: 0, width });
        None
    }

    pub(crate) fn release(&mut self, nth: usize) -> Option<Key> {
        let holding = |running: &&Running| running.task.kind == Kind::Holds;
        let key = self.running.iter().filter(holding).nth(nth)?.task.key();
        self.end_running(key, Ending::Finished { output: (), cancelled_by: None });
        Some(key)
    }

    pub(crate) fn stop(&mut self, number: usize) -> bool {
        self.stop_where(|task| task.number == number) > 0
    }

    pub(crate) fn stop_group(&mut self, group: usize) -> usize {
        self.stop_where(|task| task.group == Some(group))
    }

    fn stop_where(&mut self, matches: impl Fn(&Waiting) -> bool) -> usize {
        let dropped = self.take_waiting(&matches);
        let mut stopped = 0;
        for running in &mut self.running {
            if matches(&running.task) && running.task.kind.is_long() && running.limit.is_none() {
                running.limit = Some((Cause::Stopped, self.now + GRACE));
                stopped += 1;
            }
        }
        let found = dropped.len() + stopped;
        self.end_waiting(dropped, Cause::Stopped);
        self.return_cancelled();
        found
    }

    pub(crate) fn pause(&mut self, group: usize, paused: bool) {
        self.groups[group].paused = paused;
        self.hand_back_paused();
    }

    pub(crate) fn cap(&mut self, group: usize, cap: Option<usize>) {
        self.groups[group].cap = cap;
        self.hand_back_paused();
    }

    pub(crate) fn shutdown(&mut self, mode: u8) {
        self.phase = Some(self.phase.map_or(mode, |phase| phase.max(mode)));
        match mode {
            2 if self.phase != Some(3) => {
                let at = self.now + TIMEOUT;
                self.hard_at = Some(self.hard_at.map_or(at, |earlier| earlier.min(at)));
            }
            3 => self.hard(),
            _ => {}
        }
        if self.phase > Some(0) {
            // A shard whose task has started belongs to the running tasks.
            self.drop_waiting(|task| task.shard == 0, Cause::Shutdown);
        }
        self.hand_back_paused();
    }

    fn hard(&mut self) {
        self.phase = Some(3);
        self.hard_at = None;
        let give_up = self.now + HARD_GRACE;
        for running in &mut self.running {
            let (_, at) = running.limit.get_or_insert((Cause::Shutdown, give_up));
            *at = give_up.min(*at);
        }
        self.drop_waiting(|_| true, Cause::Shutdown);
        self.return_cancelled();
    }

    /// Advances the clock, from one due event to the next.
    pub(crate) fn pass(&mut self, by: Duration) {
        let until = self.now + by;
        self.start();
        while let Some(due) = self.next_due().filter(|due| *due <= until) {
            self.now = due;
            self.fall_due();
            self.start();
        }
        self.now = until;
    }

    fn next_due(&self) -> Option<Duration> {
        let due = |running: &Running| match running.limit {
            Some((_, give_up)) => Some(give_up),
            None => running.task.kind.is_long().then_some(running.deadline),
        };
        self.running.iter().filter_map(due).chain(self.hard_at).min()
    }

    fn fall_due(&mut self) {
        let now = self.now;
        for running in &mut self.running {
            if running.task.kind.is_long() && running.limit.is_none() && running.deadline <= now {
                running.limit = Some((Cause::Deadline, now + GRACE));
            }
        }
        self.return_cancelled();
        if self.hard_at.is_some_and(|at| at <= now) {
            self.hard();
        }
        for key in self.running_keys() {
            let Some(running) = self.running.iter().find(|running| running.task.key() == key) else {
                continue;
            };
            if let Some((cause, give_up)) = running.limit
                && give_up <= now
            {
                let stuck = !running.task.kind.is_long();
                self.end_running(key, Ending::GaveUp { cause, stuck });
            }
        }
    }

    /// Tasks that watch for cancellation return at once.
    fn return_cancelled(&mut self) {
        for key in self.running_keys() {
            let Some(running) = self.running.iter().find(|running| running.task.key() == key) else {
                continue;
            };
            if matches!(running.task.kind, Kind::AwaitsCancel | Kind::ShardsPanic)
                && let Some((cause, _)) = running.limit
            {
                self.end_running(key, Ending::Finished { output: (), cancelled_by: Some(cause) });
            }
        }
    }

    fn start(&mut self) {
        while self.running.len() < WORKERS {
            let Some(task) = self.take() else { return };
            self.starts.push(task.number);
            match task.kind {
                Kind::Quick => self.end_shard(task, Ending::Finished { output: (), cancelled_by: None }),
                Kind::ShardsPanic if task.shard == 0 => self.run(task),
                Kind::Panics | Kind::ShardsPanic => {
                    self.end_shard(task, Ending::Panicked { message: "test panic".to_owned() });
                }
                Kind::Holds | Kind::AwaitsCancel | Kind::IgnoreCancel => self.run(task),
            }
        }
    }

    fn run(&mut self, task: Waiting) {
        self.running.push(Running { task, deadline: self.now + task.deadline, limit: None });
    }

    fn take(&mut self) -> Option<Waiting> {
        loop {
            let first = self.waiting.iter().position(|task| self.may_start(task));
            if !self.shards.is_empty() && (self.shard_next || first.is_none()) {
                let task = self.shards.remove(0);
                if self.may_start(&task) {
                    self.shard_next = false;
                    return Some(task);
                }
                // Its group may not start it. It now waits like any other task of its age.
                let at = self.waiting.partition_point(|other| other.number < task.number);
                self.waiting.insert(at, task);
                continue;
            }
            let task = self.waiting.remove(first?);
            self.shard_next = true;
            if task.shard == 0 && task.width > 1 {
                self.wide.insert(
                    task.number,
                    Sharded { remaining: task.width, cancelled_by: None, failure: None },
                );
                self.shards.extend((1..task.width).map(|shard| Waiting { shard, ..task }));
            }
            return Some(task);
        }
    }

    fn may_start(&self, task: &Waiting) -> bool {
        let Some(group) = task.group else { return true };
        let running = self.running.iter().filter(|running| running.task.group == Some(group)).count();
        let Group { paused, cap } = self.groups[group];
        !paused && cap.is_none_or(|cap| running < cap)
    }

    fn hand_back_paused(&mut self) {
        if self.phase.is_some() {
            let paused: Vec<bool> =
                self.groups.iter().map(|group| group.paused || group.cap == Some(0)).collect();
            self.drop_waiting(|task| task.group.is_some_and(|group| paused[group]), Cause::Shutdown);
        }
    }

    fn drop_waiting(&mut self, matches: impl Fn(&Waiting) -> bool, cause: Cause) {
        let dropped = self.take_waiting(matches);
        self.end_waiting(dropped, cause);
    }

    fn take_waiting(&mut self, matches: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let mut dropped: Vec<_> = self.waiting.extract_if(.., |task| matches(task)).collect();
        dropped.extend(self.shards.extract_if(.., |task| matches(task)));
        dropped
    }

    fn end_waiting(&mut self, dropped: Vec<Waiting>, cause: Cause) {
        for task in dropped {
            if task.shard == 0 {
                self.end(task.number, Ending::NotStarted { cause });
            } else {
                // Other shards started, so the task as a whole did.
                self.end_shard(task, Ending::GaveUp { cause, stuck: false });
            }
        }
    }

    fn end_running(&mut self, key: Key, ending: Ending<()>) {
        let at = self.running.iter().position(|running| running.task.key() == key).unwrap();
        let Running { task, .. } = self.running.remove(at);
        self.end_shard(task, ending);
    }

    /// A task ends with its last shard: with its first failure, or else finished.
    fn end_shard(&mut self, task: Waiting, ending: Ending<()>) {
        if task.width == 1 {
            return self.end(task.number, ending);
        }
        let wide = self.wide.get_mut(&task.number).unwrap();
        wide.remaining -= 1;
        let mut first_failure = false;
        match ending {
            Ending::Finished { cancelled_by, .. } => wide.cancelled_by = wide.cancelled_by.or(cancelled_by),
            failure => {
                first_failure = wide.failure.is_none();
                wide.failure.get_or_insert(failure);
            }
        }
        if wide.remaining == 0 {
            let ending = wide
                .failure
                .take()
                .unwrap_or(Ending::Finished { output: (), cancelled_by: wide.cancelled_by });
            self.end(task.number, ending);
        } else if first_failure {
            self.stop_where(|other| other.number == task.number);
        }
    }

    fn end(&mut self, number: usize, ending: Ending<()>) {
        assert!(self.endings.insert(number, ending).is_none(), "the model ended {number} twice");
    }
}
