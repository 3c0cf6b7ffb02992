//! What is notified when a task ends.

use std::sync::Arc;

use crate::handle::HandleState;

/// The completion of a task and the state of its handle, if it has one.
pub(crate) struct Notifier<C> {
    pub(crate) completion: C,
    pub(crate) handle: Option<Arc<HandleState>>,
}
