//! Stores what a message became: in the AMQP broker, or in the spool.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use garenne_amqp::PublishError;
use garenne_common::backoff::Backoff;
use garenne_protocol::task::{DeadReason, NewTask};
use garenne_publish::{NotAccepted, SpoolingSender};

use crate::{converter::Content, letter::Letter};

/// The longest pause between attempts.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Stores tasks and dead letters.
pub(crate) struct Store {
    publisher: SpoolingSender,
    /// The name of this process in dead letters.
    bridge: String,
    /// The last attempt failed. The first failure is logged, and the next success.
    failing: AtomicBool,
}

impl Store {
    /// `publisher` also publishes tasks that stand for letters.
    pub(crate) fn new(publisher: SpoolingSender, bridge: String) -> Arc<Self> {
        Arc::new(Self { publisher, bridge, failing: AtomicBool::new(false) })
    }

    /// Resolves when the broker has confirmed the content, or the spool has synced it. Until then the content is
    /// published again under the same ids; the MQTT broker keeps what follows.
    pub(crate) async fn store(&self, content: Content) {
        match content {
            Content::Tasks(readings) if readings.tasks.is_empty() => {}
            Content::Tasks(readings) => {
                self.until_stored(&readings.tasks, |_| false).await;
            }
            Content::Letter(letter) => self.store_letter(letter).await,
            Content::Partial(readings, letter) => {
                self.until_stored(&readings.tasks, |_| false).await;
                self.store_letter(letter).await;
            }
        }
    }

    async fn store_letter(&self, mut letter: Letter) {
        let is_too_large =
            |error: &NotAccepted| matches!(error, NotAccepted::Broker(PublishError::TooLarge { .. }));
        let failed = self.until_stored(&[letter.to_task(&self.bridge)], is_too_large).await;
        let Some(error) = failed else { return };
        letter.reason = DeadReason::TooLarge;
        letter.error = format!("{error}; the payload is lost");
        letter.payload.clear();
        if let Some(error) = self.until_stored(&[letter.to_task(&self.bridge)], is_too_large).await {
            tracing::error!(topic = %letter.topic, %error, "cannot publish a dead letter, the message is lost");
        }
    }

    /// Publishes until it succeeds. Returns an error for which repeating is useless.
    async fn until_stored(
        &self,
        tasks: &[NewTask],
        is_final: impl Fn(&NotAccepted) -> bool,
    ) -> Option<NotAccepted> {
        let mut backoff = Backoff::limited(Duration::from_millis(100), MAX_PAUSE).with_jitter();
        loop {
            match self.publisher.send(tasks.to_vec()).await {
                Ok(_) => {
                    if self.failing.load(Ordering::Relaxed) && self.failing.swap(false, Ordering::Relaxed) {
                        tracing::info!("messages are stored again");
                    }
                    return None;
                }
                Err(error) if is_final(&error) => return Some(error),
                Err(error) => {
                    if !self.failing.swap(true, Ordering::Relaxed) {
                        tracing::warn!(%error, "message not stored, trying again; the MQTT broker keeps what follows");
                    }
                    tokio::time::sleep(backoff.next_wait()).await;
                }
            }
        }
    }
}
