//! What the tasks of a history do, as a seed determines it.

use std::time::{Duration, SystemTime};

use garenne_amqp::{Message, Target};
use garenne_protocol::{
    task::{ContentType, Kind, NewTask, TaskId},
    topology::Names,
};
use serde::{Deserialize, Serialize};

use crate::random::Random;

/// The kind of short tasks.
pub(crate) const SHORT: &str = "sim.short";
/// The lane of short tasks.
pub(crate) const SHORT_LANE: &str = "fast";
/// The kind of long tasks.
pub(crate) const LONG: &str = "sim.long";
/// The lane of long tasks. It is not the first one by name, so that a stop must reach all.
pub(crate) const LONG_LANE: &str = "long";
/// The deadline of long tasks.
pub(crate) const DEADLINE: Duration = Duration::from_secs(4);
/// Attempts of a task.
pub(crate) const MAX_ATTEMPTS: u32 = 3;

/// The payload of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Work {
    /// How long it works, in milliseconds.
    pub(crate) ms: u64,
    pub(crate) does: Does,
    /// How often it does that before it succeeds.
    pub(crate) times: u32,
    /// Whether it requests a follow-up.
    pub(crate) follow: bool,
    /// Whether the sink refuses its result.
    pub(crate) is_refused: bool,
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Does {
    Succeed,
    Retry,
    Snooze,
    Panic,
    Reject,
    /// Ends only when it is cancelled.
    Hang,
    /// Ignores its cancellation.
    Ignore,
    /// Crashes its process.
    Crash,
}

/// A task to publish.
pub(crate) struct Plan {
    pub(crate) id: String,
    pub(crate) kind: &'static str,
    pub(crate) work: Work,
    pub(crate) group: Option<u8>,
    pub(crate) delay: Option<Duration>,
}

impl Plan {
    /// The task of this number in the history of a seed. It does not depend on other tasks.
    pub(crate) fn of(seed: u64, number: u32) -> Self {
        let mut random = Random::new(seed ^ u64::from(number).wrapping_mul(0x9e37_79b9));
        let kind = if random.chance(600) { SHORT } else { LONG };
        let (mut ms, mut times) = (random.below(400), 1 + random.below(2) as u32);
        let does = match random.below(1000) {
            0..680 => Does::Succeed,
            680..770 => Does::Retry,
            770..800 => {
                times = u32::MAX;
                Does::Retry
            }
            800..840 => Does::Snooze,
            840..880 => Does::Panic,
            880..930 => Does::Reject,
            930..960 => Does::Hang,
            960..980 => Does::Ignore,
            980..990 => {
                times = u32::MAX;
                Does::Crash
            }
            _ => {
                ms = 3_000;
                Does::Succeed
            }
        };
        // Short tasks cannot be cancelled.
        let kind = if matches!(does, Does::Hang | Does::Ignore) { LONG } else { kind };
        let work = Work { ms, does, times, follow: random.chance(80), is_refused: random.chance(30) };
        let group = random.chance(300).then(|| random.below(3) as u8);
        let delay = random.chance(40).then(|| Duration::from_millis(100 + random.below(3_000)));
        Self { id: format!("t{number}"), kind, work, group, delay }
    }

    /// The message that a client publishes.
    pub(crate) fn message(&self, now: SystemTime) -> Message {
        let body = serde_json::to_vec(&self.work).expect("it is plain data");
        let task = NewTask {
            group: self.group.map(group_name),
            delay: self.delay,
            ..NewTask::with_id(
                TaskId::parse(&self.id).expect("it is short"),
                Kind::parse(self.kind).expect("it is a routing key"),
                ContentType::Json,
                body,
            )
        };
        let target = Target::exchange(Names::new("garenne").tasks(), self.kind.to_owned());
        Message { target, properties: task.properties(now), body: task.body.into() }
    }
}

pub(crate) fn group_name(group: u8) -> String {
    format!("g{group}")
}
