//! What happens in few histories, and is counted so that a test notices if it happens in none.

/// Something rare that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mishap {
    /// A call of a sink did not return for a long time.
    SinkHung,
    /// A call of a sink panicked.
    SinkPanicked,
    /// The broker stored a message and never confirmed it.
    NeverConfirmed,
    /// A consumer held a message for longer than the consumer timeout.
    ConsumerTimeout,
    /// An operator deleted the queue of a lane.
    QueueDeleted,
    /// A worker held messages of it that it had not settled, and learned of the deletion.
    Orphaned,
}

impl Mishap {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::SinkHung,
        Self::SinkPanicked,
        Self::NeverConfirmed,
        Self::ConsumerTimeout,
        Self::QueueDeleted,
        Self::Orphaned,
    ];
}
