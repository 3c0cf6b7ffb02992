//! The queues that a lane's consumers consume.

use super::coalescer::TickClock;

/// A queue to consume.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) queue: String,
    /// Largest number of unsettled deliveries.
    pub(crate) prefetch: u16,
    /// The consumer tag, which the broker lists.
    pub(crate) tag: String,
    /// Whether others declare the queue. Workers wait for it and bind it.
    pub(crate) is_of_others: bool,
    /// Ticks for coalescing deliveries and settlements.
    pub(crate) clock: TickClock,
}

impl Subscription {
    /// One subscription for each queue of a lane.
    ///
    /// The queues share the lane's prefetch as evenly as possible, so that none takes another's share. The
    /// prefetch must be at least the number of queues.
    pub(crate) fn for_queues(queues: Vec<String>, prefetch: u16, tag: &str) -> Vec<Self> {
        let (count, clock) = (queues.len(), TickClock::new(queues.len()));
        let share = |shard: usize| {
            let prefetch = usize::from(prefetch);
            u16::try_from(prefetch / count + usize::from(shard < prefetch % count)).expect("a part of a u16")
        };
        let subscription = |(shard, queue): (usize, String)| Self {
            queue,
            prefetch: share(shard),
            is_of_others: false,
            tag: if shard == 0 { tag.to_owned() } else { format!("{tag}.{shard}") },
            clock,
        };
        queues.into_iter().enumerate().map(subscription).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_share_the_whole_prefetch_evenly() {
        let shares = |queues: usize, prefetch| {
            let names = (0..queues).map(|n| format!("q{n}")).collect();
            let subscriptions = Subscription::for_queues(names, prefetch, "w.fast");
            subscriptions.iter().map(|it| it.prefetch).collect::<Vec<_>>()
        };
        assert_eq!(shares(1, 200), [200]);
        assert_eq!(shares(4, 1000), [250; 4]);
        assert_eq!(shares(3, 200), [67, 67, 66]);
        assert_eq!(shares(4, 4), [1; 4]);
        let subscriptions = Subscription::for_queues(vec!["a".into(), "b".into()], 2, "w.fast");
        assert_eq!([&*subscriptions[0].tag, &*subscriptions[1].tag], ["w.fast", "w.fast.1"]);
    }
}
