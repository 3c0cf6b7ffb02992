//! Notices a consumer that the broker has forgotten: messages wait, there is credit, and nothing
//! comes. No error tells of that; only looking does.

use std::{sync::Arc, time::Duration};

use lapin::{options::QueueDeclareOptions, types::FieldTable};
use tokio::time::Instant;

use super::{epoch::Epoch, link::Link};

/// How long nothing may come before the queue is looked at, and between two looks.
const PATIENCE: Duration = Duration::from_secs(10);
/// Looks in a row that must find messages waiting.
const LOOKS: u32 = 2;

/// Watches one consumer.
pub(super) struct Watchdog<'a> {
    link: &'a Link,
    queue: &'a str,
    prefetch: u64,
    epoch: Arc<Epoch>,
    seen: u64,
    since: Instant,
    suspicious: u32,
}

impl<'a> Watchdog<'a> {
    pub(super) fn new(link: &'a Link, queue: &'a str, prefetch: u16, epoch: Arc<Epoch>) -> Self {
        Self { link, queue, prefetch: prefetch.into(), epoch, seen: 0, since: Instant::now(), suspicious: 0 }
    }

    /// When it wants to look next.
    pub(super) fn due(&self) -> Instant {
        self.since + PATIENCE
    }

    /// Looks. True when the consumer must be given up.
    pub(super) async fn barks(&mut self) -> bool {
        let deliveries = self.epoch.deliveries();
        let came = deliveries != std::mem::replace(&mut self.seen, deliveries);
        self.since = Instant::now();
        if came || self.epoch.outstanding() >= self.prefetch {
            self.suspicious = 0;
            return false;
        }
        let waiting = self.waiting().await;
        self.suspicious =
            if waiting && self.epoch.deliveries() == deliveries { self.suspicious + 1 } else { 0 };
        self.suspicious >= LOOKS
    }

    /// Whether ready messages are there; unknown counts as no, other errors are noticed elsewhere.
    async fn waiting(&self) -> bool {
        let look = async {
            let (_connection, channel) = self.link.channel(1).await.ok()?;
            let options = QueueDeclareOptions { passive: true, ..Default::default() };
            let queue =
                channel.queue_declare(self.queue.into(), options, FieldTable::default()).await.ok()?;
            let _ = channel.close(200, "looked".into()).await;
            Some(queue.message_count() > 0)
        };
        tokio::time::timeout(PATIENCE, look).await.ok().flatten().unwrap_or(false)
    }
}
