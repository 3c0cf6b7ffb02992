//! Copies: published until they are confirmed, then the original is settled.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::future::join_all;
use garenne_amqp::{Backoff, Message, PublishError, Target};
use garenne_common::shutdown::Settlement;
use garenne_protocol::task::{Copied, DeadReason};
use lapin::types::ShortString;

use super::Settler;
use crate::{consumer::Delivery, force_close::after_last_answers};

/// How long a delivery is held that can neither be copied nor made a dead letter, before it goes back: bounds how
/// often the broker delivers it.
const HOPELESS: Duration = Duration::from_secs(60);

/// Failures in a row after which the worker checks whether the target exists, whatever the error.
const MISSING_AFTER: u32 = 3;

/// What became of messages that were to be published.
pub(super) enum Published {
    /// Each is confirmed.
    All,
    /// The delivery's channel died or time is up before that.
    GivenUp,
    /// One of them can never be published.
    Never(PublishError),
}

impl Settler {
    /// Publishes a copy until it is confirmed, then takes the original off the queue. Gives the original back when
    /// its channel died or time is up. A copy that can never be published becomes a dead letter without the
    /// headers that make it too large.
    pub(super) fn copy(
        self: &Arc<Self>,
        lane: &str,
        delivery: Delivery,
        copied: Copied,
        target: Target,
        settlement: Settlement,
    ) {
        let (this, lane) = (Arc::clone(self), lane.to_owned());
        let copying = async move { this.copied(&lane, delivery, copied, target, settlement).await };
        self.tracker.spawn_on(copying, &self.runtime);
    }

    async fn copied(
        &self,
        lane: &str,
        delivery: Delivery,
        copied: Copied,
        target: Target,
        settlement: Settlement,
    ) {
        let message = |copied: Copied, target| {
            let (properties, body) = (copied.into_properties(), delivery.body.clone());
            Message { target, properties, body }
        };
        let error = match self.publish_while(&delivery, vec![message(copied.clone(), target)]).await {
            Published::All => return delivery.settle(settlement),
            Published::GivenUp => return,
            Published::Never(error) => error,
        };
        let said = format!("its copy cannot be published: {error}");
        let dead = if copied.is_dead() {
            copied
        } else {
            copied.dead(DeadReason::TooLarge, &said, &self.worker, lane, SystemTime::now())
        };
        let bare = message(dead.bare(), Target::queue(self.names.dead()));
        let text = |text: &Option<ShortString>| text.as_ref().map_or_else(String::new, ToString::to_string);
        let (task, kind) = (text(bare.properties.message_id()), text(bare.properties.kind()));
        tracing::warn!(task, kind, lane, error = said, "dead, without most of its properties");
        // The body is the same: where that is too large, nothing can be published.
        let again = match error {
            PublishError::TooLarge { what: "body", .. } => Published::Never(error),
            _ => self.publish_while(&delivery, vec![bare]).await,
        };
        match again {
            Published::All => {
                if settlement != Settlement::Dead {
                    self.metrics.kind(&kind).dead(DeadReason::TooLarge);
                }
                delivery.settle(Settlement::Dead);
            }
            Published::GivenUp => {}
            Published::Never(error) => {
                tracing::error!(task, kind, lane, %error, wait = ?HOPELESS, "no dead letter possible, will go back");
                tokio::select! {
                    () = tokio::time::sleep(HOPELESS) => {}
                    () = self.force_close.cancelled() => {}
                }
            }
        }
    }

    /// Publishes messages until each is confirmed. One is published again only where the broker refused it, or its
    /// connection ended and it is in doubt: a slow confirm is waited for.
    pub(super) async fn publish_while(&self, delivery: &Delivery, mut messages: Vec<Message>) -> Published {
        let (mut backoff, mut failures) = (Backoff::default(), 0_u32);
        while delivery.alive() {
            let publishing = messages.iter().map(|message| self.publisher.publish(message.clone()));
            let outcomes = tokio::select! {
                outcomes = join_all(publishing) => outcomes,
                // What was sent may be stored all the same; the task goes back, and both bear its id.
                () = after_last_answers(&self.force_close) => return Published::GivenUp,
            };
            failures += 1;
            let (mut left, mut problem, mut unreached) = (Vec::new(), None, Vec::new());
            for (message, outcome) in messages.into_iter().zip(outcomes) {
                match outcome {
                    Ok(()) => {}
                    Err(error @ PublishError::TooLarge { .. }) => return Published::Never(error),
                    Err(error) => {
                        // A missing exchange ends the channel, as many other errors do.
                        if matches!(error, PublishError::Unroutable { .. }) || failures >= MISSING_AFTER {
                            unreached.push(message.target.clone());
                        }
                        problem = Some((message.target.routing_key.clone(), error));
                        left.push(message);
                    }
                }
            }
            let Some((queue, error)) = problem else { return Published::All };
            messages = left;
            tokio::select! {
                () = self.missing.restore(&unreached) => {}
                () = self.force_close.cancelled() => return Published::GivenUp,
            }
            let wait = backoff.next_wait();
            tracing::warn!(%error, ?wait, queue, count = messages.len(), "not confirmed, will be sent again");
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.force_close.cancelled() => return Published::GivenUp,
            }
        }
        Published::GivenUp
    }
}
