//! All queues at one moment.

use std::collections::{BTreeMap, BTreeSet};

use garenne_protocol::topology::{BrokerVersion, Delay, LaneQueues, Topology};
use serde::Serialize;

use super::{
    figure_source::{FigureSource, Source},
    inspector::QueueStatus,
};
use crate::operator::Operator;

/// One lane with its retry ladder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaneStatus {
    /// The lane.
    pub name: String,
    /// Its queue, or the sum of its queues with the lowest number of consumers: each worker consumes every queue.
    #[serde(flatten)]
    pub queue: QueueStatus,
    /// Its queues, if it has several: its shards, and the queue of another application.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub shards: BTreeMap<String, QueueStatus>,
    /// Messages in queues of former shards, which no worker consumes, by queue. Only the management API lists them.
    /// `ready` includes them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub leftovers: BTreeMap<String, u64>,
    /// Those of its queues that do not exist, so that its counts are not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Tasks in its retry ladder.
    pub retrying: u64,
    /// The same by delay, without empty rungs.
    pub rungs: BTreeMap<String, u64>,
}

/// The counts of all queues by name, as they were read.
pub(super) struct QueueCounts {
    pub(super) source: Source,
    pub(super) read_at: i64,
    pub(super) found: BTreeMap<String, QueueStatus>,
    /// Whether the management API listed them, those of workers included.
    pub(super) listed: bool,
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
    /// Source of ready messages, consumers and retrying tasks.
    #[serde(skip)]
    pub source: Source,
    /// They were counted since then, milliseconds since 1970 by the console's clock.
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
    /// The workers that have a control queue. Only the management API lists them.
    #[serde(skip)]
    pub control_queues: Option<BTreeSet<String>>,
}

impl Snapshot {
    /// Source and age of ready messages, consumers and retrying tasks.
    pub fn origin(&self, now: i64) -> FigureSource {
        FigureSource { source: self.source, age_ms: now.saturating_sub(self.read_at).max(0).unsigned_abs() }
    }

    /// The snapshot of the queues that were found.
    pub(super) fn of(operator: &Operator, version: BrokerVersion, counts: &QueueCounts) -> Self {
        let QueueCounts { source, read_at, found, listed } = counts;
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
            let mut queues = LaneQueues::new(names, lane, settings.shards).queues();
            queues.extend(settings.queue.clone());
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
                missing: queues.into_iter().filter(|name| !found.contains_key(name)).collect(),
                retrying: rungs.values().sum(),
                rungs,
            }
        });
        let leftovers = topology.leftovers.iter().map(|leftover| &leftover.queue);
        // A stream cannot be taken from as a queue can.
        let audit = names.audit();
        let queues = wanted.iter().filter(|name| **name != audit);
        let foreign: Vec<_> = foreign(operator).collect();
        let seen = queues.chain(leftovers).chain(&topology.former_rungs).chain(&foreign);
        Self {
            broker: operator.broker.address(),
            vhost: operator.broker.vhost(),
            version: version.to_string(),
            prefix: operator.settings.common.prefix.clone(),
            source: *source,
            read_at: *read_at,
            lanes: lanes.collect(),
            quarantine: queue(&names.quarantine()),
            dead: queue(&names.dead()),
            unroutable: queue(&names.unroutable()),
            missing: wanted.iter().filter(|name| !found.contains_key(*name)).cloned().collect(),
            queues: seen.filter_map(|name| Some((name.clone(), *found.get(name)?))).collect(),
            control_queues: listed.then(|| {
                let prefix = names.worker("");
                found.keys().filter_map(|name| name.strip_prefix(&prefix)).map(str::to_owned).collect()
            }),
        }
    }
}

/// The queues of other applications that lanes consume. Their owners declare them.
pub(super) fn foreign(operator: &Operator) -> impl Iterator<Item = String> {
    operator.settings.lanes.defined().filter_map(|(_, lane)| lane.queue.clone())
}

/// The queues of the fleet that a snapshot is about: all but the streams.
pub(super) fn wanted(operator: &Operator, topology: &Topology) -> Vec<String> {
    let streams = [operator.names.directives(), operator.names.lifecycle()];
    let names = topology.queues.iter().map(|queue| queue.name.clone());
    names.filter(|name| !streams.contains(name)).collect()
}
