//! Messages whose queue was deleted while this worker held them.

use std::{sync::Arc, time::SystemTime};

use bytes::Bytes;
use garenne_protocol::amqp::{BasicProperties, ShortString};

use super::cancellation::Cancellation;

/// A message that was not settled when its queue was deleted, or may have been: see [`Cancellation`].
pub(crate) struct Orphan {
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    /// Identifies it if it is delivered again; [`None`] without an id, because other messages may be equal.
    pub(crate) identity: Option<u64>,
    /// When this worker received it.
    pub(crate) received_at: SystemTime,
    pub(crate) body: Bytes,
    /// Why its consumer was cancelled.
    pub(crate) cancellation: Arc<Cancellation>,
}

/// Takes the orphans of a queue.
pub(crate) type OnOrphan = Arc<dyn Fn(Orphan) + Send + Sync>;
