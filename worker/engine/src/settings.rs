//! The worker's settings.

use std::{path::PathBuf, time::Duration};

use garenne_common::{
    config::{Common, Invalid, Lanes, Retry, Settings, Size, host_name, list},
    random,
    shutdown::Mode,
};
use serde::{Deserialize, Serialize};

use crate::reply_queues::ReplyQueues;

/// The name of a sink: `stdout`, `results`, or one that the program adds with
/// [`WorkerBuilder::named_sink`](crate::WorkerBuilder::named_sink).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SinkName(pub String);

impl SinkName {
    /// One JSON line for each result on standard output.
    pub const STDOUT: &'static str = "stdout";
    /// One message for each result on the results exchange.
    pub const RESULTS: &'static str = "results";
}

/// The settings of a worker. Every field has a default.
///
/// A program with settings of its own puts this type into its settings type with `#[serde(flatten)]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerConfig {
    /// Settings that every Garenne program has: broker, prefix, logs, admin port.
    #[serde(flatten)]
    pub common: Common,
    /// The lanes of the fleet, and which of them this worker consumes.
    pub lanes: Lanes,
    /// The delays of the retry queues.
    pub retry: Retry,
    /// Sinks that store results before a task is acked. Without one, a task is acked when its handler succeeds.
    #[serde(with = "list")]
    pub sinks: Vec<SinkName>,
    /// How the worker stops if the command names no mode. Default: soft-timeout.
    pub shutdown_mode: Mode,
    /// How long soft-timeout waits for running tasks before it turns into hard, and how long light and soft wait for a sink or
    /// the broker once all tasks have ended. Default: 25 s.
    #[serde(with = "humantime_serde")]
    pub shutdown_timeout: Duration,
    /// How long a hard stop waits for short tasks, and how long a cancelled long task may take to return in any mode.
    /// Default: 2 s.
    #[serde(with = "humantime_serde")]
    pub hard_grace: Duration,
    /// The time between SIGTERM and SIGKILL that the orchestrator grants. The start fails if the settings above need
    /// more.
    #[serde(with = "humantime_serde")]
    pub termination_grace: Option<Duration>,
    /// File for the shutdown receipt, besides stderr.
    pub receipt: Option<PathBuf>,
    /// The worker's name, unique in the fleet. Default: the host name and a random part.
    pub worker_id: Option<String>,
    /// Maximum number of attempts for kinds that set none, at least 1. Default: 5.
    pub max_attempts: u32,
    /// How long a task whose kind no running worker has waits before it becomes a dead letter, at most 30 days; 0 if it
    /// does not wait. Default: 10 min.
    #[serde(with = "humantime_serde")]
    pub unknown_kind_wait: Duration,
    /// The largest body that is processed, bytes. Larger ones become dead letters. Default: 4 MiB.
    pub max_payload: Size,
    /// Answers tasks that have `reply_to`, at their end. Needs write permission on `amq.default`, which copies need as well.
    /// Default: true.
    pub replies: bool,
    /// Queues that answers may go to besides direct reply queues (`amq.rabbitmq.reply-to.*`): names, or prefixes with `*`.
    /// None of them may be a queue of the fleet.
    pub reply_queues: ReplyQueues,
    /// How long the worker waits for the broker at its start. Default: 30 s.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            common: Common::default(),
            lanes: Lanes::default(),
            retry: Retry::default(),
            sinks: Vec::new(),
            shutdown_mode: Mode::default(),
            shutdown_timeout: Duration::from_secs(25),
            hard_grace: Duration::from_secs(2),
            termination_grace: None,
            receipt: None,
            worker_id: None,
            max_attempts: 5,
            unknown_kind_wait: Duration::from_secs(600),
            max_payload: Size::mib(4),
            replies: true,
            reply_queues: ReplyQueues::default(),
            connect_timeout: Duration::from_secs(30),
        }
    }
}

/// The longest [`WorkerConfig::unknown_kind_wait`].
const MAX_WAIT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Maximum length of a worker id; it is part of the name of its control queue.
const MAX_ID_LENGTH: usize = 64;

impl Settings for WorkerConfig {
    const PER_LANE: &'static [&'static str] = &["prefetch", "concurrency"];

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn validate(&self) -> Result<(), Invalid> {
        self.common.validate()?;
        self.lanes.validate(&self.common.prefix)?;
        self.retry.ladder()?;
        Invalid::unless(self.max_attempts > 0, "max_attempts", "0", "expected 1 or more")?;
        self.reply_queues.validate(&self.common.prefix)?;
        Invalid::unless(self.max_payload.bytes() > 0, "max_payload", "0", "expected 1B or more")?;
        let wait = self.unknown_kind_wait;
        let value = humantime::format_duration(wait);
        Invalid::unless(wait <= MAX_WAIT, "unknown_kind_wait", value, "expected 0s to 30days")?;
        let problem = format!("expected 1 to {MAX_ID_LENGTH} of a-z A-Z 0-9 . _ -");
        let id = self.worker_id.as_deref().filter(|id| !is_worker_id(id));
        Invalid::unless(id.is_none(), "worker_id", format_args!("{:?}", id.unwrap_or_default()), problem)
    }
}

impl AsRef<WorkerConfig> for WorkerConfig {
    fn as_ref(&self) -> &WorkerConfig {
        self
    }
}

fn is_worker_id(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_ID_LENGTH).contains(&id.len()) && id.bytes().all(allowed)
}

impl WorkerConfig {
    /// The worker's name: `worker_id`, else the host name with a random part, so that two workers on one host have
    /// different names.
    pub fn name(&self) -> String {
        self.worker_id.clone().unwrap_or_else(|| {
            let host = host_name();
            let random = random::bits() >> 32;
            format!("{}-{random:08x}", if host.is_empty() { "worker" } else { &host })
        })
    }
}
