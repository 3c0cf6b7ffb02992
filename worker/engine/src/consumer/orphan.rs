//! Messages whose queue was deleted while this worker held them.

use std::{sync::Arc, time::SystemTime};

use bytes::Bytes;
use garenne_protocol::amqp::{BasicProperties, ShortString};

/// A message that was not settled when its queue was deleted. The broker does not deliver it again.
pub(crate) struct Orphan {
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    /// When this worker received it.
    pub(crate) received_at: SystemTime,
    pub(crate) body: Bytes,
}

/// Takes the orphans of a queue.
pub(crate) type OnOrphan = Arc<dyn Fn(Orphan) + Send + Sync>;
