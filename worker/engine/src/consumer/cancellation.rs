//! Why the broker cancelled a consumer. It decides whether the messages that this worker holds are delivered again.
//!
//! - Its queue was deleted. The messages are in no queue any more, also if the queue was declared again since.
//! - From RabbitMQ 4.3 on, its consumer timeout may have passed. The messages are still in the queue: the broker delivers
//!   those that are late again at once, and the others once the channel closes. Earlier versions close the channel
//!   instead.
//!
//! The broker does not name the reason. A queue that exists may have been declared again, and the age of the messages proves
//! nothing, because a policy or the broker's configuration may set a timeout that this worker does not know. If a deletion
//! is taken for a timeout, tasks are lost. If a timeout is taken for a deletion, tasks are published although they are
//! delivered again, and run twice under the same id. So the messages count as lost, unless one of them is seen again soon
//! after the queue is consumed again. A timeout is not recognized only if other workers receive all of them.

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::panics::lock;

/// How long after the queue is consumed again its messages may be delivered again.
const REDELIVERY_TIME: Duration = Duration::from_secs(5);
/// How long the reason may be in doubt at most, if the queue is not consumed again because its lane is paused.
const MAX_DOUBT: Duration = Duration::from_secs(60);

/// Why the broker cancelled a consumer, as far as is known.
pub(crate) struct Cancellation {
    reason: watch::Sender<Reason>,
    /// The messages of the queue that were delivered again since, by their identities.
    redelivered: Mutex<BTreeSet<u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Unknown { until: Instant },
    Deletion,
    Timeout,
}

impl Default for Cancellation {
    fn default() -> Self {
        let reason = watch::Sender::new(Reason::Unknown { until: Instant::now() + MAX_DOUBT });
        Self { reason, redelivered: Mutex::default() }
    }
}

impl Cancellation {
    /// Records that the queue was deleted. Returns whether that was in doubt.
    pub(super) fn queue_deleted(&self) -> bool {
        self.decide(Reason::Deletion)
    }

    /// Records that the consumer timeout has passed, because a message is delivered again.
    pub(super) fn timed_out(&self) {
        if self.decide(Reason::Timeout) {
            tracing::info!("a consumer timeout passed: the broker delivers the messages again");
        }
    }

    fn decide(&self, known: Reason) -> bool {
        self.reason.send_if_modified(|reason| {
            let is_unknown = matches!(reason, Reason::Unknown { .. });
            if is_unknown {
                *reason = known;
            }
            is_unknown
        })
    }

    /// Records that the queue is consumed again.
    pub(super) fn consumed_again(&self) {
        self.reason.send_modify(|reason| {
            if let Reason::Unknown { until } = reason {
                *until = (*until).min(Instant::now() + REDELIVERY_TIME);
            }
        });
    }

    /// Records a redelivery of the queue by the identity of its message, if it has one.
    pub(super) fn record(&self, identity: Option<u64>) {
        if let Some(identity) = identity {
            lock(&self.redelivered).insert(identity);
            // Those who wait look whether it is theirs.
            self.reason.send_modify(|_| {});
        }
    }

    /// Whether the broker delivers a message again. Waits while that is in doubt.
    pub(crate) async fn delivers_again(&self, identity: Option<u64>) -> bool {
        let mut reason = self.reason.subscribe();
        loop {
            let is_seen = identity.is_some_and(|identity| lock(&self.redelivered).contains(&identity));
            let current = *reason.borrow_and_update();
            match current {
                Reason::Deletion => return false,
                Reason::Timeout => return true,
                Reason::Unknown { .. } if is_seen => self.timed_out(),
                Reason::Unknown { until } => tokio::select! {
                    biased;
                    _ = reason.changed() => {}
                    () = sleep_until(until) => return false,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use garenne_protocol::amqp::BasicProperties;
    use tokio::time::advance;

    use super::*;
    use crate::consumer::{ChannelGeneration, delivery::Delivery};

    impl Cancellation {
        /// That of a consumer whose timeout passed, or whose queue was deleted.
        pub(crate) fn decided(delivers_again: bool) -> Self {
            let cancellation = Self::default();
            cancellation.decide(if delivers_again { Reason::Timeout } else { Reason::Deletion });
            cancellation
        }
    }

    /// A message of another channel, as it is delivered again, and its fingerprint.
    fn redelivered(id: Option<&str>, body: &[u8]) -> (Delivery, Option<u64>) {
        let mut delivery = Delivery::mock(&ChannelGeneration::mock(), 1, body);
        let head = delivery.head_mut();
        head.redelivered = true;
        head.properties = id.map_or_else(BasicProperties::default, |id| {
            BasicProperties::default().with_message_id(id.into())
        });
        let fingerprint = delivery.fingerprint();
        (delivery, fingerprint)
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_queue_delivers_nothing_again() {
        let cancellation = Cancellation::default();
        assert!(cancellation.queue_deleted(), "it was in doubt");
        assert!(!cancellation.queue_deleted());
        cancellation.timed_out();
        assert_eq!(cancellation.delivers_again(Some(1)).now_or_never(), Some(false));
    }

    #[tokio::test(start_paused = true)]
    async fn messages_count_as_lost_if_none_is_seen_again_after_the_queue_is_consumed_again() {
        let cancellation = Cancellation::default();
        let other = redelivered(Some("other"), b"body").0;
        let doubtful = cancellation.delivers_again(redelivered(Some("id"), b"body").1);
        tokio::pin!(doubtful);
        advance(MAX_DOUBT / 2).await;
        assert_eq!((&mut doubtful).now_or_never(), None, "the queue is not consumed again");
        cancellation.consumed_again();
        cancellation.record(other.identity());
        advance(REDELIVERY_TIME - Duration::from_millis(1)).await;
        assert_eq!((&mut doubtful).now_or_never(), None);
        advance(Duration::from_millis(1)).await;
        assert_eq!(doubtful.now_or_never(), Some(false));

        let never_consumed = Cancellation::default();
        let since = Instant::now();
        assert!(!never_consumed.delivers_again(None).await);
        assert_eq!(since.elapsed(), MAX_DOUBT);
    }

    #[tokio::test(start_paused = true)]
    async fn one_message_that_is_seen_again_proves_a_timeout() {
        let cancellation = Cancellation::default();
        let (delivery, fingerprint) = redelivered(Some("id"), b"body");
        let (own, another) = (cancellation.delivers_again(fingerprint), cancellation.delivers_again(None));
        tokio::pin!(own, another);
        assert_eq!(((&mut own).now_or_never(), (&mut another).now_or_never()), (None, None));
        cancellation.record(delivery.identity());
        assert_eq!((own.now_or_never(), another.now_or_never()), (Some(true), Some(true)));
        assert!(!cancellation.queue_deleted(), "it is known");
    }

    /// A task that is dropped long after the cancel waited behind others.
    #[tokio::test(start_paused = true)]
    async fn a_message_that_was_seen_before_it_was_dropped_is_delivered_again() {
        let cancellation = Cancellation::default();
        let (delivery, fingerprint) = redelivered(Some("id"), b"body");
        cancellation.record(delivery.identity());
        advance(2 * MAX_DOUBT).await;
        assert_eq!(cancellation.delivers_again(fingerprint).now_or_never(), Some(true));
    }

    #[tokio::test(start_paused = true)]
    async fn messages_without_an_id_prove_nothing() {
        let cancellation = Cancellation::default();
        let (delivery, fingerprint) = redelivered(None, b"body");
        cancellation.record(delivery.identity());
        advance(MAX_DOUBT).await;
        assert_eq!(cancellation.delivers_again(fingerprint).now_or_never(), Some(false));
    }
}
