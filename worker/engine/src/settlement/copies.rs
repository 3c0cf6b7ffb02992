//! Copies: published until the broker confirms them, then the original is settled.

use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use garenne_amqp::{Message, PublishError, Target};
use garenne_common::{backoff::Backoff, clock};
use garenne_protocol::amqp::{BasicProperties, ShortString};
use garenne_protocol::{
    settlement::Settlement,
    task::{Copied, DeadReason, TaskId, header},
    topology::Ladder,
};

use super::Settler;
use crate::{consumer::Delivery, force_close::after_last_answers, registry::of_kind};

/// How long a delivery is held that can neither be copied nor dead-lettered, before it is handed back. Bounds how
/// often the broker redelivers it.
const UNPUBLISHABLE_HOLD: Duration = Duration::from_secs(60);

/// How long a task waits in its retry ladder before it becomes a dead letter, while neither queue takes letters.
pub(crate) const PUT_OFF: Duration = Duration::from_secs(15);

/// Failed publishes in a row after which the worker checks whether the target exists, whatever the error.
const CHECK_TARGET_AFTER: u32 = 3;

/// The result of [`Settler::publish_until_confirmed`].
pub(crate) enum Published {
    /// The broker confirmed every message.
    All,
    /// The delivery's channel died or the worker stopped waiting.
    GivenUp,
    /// Neither queue takes dead letters, and another letter is tried meanwhile.
    LettersRefused,
    /// A message is too large to be published at all.
    TooLarge(PublishError),
}

impl Settler {
    /// Publishes a copy until the broker confirms it, then settles the original as `settlement`.
    ///
    /// While neither queue takes dead letters, one letter is held and tried. Others are put off, so that they do not fill
    /// the prefetch and good tasks go on: the task comes back through its retry ladder.
    ///
    /// The original is handed back if its channel dies or the worker stops waiting first. If the copy is too
    /// large, the task becomes a dead letter without the properties that make it so.
    pub(super) async fn publish_copy(
        &self,
        lane: &str,
        delivery: Delivery,
        copied: Copied,
        target: Target,
        mut settlement: Settlement,
    ) {
        let message = message_of(&delivery, copied.clone(), target);
        let mut published = self.publish_until_confirmed(&delivery, vec![message]).await;
        if matches!(published, Published::LettersRefused) {
            published = self.put_off(lane, &delivery, copied.clone()).await;
            settlement = Settlement::Retried;
        }
        match published {
            Published::All => {
                let properties = copied.into_properties();
                if let (Some(kind), Some(id)) = (properties.kind(), properties.message_id()) {
                    let is_dead = settlement == Settlement::Dead;
                    self.sink_buffer.ended_without_result(kind.as_str(), id.as_str(), is_dead);
                    if is_dead {
                        self.follow_dead_letter(kind.as_str(), id.as_str(), &delivery.body).await;
                    }
                }
                self.settle_copied(delivery, settlement, &properties).await;
            }
            Published::GivenUp | Published::LettersRefused => {}
            Published::TooLarge(error) => {
                self.publish_bare_dead_letter(lane, delivery, copied, error).await;
            }
        }
    }

    /// Settles the original of a confirmed copy with these properties. If it is a dead letter, whoever waits for the task is
    /// told.
    async fn settle_copied(&self, delivery: Delivery, settlement: Settlement, copy: &BasicProperties) {
        let is_dead = settlement == Settlement::Dead;
        let answer = is_dead.then(|| self.dead_answer(&delivery.head.properties, copy)).flatten();
        delivery.settle(settlement);
        if let Some(answer) = answer {
            self.send_reply(answer).await;
        }
    }

    /// Publishes the task that follows a dead letter of this kind, once.
    async fn follow_dead_letter(&self, kind: &str, id: &str, body: &[u8]) {
        let Some(when_dead) = of_kind(&self.when_dead, kind).and_then(Option::as_ref) else { return };
        let following = TaskId::parse(id).ok().and_then(|id| when_dead.0(&id, body));
        let Some((message, span)) =
            following.and_then(|task| self.task_publisher().message(task, clock::now()))
        else {
            return;
        };
        if self.publish_once(message).await != Some(true) {
            tracing::debug!(kind, id, "the task that follows a dead letter is not confirmed");
        }
        drop(span);
    }

    /// The delay queue of the quarantine that every version of the topology has.
    pub(super) fn quarantine_entry(&self) -> Target {
        Target::queue(self.names.quarantine_retry(Ladder::of_quarantine().rungs()[0]))
    }

    /// Publishes a copy to `target` once, and if that fails to `fallback` until the broker confirms it. Then it settles the
    /// original as retried.
    pub(super) async fn publish_copy_or(
        &self,
        lane: &str,
        delivery: Delivery,
        copied: Copied,
        target: Target,
        fallback: Target,
    ) {
        match self.publish_once(message_of(&delivery, copied.clone(), target)).await {
            Some(true) => delivery.settle(Settlement::Retried),
            Some(false) => self.publish_copy(lane, delivery, copied, fallback, Settlement::Retried).await,
            None => {}
        }
    }

    /// Whether a message was confirmed. [`None`] if the worker stops waiting.
    async fn publish_once(&self, message: Message) -> Option<bool> {
        tokio::select! {
            biased;
            published = self.publisher.publish(message) => Some(published.is_ok()),
            () = after_last_answers(&self.force_close) => None,
        }
    }

    /// Brings the task of a dead letter back to its lane, or to the quarantine, to be tried again.
    async fn put_off(&self, lane: &str, delivery: &Delivery, letter: Copied) -> Published {
        let copied = letter.without_death();
        let is_defined = self.routes.lanes.defined().any(|(name, _)| name == lane);
        if copied.is_marked() || !is_defined {
            let delay = Ladder::of_quarantine().rung_below(PUT_OFF);
            let target = Target::queue(self.names.quarantine_retry(delay));
            return match self.publish_once(message_of(delivery, copied.clone(), target)).await {
                Some(true) => Published::All,
                Some(false) => {
                    let message = message_of(delivery, copied, self.quarantine_entry());
                    self.publish_until_confirmed(delivery, vec![message]).await
                }
                None => Published::GivenUp,
            };
        }
        let queues = self.lane_queues(lane);
        let copied = copied.without(header::LANE).without(header::NOT_BEFORE);
        // A message that cannot be read may have no id. Any shard will do for it.
        let copied = if queues.is_sharded() { copied.keyed(lane) } else { copied };
        let message =
            message_of(delivery, copied, Target::queue(queues.rung(self.ladder.rung_below(PUT_OFF))));
        self.publish_until_confirmed(delivery, vec![message]).await
    }

    /// Dead-letters a task whose copy is too large, without most of its properties.
    async fn publish_bare_dead_letter(
        &self,
        lane: &str,
        delivery: Delivery,
        copied: Copied,
        error: PublishError,
    ) {
        let problem = format!("its copy cannot be published: {error}");
        let was_dead = copied.is_dead();
        let dead = match was_dead {
            true => copied,
            false => copied.first_seen(delivery.head.received_at).dead(
                DeadReason::TooLarge,
                &problem,
                &self.worker,
                lane,
                clock::now(),
            ),
        };
        let bare = message_of(&delivery, dead.bare(), Target::queue(self.names.dead()));
        let properties = bare.properties.clone();
        let text = |text: &Option<ShortString>| text.as_ref().map_or_else(String::new, ToString::to_string);
        let (task, kind) = (text(bare.properties.message_id()), text(bare.properties.kind()));
        if self.logs_dead_letter(DeadReason::TooLarge) {
            tracing::warn!(task, kind, lane, error = problem, "dead letter without most of its properties");
        }
        let published = match error {
            // The dead letter has the same body.
            PublishError::TooLarge { what: "body", .. } => Published::TooLarge(error),
            _ => self.publish_until_confirmed(&delivery, vec![bare]).await,
        };
        match published {
            Published::All => {
                if !was_dead {
                    self.metrics.kind(&kind).dead(DeadReason::TooLarge);
                }
                self.settle_copied(delivery, Settlement::Dead, &properties).await;
            }
            Published::GivenUp => {}
            held @ (Published::TooLarge(_) | Published::LettersRefused) => {
                let error = match held {
                    Published::TooLarge(error) => error.to_string(),
                    _ => "neither queue takes dead letters".to_owned(),
                };
                let hold = UNPUBLISHABLE_HOLD;
                tracing::error!(
                    task,
                    kind,
                    lane,
                    error,
                    ?hold,
                    "dead letter cannot be published, will be handed back"
                );
                tokio::select! {
                    biased;
                    () = tokio::time::sleep(hold) => {}
                    () = self.force_close.cancelled() => {}
                }
            }
        }
    }

    /// Publishes messages until the broker has confirmed each of them, or `delivery` can no longer be settled.
    ///
    /// A message is published again only if the broker refused it, or if its connection ended before the
    /// confirm. A slow confirm is waited for.
    pub(super) fn publish_until_confirmed<'a>(
        &'a self,
        delivery: &'a Delivery,
        mut messages: Vec<Message>,
    ) -> BoxFuture<'a, Published> {
        Box::pin(async move {
            let (mut backoff, mut rounds) = (Backoff::default(), 0_u32);
            let mut held = None;
            while delivery.channel_is_open() {
                let only_letters = messages.iter().all(|message| self.letters.takes(&message.target));
                if only_letters && held.is_none() && self.letters.is_closed() {
                    let Ok(permit) = self.held_letter.try_acquire() else { return Published::LettersRefused };
                    held = Some(permit);
                }
                let publishing = messages.iter().map(|message| async {
                    match self.letters.takes(&message.target) {
                        true => self.letters.publish(message.clone()).await,
                        false => self.publisher.publish(message.clone()).await,
                    }
                });
                let outcomes = tokio::select! {
                    biased;
                    outcomes = join_all(publishing) => outcomes,
                    // The broker may have stored what was sent. The task is handed back, and the repetition has the
                    // same id.
                    () = after_last_answers(&self.force_close) => return Published::GivenUp,
                };
                rounds += 1;
                let (mut unconfirmed, mut problem, mut suspects) = (Vec::new(), None, Vec::new());
                for (message, outcome) in messages.into_iter().zip(outcomes) {
                    let Err(error) = outcome else { continue };
                    if matches!(error, PublishError::TooLarge { .. }) {
                        return Published::TooLarge(error);
                    }
                    // A missing exchange is not reported as unroutable: it closes the channel, as many other errors do.
                    if matches!(error, PublishError::Unroutable { .. }) || rounds >= CHECK_TARGET_AFTER {
                        suspects.push(message.target.clone());
                    }
                    problem = Some((message.target.routing_key.clone(), error));
                    unconfirmed.push(message);
                }
                let Some((queue, error)) = problem else { return Published::All };
                messages = unconfirmed;
                let (retry_in, count) = (backoff.next_wait(), messages.len());
                tracing::warn!(%error, ?retry_in, queue, count, "publish not confirmed, will be retried");
                let pause = async {
                    self.missing.restore(&suspects).await;
                    tokio::time::sleep(retry_in).await;
                };
                tokio::select! {
                    biased;
                    () = pause => {}
                    () = self.force_close.cancelled() => return Published::GivenUp,
                }
            }
            Published::GivenUp
        })
    }
}

/// A message with the body of a delivery and the properties of a copy.
fn message_of(delivery: &Delivery, copied: Copied, target: Target) -> Message {
    Message { target, properties: copied.into_properties(), body: delivery.body.clone() }
}
