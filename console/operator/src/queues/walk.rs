//! Reads a whole queue and requeues what is not removed, in the same order.
//!
//! Where the broker puts a requeued message depends on its version: before 4.3 behind the others, since then before them.
//! Therefore nothing is requeued until the end, and everything is: a walk that ended earlier would move what it has read
//! behind what it has not.
//!
//! Messages are read in groups, so that the client holds no more than a group that it has not read. A group is what one
//! consumer receives before it is cancelled. One `nack(multiple, requeue)` returns the messages of one consumer in their
//! order, but those of several consumers in an arbitrary order. So each group is requeued by a `nack` of its own, the
//! oldest first. Tested with RabbitMQ 3.10, 4.0 and 4.3.

use std::{collections::BTreeSet, time::Duration};

use futures_util::{FutureExt, StreamExt};
use garenne_common::exit::{Exit, Failure};
use lapin::{
    Channel, Connection, Consumer,
    message::Delivery,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicNackOptions,
        BasicQosOptions,
    },
    types::FieldTable,
};
use tokio::time::{Instant, sleep, timeout};

use super::inspector::{QueueInspector, failure};
use crate::waits;

/// Messages of the first group, whose sizes are not known.
const FIRST_GROUP: u64 = 8;
/// The most messages of a group.
const MAX_GROUP: u64 = 4_000;
/// Bytes of a group, if its messages are no larger than those before.
const GROUP_BYTES: u64 = 32 << 20;
/// Time without a delivery after which the queue is checked for remaining messages.
const DELIVERY_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a queue with ready messages may deliver none.
const STUCK_TIMEOUT: Duration = Duration::from_secs(15);
/// How long to wait until requeued messages are visible in the queue. A broker with a busy disk was observed to take
/// more than ten seconds.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Poll interval while waiting for that.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A walk over a queue. If one of its calls fails, or it is dropped without [`QueueWalk::finish`], the broker requeues
/// everything.
pub struct QueueWalk<'c> {
    connection: &'c Connection,
    queue: String,
    channel: Channel,
    /// The consumer of the current group.
    consumer: Option<Consumer>,
    /// Its tag. It may exist before the broker has answered.
    tag: Option<String>,
    total: u64,
    read: u64,
    /// The delivery tags of messages that were read and not removed.
    held: BTreeSet<u64>,
    /// The size of the current group: the prefetch of its consumer.
    prefetch: u64,
    /// Messages of the current group that were read and not removed.
    unsettled: u64,
    /// Whether the consumer of the current group is cancelled, so that its messages end.
    ending: bool,
    /// The delivery tag of the last message.
    last_tag: u64,
    /// The delivery tags of the last messages of the groups that were read.
    group_ends: Vec<u64>,
    /// The size of the largest message so far.
    largest: u64,
}

impl<'c> QueueWalk<'c> {
    /// Starts a walk over the messages that are ready now, `max` at most.
    pub async fn start(connection: &'c Connection, queue: &str, max: u64) -> Result<Self, Failure> {
        waits::begin(format!("messages of queue {queue:?}"));
        let total = QueueInspector::new(connection).depth(queue).await?.ready.min(max);
        let error = |error| failure(queue, &error);
        let channel = connection.create_channel().await.map_err(error)?;
        Ok(Self {
            connection,
            queue: queue.to_owned(),
            channel,
            consumer: None,
            tag: None,
            total,
            read: 0,
            held: BTreeSet::new(),
            prefetch: 0,
            unsettled: 0,
            ending: false,
            last_tag: 0,
            group_ends: Vec::new(),
            largest: 0,
        })
    }

    /// Number of messages at the start.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Number of messages read so far.
    pub fn read(&self) -> u64 {
        self.read
    }

    async fn consume(&mut self) -> Result<(), Failure> {
        let error = |error| failure(&self.queue, &error);
        self.prefetch = group(self.prefetch, self.largest);
        // Before the request: if this call is cancelled, the consumer may exist.
        let tag = format!("walk-{:06}", self.group_ends.len());
        self.tag = Some(tag.clone());
        let prefetch = self.prefetch as u16;
        self.channel.basic_qos(prefetch, BasicQosOptions::default()).await.map_err(error)?;
        let consumer = self
            .channel
            .basic_consume(
                self.queue.as_str().into(),
                tag.into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await
            .map_err(error)?;
        self.consumer = Some(consumer);
        Ok(())
    }

    /// The next message; `None` after the number of messages at the start, or when the queue is empty.
    pub async fn next(&mut self) -> Result<Option<Delivery>, Failure> {
        let deadline = Instant::now() + STUCK_TIMEOUT;
        while self.read < self.total {
            self.turn_group().await?;
            let Some(consumer) = &mut self.consumer else { return Ok(None) };
            match timeout(DELIVERY_TIMEOUT, consumer.next()).await {
                Ok(Some(Ok(delivery))) => {
                    waits::progress();
                    self.read += 1;
                    self.held.insert(delivery.delivery_tag);
                    self.largest = self.largest.max(delivery.data.len() as u64);
                    (self.last_tag, self.unsettled) = (delivery.delivery_tag, self.unsettled + 1);
                    return Ok(Some(delivery));
                }
                Ok(Some(Err(error))) => return Err(self.ended(&error.to_string())),
                Ok(None) if self.ending => {
                    (self.consumer, self.tag) = (None, None);
                    self.group_ends.push(self.last_tag);
                    (self.ending, self.unsettled) = (false, 0);
                }
                Ok(None) => return Err(self.ended("the consumer was cancelled")),
                Err(_) => {
                    let ready = QueueInspector::new(self.connection).depth(&self.queue).await?.ready;
                    if ready == 0 {
                        let last = self.take_last().await?;
                        if let Some(last) = &last {
                            self.read += 1;
                            self.held.insert(last.delivery_tag);
                        }
                        return Ok(last);
                    }
                    if Instant::now() > deadline {
                        let problem = format!(
                            "queue {:?} has {ready} ready messages and delivers none: check that it has a leader and is not blocked",
                            self.queue
                        );
                        return Err(Failure::new(Exit::Failed, problem));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Starts the first group, or ends one whose consumer receives nothing more because so many messages are unsettled.
    /// The next one starts when all messages of this one are read.
    async fn turn_group(&mut self) -> Result<(), Failure> {
        if self.consumer.is_none() {
            return self.consume().await;
        }
        if !self.ending && self.unsettled >= self.prefetch {
            self.ending = true;
            self.cancel().await?;
        }
        Ok(())
    }

    async fn cancel(&self) -> Result<(), Failure> {
        if let Some(tag) = &self.tag {
            let cancelled =
                self.channel.basic_cancel(tag.as_str().into(), BasicCancelOptions::default()).await;
            cancelled.map_err(|error| failure(&self.queue, &error))?;
        }
        Ok(())
    }

    /// The next message of a queue without ready messages: one that was on its way to this walk, or that another
    /// program has just returned.
    async fn take_last(&mut self) -> Result<Option<Delivery>, Failure> {
        // The broker answers a get after the deliveries that it sent before, so that those are in the consumer.
        let got = self.channel.basic_get(self.queue.as_str().into(), BasicGetOptions::default()).await;
        let got = got.map_err(|error| failure(&self.queue, &error))?;
        match self.consumer.as_mut().and_then(|consumer| consumer.next().now_or_never()).flatten() {
            // A message of the get is requeued at the end.
            Some(Ok(delivery)) => Ok(Some(delivery)),
            Some(Err(error)) => Err(self.ended(&error.to_string())),
            None => Ok(got.map(|got| got.delivery)),
        }
    }

    /// Removes a message of this walk.
    pub async fn remove(&mut self, tag: u64) -> Result<(), Failure> {
        self.held.remove(&tag);
        if self.group_ends.last().is_none_or(|end| tag > *end) {
            self.unsettled = self.unsettled.saturating_sub(1);
        }
        let acked = self.channel.basic_ack(tag, BasicAckOptions::default()).await;
        acked.map_err(|error| failure(&self.queue, &error))
    }

    /// Requeues everything that was not removed, waits until the broker has applied it, and returns the number of ready
    /// messages.
    ///
    /// The broker applies the settlements of a channel in order and with a delay. If the channel closes before,
    /// acked messages return to the queue. A get is answered after all acks before it are applied.
    pub async fn finish(mut self) -> Result<u64, Failure> {
        let error = |error| failure(&self.queue, &error);
        self.cancel().await?;
        let mut held = self.held.len() as u64;
        // Delivered and not read. The answer to the cancel came after them.
        if let Some(consumer) = &mut self.consumer {
            while consumer.next().now_or_never().flatten().is_some() {
                held += 1;
            }
        }
        // The message of the get and those behind it. The queue's own count may lag behind.
        let mut counted = 0;
        let mut inspector = QueueInspector::new(self.connection);
        if self.consumer.is_some() || self.read > 0 {
            // Before the nack, because a message that is requeued on its own returns behind the others.
            let queue = self.queue.as_str().into();
            let got = self.channel.basic_get(queue, BasicGetOptions::default()).await.map_err(error)?;
            counted = got.map_or(0, |got| u64::from(got.message_count) + 1);
            let all = BasicNackOptions { multiple: true, requeue: true };
            for end in &self.group_ends {
                // The broker refuses the tag of a message that is removed.
                let Some(last) = self.held.range(..=end).next_back().copied() else { continue };
                self.held = self.held.split_off(&(last + 1));
                self.channel.basic_nack(last, all).await.map_err(error)?;
                // The broker keeps the order of a limited number of settlements in progress.
                inspector.depth(&self.queue).await?;
            }
            // Tag 0 with `multiple` covers everything outstanding, including messages that the client has not read
            // yet and messages that arrived during the walk.
            self.channel.basic_nack(0, all).await.map_err(error)?;
        }
        let visible = held + counted.min(1);
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        while inspector.depth(&self.queue).await?.ready < visible {
            waits::progress();
            if Instant::now() > deadline {
                let problem = format!(
                    "queue {:?}: the broker has not applied the last settlements within {} s; the last removed messages may return",
                    self.queue,
                    SETTLE_TIMEOUT.as_secs()
                );
                return Err(Failure::new(Exit::Failed, problem));
            }
            sleep(POLL_INTERVAL).await;
        }
        self.channel.close(200, "done".into()).await.map_err(error)?;
        Ok(inspector.depth(&self.queue).await?.ready.max(held + counted))
    }

    fn ended(&self, detail: &str) -> Failure {
        let problem = format!(
            "the broker ended the consumer of queue {:?}: {detail}; only messages that were read have been removed",
            self.queue
        );
        Failure::new(Exit::BrokerUnavailable, problem)
    }
}

/// The number of messages of the next group. It doubles at most, and one of messages as large as the largest before has
/// [`GROUP_BYTES`].
fn group(last: u64, largest: u64) -> u64 {
    let most = (GROUP_BYTES / largest.max(1)).clamp(1, MAX_GROUP);
    if last == 0 { FIRST_GROUP } else { (2 * last).min(most) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_grow_with_small_messages_and_shrink_with_large_ones() {
        assert_eq!(group(0, 0), FIRST_GROUP);
        assert_eq!(group(8, 100), 16);
        assert_eq!(group(MAX_GROUP, 100), MAX_GROUP);
        assert_eq!(group(8, 4 << 20), 8);
        assert_eq!(group(2_000, 4 << 20), 8);
        assert_eq!(group(8, 128 << 20), 1);
    }
}
