//! What happens to a delivery when its channel dies.
//!
//! A settlement can no longer reach the broker, which delivers the messages of the channel again, here or to another worker.
//! What has not begun is dropped, and what has begun ends as far as it can:
//!
//! | the task | when its channel dies |
//! | --- | --- |
//! | waits for a place in the pool, or for the quarantine | dropped: [`take_closed`], `LanePipeline::unless_aborted` |
//! | waits in the pool | is not started: `Attempt::execute` |
//! | is a batch that runs | goes back as a whole after the running record: `Batch::execute` |
//! | runs | runs to its end. The redelivery of a long task takes the place of the lost delivery: [`RedeliveryTracker`] |
//! | waits for an unavailable sink | dropped: [`take_closed`]. The answer of a write that has begun is awaited |
//! | waits for the confirm of a copy or of follow-ups | dropped: `Settler::publish_until_confirmed` |
//! | has succeeded | its id is remembered, so that its redelivery is acked without another run: `Settler::ack` |
//!
//! Dropping a delivery of a dead channel is counted as a lost settlement. If its queue was deleted, the broker has no message
//! to deliver again; then the worker publishes what it drops (`Settler::reclaim`).
//!
//! [`RedeliveryTracker`]: crate::redelivery::RedeliveryTracker

use std::{collections::VecDeque, time::Duration};

/// How often tasks that wait for a place in the pool are searched for dead channels. They would accumulate with each
/// reconnect.
pub(crate) const POOL_WAIT_CHECK: Duration = Duration::from_millis(250);

/// Removes and returns the items whose channel is not open. Keeps the order of the others.
pub(crate) fn take_closed<T>(waiting: &mut VecDeque<T>, is_open: impl Fn(&T) -> bool) -> VecDeque<T> {
    if waiting.iter().all(&is_open) {
        return VecDeque::new();
    }
    let (kept, dead) = waiting.drain(..).partition(is_open);
    *waiting = kept;
    dead
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_items_of_dead_channels_are_taken_out() {
        let mut waiting = VecDeque::from([1, 2, 3, 4, 5]);
        assert!(take_closed(&mut waiting, |_| true).is_empty());
        assert_eq!(waiting, [1, 2, 3, 4, 5]);
        assert_eq!(take_closed(&mut waiting, |n| n % 2 == 1), [2, 4]);
        assert_eq!(waiting, [1, 3, 5]);
        assert_eq!(take_closed(&mut waiting, |_| false), [1, 3, 5]);
        assert!(waiting.is_empty());
    }
}
