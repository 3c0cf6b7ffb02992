//! Reads snapshots of the queues, once or regularly on one connection.

use std::{collections::BTreeMap, time::SystemTime};

use garenne_common::exit::{Exit, Failure};
use garenne_management::STATISTICS_INTERVAL;
use garenne_protocol::{task::epoch_ms, topology::BrokerVersion};
use lapin::Connection;
use tokio::time::Instant;

use super::{
    figure_source::{FigureSource, Source},
    inspector::{QueueInspector, QueueStatus},
    snapshot::{QueueCounts, Snapshot, foreign, wanted},
};
use crate::operator::Operator;

/// Queues by name.
type Queues = BTreeMap<String, QueueStatus>;

/// Reads snapshots on one connection, which is opened if it is needed, and kept.
#[derive(Default)]
pub struct SnapshotReader {
    connection: Option<Connection>,
    /// The broker refused a passive declare on this connection. It logs each refusal, so there is no second attempt.
    denied: bool,
}

impl SnapshotReader {
    /// Reads every queue.
    ///
    /// Ready messages and consumers come from passive declares. If the management API is configured, it adds what they
    /// do not count, and the queues of former settings. Since RabbitMQ 4.3.1 the broker refuses passive declares to a
    /// user without a right on the queue; then all counts come from the management API.
    pub async fn read(&mut self, operator: &Operator) -> Result<Snapshot, Failure> {
        if !self.connection.as_ref().is_some_and(|connection| connection.status().connected()) {
            self.connection = None;
            self.denied = false;
        }
        let connection = match &self.connection {
            Some(connection) => connection,
            None => self.connection.insert(operator.connect().await?),
        };
        let version = operator.broker.version().await?;
        let asked_at = epoch_ms(SystemTime::now());
        let statistics = statistics(operator).await?;
        if !self.denied {
            match inspected(operator, connection, version, statistics.as_ref()).await {
                Err(failure) if failure.exit == Exit::Denied => {
                    if statistics.is_none() {
                        return Err(without_right(&failure));
                    }
                    self.denied = true;
                }
                counts => return Ok(Snapshot::of(operator, version, &counts?)),
            }
        }
        let interval = i64::try_from(STATISTICS_INTERVAL.as_millis()).unwrap_or(i64::MAX);
        let found = statistics.unwrap_or_default();
        let read_at = asked_at - interval;
        let counts = QueueCounts { source: Source::Management, read_at, found, listed: true };
        Ok(Snapshot::of(operator, version, &counts))
    }

    /// Closes the connection.
    pub async fn close(self) {
        if let Some(connection) = self.connection {
            Operator::leave(connection).await;
        }
    }
}

impl Snapshot {
    /// Reads every queue once.
    pub async fn take(operator: &Operator) -> Result<Self, Failure> {
        let mut reader = SnapshotReader::default();
        let snapshot = reader.read(operator).await;
        reader.close().await;
        snapshot
    }
}

/// Counts of the management API; `None` if it is not configured.
async fn statistics(operator: &Operator) -> Result<Option<Queues>, Failure> {
    let Some(management) = &operator.management else { return Ok(None) };
    let asked = Instant::now();
    let counts = management.queue_counts(&operator.broker.vhost()).await?;
    let age = STATISTICS_INTERVAL + asked.elapsed();
    let age_ms = age.as_millis().try_into().unwrap_or(u64::MAX);
    let status = |queue: &garenne_management::QueueCounts| QueueStatus {
        ready: queue.ready,
        unacked: Some(queue.unacked),
        counted: Some(queue.ready + queue.unacked),
        unacked_from: Some(FigureSource { source: Source::Management, age_ms }),
        consumers: queue.consumers,
        published: queue.published,
    };
    Ok(Some(counts.into_iter().map(|queue| (queue.name.clone(), status(&queue))).collect()))
}

/// Counts of passive declares, with those that `statistics` add.
async fn inspected(
    operator: &Operator,
    connection: &Connection,
    version: BrokerVersion,
    statistics: Option<&Queues>,
) -> Result<QueueCounts, Failure> {
    let read_at = epoch_ms(SystemTime::now());
    let mut inspector = QueueInspector::new(connection);
    let mut found = statistics.cloned().unwrap_or_default();
    for name in wanted(operator, &operator.topology(version)).into_iter().chain(foreign(operator)) {
        match inspector.find(&name).await? {
            Some(QueueStatus { ready, consumers, .. }) => {
                let queue = found.entry(name).or_default();
                (queue.ready, queue.consumers) = (ready, consumers);
            }
            None => drop(found.remove(&name)),
        }
    }
    Ok(QueueCounts { source: Source::Amqp, read_at, found, listed: statistics.is_some() })
}

fn without_right(failure: &Failure) -> Failure {
    let advice = "give the broker's user a right on each queue, or add --management-url, which counts them without one";
    Failure::new(Exit::Denied, format_args!("{failure}; {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_both_ways_to_count_queues() {
        let failure = without_right(&Failure::new(Exit::Denied, "the broker denied access to \"q\""));
        assert_eq!(failure.exit, Exit::Denied);
        assert_eq!(
            failure.to_string(),
            "the broker denied access to \"q\"; give the broker's user a right on each queue, or add --management-url, \
             which counts them without one"
        );
    }
}
