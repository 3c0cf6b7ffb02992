//! The pool as a list of tasks and a clock.

use std::{collections::BTreeMap, time::Duration};

use garenne_common::pool::{Cause, Ending, Refusal};

pub(crate) const QUEUE: usize = 12;
pub(crate) const WORKERS: usize = 3;
// Orders come at whole seconds. The rest are no whole seconds, nor are their sums, so that nothing is
// ever due at the very moment at which pool and model are compared.
pub(crate) const TICK: Duration = Duration::from_millis(1_000);
pub(crate) const DEADLINE: Duration = Duration::from_millis(5_001);
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
    /// Long; returns when told.
    Obeys,
    /// Long; never returns.
    Deaf,
}

impl Kind {
    pub(crate) fn is_long(self) -> bool {
        matches!(self, Self::Obeys | Self::Deaf)
    }
}

#[derive(Clone, Copy)]
struct Waiting {
    number: usize,
    kind: Kind,
    group: Option<usize>,
}

struct Running {
    task: Waiting,
    deadline: Duration,
    /// Why it was told, and when it is given up.
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
    running: Vec<Running>,
    groups: Vec<Group>,
    /// How far the shutdown is: none, then the modes in their order.
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
        self.waiting.len()
    }

    pub(crate) fn running_numbers(&self) -> Vec<usize> {
        let mut numbers: Vec<_> = self.running.iter().map(|running| running.task.number).collect();
        numbers.sort_unstable();
        numbers
    }

    pub(crate) fn submit(&mut self, kind: Kind, group: Option<usize>) -> Option<Refusal> {
        let number = self.submitted;
        self.submitted += 1;
        if self.phase.is_some() {
            return Some(Refusal::PoolClosed);
        }
        if self.waiting.len() + self.running.len() >= QUEUE {
            return Some(Refusal::QueueFull { limit: QUEUE });
        }
        self.admitted += 1;
        self.waiting.push(Waiting { number, kind, group });
        None
    }

    pub(crate) fn release(&mut self, nth: usize) -> Option<usize> {
        let holding = |running: &&Running| running.task.kind == Kind::Holds;
        let number = self.running.iter().filter(holding).nth(nth)?.task.number;
        self.end_running(number, Ending::Finished { output: (), told: None });
        Some(number)
    }

    pub(crate) fn stop(&mut self, number: usize) -> bool {
        self.stop_where(|task| task.number == number) > 0
    }

    pub(crate) fn stop_group(&mut self, group: usize) -> usize {
        self.stop_where(|task| task.group == Some(group))
    }

    fn stop_where(&mut self, matches: impl Fn(&Waiting) -> bool) -> usize {
        let mut found = self.drop_waiting(&matches, Cause::Stopped);
        for number in self.running_numbers() {
            let now = self.now;
            let Some(running) = self.running.iter_mut().find(|running| running.task.number == number) else {
                continue;
            };
            if matches(&running.task) && running.task.kind.is_long() && running.limit.is_none() {
                running.limit = Some((Cause::Stopped, now + GRACE));
                found += 1;
            }
        }
        self.obey();
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
            self.drop_waiting(|_| true, Cause::Shutdown);
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
        self.obey();
    }

    /// Lets time pass, from one thing that is due to the next.
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
        self.obey();
        if self.hard_at.is_some_and(|at| at <= now) {
            self.hard();
        }
        for number in self.running_numbers() {
            let Some(running) = self.running.iter().find(|running| running.task.number == number) else {
                continue;
            };
            if let Some((cause, give_up)) = running.limit
                && give_up <= now
            {
                let stuck = !running.task.kind.is_long();
                self.end_running(number, Ending::GaveUp { cause, stuck });
            }
        }
    }

    /// Who listens returns as soon as he is told.
    fn obey(&mut self) {
        for number in self.running_numbers() {
            let Some(running) = self.running.iter().find(|running| running.task.number == number) else {
                continue;
            };
            if running.task.kind == Kind::Obeys
                && let Some((cause, _)) = running.limit
            {
                self.end_running(number, Ending::Finished { output: (), told: Some(cause) });
            }
        }
    }

    fn start(&mut self) {
        while self.running.len() < WORKERS {
            let Some(at) = self.waiting.iter().position(|task| self.may_start(task)) else { return };
            let task = self.waiting.remove(at);
            self.starts.push(task.number);
            match task.kind {
                Kind::Quick => self.end(task.number, Ending::Finished { output: (), told: None }),
                Kind::Panics => self.end(task.number, Ending::Panicked { message: "as asked".to_owned() }),
                Kind::Holds | Kind::Obeys | Kind::Deaf => {
                    self.running.push(Running { task, deadline: self.now + DEADLINE, limit: None });
                }
            }
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

    fn drop_waiting(&mut self, matches: impl Fn(&Waiting) -> bool, cause: Cause) -> usize {
        let (dropped, kept): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(|task| matches(task));
        self.waiting = kept;
        for task in &dropped {
            self.end(task.number, Ending::NotStarted { cause });
        }
        dropped.len()
    }

    fn end_running(&mut self, number: usize, ending: Ending<()>) {
        self.running.retain(|running| running.task.number != number);
        self.end(number, ending);
    }

    fn end(&mut self, number: usize, ending: Ending<()>) {
        assert!(self.endings.insert(number, ending).is_none(), "the model ended {number} twice");
    }
}
