//! Identifiers of what exists on the simulated broker.

use std::fmt;

/// Defines identifiers, each with the letter that precedes its number in traces.
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $letter:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($letter, "{}"), self.0)
            }
        }
    )*};
}

ids! {
    /// A process that connects: a publisher, a worker, or an operator's command.
    OwnerId = "o";
    /// A connection.
    ConnectionId = "connection ";
    /// A channel. Numbers are unique over all connections.
    ChannelId = "channel ";
    /// A consumer. Numbers are unique over all queues; `basic.get` uses one too.
    ConsumerId = "consumer ";
    /// The name of a queue. A queue that is deleted and declared again has the same one.
    QueueId = "queue ";
    /// A synchronous request, which is answered by an event.
    RequestId = "request ";
    /// One stored or refused message. Every publish has its own; a requeue and a dead-lettering keep it.
    Serial = "m";
}

/// What is kept in a vector at its number.
macro_rules! indexed {
    ($($name:ident)*) => {$(
        impl $name {
            pub(crate) fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

indexed!(OwnerId ConnectionId ChannelId QueueId Serial);
