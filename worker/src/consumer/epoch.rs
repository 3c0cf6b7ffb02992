//! One life of a channel. Tags mean something only within it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use garenne_common::shutdown::Fate;
use tokio::sync::mpsc;

use super::meter::Meter;

/// What is decided of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) tag: u64,
    pub(crate) fate: Fate,
}

/// Shared by a channel's deliveries and its settler.
pub(crate) struct Epoch {
    orders: mpsc::UnboundedSender<Order>,
    meter: Meter,
    alive: AtomicBool,
    delivered: AtomicU64,
    ordered: AtomicU64,
}

impl Epoch {
    /// An epoch and the receiver its settler reads. The channel's prefetch bounds the orders.
    pub(crate) fn new(meter: Meter) -> (Self, mpsc::UnboundedReceiver<Order>) {
        let (orders, receiver) = mpsc::unbounded_channel();
        (
            Self {
                meter,
                orders,
                alive: AtomicBool::new(true),
                delivered: AtomicU64::new(0),
                ordered: AtomicU64::new(0),
            },
            receiver,
        )
    }

    /// Whether a settlement can still reach the broker. A delivery of a dead epoch will be
    /// redelivered: there is no point in starting it.
    pub(crate) fn alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        self.alive.store(false, Ordering::Release);
    }

    pub(crate) fn count_delivery(&self, redelivered: bool) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
        self.meter.delivered(redelivered);
    }

    pub(crate) fn deliveries(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Deliveries without an order yet.
    pub(crate) fn outstanding(&self) -> u64 {
        // Orders first: a delivery in between must not make the difference negative.
        let ordered = self.ordered.load(Ordering::Relaxed);
        self.deliveries().saturating_sub(ordered)
    }

    /// Passes an order to the settler. Where that is gone the channel died: the settlement is lost.
    pub(crate) fn order(&self, order: Order) {
        self.ordered.fetch_add(1, Ordering::Relaxed);
        if self.orders.send(order).is_err() {
            self.meter.settled(Fate::LostSettlement, 1);
        }
    }
}
