//! What histories share, and what they report.

use std::{collections::BTreeMap, fmt, time::Duration};

use garenne::WorkerConfig;
use garenne_common::config::{Concurrency, Lane, Lanes, Retry, Settings};
use garenne_protocol::topology::{BrokerVersion, Names, Topology};

use crate::{
    broker::{SimBroker, Timings},
    mishap::Mishap,
    plan::{LONG, LONG_LANE, MAX_ATTEMPTS, SHORT, SHORT_LANE},
};

/// What is the same for all histories of a broker's version.
pub struct Prepared {
    pub(super) broker: SimBroker,
    pub(super) config: WorkerConfig,
}

/// What a history showed.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The rules that were broken, with all that is known of the message.
    pub problems: Vec<String>,
    /// The trace, if it was wanted, a line an event.
    pub trace: Vec<String>,
    /// Handlers that ran.
    pub runs: u64,
    /// The virtual time that it took.
    pub took: Duration,
    /// How often rare things happened.
    pub mishaps: BTreeMap<Mishap, usize>,
}

impl Report {
    /// Whether a rule was broken.
    pub fn has_failed(&self) -> bool {
        !self.problems.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.trace.iter().chain(&self.problems).try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl Prepared {
    /// For brokers of this version.
    pub fn new(version: BrokerVersion) -> Self {
        let ms = |ms| Duration::from_millis(ms).into();
        let lane = |kind: &str, prefetch, max| Lane {
            prefetch,
            concurrency: Concurrency { min: 1, max },
            ..Lane::bound_to([kind])
        };
        let lanes: Lanes =
            [(LONG_LANE.to_owned(), lane(LONG, 5, 2)), (SHORT_LANE.to_owned(), lane(SHORT, 6, 3))]
                .into_iter()
                .collect();
        let mut config = WorkerConfig {
            lanes,
            retry: Retry { delays: vec![ms(200), ms(1_000), ms(4_000)] },
            max_attempts: MAX_ATTEMPTS,
            shutdown_timeout: Duration::from_secs(6),
            hard_grace: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(60),
            ..WorkerConfig::default()
        };
        config.common.events.heartbeat = Duration::ZERO;
        config.validate().expect("the settings are valid");
        let names = Names::new(&config.common.prefix);
        let ladder = config.retry.ladder().expect("the delays are valid");
        let topology = Topology::new(&names, &config.lanes.specs(), &ladder, version);
        let up_to = |ms| Duration::from_micros(50)..=Duration::from_millis(ms);
        let timings = Timings {
            event: up_to(4),
            confirm: up_to(12),
            settle: up_to(20),
            dead_letter: up_to(20),
            ..Timings::default()
        };
        let mut broker = SimBroker::new(version, 0, timings);
        broker.declare(&topology);
        broker.set_use(&names.dead(), true, true);
        for (name, lane) in config.lanes.iter() {
            broker.limit_prefetch(&names.lane(name), lane.prefetch);
        }
        broker.limit_prefetch(&names.quarantine(), 1);
        Self { broker, config }
    }
}
