//! All queues at one moment.

use std::collections::BTreeMap;

use garenne_common::exit::Failure;
use garenne_management::{ManagementClient, ManagementError};
use garenne_protocol::topology::{BrokerVersion, Delay, LaneQueues, Topology};
use lapin::Connection;
use serde::Serialize;

use super::inspector::{InspectError, QueueInspector};
use crate::operator::Operator;

/// Source of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The management API: complete, and a few seconds old.
    Management,
    /// Passive declares: current, without unacknowledged messages.
    Amqp,
}

/// One queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueStatus {
    /// Messages ready for delivery.
    pub ready: u64,
    /// Messages delivered and not settled; unknown without the management API.
    pub unacked: Option<u64>,
    /// Number of consumers.
    pub consumers: u64,
    /// Messages published to it since the broker counts; unknown without the management API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<u64>,
}

impl QueueStatus {
    /// The sum of two queues, with the lower number of consumers.
    fn combined(self, other: Self) -> Self {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one? + other?);
        Self {
            ready: self.ready + other.ready,
            unacked: sum(self.unacked, other.unacked),
            consumers: self.consumers.min(other.consumers),
            published: sum(self.published, other.published),
        }
    }
}

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
    /// Source of the numbers.
    pub source: Source,
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
    /// Reads every queue, from the management API if it is configured, else one by one.
    ///
    /// # Errors
    /// One line and an exit code.
    pub async fn take(operator: &Operator) -> Result<Self, Failure> {
        let mut connection = None;
        let version = operator.broker.version().await?;
        let snapshot = Self::take_on(operator, version, &mut connection).await;
        if let Some(connection) = connection {
            Operator::leave(connection).await;
        }
        snapshot
    }

    /// The same for regular polling: `connection` is opened if it is needed, and kept.
    ///
    /// # Errors
    /// One line and an exit code.
    pub async fn take_on(
        operator: &Operator,
        version: BrokerVersion,
        connection: &mut Option<Connection>,
    ) -> Result<Self, Failure> {
        let topology = operator.topology(version);
        let wanted: Vec<String> = topology
            .queues
            .iter()
            .map(|queue| queue.name.clone())
            .filter(|name| ![operator.names.directives(), operator.names.lifecycle()].contains(name))
            .collect();
        let (source, found) = match &operator.management {
            Some(management) => {
                (Source::Management, by_management(management, &operator.broker.vhost()).await?)
            }
            None => (Source::Amqp, by_amqp(operator, &wanted, connection).await?),
        };
        Ok(Self::of(operator, version.to_string(), source, &topology, &wanted, &found))
    }

    fn of(
        operator: &Operator,
        version: String,
        source: Source,
        topology: &Topology,
        wanted: &[String],
        found: &BTreeMap<String, QueueStatus>,
    ) -> Self {
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
            version,
            prefix: operator.settings.common.prefix.clone(),
            source,
            lanes: lanes.collect(),
            quarantine: queue(&names.quarantine()),
            dead: queue(&names.dead()),
            unroutable: queue(&names.unroutable()),
            missing: wanted.iter().filter(|name| !found.contains_key(*name)).cloned().collect(),
            queues: seen.filter_map(|name| Some((name.clone(), *found.get(name)?))).collect(),
        }
    }
}

async fn by_management(
    management: &ManagementClient,
    vhost: &str,
) -> Result<BTreeMap<String, QueueStatus>, ManagementError> {
    let queues = management.vhost(vhost).queue_counts().await?;
    let status = |queue: garenne_management::QueueStatus| {
        let (ready, unacked, consumers) = (queue.ready, Some(queue.unacked), queue.consumers);
        (queue.name, QueueStatus { ready, unacked, consumers, published: queue.published })
    };
    Ok(queues.into_iter().map(status).collect())
}

async fn by_amqp(
    operator: &Operator,
    wanted: &[String],
    connection: &mut Option<Connection>,
) -> Result<BTreeMap<String, QueueStatus>, Failure> {
    connection.take_if(|connection| !connection.status().connected());
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(operator.connect().await?),
    };
    let mut inspector = QueueInspector::new(connection);
    let mut found = BTreeMap::new();
    for name in wanted {
        match inspector.depth(name).await {
            Ok(depth) => {
                let (ready, consumers) = (depth.ready, depth.consumers);
                let queue = QueueStatus { ready, unacked: None, consumers, published: None };
                found.insert(name.clone(), queue);
            }
            Err(InspectError::Missing(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}
