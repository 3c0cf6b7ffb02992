//! A delivery that is settled exactly once.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::SystemTime,
};

use bytes::Bytes;
use garenne_amqp::take_unreadable;
use garenne_common::clock;
use garenne_protocol::{
    amqp::{BasicProperties, ShortString},
    settlement::Settlement,
};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    broker::RawDelivery,
    channel_generation::{ChannelGeneration, SettleRequest},
    orphan::Orphan,
};

/// An unsettled message. [`settle`](Self::settle) consumes it; dropping it requeues the message.
pub(crate) struct Delivery {
    ownership: Ownership,
    /// Held while a part of a message is copied, until the part is settled: few are copied at once.
    copy_permit: Option<OwnedSemaphorePermit>,
    /// Shared by the parts of a message, and because a delivery is moved often.
    pub(crate) head: Arc<MessageHead>,
    pub(crate) body: Bytes,
}

/// Everything of a message but its body.
#[derive(Clone)]
pub(crate) struct MessageHead {
    pub(crate) routing_key: ShortString,
    /// The exchange it was published to; empty for the default exchange.
    pub(crate) exchange: ShortString,
    pub(crate) redelivered: bool,
    /// When this worker received it.
    pub(crate) received_at: SystemTime,
    pub(crate) properties: BasicProperties,
    /// The reason if its properties or routing key could not be parsed. They were replaced then.
    pub(crate) unreadable: Option<Box<str>>,
}

impl MessageHead {
    /// A hash of the message's id, routing key and body.
    fn fingerprint(&self, body: &Bytes) -> u64 {
        let mut hasher = DefaultHasher::new();
        let id = self.properties.message_id().as_ref().map(ShortString::as_str);
        (id, self.routing_key.as_str(), body).hash(&mut hasher);
        hasher.finish()
    }

    /// The fingerprint of a message with an id. Without one, messages may be equal in everything.
    fn identity(&self, body: &Bytes) -> Option<u64> {
        self.properties.message_id().is_some().then(|| self.fingerprint(body))
    }
}

/// The right to settle a message, or one part of a message. Dropping it requests the settlement.
struct Ownership {
    of: Owned,
    settlement: Settlement,
}

enum Owned {
    Message {
        generation: Arc<ChannelGeneration>,
        tag: u64,
    },
    Part(Arc<SplitMessage>),
    /// The message was split, and its parts own it.
    Passed,
}

/// A message that was split. Its settlement is requested when the last part is settled or dropped.
struct SplitMessage {
    whole: Ownership,
    /// The message, for the case that its queue was deleted.
    head: Arc<MessageHead>,
    body: Bytes,
    /// The settlements of the parts so far, as a bit set.
    settlements: AtomicU8,
}

impl Delivery {
    pub(super) fn new(generation: Arc<ChannelGeneration>, mut message: RawDelivery) -> Self {
        generation.count_delivery(message.redelivered);
        let unreadable = take_unreadable(&mut message.properties).map(Into::into);
        Self {
            ownership: Ownership::new(Owned::Message { generation, tag: message.tag }),
            copy_permit: None,
            head: Arc::new(MessageHead {
                routing_key: message.routing_key,
                exchange: message.exchange,
                redelivered: message.redelivered,
                received_at: clock::now(),
                properties: message.properties,
                unreadable,
            }),
            body: message.body.into(),
        }
    }

    /// Replaces the properties.
    pub(crate) fn set_properties(&mut self, properties: BasicProperties) {
        Arc::make_mut(&mut self.head).properties = properties;
    }

    /// Replaces the body.
    pub(crate) fn set_body(&mut self, body: Vec<u8>) {
        self.body = body.into();
    }

    /// Says why no task can be made of the message.
    pub(crate) fn set_unreadable(&mut self, problem: &str) {
        Arc::make_mut(&mut self.head).unreadable = Some(problem.into());
    }

    /// Holds a permit to be copied until it is settled or dropped.
    pub(crate) fn hold(&mut self, copy_permit: OwnedSemaphorePermit) {
        self.copy_permit = Some(copy_permit);
    }

    /// Whether its channel is open, so that it can still be settled.
    pub(crate) fn channel_is_open(&self) -> bool {
        self.ownership.generation().is_open()
    }

    /// The generation of its channel.
    pub(crate) fn generation(&self) -> Arc<ChannelGeneration> {
        Arc::clone(self.ownership.generation())
    }

    /// Identifies the message across its redeliveries: a hash of its id, routing key and body. [`None`] on its first
    /// delivery: a hash for each task would slow all of them down.
    pub(crate) fn fingerprint(&self) -> Option<u64> {
        self.head.redelivered.then(|| self.head.fingerprint(&self.body))
    }

    /// Tells the message apart from all others, if it has an id.
    pub(super) fn identity(&self) -> Option<u64> {
        self.head.identity(&self.body)
    }

    /// Settles the delivery.
    ///
    /// Every settlement except [`Settlement::Requeued`] and [`Settlement::Abandoned`] removes the message from its
    /// queue, so its result must be stored or its copy confirmed before.
    pub(crate) fn settle(mut self, settlement: Settlement) {
        self.ownership.settlement = settlement;
    }

    /// Splits the message into one part per body. Each part is settled on its own.
    ///
    /// If one part is requeued, the whole message is. Otherwise the message gets the settlement of its parts if
    /// they agree, and [`Settlement::Acked`] if they do not.
    pub(crate) fn split(mut self, bodies: impl IntoIterator<Item = Bytes>) -> impl Iterator<Item = Self> {
        let whole = std::mem::replace(&mut self.ownership, Ownership::new(Owned::Passed));
        let (head, body) = (Arc::clone(&self.head), self.body.clone());
        let settlements = AtomicU8::new(0);
        let split = Arc::new(SplitMessage { whole, head: Arc::clone(&head), body, settlements });
        bodies.into_iter().map(move |body| Self {
            ownership: Ownership::new(Owned::Part(Arc::clone(&split))),
            copy_permit: None,
            head: Arc::clone(&head),
            body,
        })
    }
}

impl Ownership {
    /// Requeues what is owned unless another settlement is set.
    fn new(of: Owned) -> Self {
        Self { of, settlement: Settlement::Requeued }
    }

    fn generation(&self) -> &Arc<ChannelGeneration> {
        match &self.of {
            Owned::Message { generation, .. } => generation,
            Owned::Part(split) => split.whole.generation(),
            Owned::Passed => unreachable!("a message that was split is not used"),
        }
    }

    /// Passes a whole message on that would be requeued although its queue was deleted.
    fn rescue(&self, head: &MessageHead, body: &Bytes) {
        let (Settlement::Requeued, Owned::Message { generation, .. }) = (self.settlement, &self.of) else {
            return;
        };
        let Some((cancellation, on_orphan)) = generation.on_orphan() else { return };
        let (cancellation, body) = (Arc::clone(cancellation), body.clone());
        let identity = head.identity(&body);
        let MessageHead { exchange, routing_key, properties, received_at, .. } = head.clone();
        on_orphan(Orphan { exchange, routing_key, properties, identity, received_at, body, cancellation });
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.ownership.rescue(&self.head, &self.body);
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        let settlement = self.settlement;
        match &self.of {
            Owned::Message { generation, tag } => {
                generation.request_settlement(SettleRequest { tag: *tag, settlement });
            }
            // The reference count of the `Arc` orders this before the drop of `SplitMessage`.
            Owned::Part(split) => drop(split.settlements.fetch_or(bit(settlement), Ordering::Relaxed)),
            Owned::Passed => {}
        }
    }
}

impl Drop for SplitMessage {
    fn drop(&mut self) {
        self.whole.settlement = combine(*self.settlements.get_mut());
        self.whole.rescue(&self.head, &self.body);
    }
}

const fn bit(settlement: Settlement) -> u8 {
    1 << settlement as u8
}

/// The settlement of a message whose parts had these settlements.
fn combine(settlements: u8) -> Settlement {
    let not_removed = [Settlement::Abandoned, Settlement::LostSettlement, Settlement::Requeued];
    let found = not_removed.into_iter().find(|settlement| settlements & bit(*settlement) != 0);
    match settlements {
        0 => Settlement::Requeued,
        _ => found
            .or_else(|| Settlement::ALL.into_iter().find(|settlement| settlements == bit(*settlement)))
            .unwrap_or(Settlement::Acked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumer::OnOrphan;

    impl Delivery {
        /// Creates an empty delivery that is not counted as delivered.
        pub(crate) fn for_test(generation: &Arc<ChannelGeneration>, tag: u64) -> Self {
            Self {
                ownership: Ownership::new(Owned::Message { generation: Arc::clone(generation), tag }),
                copy_permit: None,
                head: Arc::new(MessageHead {
                    routing_key: "k".into(),
                    exchange: ShortString::default(),
                    redelivered: false,
                    received_at: clock::now(),
                    properties: BasicProperties::default(),
                    unreadable: None,
                }),
                body: Bytes::new(),
            }
        }

        /// The delivery's head, to change it.
        pub(crate) fn head_mut(&mut self) -> &mut MessageHead {
            Arc::make_mut(&mut self.head)
        }

        /// Creates a delivery with a body that is counted as delivered.
        pub(crate) fn mock(generation: &Arc<ChannelGeneration>, tag: u64, body: &[u8]) -> Self {
            Self::new(Arc::clone(generation), message(tag, body))
        }
    }

    fn message(tag: u64, body: &[u8]) -> RawDelivery {
        RawDelivery {
            tag,
            exchange: "tasks".into(),
            routing_key: "some.kind".into(),
            redelivered: false,
            properties: BasicProperties::default(),
            body: body.to_vec(),
        }
    }

    fn split(parts: usize) -> (Vec<Delivery>, Arc<ChannelGeneration>) {
        let generation = ChannelGeneration::mock();
        let message = Delivery::for_test(&generation, 7);
        (message.split((0..parts).map(|_| Bytes::new())).collect(), generation)
    }

    fn settle_parts(settlements: &[Option<Settlement>]) -> Settlement {
        let (parts, generation) = split(settlements.len());
        for (part, settlement) in parts.into_iter().zip(settlements) {
            assert_eq!(generation.waiting_requests(), 0, "requested before the last part was settled");
            if let Some(settlement) = settlement {
                part.settle(*settlement);
            }
        }
        only_settlement(&generation)
    }

    fn only_settlement(generation: &ChannelGeneration) -> Settlement {
        let mut requests = Vec::new();
        generation.take_requests(&mut requests);
        let [SettleRequest { tag: 7, settlement }] = requests[..] else {
            panic!("exactly one request expected: {requests:?}")
        };
        settlement
    }

    #[test]
    fn a_split_message_is_settled_once_and_requeued_if_any_part_is() {
        use Settlement::*;
        assert_eq!(settle_parts(&[Some(Acked), Some(Acked)]), Acked);
        assert_eq!(settle_parts(&[Some(Acked), Some(Retried), Some(Dead)]), Acked);
        assert_eq!(settle_parts(&[Some(Dead), Some(Dead)]), Dead);
        assert_eq!(settle_parts(&[Some(Quarantined)]), Quarantined);
        assert_eq!(settle_parts(&[Some(Acked), None, Some(Dead)]), Requeued);
        assert_eq!(settle_parts(&[Some(Abandoned), None]), Abandoned);
    }

    fn delivered(tag: u64) -> (Delivery, Arc<ChannelGeneration>) {
        let generation = ChannelGeneration::mock();
        let properties = BasicProperties::default().with_message_id("id".into());
        let message = RawDelivery { redelivered: true, properties, ..message(tag, b"body") };
        (Delivery::new(Arc::clone(&generation), message), generation)
    }

    #[test]
    fn a_dropped_delivery_is_requeued() {
        let (delivery, generation) = delivered(7);
        assert_eq!((generation.deliveries(), generation.outstanding()), (1, 1));
        drop(delivery);
        assert_eq!(only_settlement(&generation), Settlement::Requeued);
        assert_eq!(generation.outstanding(), 0);
    }

    #[test]
    fn what_is_requeued_after_its_queue_was_deleted_is_passed_on_whole_and_once() {
        let rescued = |requeue: fn(Delivery)| {
            let (delivery, generation) = delivered(7);
            let bodies: Arc<std::sync::Mutex<Vec<Bytes>>> = Arc::default();
            let taken = Arc::clone(&bodies);
            let on_orphan: OnOrphan = Arc::new(move |orphan: Orphan| {
                assert_eq!((orphan.routing_key.as_str(), orphan.exchange.as_str()), ("some.kind", "tasks"));
                taken.lock().unwrap().push(orphan.body);
            });
            generation.queue_may_be_deleted(&on_orphan);
            generation.end();
            requeue(delivery);
            bodies.lock().unwrap().len()
        };
        assert_eq!(rescued(drop), 1);
        assert_eq!(rescued(|delivery| delivery.settle(Settlement::Acked)), 0, "it ran to its end");
        assert_eq!(rescued(|delivery| delivery.split([Bytes::new(), Bytes::new()]).for_each(drop)), 1);
        let ran = |delivery: Delivery| {
            delivery.split([Bytes::new()]).for_each(|part| part.settle(Settlement::Acked));
        };
        assert_eq!(rescued(ran), 0);
    }

    #[test]
    fn a_delivery_keeps_its_message_and_its_channel() {
        let (delivery, generation) = delivered(7);
        assert_eq!(
            (delivery.head.routing_key.as_str(), delivery.head.redelivered, &delivery.body[..]),
            ("some.kind", true, &b"body"[..])
        );
        assert_eq!(delivery.head.properties.message_id().as_ref().map(|id| id.as_str()), Some("id"));
        assert!(Arc::ptr_eq(&delivery.generation(), &generation) && delivery.channel_is_open());
        generation.end();
        assert!(!delivery.channel_is_open());
        delivery.settle(Settlement::Dead);
        assert_eq!(only_settlement(&generation), Settlement::Dead);
    }

    #[test]
    fn a_message_has_the_same_fingerprint_in_each_delivery_and_others_have_another() {
        let (delivery, _first_channel) = delivered(7);
        let (redelivery, _second_channel) = delivered(8);
        assert!(delivery.fingerprint().is_some() && delivery.fingerprint() == redelivery.fingerprint());
        let other_id = BasicProperties::default().with_message_id("other".into());
        let mut others = [7; 3].map(|tag| delivered(tag).0);
        others[0].head_mut().properties = other_id;
        others[1].head_mut().routing_key = "other.kind".into();
        others[2].body = Bytes::from_static(b"other");
        assert!(others.iter().all(|other| other.fingerprint() != delivery.fingerprint()));
        let mut first = delivery;
        first.head_mut().redelivered = false;
        assert_eq!(first.fingerprint(), None);
    }

    #[test]
    fn parts_of_a_message_know_its_channel() {
        let (parts, generation) = split(2);
        assert!(parts.iter().all(Delivery::channel_is_open));
        generation.end();
        assert!(!parts.iter().any(Delivery::channel_is_open));
    }

    #[test]
    fn a_message_that_is_split_into_no_parts_is_requeued() {
        let (parts, generation) = split(0);
        drop(parts);
        // The iterator of `split` held the only reference.
        assert_eq!(only_settlement(&generation), Settlement::Requeued);
    }
}
