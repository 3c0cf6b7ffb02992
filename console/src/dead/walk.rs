//! A walk over a whole queue that leaves it as it was.
//!
//! Returned messages may come ahead of those not yet seen, so nothing is returned before the end: one
//! consumer with a prefetch as large as the queue takes everything, in order, and one
//! `nack(multiple, requeue)` puts back in that order what was not removed. Tried on RabbitMQ 3.10, 4.0
//! and 4.3; several smaller consumers are slower and shuffle the queue.

use std::{collections::VecDeque, time::Duration};

use futures_util::StreamExt;
use garenne_common::exit::{Exit, HasExit};
use lapin::{
    Channel, Connection, Consumer,
    message::Delivery,
    options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions},
    types::FieldTable,
};
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};

use crate::queues::{LookError, Looker};

/// AMQP's prefetch has 16 bits; a longer queue takes further consumers on the same channel.
const MOST_PREFETCH: u64 = 60_000;
/// A silence this long asks whether anything is left.
const SILENCE: Duration = Duration::from_millis(500);
/// How long a queue that says it has messages may deliver none.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long to wait until what was handed back is seen in the queue. A broker whose disk is busy has
/// been seen to take more than ten seconds.
const SETTLING: Duration = Duration::from_secs(60);
/// So few settlements are on their way at once that the broker's channel passes them all on before it
/// closes.
const UNSEEN_AT_MOST: u64 = 16;
/// Between two looks while waiting for that.
const POLL: Duration = Duration::from_millis(20);

/// A walk that could not go on. Whatever was held is back in the queue.
#[derive(Debug, Error)]
pub enum WalkError {
    /// The queue cannot be looked at.
    #[error(transparent)]
    Look(#[from] LookError),
    /// The broker delivers nothing though it says there is something.
    #[error(
        "queue {queue:?} says it has {ready} messages and delivers none: is it blocked or without a leader?"
    )]
    Stuck {
        /// The queue.
        queue: String,
        /// Messages ready.
        ready: u64,
    },
    /// The broker took the settlements and does not show their effect.
    #[error(
        "queue {queue:?}: the broker has not applied the last settlements within {} s; what was removed last may be there again",
        SETTLING.as_secs()
    )]
    Unsettled {
        /// The queue.
        queue: String,
    },
    /// The consumer was ended by the broker.
    #[error("the broker ended the look at queue {queue:?}: {detail}; nothing was removed unseen")]
    Ended {
        /// The queue.
        queue: String,
        /// Why, as far as is known.
        detail: String,
    },
}

impl HasExit for WalkError {
    fn exit(&self) -> Exit {
        match self {
            Self::Look(error) => error.exit(),
            Self::Stuck { .. } | Self::Unsettled { .. } => Exit::Failed,
            Self::Ended { .. } => Exit::BrokerUnavailable,
        }
    }
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Messages in the queue now that are ready for delivery.
    pub ready: u64,
    /// Whether the last removed message was handed back instead: another walk must remove it.
    pub last_is_back: bool,
}

/// A walk under way. Dropped without [`Walk::finish`], the channel's end hands everything back.
pub struct Walk<'c> {
    connection: &'c Connection,
    queue: String,
    channel: Channel,
    consumers: VecDeque<Consumer>,
    total: u64,
    seen: u64,
    removed: u64,
    /// The newest removal, not sent yet; see [`Walk::finish`].
    held: Option<u64>,
    /// Whether the queue was empty before all that was there at the start was seen.
    exhausted: bool,
}

impl<'c> Walk<'c> {
    /// Begins; the walk's length is what the queue holds now.
    ///
    /// # Errors
    /// [`WalkError`].
    pub async fn start(connection: &'c Connection, queue: &str) -> Result<Self, WalkError> {
        Self::first(connection, queue, u64::MAX).await
    }

    /// The same, over no more than the first `most`.
    ///
    /// # Errors
    /// [`WalkError`].
    pub async fn first(connection: &'c Connection, queue: &str, most: u64) -> Result<Self, WalkError> {
        let total = Looker::new(connection).depth(queue).await?.ready.min(most);
        let broken = |error| LookError::of(queue, error);
        let channel = connection.create_channel().await.map_err(broken)?;
        let mut walk = Self {
            connection,
            queue: queue.to_owned(),
            channel,
            consumers: VecDeque::new(),
            total,
            seen: 0,
            removed: 0,
            held: None,
            exhausted: false,
        };
        if total > 0 {
            walk.consume().await?;
        }
        Ok(walk)
    }

    /// How many messages there were at the start.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How many were seen so far.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    async fn consume(&mut self) -> Result<(), WalkError> {
        let broken = |error| LookError::of(&self.queue, error);
        let prefetch = (self.total - self.seen).clamp(1, MOST_PREFETCH) as u16;
        self.channel.basic_qos(prefetch, BasicQosOptions::default()).await.map_err(broken)?;
        let consumer = self
            .channel
            .basic_consume(
                self.queue.as_str().into(),
                "".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await
            .map_err(broken)?;
        self.consumers.push_back(consumer);
        Ok(())
    }

    /// The next message; `None` after as many as there were at the start, or when no more are left.
    ///
    /// # Errors
    /// [`WalkError`].
    pub async fn next(&mut self) -> Result<Option<Delivery>, WalkError> {
        let give_up = Instant::now() + PATIENCE;
        while self.seen < self.total {
            let Some(consumer) = self.consumers.back_mut() else { return Ok(None) };
            match timeout(SILENCE, consumer.next()).await {
                Ok(Some(Ok(delivery))) => {
                    self.seen += 1;
                    return Ok(Some(delivery));
                }
                Ok(Some(Err(error))) => return Err(self.ended(error.to_string())),
                Ok(None) => return Err(self.ended("the consumer was cancelled".into())),
                Err(_) => {
                    let ready = Looker::new(self.connection).depth(&self.queue).await?.ready;
                    if ready == 0 {
                        self.exhausted = true;
                        return Ok(None);
                    }
                    if Instant::now() > give_up {
                        return Err(WalkError::Stuck { queue: self.queue.clone(), ready });
                    }
                    if self.seen > 0
                        && self.seen - self.removed >= MOST_PREFETCH * self.consumers.len() as u64
                    {
                        self.consume().await?;
                    }
                }
            }
        }
        Ok(None)
    }

    /// Removes a message this walk delivered.
    ///
    /// # Errors
    /// [`WalkError`].
    pub async fn remove(&mut self, tag: u64) -> Result<(), WalkError> {
        self.removed += 1;
        match self.held.replace(tag) {
            Some(earlier) => self.ack(earlier).await,
            None => Ok(()),
        }
    }

    async fn ack(&self, tag: u64) -> Result<(), WalkError> {
        let acked = self.channel.basic_ack(tag, BasicAckOptions::default()).await;
        acked.map_err(|error| LookError::of(&self.queue, error).into())
    }

    /// Hands back everything that was not removed, and waits until the broker has applied it.
    ///
    /// The broker applies a channel's settlements in order but late, and a channel that closes
    /// earlier takes acknowledged messages back. So the last settlement is one that can be seen:
    /// something handed back. Where nothing else is left, that is the last removed message.
    ///
    /// # Errors
    /// [`WalkError`].
    pub async fn finish(mut self) -> Result<Finished, WalkError> {
        let broken = |error| LookError::of(&self.queue, error);
        for consumer in &self.consumers {
            let tag = consumer.tag();
            self.channel.basic_cancel(tag, BasicCancelOptions::default()).await.map_err(broken)?;
        }
        // What was delivered and not looked at goes back, too.
        let left = if self.exhausted { self.seen } else { self.total } - self.removed;
        let (mut visible, mut last_is_back) = (left, false);
        match self.held.take() {
            Some(_) if left == 0 && self.removed > UNSEEN_AT_MOST => (visible, last_is_back) = (1, true),
            Some(tag) => self.ack(tag).await?,
            None => {}
        }
        if !self.consumers.is_empty() {
            // Tag 0 with `multiple` is everything outstanding, that which the client has not read
            // yet included.
            let all = BasicNackOptions { multiple: true, requeue: true };
            self.channel.basic_nack(0, all).await.map_err(broken)?;
        }
        let mut looker = Looker::new(self.connection);
        let give_up = Instant::now() + SETTLING;
        while looker.depth(&self.queue).await?.ready < visible {
            if Instant::now() > give_up {
                return Err(WalkError::Unsettled { queue: self.queue });
            }
            sleep(POLL).await;
        }
        self.channel.close(200, "done".into()).await.map_err(broken)?;
        Ok(Finished { ready: looker.depth(&self.queue).await?.ready, last_is_back })
    }

    fn ended(&self, detail: String) -> WalkError {
        let detail = detail.split_whitespace().collect::<Vec<_>>().join(" ");
        WalkError::Ended { queue: self.queue.clone(), detail }
    }
}
