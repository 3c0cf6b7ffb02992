//! A delivery that must be settled, and can be only once.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use bytes::Bytes;
use garenne_amqp::take_unreadable;
use garenne_common::shutdown::Settlement;
use lapin::{BasicProperties, types::ShortString};

use super::channel_generation::{ChannelGeneration, SettleRequest};

/// A message on loan from the broker. Settling consumes it; dropping it hands it back.
pub(crate) struct Delivery {
    loan: Held,
    pub(crate) routing_key: Arc<str>,
    /// What it was published to; empty for the default exchange.
    pub(crate) exchange: ShortString,
    pub(crate) redelivered: bool,
    /// Large, and moved from hand to hand.
    pub(crate) properties: Arc<BasicProperties>,
    pub(crate) body: Bytes,
    /// Why its properties or its routing key are not what was published, if they are not.
    pub(crate) unreadable: Option<Box<str>>,
}

/// What of the message is held: all of it, or one of the shares it was divided into.
enum Held {
    Whole(Whole),
    Share(Share),
}

struct Whole {
    generation: Arc<ChannelGeneration>,
    tag: u64,
    settlement: Settlement,
}

struct Share {
    of: Arc<Divided>,
    settlement: Settlement,
}

/// A message that several hold shares of. The broker is told of it when the last share is settled or
/// dropped.
struct Divided {
    whole: Whole,
    /// The settlements of the shares so far, a bit for each.
    settlements: AtomicU8,
}

impl Delivery {
    pub(super) fn new(generation: Arc<ChannelGeneration>, mut message: lapin::message::Delivery) -> Self {
        generation.count_delivery(message.redelivered);
        let unreadable = take_unreadable(&mut message.properties).map(Into::into);
        Self {
            loan: Held::Whole(Whole {
                generation,
                tag: message.delivery_tag,
                settlement: Settlement::Requeued,
            }),
            routing_key: message.routing_key.as_str().into(),
            exchange: message.exchange,
            redelivered: message.redelivered,
            properties: Arc::new(message.properties),
            body: message.data.into(),
            unreadable,
        }
    }

    /// One that nobody sent.
    #[cfg(test)]
    pub(crate) fn for_test(generation: &Arc<ChannelGeneration>, tag: u64) -> Self {
        Self {
            loan: Held::Whole(Whole {
                generation: Arc::clone(generation),
                tag,
                settlement: Settlement::Requeued,
            }),
            routing_key: "k".into(),
            exchange: ShortString::default(),
            redelivered: false,
            properties: Arc::default(),
            body: Bytes::new(),
            unreadable: None,
        }
    }

    /// Whether its channel still lives.
    pub(crate) fn alive(&self) -> bool {
        self.whole().generation.alive()
    }

    /// A delivery without a broker.
    #[cfg(test)]
    pub(crate) fn mock(generation: &Arc<ChannelGeneration>, tag: u64, body: &[u8]) -> Self {
        let (exchange, key) = ("tasks".into(), "some.kind".into());
        let message = lapin::message::Delivery::mock(tag, exchange, key, false, body.to_vec());
        Self::new(Arc::clone(generation), message)
    }

    /// Its channel, for whoever wants to know that later.
    pub(crate) fn generation(&self) -> Arc<ChannelGeneration> {
        Arc::clone(&self.whole().generation)
    }

    /// Settles it. Everything but [`Settlement::Requeued`] and [`Settlement::Abandoned`] takes it off the queue,
    /// so the effect or the copy must be safe by now.
    pub(crate) fn settle(mut self, settlement: Settlement) {
        match &mut self.loan {
            Held::Whole(whole) => whole.settlement = settlement,
            Held::Share(share) => share.settlement = settlement,
        }
    }

    /// Divides it into a share for each of these bodies, to be settled each by itself. The message goes
    /// back whole if one of them does; otherwise its own settlement is theirs where they agree, and
    /// [`Settlement::Acked`] where they do not.
    pub(crate) fn split(self, bodies: impl IntoIterator<Item = Bytes>) -> impl Iterator<Item = Self> {
        let Self { loan, routing_key, exchange, redelivered, properties, .. } = self;
        let of = match loan {
            Held::Whole(whole) => Arc::new(Divided { whole, settlements: AtomicU8::new(0) }),
            Held::Share(_) => unreachable!("a record holds no pack"),
        };
        bodies.into_iter().map(move |body| Self {
            loan: Held::Share(Share { of: Arc::clone(&of), settlement: Settlement::Requeued }),
            routing_key: Arc::clone(&routing_key),
            exchange: exchange.clone(),
            redelivered,
            properties: Arc::clone(&properties),
            body,
            // A message that cannot be read is not divided.
            unreadable: None,
        })
    }

    fn whole(&self) -> &Whole {
        match &self.loan {
            Held::Whole(whole) => whole,
            Held::Share(share) => &share.of.whole,
        }
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let order = SettleRequest { tag: self.tag, settlement: self.settlement };
        self.generation.order(order);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // The count of shares orders this before the drop of what is divided.
        self.of.settlements.fetch_or(bit(self.settlement), Ordering::Relaxed);
    }
}

impl Drop for Divided {
    fn drop(&mut self) {
        self.whole.settlement = together(*self.settlements.get_mut());
    }
}

const fn bit(settlement: Settlement) -> u8 {
    1 << settlement as u8
}

/// What becomes of a message whose shares had these settlements.
fn together(settlements: u8) -> Settlement {
    let back = [Settlement::Abandoned, Settlement::LostSettlement, Settlement::Requeued];
    if let Some(back) = back.into_iter().find(|settlement| settlements & bit(*settlement) != 0) {
        return back;
    }
    Settlement::ALL.into_iter().find(|settlement| settlements == bit(*settlement)).unwrap_or(
        match settlements {
            0 => Settlement::Requeued,
            _ => Settlement::Acked,
        },
    )
}

#[cfg(test)]
mod tests {
    use garenne_common::telemetry::Metrics;

    use super::*;
    use crate::consumer::SettlementCounters;

    fn divided(shares: usize) -> (Vec<Delivery>, Arc<ChannelGeneration>) {
        let counters = SettlementCounters { tally: Arc::default(), lane: Metrics::new("test").lane("test") };
        let generation = Arc::new(ChannelGeneration::new(counters, 1));
        let whole = Delivery::for_test(&generation, 7);
        (whole.split((0..shares).map(|_| Bytes::new())).collect(), generation)
    }

    fn settlement(settlements: &[Option<Settlement>]) -> Settlement {
        let (shares, generation) = divided(settlements.len());
        for (share, settlement) in shares.into_iter().zip(settlements) {
            assert_eq!(generation.waiting(), 0, "told before the last share was settled");
            if let Some(settlement) = settlement {
                share.settle(*settlement);
            }
        }
        only_order(&generation)
    }

    fn only_order(generation: &ChannelGeneration) -> Settlement {
        let mut orders = Vec::new();
        generation.take(&mut orders);
        let [SettleRequest { tag: 7, settlement }] = orders[..] else { panic!("settled once: {orders:?}") };
        settlement
    }

    #[test]
    fn a_divided_message_is_settled_once_and_goes_back_if_any_share_does() {
        use Settlement::*;
        assert_eq!(settlement(&[Some(Acked), Some(Acked)]), Acked);
        assert_eq!(settlement(&[Some(Acked), Some(Retried), Some(Dead)]), Acked);
        assert_eq!(settlement(&[Some(Dead), Some(Dead)]), Dead);
        assert_eq!(settlement(&[Some(Quarantined)]), Quarantined);
        assert_eq!(settlement(&[Some(Acked), None, Some(Dead)]), Requeued);
        assert_eq!(settlement(&[Some(Abandoned), None]), Abandoned);
    }

    fn delivered(tag: u64) -> (Delivery, Arc<ChannelGeneration>) {
        let counters = SettlementCounters { tally: Arc::default(), lane: Metrics::new("test").lane("test") };
        let generation = Arc::new(ChannelGeneration::new(counters, 1));
        let (exchange, key) = ("tasks".into(), "some.kind".into());
        let mut message = lapin::message::Delivery::mock(tag, exchange, key, true, b"body".to_vec());
        message.properties = BasicProperties::default().with_message_id("id".into());
        (Delivery::new(Arc::clone(&generation), message), generation)
    }

    #[test]
    fn a_delivery_that_nobody_settles_goes_back() {
        let (delivery, generation) = delivered(7);
        assert_eq!((generation.deliveries(), generation.outstanding()), (1, 1));
        drop(delivery);
        assert_eq!(only_order(&generation), Settlement::Requeued);
        assert_eq!(generation.outstanding(), 0);
    }

    #[test]
    fn a_delivery_keeps_what_came_with_it_and_its_channel() {
        let (delivery, generation) = delivered(7);
        assert_eq!(
            (&*delivery.routing_key, delivery.redelivered, &delivery.body[..]),
            ("some.kind", true, &b"body"[..])
        );
        assert_eq!(delivery.properties.message_id().as_ref().map(|id| id.as_str()), Some("id"));
        assert!(Arc::ptr_eq(&delivery.generation(), &generation) && delivery.alive());
        generation.end();
        assert!(!delivery.alive());
        delivery.settle(Settlement::Dead);
        assert_eq!(only_order(&generation), Settlement::Dead);
    }

    #[test]
    fn shares_know_their_channel_too() {
        let (shares, generation) = divided(2);
        assert!(shares.iter().all(Delivery::alive));
        generation.end();
        assert!(!shares.iter().any(Delivery::alive));
    }

    #[test]
    fn a_message_without_shares_is_not_acked() {
        let (shares, generation) = divided(0);
        drop(shares);
        // The iterator held the only share.
        assert_eq!(only_order(&generation), Settlement::Requeued);
    }
}
