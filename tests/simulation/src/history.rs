//! What happens in a history besides the engine's own work, as data that a seed determines.

use std::{ops::RangeInclusive, time::Duration};

use garenne_protocol::topology::BrokerVersion;

use crate::{
    connection::{ArmedFault, Fate, Moment, Target},
    frame::FrameKind,
    random::Random,
};

/// A history: replaying its steps on engines with the same seed gives the same events.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// Seeds everything else that is random, such as the broker's latencies.
    pub seed: u64,
    /// The broker's version.
    pub version: BrokerVersion,
    /// What happens, in order of time.
    pub steps: Vec<Step>,
}

/// Consumer timeouts of histories that have a short one: more than a long task may take, and less than tasks wait behind others.
const CONSUMER_TIMEOUTS: RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_secs(12);

/// Something that happens at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// When, since the start.
    pub at: Duration,
    /// What.
    pub action: Action,
}

/// What happens. Workers are numbered from 0.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A publisher publishes the task of this number.
    Publish(u32),
    /// An operator stops a worker in this mode.
    Stop(u8, StopMode),
    /// A worker's process ends at once.
    Crash(u8),
    /// A worker that has ended is started again.
    Start(u8),
    /// A worker takes no new tasks.
    Pause(u8),
    /// It takes tasks again.
    Resume(u8),
    /// A fault of a worker's connections waits for a frame.
    Arm(u8, ArmedFault),
    /// The next publishes of a worker have these fates.
    Fates(u8, Vec<Fate>),
    /// The connections of a worker break.
    Disconnect(u8),
    /// The broker restarts and is away for a while.
    Restart(Duration),
    /// The broker does nothing for a while.
    Freeze(Duration),
    /// A resource alarm lasts for a while.
    Alarm(Duration),
    /// A worker's process ends at its frame after this number of frames.
    CrashAt(u8, u32),
    /// The broker closes one of a worker's channels.
    KillChannel(u8),
    /// An operator stops the task of this number.
    StopTask(u32),
    /// An operator stops a group.
    StopGroup(u8),
    /// An operator pauses a group.
    PauseGroup(u8),
    /// It goes on.
    ResumeGroup(u8),
    /// An operator pauses a lane.
    PauseLane(u8),
    /// It goes on.
    ResumeLane(u8),
    /// A policy sets the consumer timeout of all queues, which workers do not know.
    LimitConsumers(Duration),
    /// An operator deletes the queue of a lane.
    DeleteQueue(u8),
}

/// How a worker is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Everything that it holds is done first.
    Light,
    /// What runs is done; the rest is requeued.
    Soft,
    /// As soft, with a time limit.
    SoftTimeout,
    /// Everything is requeued.
    Hard,
}

/// How large histories are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Tasks that publishers publish.
    pub tasks: u32,
    /// Workers.
    pub workers: u8,
    /// Faults and actions of operators.
    pub faults: u32,
    /// The time in which all of it happens.
    pub span: Duration,
}

impl Default for Scale {
    fn default() -> Self {
        Self { tasks: 100, workers: 3, faults: 12, span: Duration::from_secs(20) }
    }
}

impl History {
    /// The history of a seed.
    pub fn generate(seed: u64, version: BrokerVersion, scale: Scale) -> Self {
        let mut random = Random::new(seed);
        let mut steps = Vec::new();
        for task in 0..scale.tasks {
            let at = random.between(&(Duration::ZERO..=scale.span));
            steps.push(Step { at, action: Action::Publish(task) });
        }
        for _ in 0..scale.faults {
            let at = random.between(&(Duration::ZERO..=scale.span));
            add_fault(&mut steps, &mut random, at, scale.workers);
        }
        if random.chance(120) {
            let limit = random.between(&CONSUMER_TIMEOUTS);
            steps.push(Step { at: Duration::ZERO, action: Action::LimitConsumers(limit) });
        }
        if random.chance(120) {
            let at = random.between(&(Duration::ZERO..=scale.span));
            steps.push(Step { at, action: Action::DeleteQueue(random.below(2) as u8) });
        }
        steps.sort_by_key(|step| step.at);
        let mut history = Self { seed: random.next_u64(), version, steps };
        history.leave_out_known_forks();
        history
    }

    /// Leaves out what docs/reliability.md lists of messages of a deleted queue: a copy of such a message whose confirm is late is
    /// given up, and the message is published again, although the copy may be confirmed.
    fn leave_out_known_forks(&mut self) {
        let has = |is_wanted: fn(&Action) -> bool| self.steps.iter().any(|it| is_wanted(&it.action));
        // From 4.3 on, a consumer timeout looks like a deletion.
        let may_be_orphans = has(|it| matches!(it, Action::DeleteQueue(_)))
            || self.version >= BrokerVersion { major: 4, minor: 3 }
                && has(|it| matches!(it, Action::LimitConsumers(_)));
        if may_be_orphans {
            self.steps
                .retain(|it| !matches!(it.action, Action::Fates(..) | Action::Alarm(_) | Action::Freeze(_)));
        }
    }
}

/// Adds one fault, and what undoes it.
fn add_fault(steps: &mut Vec<Step>, random: &mut Random, at: Duration, workers: u8) {
    let worker = random.below(workers.into()) as u8;
    let pause = random.between(&(Duration::from_millis(1)..=Duration::from_secs(3)));
    let mut add = |at, action| steps.push(Step { at, action });
    match random.below(18) {
        0 | 1 => {
            let modes = [StopMode::Light, StopMode::Soft, StopMode::SoftTimeout, StopMode::Hard];
            add(at, Action::Stop(worker, *random.choose(&modes)));
            add(at + pause, Action::Start(worker));
        }
        2 => {
            add(at, Action::Crash(worker));
            add(at + pause, Action::Start(worker));
        }
        3 => {
            add(at, Action::Pause(worker));
            add(at + pause, Action::Resume(worker));
        }
        4 => add(at, Action::Disconnect(worker)),
        5 => add(at, Action::Restart(pause)),
        6 => add(at, Action::Freeze(pause)),
        7 => add(at, Action::Alarm(pause)),
        8 | 9 => add(at, Action::Arm(worker, armed(random))),
        10 => {
            add(at, Action::CrashAt(worker, random.below(40) as u32));
            add(at + pause, Action::Start(worker));
        }
        11 => add(at, Action::KillChannel(worker)),
        12 => add(at, Action::StopTask(random.below(100) as u32)),
        13 => add(at, Action::StopGroup(random.below(3) as u8)),
        14 => {
            let group = random.below(3) as u8;
            add(at, Action::PauseGroup(group));
            add(at + pause, Action::ResumeGroup(group));
        }
        15 => {
            let lane = random.below(2) as u8;
            add(at, Action::PauseLane(lane));
            add(at + pause, Action::ResumeLane(lane));
        }
        _ => {
            let count = 1 + random.below(5);
            add(at, Action::Fates(worker, (0..count).map(|_| fate(random)).collect()));
        }
    }
}

fn armed(random: &mut Random) -> ArmedFault {
    use FrameKind::{Cancel, Close, Consume, Get, Publish, Settle};
    ArmedFault {
        on: Some(*random.choose(&[Consume, Cancel, Get, Settle, Settle, Publish, Publish, Close])),
        skip: random.below(8) as u32,
        moment: *random.choose(&[Moment::Before, Moment::After]),
        target: *random.choose(&[Target::Channel, Target::Connection]),
    }
}

fn fate(random: &mut Random) -> Fate {
    match random.below(50) {
        0..10 => Fate::Late(random.between(&(Duration::from_millis(10)..=Duration::from_secs(15)))),
        10..20 => Fate::Refused,
        20..30 => Fate::RefusedButStored,
        30..39 => Fate::LostWithConnection,
        39 => Fate::NeverConfirmed,
        _ => Fate::Prompt,
    }
}

/// The shortest list that was found by removing items while `fails` holds, given that it holds for `items`.
///
/// It removes everything first, then halves, then quarters, and so on to single items, which it tries again as long as that
/// shortens the list. No single item of the result can be removed.
pub fn shrink<T: Clone>(items: &[T], mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut kept = items.to_vec();
    let mut size = kept.len();
    while size > 0 {
        let mut at = 0;
        let before = kept.len();
        while at < kept.len() {
            let end = (at + size).min(kept.len());
            let without = [&kept[..at], &kept[end..]].concat();
            if fails(&without) {
                kept = without;
            } else {
                at = end;
            }
        }
        if size > 1 {
            size = size.div_ceil(2).min(size - 1);
        } else if kept.len() == before {
            size = 0;
        }
    }
    kept
}

impl History {
    /// The history with the fewest steps for which `fails` holds that could be found.
    #[must_use]
    pub fn shrink(&self, mut fails: impl FnMut(&Self) -> bool) -> Self {
        let with = |steps: &[Step]| Self { steps: steps.to_vec(), ..self.clone() };
        with(&shrink(&self.steps, |steps| fails(&with(steps))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_its_history_which_is_in_order() {
        let history = |seed| History::generate(seed, "4.0".parse().unwrap(), Scale::default());
        assert_eq!(history(1), history(1));
        assert_ne!(history(1), history(2));
        assert!(history(1).steps.is_sorted_by_key(|step| step.at));
        let published = history(1).steps.iter().filter(|it| matches!(it.action, Action::Publish(_))).count();
        assert_eq!(published, 100);
        assert!(history(1).steps.len() >= 112, "{}", history(1).steps.len());
    }

    #[test]
    fn each_rare_action_and_fate_is_in_some_of_the_first_histories() {
        let actions = (0..300).flat_map(|seed| {
            History::generate(seed, "4.0".parse().unwrap(), Scale::default()).steps.into_iter()
        });
        let (mut limits, mut deletions, mut never_confirmed) = (0, 0, 0);
        for step in actions {
            match step.action {
                Action::LimitConsumers(_) => {
                    assert_eq!(step.at, Duration::ZERO, "before workers consume");
                    limits += 1;
                }
                Action::DeleteQueue(_) => deletions += 1,
                Action::Fates(_, fates) => {
                    never_confirmed += fates.iter().filter(|it| **it == Fate::NeverConfirmed).count();
                }
                _ => {}
            }
        }
        assert!(
            limits >= 20 && deletions >= 20 && never_confirmed >= 10,
            "{limits}, {deletions}, {never_confirmed}"
        );
    }

    #[test]
    fn shrinking_leaves_only_what_the_failure_needs() {
        let mut tried = 0;
        let kept = shrink(&(0..1000).collect::<Vec<u32>>(), |items| {
            tried += 1;
            items.contains(&17) && items.contains(&18) && items.contains(&900)
        });
        assert_eq!(kept, [17, 18, 900]);
        assert!(tried < 200, "{tried}");
        assert_eq!(shrink(&[1, 2, 3], |_| true), [0; 0]);
        assert_eq!(
            shrink(&[1, 2], |items| items.len() != 1),
            [0; 0],
            "two items that can only be removed together"
        );
    }

    #[test]
    fn a_history_shrinks_to_its_faulty_steps() {
        let history = History::generate(3, "4.0".parse().unwrap(), Scale::default());
        let is_task = |number: u32| move |step: &Step| step.action == Action::Publish(number);
        let shrunk = history.shrink(|it| it.steps.iter().any(is_task(7)) && it.steps.iter().any(is_task(8)));
        assert_eq!((shrunk.steps.len(), shrunk.seed), (2, history.seed));
    }
}
