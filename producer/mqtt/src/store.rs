//! Publishes what a message became, until the AMQP broker has confirmed it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use garenne_amqp::{PublishError, Publisher};
use garenne_common::backoff::Backoff;
use garenne_gateway::task_publisher::TaskPublisher;
use garenne_protocol::{task::DeadReason, topology::Names};

use crate::{converter::Content, letter::Letter};

/// The longest pause between attempts.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Publishes to the AMQP broker.
pub(crate) struct Store {
    pub(crate) tasks: Arc<dyn TaskPublisher>,
    pub(crate) letters: Publisher,
    pub(crate) names: Names,
    /// The name of this process in dead letters.
    pub(crate) bridge: String,
    /// The last attempt failed. The first failure is logged, and the next success.
    failing: AtomicBool,
}

impl Store {
    pub(crate) fn new(
        tasks: Arc<dyn TaskPublisher>,
        letters: Publisher,
        names: Names,
        bridge: String,
    ) -> Arc<Self> {
        Arc::new(Self { tasks, letters, names, bridge, failing: AtomicBool::new(false) })
    }

    /// Resolves when the broker has confirmed the content. While it does not, the content is published again under the
    /// same ids; the MQTT broker keeps what follows.
    pub(crate) async fn store(&self, content: Content) {
        match content {
            Content::Tasks { tasks, .. } if tasks.is_empty() => {}
            Content::Tasks { tasks, .. } => {
                self.until_confirmed(|| self.tasks.publish(tasks.clone()), |_| false).await;
            }
            Content::Letter(letter) => self.store_letter(letter).await,
        }
    }

    async fn store_letter(&self, mut letter: Letter) {
        let publish = |letter: &Letter| {
            let message = letter.message(&self.names, &self.bridge);
            async move { self.letters.publish(message).await }
        };
        let is_too_large = |error: &PublishError| matches!(error, PublishError::TooLarge { .. });
        let failed = self.until_confirmed(|| publish(&letter), is_too_large).await;
        let Some(error) = failed else { return };
        letter.reason = DeadReason::TooLarge;
        letter.error = format!("{error}; the payload is lost");
        letter.payload.clear();
        if let Some(error) = self.until_confirmed(|| publish(&letter), is_too_large).await {
            tracing::error!(topic = %letter.topic, %error, "cannot publish a dead letter, the message is lost");
        }
    }

    /// Publishes until it succeeds. Returns an error for which repeating is useless.
    async fn until_confirmed<F: Future<Output = Result<(), PublishError>>>(
        &self,
        publish: impl Fn() -> F,
        is_final: impl Fn(&PublishError) -> bool,
    ) -> Option<PublishError> {
        let mut backoff = Backoff::limited(Duration::from_millis(100), MAX_PAUSE).with_jitter();
        loop {
            match publish().await {
                Ok(()) => {
                    if self.failing.load(Ordering::Relaxed) && self.failing.swap(false, Ordering::Relaxed) {
                        tracing::info!("the AMQP broker confirms messages again");
                    }
                    return None;
                }
                Err(error) if is_final(&error) => return Some(error),
                Err(error) => {
                    if !self.failing.swap(true, Ordering::Relaxed) {
                        tracing::warn!(%error, "message not confirmed, trying again; the MQTT broker keeps what follows");
                    }
                    tokio::time::sleep(backoff.next_wait()).await;
                }
            }
        }
    }
}
