//! The hook for metrics.

use std::time::Duration;

use crate::{ending::EndingKind, spec::Placement};

/// Called when tasks start and end. Must be quick and must not block.
///
/// A panic in an observer is logged and does not affect the task or its worker. Without an observer, the pool
/// does not read the clock for short tasks.
pub trait Observer: Send + Sync + 'static {
    /// A task starts after having waited for `waited`.
    fn started(&self, waited: Duration, placement: Placement) {
        let _ = (waited, placement);
    }

    /// A started task ended after having run for `ran`.
    fn ended(&self, ran: Duration, ending: EndingKind) {
        let _ = (ran, ending);
    }
}
