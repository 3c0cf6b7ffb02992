//! Replies: what became of a task, sent to the queue that its publisher named. Best effort, after the ack.

use std::{sync::Mutex, time::Duration};

use futures_util::future::BoxFuture;
use garenne_amqp::{Message, PublishError, Publisher, Target};
use garenne_common::connection::{ConnectionObserver, PublishResult};
use garenne_protocol::{
    amqp::{BasicProperties, ShortString},
    rights::MissingRight,
    task::{Envelope, Kind, header},
};
use serde::Serialize;
use tokio::time::Instant;

use super::{Settler, celery};
use crate::{
    force_close::after_last_answers,
    panics::lock,
    reply_queues::{REPLY_TO, ReplyQueues, is_direct},
    sink::{FinishedTask, results},
};

/// How long no reply is sent after the broker has denied one. Each refusal closes the channel.
const DENIED_PAUSE: Duration = Duration::from_secs(60);

/// How results are sent as replies.
pub(crate) struct Replies {
    /// The queues that they may be sent to.
    allowed: ReplyQueues,
    /// Has a connection of its own, which opens with the first reply. A broker may close it because of an address that a
    /// task names, and copies and dead letters must not end with it.
    pub(crate) publisher: Publisher,
    /// Until when no reply is sent, because the user lacks the right. The first refusal is logged.
    denied_until: Mutex<Option<Instant>>,
}

/// The JSON form of the answer for a dead letter.
#[derive(Serialize)]
struct DeadJson<'a> {
    task_id: Option<&'a str>,
    kind: &'a str,
    attempt: i64,
    worker: &'a str,
    dead: Dead<'a>,
}

#[derive(Serialize)]
struct Dead<'a> {
    reason: &'a str,
    error: &'a str,
}

impl Replies {
    pub(crate) fn new(allowed: ReplyQueues, publisher: Publisher) -> Self {
        Self { allowed, publisher, denied_until: Mutex::default() }
    }

    pub(super) fn is_denied(&self) -> bool {
        let until = lock(&self.denied_until);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Pauses the replies. Returns whether this is the first time.
    fn pause(&self) -> bool {
        let mut until = lock(&self.denied_until);
        until.replace(Instant::now() + DENIED_PAUSE).is_none()
    }
}

impl Settler {
    /// Whether the result is sent to the task's `reply_to`. An address that is not allowed is counted and ignored.
    pub(super) fn is_answered(&self, envelope: &Envelope) -> bool {
        self.answers(envelope.reply_to.as_deref(), envelope.id.as_str(), envelope.celery)
    }

    /// Every message of Celery has a reply address, whether or not anybody waits there, so that of one is no problem.
    fn answers(&self, reply_to: Option<&str>, task: &str, is_celerys: bool) -> bool {
        let (Some(replies), Some(queue)) = (&self.replies, reply_to) else { return false };
        let problem = if !replies.allowed.allow(queue) {
            "reply_queues does not allow it"
        } else if replies.is_denied() {
            "the broker denies replies"
        } else {
            return true;
        };
        if is_celerys {
            return false;
        }
        self.metrics.headers_ignored(REPLY_TO).inc();
        tracing::debug!(task, queue, problem, "ignored a reply_to");
        false
    }

    /// The answer that a task is a dead letter, made of the properties of its original and of the letter. [`None`] if
    /// nobody waits for it.
    pub(super) fn dead_answer(
        &self,
        original: &BasicProperties,
        letter: &BasicProperties,
    ) -> Option<Message> {
        let text = |text: &'_ Option<ShortString>| text.as_ref().map(ToString::to_string);
        let (queue, id) = (text(original.reply_to())?, text(letter.message_id()));
        let correlation = text(original.correlation_id()).or_else(|| id.clone())?;
        let kind = Kind::parse(&text(letter.kind())?).ok()?;
        let is_celerys = celery::is_celerys(letter);
        if !self.answers(Some(&queue), id.as_deref().unwrap_or_default(), is_celerys) {
            return None;
        }
        if is_celerys {
            return Some(celery::dead_reply(&correlation, letter, target(queue)));
        }
        let headers = letter.headers();
        let of = |name| header::get(headers, name).and_then(header::text).unwrap_or_default();
        let body = serde_json::to_vec(&DeadJson {
            task_id: id.as_deref(),
            kind: kind.as_str(),
            attempt: header::get(headers, header::ATTEMPT).and_then(header::integer).unwrap_or(0),
            worker: &self.worker,
            dead: Dead { reason: &of(header::REASON), error: &of(header::ERROR) },
        })
        .expect("strings and numbers can be serialized");
        Some(results::message_of(kind, header::trace(headers), &correlation, body, target(queue)))
    }

    /// Sends the result to the task's `reply_to`.
    pub(crate) fn reply(&self, finished: Box<FinishedTask>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(queue) = finished.envelope.reply_to.clone() {
                let reply = match finished.envelope.celery {
                    true => celery::reply(&finished, target(queue)),
                    false => results::message(&finished, target(queue)),
                };
                self.send_reply(reply).await;
            }
        })
    }

    pub(super) async fn send_reply(&self, reply: Message) {
        let Some(replies) = &self.replies else { return };
        let correlation = reply.properties.correlation_id().clone();
        let began = Instant::now();
        // Not by `publish`, which reports exchanges that take no messages.
        let publishing = async { replies.publisher.send(reply).await?.confirmed().await };
        let published = tokio::select! {
            biased;
            published = publishing => published,
            () = after_last_answers(&self.force_close) => return,
        };
        let result = published.as_ref().map_or_else(PublishError::counted_as, |()| PublishResult::Confirmed);
        self.metrics.connection().published(result, began.elapsed());
        match published {
            // The queue of a client that stopped waiting is gone. It is counted as returned.
            Ok(()) | Err(PublishError::Unroutable { .. }) => {}
            Err(PublishError::Denied(refusal)) => {
                let right = MissingRight::of(&refusal).map_or(refusal, |right| right.to_string());
                if replies.pause() {
                    let hint = "tasks run and are acked without their replies; give the right, or set replies = false";
                    tracing::warn!(problem = right, hint, "replies are denied");
                }
            }
            Err(error) => {
                let correlation = correlation.map(|id| id.to_string());
                tracing::warn!(correlation, %error, "failed to publish reply");
            }
        }
    }
}

/// A direct reply queue cannot be missing for long: a message to a client that is gone is dropped. Others are expected to
/// exist.
fn target(queue: String) -> Target {
    let mandatory = !is_direct(&queue);
    Target { mandatory, ..Target::queue(queue) }
}
