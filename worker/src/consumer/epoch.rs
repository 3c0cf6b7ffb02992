//! One life of a channel. Tags mean something only within it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use garenne_common::shutdown::Fate;
use tokio::sync::mpsc;

/// What is decided of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) tag: u64,
    pub(crate) fate: Fate,
}

/// Shared by a channel's deliveries and its settler.
#[derive(Debug)]
pub(crate) struct Epoch {
    orders: mpsc::UnboundedSender<Order>,
    alive: AtomicBool,
    delivered: AtomicU64,
}

impl Epoch {
    /// An epoch and the receiver its settler reads. The channel's prefetch bounds the orders.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Order>) {
        let (orders, receiver) = mpsc::unbounded_channel();
        (Self { orders, alive: AtomicBool::new(true), delivered: AtomicU64::new(0) }, receiver)
    }

    /// Whether a settlement can still reach the broker. A delivery of a dead epoch will be
    /// redelivered: there is no point in starting it.
    pub(crate) fn alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        self.alive.store(false, Ordering::Release);
    }

    pub(crate) fn count_delivery(&self) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn deliveries(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Passes an order to the settler; false when it is gone.
    pub(crate) fn order(&self, order: Order) -> bool {
        self.orders.send(order).is_ok()
    }
}
