//! Regular ticks.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// Ticks at most once per `period`, also after a delay. The first one is immediate.
pub fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period.max(Duration::from_nanos(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
