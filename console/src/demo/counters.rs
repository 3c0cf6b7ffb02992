//! Queue depths from the broker and counters from the workers.

use std::collections::HashMap;

use garenne_chaos::metric_sum;
use lapin::Connection;

use crate::{operator::Operator, queues::Snapshot};

/// Reads queue depths. It reconnects after the broker was away.
pub(super) struct BrokerWatch<'o> {
    operator: &'o Operator,
    connection: Option<Connection>,
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
        Self { operator, connection: None }
    }

    /// The queue depths now; nothing while the broker cannot be reached or a queue is missing.
    pub(super) async fn held(&mut self) -> Option<Held> {
        // Not from the management API, whose numbers are seconds old.
        let snapshot = Snapshot::take_by_amqp(self.operator, &mut self.connection).await.ok()?;
        snapshot.missing.is_empty().then(|| Held {
            queued: snapshot.lanes.iter().map(|lane| lane.queue.ready).sum(),
            quarantine: snapshot.quarantine.ready,
            retrying: snapshot.lanes.iter().map(|lane| lane.retrying).sum(),
            dead: snapshot.dead.ready,
        })
    }

    /// Closes the connection.
    pub(super) async fn leave(self) {
        if let Some(connection) = self.connection {
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
