//! Queue depths from the broker and counters from the workers.

use std::collections::HashMap;

use garenne_chaos::metric_sum;
use garenne_protocol::topology::LaneQueues;
use lapin::Connection;

use crate::{operator::Operator, queues::QueueInspector};

/// Reads queue depths. It reconnects after the broker was away.
pub(super) struct BrokerWatch<'o> {
    operator: &'o Operator,
    connection: Option<Connection>,
    lanes: Vec<(String, u16)>,
}

/// Messages in the broker's queues.
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

    /// The queue depths now; nothing while the broker cannot be reached.
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

    /// Closes the connection.
    pub(super) async fn leave(mut self) {
        if let Some(connection) = self.connection.take() {
            Operator::leave(connection).await;
        }
    }
}

/// Redeliveries by worker. The last count of a worker that has ended stays.
#[derive(Debug, Default)]
pub(super) struct Redelivered(HashMap<String, u64>);

impl Redelivered {
    /// Reads a worker's count.
    pub(super) async fn read(&mut self, http: &reqwest::Client, worker: &str, admin: &str) {
        if let Some(count) = metric_sum(http, admin, "garenne_redeliveries_total").await {
            self.0.insert(worker.to_owned(), count);
        }
    }

    /// The sum over all workers.
    pub(super) fn total(&self) -> u64 {
        self.0.values().sum()
    }
}
