//! The looks of operators at the messages of lanes.
//!
//! Before RabbitMQ 4.3, the broker counts the return after a look as a redelivery of the message. A task that was looked
//! at would be suspected of crashing workers. The directive is in the stream before the look begins, and a paused lane is
//! resumed by a later directive of the same stream, so a worker knows of a look before it receives what was looked at.

use std::collections::{BTreeMap, BTreeSet};

/// Looks that are remembered for each lane. With more, tasks that were looked at may be suspected.
const MOST_LOOKS: usize = 1_000;
/// How far the clocks of publishers and operators may differ, in milliseconds.
const CLOCK_SKEW: i64 = 60_000;

/// The times of the looks at each lane, in milliseconds since 1970.
#[derive(Debug, Default)]
pub(super) struct LaneLooks(BTreeMap<String, BTreeSet<i64>>);

impl LaneLooks {
    /// Adds a look. Returns whether it is new.
    pub(super) fn add(&mut self, lane: &str, at: i64) -> bool {
        let looks = self.0.entry(lane.to_owned()).or_default();
        let is_new = looks.insert(at);
        if looks.len() > MOST_LOOKS {
            looks.pop_first();
        }
        is_new
    }

    /// The looks at a lane since a task was published. Without a time, the task may have been there for all of them.
    pub(super) fn since(&self, lane: &str, published_at: Option<i64>) -> u32 {
        let Some(looks) = self.0.get(lane) else { return 0 };
        let from = published_at.map_or(i64::MIN, |at| at.saturating_sub(CLOCK_SKEW));
        u32::try_from(looks.range(from..).count()).unwrap_or(u32::MAX)
    }

    /// Forgets looks that the stream does not keep either.
    pub(super) fn remove_before(&mut self, oldest: i64) {
        self.0.retain(|_, looks| {
            *looks = looks.split_off(&oldest);
            !looks.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_count_for_tasks_that_were_published_before_them() {
        let mut looks = LaneLooks::default();
        assert!(looks.add("fast", 1_000_000) && looks.add("fast", 2_000_000));
        assert!(!looks.add("fast", 2_000_000), "the stream is read again");
        let since = |at| looks.since("fast", at);
        assert_eq!((since(Some(900_000)), since(Some(1_500_000)), since(Some(3_000_000))), (2, 1, 0));
        assert_eq!(since(Some(2_030_000)), 1, "the publisher's clock is ahead");
        assert_eq!((since(None), looks.since("slow", None)), (2, 0));
        looks.remove_before(1_500_000);
        assert_eq!(looks.since("fast", None), 1);
        looks.remove_before(2_500_000);
        assert!(looks.0.is_empty());
    }

    #[test]
    fn the_latest_looks_are_kept() {
        let mut looks = LaneLooks::default();
        for at in 0..1_500 {
            looks.add("fast", at);
        }
        assert_eq!((looks.since("fast", None), looks.0["fast"].first()), (1_000, Some(&500)));
    }
}
