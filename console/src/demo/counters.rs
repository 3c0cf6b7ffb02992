//! Figures from the broker and the workers, each second.

use std::collections::HashMap;

use garenne_protocol::topology::LaneQueues;
use lapin::Connection;

use crate::{operator::Operator, queues::QueueInspector};

/// Asks the broker; comes back by itself when the broker was away.
pub(super) struct BrokerWatch<'o> {
    operator: &'o Operator,
    connection: Option<Connection>,
    lanes: Vec<(String, u16)>,
}

/// What the broker holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    /// Ready in all lanes.
    pub(super) queued: u64,
    /// Ready in the quarantine.
    pub(super) quarantine: u64,
    /// In the retry ladder.
    pub(super) retrying: u64,
    /// Dead letters.
    pub(super) dead: u64,
}

impl<'o> BrokerWatch<'o> {
    pub(super) fn new(operator: &'o Operator) -> Self {
        let lanes =
            operator.settings.lanes.defined().map(|(name, lane)| (name.to_owned(), lane.shards)).collect();
        Self { operator, connection: None, lanes }
    }

    /// What the broker holds now; `None` while it cannot be asked.
    pub(super) async fn held(&mut self) -> Option<Held> {
        let connection = match self.connection.take() {
            Some(connection) if connection.status().connected() => connection,
            _ => self.operator.connect().await.ok()?,
        };
        let held = self.ask(&connection).await;
        if held.is_some() {
            self.connection = Some(connection);
        }
        held
    }

    async fn ask(&self, connection: &Connection) -> Option<Held> {
        let names = &self.operator.names;
        let mut inspector = QueueInspector::new(connection);
        let mut held = Held::default();
        for (lane, shards) in &self.lanes {
            let place = LaneQueues::new(names, lane, *shards);
            for queue in place.queues() {
                held.queued += inspector.depth(&queue).await.ok()?.ready;
            }
            for &rung in self.operator.ladder.rungs() {
                held.retrying += inspector.depth(&place.rung(rung)).await.ok()?.ready;
            }
        }
        held.quarantine = inspector.depth(&names.quarantine()).await.ok()?.ready;
        held.dead = inspector.depth(&names.dead()).await.ok()?.ready;
        Some(held)
    }

    pub(super) async fn leave(mut self) {
        if let Some(connection) = self.connection.take() {
            Operator::leave(connection).await;
        }
    }
}

/// Counters of all workers that ever ran; what one counted last stays when it is gone.
#[derive(Debug, Default)]
pub(super) struct Redelivered(HashMap<String, u64>);

impl Redelivered {
    /// Asks a worker's metrics.
    pub(super) async fn ask(&mut self, http: &reqwest::Client, worker: &str, admin: &str) {
        if let Some(count) = counter(http, admin, "garenne_redeliveries_total").await {
            self.0.insert(worker.to_owned(), count);
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

/// A worker's counter or gauge, summed over its labels.
pub(super) async fn counter(http: &reqwest::Client, admin: &str, name: &str) -> Option<u64> {
    let answer = http.get(format!("{admin}/metrics")).send().await.ok()?;
    Some(sum(&answer.text().await.ok()?, name))
}

/// The sum of a counter over its labels, in Prometheus' text format.
fn sum(text: &str, counter: &str) -> u64 {
    let value = |line: &str| -> Option<f64> {
        let rest = line.strip_prefix(counter)?;
        matches!(rest.bytes().next()?, b'{' | b' ').then(|| rest.rsplit(' ').next()?.parse().ok())?
    };
    text.lines().filter_map(value).sum::<f64>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_summed_over_its_labels_and_no_other() {
        let text = "# HELP x y\nx_total{lane=\"a\"} 3\nx_total{lane=\"b\"} 4\nx_total_created 9\ny_total 5\n";
        assert_eq!((sum(text, "x_total"), sum(text, "y_total"), sum(text, "z")), (7, 5, 0));
    }
}
