//! What a lane of Celery publishes for others: calls that go to Celery's workers, and replies in the form of `rpc://`.

use std::sync::Arc;

use garenne_amqp::{Message, PublishError, Target};
use garenne_protocol::{
    amqp::BasicProperties,
    settlement::Settlement,
    task::{
        CELERY_REPLY_ENCODING, CeleryCall, ContentType, Copied, DeadReason, celery_failure, celery_success,
        header,
    },
};

use super::{Published, Settler};
use crate::{consumer::Delivery, sink::FinishedTask};

/// Whether a message is a call of Celery's senders, or a task that was made of one.
pub(super) fn is_celerys(properties: &BasicProperties) -> bool {
    header::get(properties.headers(), header::CELERY).is_some() || CeleryCall::task(properties).is_some()
}

/// The reply of a task that succeeded.
pub(super) fn reply(finished: &FinishedTask, target: Target) -> Message {
    let envelope = &finished.envelope;
    let id = envelope.id.as_str();
    let correlation = envelope.correlation_id.as_deref().unwrap_or(id);
    message(correlation, celery_success(id, &finished.output.json), target)
}

/// The reply of a task that became this dead letter.
pub(super) fn dead_reply(correlation: &str, letter: &BasicProperties, target: Target) -> Message {
    let of = |name| header::get(letter.headers(), name).and_then(header::text).unwrap_or_default();
    let reason = of(header::REASON).parse::<DeadReason>().ok();
    let id = letter.message_id().as_ref().map_or(correlation, |id| id.as_str());
    message(correlation, celery_failure(id, reason, &of(header::ERROR)), target)
}

fn message(correlation: &str, body: Vec<u8>, target: Target) -> Message {
    let properties = BasicProperties::default()
        .with_content_type(ContentType::Json.as_str().into())
        .with_content_encoding(CELERY_REPLY_ENCODING.into())
        .with_correlation_id(correlation.into());
    Message { target, properties, body: body.into() }
}

impl Settler {
    /// Publishes a message as it is to a queue of Celery's workers, then takes it off its own.
    pub(crate) async fn pass_on_unchanged(&self, lane: Arc<str>, delivery: Delivery, queue: String) {
        let properties = Copied::unchanged(&delivery.head.properties);
        let message = Message { target: Target::queue(queue), properties, body: delivery.body.clone() };
        match self.publish_until_confirmed(&delivery, vec![message]).await {
            Published::All => delivery.settle(Settlement::Retried),
            Published::GivenUp | Published::LettersRefused => {}
            Published::TooLarge(error) => self.too_large_to_pass_on(lane, delivery, &error).await,
        }
    }

    async fn too_large_to_pass_on(&self, lane: Arc<str>, delivery: Delivery, error: &PublishError) {
        let error = format!("it cannot be passed on to Celery's workers: {error}");
        self.dead_letter_unread(lane, delivery, DeadReason::TooLarge, error).await;
    }
}
