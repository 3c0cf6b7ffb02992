//! All queues at one moment.

use std::{collections::BTreeMap, time::SystemTime};

use garenne_common::exit::Failure;
use garenne_management::STATISTICS_INTERVAL;
use garenne_protocol::{
    task::epoch_ms,
    topology::{BrokerVersion, Delay, LaneQueues, Topology},
};
use lapin::Connection;
use serde::Serialize;
use tokio::time::Instant;

use super::{
    inspector::{QueueInspector, QueueStatus},
    origin::{Origin, Source},
};
use crate::operator::Operator;

/// One lane with its retry ladder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaneStatus {
    /// The lane.
    pub name: String,
    /// Its queue, or the sum of its shards with the lowest number of consumers: each worker consumes every shard.
    #[serde(flatten)]
    pub queue: QueueStatus,
    /// Its shards, if it has several.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub shards: BTreeMap<String, QueueStatus>,
    /// Messages in queues of former shards, which no worker consumes, by queue. Only the management API lists them.
    /// `ready` includes them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub leftovers: BTreeMap<String, u64>,
    /// Tasks in its retry ladder.
    pub retrying: u64,
    /// The same by delay, without empty rungs.
    pub rungs: BTreeMap<String, u64>,
}

/// All queues of a fleet at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Host and port.
    pub broker: String,
    /// The virtual host.
    pub vhost: String,
    /// The broker's version.
    pub version: String,
    /// The fleet's prefix.
    pub prefix: String,
    /// When the broker was asked first, milliseconds since 1970 by the console's clock. Ready messages, consumers and
    /// retrying tasks are counts of passive declares since then.
    pub read_at: i64,
    /// The lanes, by name.
    pub lanes: Vec<LaneStatus>,
    /// Quarantined tasks.
    pub quarantine: QueueStatus,
    /// Dead letters.
    pub dead: QueueStatus,
    /// Unroutable messages.
    pub unroutable: QueueStatus,
    /// Missing queues.
    pub missing: Vec<String>,
    /// Every existing queue, including rungs and queues of former settings.
    #[serde(skip)]
    pub queues: BTreeMap<String, QueueStatus>,
}

impl Snapshot {
    /// Reads every queue.
    ///
    /// # Errors
    /// As [`take_on`](Self::take_on).
    pub async fn take(operator: &Operator) -> Result<Self, Failure> {
        let mut connection = None;
        let snapshot = Self::take_on(operator, &mut connection).await;
        if let Some(connection) = connection {
            Operator::leave(connection).await;
        }
        snapshot
    }

    /// The same for regular polling: `connection` is opened if it is needed, and kept.
    ///
    /// Ready messages and consumers come from passive declares. If the management API is configured, it adds what they
    /// do not count, and the queues of former settings.
    ///
    /// # Errors
    /// One line and an exit code. The broker or its configured management API refuses, or does not answer.
    pub async fn take_on(operator: &Operator, connection: &mut Option<Connection>) -> Result<Self, Failure> {
        connection.take_if(|connection| !connection.status().connected());
        let connection = match connection {
            Some(connection) => connection,
            None => connection.insert(operator.connect().await?),
        };
        let version = operator.broker.version().await?;
        let mut statistics = BTreeMap::new();
        if let Some(management) = &operator.management {
            let asked = Instant::now();
            for queue in management.queue_counts(&operator.broker.vhost()).await? {
                let age = STATISTICS_INTERVAL + asked.elapsed();
                let age_ms = age.as_millis().try_into().unwrap_or(u64::MAX);
                let status = QueueStatus {
                    ready: queue.ready,
                    unacked: Some(queue.unacked),
                    counted: Some(queue.ready + queue.unacked),
                    unacked_from: Some(Origin { source: Source::Management, age_ms }),
                    consumers: queue.consumers,
                    published: queue.published,
                };
                statistics.insert(queue.name, status);
            }
        }
        let read_at = epoch_ms(SystemTime::now());
        let mut inspector = QueueInspector::new(connection);
        let mut found = statistics.clone();
        for name in wanted(operator, &operator.topology(version)) {
            let counted = inspector.find(&name).await?;
            match (counted, statistics.get(&name)) {
                (Some(counted), Some(statistics)) => {
                    let QueueStatus { ready, consumers, .. } = counted;
                    found.insert(name, QueueStatus { ready, consumers, ..*statistics });
                }
                (Some(counted), None) => drop(found.insert(name, counted)),
                (None, _) => drop(found.remove(&name)),
            }
        }
        Ok(Self::of(operator, version, read_at, &found))
    }

    /// The age of what passive declares counted, milliseconds.
    pub fn age_ms(&self, now: i64) -> u64 {
        now.saturating_sub(self.read_at).max(0).unsigned_abs()
    }

    fn of(
        operator: &Operator,
        version: BrokerVersion,
        read_at: i64,
        found: &BTreeMap<String, QueueStatus>,
    ) -> Self {
        let topology = operator.topology(version);
        let wanted = wanted(operator, &topology);
        let queue = |name: &str| found.get(name).copied().unwrap_or_default();
        let names = &operator.names;
        let lanes = operator.settings.lanes.defined().map(|(lane, settings)| {
            // A lane that changed its number of shards has tasks in both kinds of rungs for a while.
            let waiting = |delay: Delay| {
                let both = [names.retry(lane, delay), names.retry_shards(lane, delay)];
                (delay.to_string(), both.iter().map(|rung| queue(rung).ready).sum())
            };
            let rungs: BTreeMap<_, _> =
                operator.ladder.rungs().iter().map(|&d| waiting(d)).filter(|(_, n)| *n > 0).collect();
            let queues = LaneQueues::new(names, lane, settings.shards).queues();
            let statuses = queues.iter().map(|name| queue(name));
            let mut all = statuses.reduce(QueueStatus::combined).unwrap_or_default();
            let of_lane = topology.leftovers.iter().filter(|leftover| leftover.lane == lane);
            let leftovers: BTreeMap<_, _> = of_lane
                .map(|it| (it.queue.clone(), queue(&it.queue).ready))
                .filter(|(_, n)| *n > 0)
                .collect();
            all.ready += leftovers.values().sum::<u64>();
            let shards = match &queues[..] {
                [_] => BTreeMap::new(),
                several => several.iter().map(|name| (name.clone(), queue(name))).collect(),
            };
            LaneStatus {
                name: lane.to_owned(),
                queue: all,
                shards,
                leftovers,
                retrying: rungs.values().sum(),
                rungs,
            }
        });
        let leftovers = topology.leftovers.iter().map(|leftover| &leftover.queue);
        let seen = wanted.iter().chain(leftovers).chain(&topology.former_rungs);
        Self {
            broker: operator.broker.address(),
            vhost: operator.broker.vhost(),
            version: version.to_string(),
            prefix: operator.settings.common.prefix.clone(),
            read_at,
            lanes: lanes.collect(),
            quarantine: queue(&names.quarantine()),
            dead: queue(&names.dead()),
            unroutable: queue(&names.unroutable()),
            missing: wanted.iter().filter(|name| !found.contains_key(*name)).cloned().collect(),
            queues: seen.filter_map(|name| Some((name.clone(), *found.get(name)?))).collect(),
        }
    }
}

/// The queues that a snapshot is about: all but the streams.
fn wanted(operator: &Operator, topology: &Topology) -> Vec<String> {
    let streams = [operator.names.directives(), operator.names.lifecycle()];
    let names = topology.queues.iter().map(|queue| queue.name.clone());
    names.filter(|name| !streams.contains(name)).collect()
}
