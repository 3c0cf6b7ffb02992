//! A delivery that must be settled, and can be only once.

use std::sync::Arc;

use bytes::Bytes;
use garenne_common::shutdown::Fate;
use lapin::BasicProperties;

use super::epoch::{Epoch, Order};

/// A message on loan from the broker. Settling consumes it; dropping it hands it back.
pub(crate) struct Delivery {
    loan: Loan,
    pub(crate) routing_key: String,
    pub(crate) redelivered: bool,
    /// Large, and moved from hand to hand.
    pub(crate) properties: Box<BasicProperties>,
    pub(crate) body: Bytes,
}

struct Loan {
    epoch: Arc<Epoch>,
    tag: u64,
    fate: Fate,
}

impl Delivery {
    pub(super) fn new(epoch: Arc<Epoch>, message: lapin::message::Delivery) -> Self {
        epoch.count_delivery(message.redelivered);
        Self {
            loan: Loan { epoch, tag: message.delivery_tag, fate: Fate::Requeued },
            routing_key: message.routing_key.to_string(),
            redelivered: message.redelivered,
            properties: Box::new(message.properties),
            body: message.data.into(),
        }
    }

    /// Whether its channel still lives.
    pub(crate) fn alive(&self) -> bool {
        self.loan.epoch.alive()
    }

    /// Its channel, for whoever wants to know that later.
    pub(crate) fn epoch(&self) -> Arc<Epoch> {
        Arc::clone(&self.loan.epoch)
    }

    /// Settles it. Everything but [`Fate::Requeued`] and [`Fate::Abandoned`] takes it off the queue,
    /// so the effect or the copy must be safe by now.
    pub(crate) fn settle(mut self, fate: Fate) {
        self.loan.fate = fate;
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let order = Order { tag: self.tag, fate: self.fate };
        self.epoch.order(order);
    }
}
