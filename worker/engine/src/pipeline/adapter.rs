//! Messages of clients that do not know Garenne.

use garenne_protocol::task::{DeadReason, Origin};

use crate::{consumer::Delivery, registry::Registry};

/// Makes tasks of the messages that such clients publish to a lane. A lane has at most one adapter.
pub(crate) trait LaneAdapter: Send + Sync {
    /// The origin of a message that such a client published. [`None`] if it is a task of Garenne.
    fn origin(&self, delivery: &Delivery) -> Option<Origin>;

    /// The queue of other programs that receives the message unchanged, because they run it and this worker cannot.
    fn pass_on(&self, _delivery: &Delivery, _registry: &Registry) -> Option<&str> {
        None
    }

    /// The message as a task. Headers that are not trusted from `origin` have been removed. A message that cannot be a task
    /// is marked as unreadable, with the reason.
    fn as_task(&self, delivery: Delivery, origin: Origin) -> Delivery;

    /// Why no handler can run the task, although it is not too large.
    fn refusal(&self, _delivery: &Delivery) -> Option<(DeadReason, String)> {
        None
    }

    /// Whether a message that the broker cannot deliver may close the connection. The other lanes then use another one.
    fn may_close_connection(&self) -> bool {
        false
    }
}
