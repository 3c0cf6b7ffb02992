//! A delivery that must be settled, and can be only once.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use bytes::Bytes;
use garenne_common::shutdown::Fate;
use lapin::BasicProperties;

use super::epoch::{Epoch, Order};

/// A message on loan from the broker. Settling consumes it; dropping it hands it back.
pub(crate) struct Delivery {
    loan: Loan,
    pub(crate) routing_key: Arc<str>,
    pub(crate) redelivered: bool,
    /// Large, and moved from hand to hand.
    pub(crate) properties: Arc<BasicProperties>,
    pub(crate) body: Bytes,
}

/// What of the message is held: all of it, or one of the shares it was divided into.
enum Loan {
    Whole(Whole),
    Share(Share),
}

struct Whole {
    epoch: Arc<Epoch>,
    tag: u64,
    fate: Fate,
}

struct Share {
    of: Arc<Divided>,
    fate: Fate,
}

/// A message that several hold shares of. The broker is told of it when the last share is settled or
/// dropped.
struct Divided {
    whole: Whole,
    /// The fates of the shares so far, a bit for each.
    fates: AtomicU8,
}

impl Delivery {
    pub(super) fn new(epoch: Arc<Epoch>, message: lapin::message::Delivery) -> Self {
        epoch.count_delivery(message.redelivered);
        Self {
            loan: Loan::Whole(Whole { epoch, tag: message.delivery_tag, fate: Fate::Requeued }),
            routing_key: message.routing_key.as_str().into(),
            redelivered: message.redelivered,
            properties: Arc::new(message.properties),
            body: message.data.into(),
        }
    }

    /// Whether its channel still lives.
    pub(crate) fn alive(&self) -> bool {
        self.whole().epoch.alive()
    }

    /// Its channel, for whoever wants to know that later.
    pub(crate) fn epoch(&self) -> Arc<Epoch> {
        Arc::clone(&self.whole().epoch)
    }

    /// Settles it. Everything but [`Fate::Requeued`] and [`Fate::Abandoned`] takes it off the queue,
    /// so the effect or the copy must be safe by now.
    pub(crate) fn settle(mut self, fate: Fate) {
        match &mut self.loan {
            Loan::Whole(whole) => whole.fate = fate,
            Loan::Share(share) => share.fate = fate,
        }
    }

    /// Divides it into a share for each of these bodies, to be settled each by itself. The message goes
    /// back whole if one of them does; otherwise its own fate is theirs where they agree, and
    /// [`Fate::Acked`] where they do not.
    pub(crate) fn divide(self, bodies: impl IntoIterator<Item = Bytes>) -> impl Iterator<Item = Self> {
        let Self { loan, routing_key, redelivered, properties, .. } = self;
        let of = match loan {
            Loan::Whole(whole) => Arc::new(Divided { whole, fates: AtomicU8::new(0) }),
            Loan::Share(_) => unreachable!("a record holds no pack"),
        };
        bodies.into_iter().map(move |body| Self {
            loan: Loan::Share(Share { of: Arc::clone(&of), fate: Fate::Requeued }),
            routing_key: Arc::clone(&routing_key),
            redelivered,
            properties: Arc::clone(&properties),
            body,
        })
    }

    fn whole(&self) -> &Whole {
        match &self.loan {
            Loan::Whole(whole) => whole,
            Loan::Share(share) => &share.of.whole,
        }
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let order = Order { tag: self.tag, fate: self.fate };
        self.epoch.order(order);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // The count of shares orders this before the drop of what is divided.
        self.of.fates.fetch_or(bit(self.fate), Ordering::Relaxed);
    }
}

impl Drop for Divided {
    fn drop(&mut self) {
        self.whole.fate = together(*self.fates.get_mut());
    }
}

const fn bit(fate: Fate) -> u8 {
    1 << fate as u8
}

/// What becomes of a message whose shares had these fates.
fn together(fates: u8) -> Fate {
    let back = [Fate::Abandoned, Fate::LostSettlement, Fate::Requeued];
    if let Some(back) = back.into_iter().find(|fate| fates & bit(*fate) != 0) {
        return back;
    }
    Fate::ALL.into_iter().find(|fate| fates == bit(*fate)).unwrap_or(match fates {
        0 => Fate::Requeued,
        _ => Fate::Acked,
    })
}

#[cfg(test)]
mod tests {
    use garenne_common::telemetry::Metrics;

    use super::*;
    use crate::consumer::Meter;

    fn divided(shares: usize) -> (Vec<Delivery>, Arc<Epoch>) {
        let meter = Meter { tally: Arc::default(), lane: Metrics::new("test").lane("test") };
        let epoch = Arc::new(Epoch::new(meter, 1));
        let whole = Delivery {
            loan: Loan::Whole(Whole { epoch: Arc::clone(&epoch), tag: 7, fate: Fate::Requeued }),
            routing_key: "k".into(),
            redelivered: false,
            properties: Arc::default(),
            body: Bytes::new(),
        };
        (whole.divide((0..shares).map(|_| Bytes::new())).collect(), epoch)
    }

    fn fate(fates: &[Option<Fate>]) -> Fate {
        let (shares, epoch) = divided(fates.len());
        for (share, fate) in shares.into_iter().zip(fates) {
            assert_eq!(epoch.waiting(), 0, "told before the last share was settled");
            if let Some(fate) = fate {
                share.settle(*fate);
            }
        }
        only_order(&epoch)
    }

    fn only_order(epoch: &Epoch) -> Fate {
        let mut orders = Vec::new();
        epoch.take(&mut orders);
        let [Order { tag: 7, fate }] = orders[..] else { panic!("settled once: {orders:?}") };
        fate
    }

    #[test]
    fn a_divided_message_is_settled_once_and_goes_back_if_any_share_does() {
        use Fate::*;
        assert_eq!(fate(&[Some(Acked), Some(Acked)]), Acked);
        assert_eq!(fate(&[Some(Acked), Some(Retried), Some(Dead)]), Acked);
        assert_eq!(fate(&[Some(Dead), Some(Dead)]), Dead);
        assert_eq!(fate(&[Some(Suspected)]), Suspected);
        assert_eq!(fate(&[Some(Acked), None, Some(Dead)]), Requeued);
        assert_eq!(fate(&[Some(Abandoned), None]), Abandoned);
    }

    #[test]
    fn a_message_without_shares_is_not_acked() {
        let (shares, epoch) = divided(0);
        drop(shares);
        // The iterator held the only share.
        assert_eq!(only_order(&epoch), Fate::Requeued);
    }
}
