//! Tracks which deliveries of a channel are settled, and computes the fewest frames that settle them on the broker.
//!
//! Pure bookkeeping: tags in, frames out. A completed run that starts at the lowest outstanding tag becomes one
//! `multiple` frame. Deliveries beyond a gap are settled one by one: the gap may be a task that runs for minutes,
//! and the broker should get the credit of the others back, or the others themselves, before it ends.

use std::collections::BTreeMap;

use garenne_protocol::settlement::Settlement;

use super::broker::{Disposition, Frame};

/// The delivery tags of one channel.
///
/// Neither its size nor the cost of [`frames`](Self::frames) grows with the number of settled deliveries: a
/// hundred thousand settled tags behind one long task are one range.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// All lower tags are settled. The tags of a channel are consecutive, from 1.
    lowest_outstanding: u64,
    /// Higher tags that were settled one by one, as ranges from first to last tag. Between two ranges lies at least
    /// one outstanding delivery, so the prefetch bounds their number.
    settled_ranges: BTreeMap<u64, u64>,
    /// Recorded settlements without a frame, in the order in which they were recorded.
    pending: Vec<(u64, Disposition, Settlement)>,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self { lowest_outstanding: 1, settled_ranges: BTreeMap::new(), pending: Vec::new() }
    }

    /// Records the settlement of a delivery, once per delivery.
    ///
    /// A delivery that is left to the broker stays outstanding, so that no frame covers it.
    pub(crate) fn record(&mut self, tag: u64, settlement: Settlement) {
        assert!(tag >= self.lowest_outstanding, "delivery {tag} is settled twice");
        let disposition = match settlement {
            Settlement::Requeued => Disposition::Requeue,
            Settlement::Abandoned | Settlement::LostSettlement => return,
            Settlement::Acked | Settlement::Retried | Settlement::Dead | Settlement::Quarantined => {
                Disposition::Ack
            }
        };
        self.pending.push((tag, disposition, settlement));
    }

    /// The number of recorded settlements without a frame.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Returns the frames for all pending settlements, runs from the lowest outstanding tag first. The caller
    /// must send them: the ledger counts their deliveries as settled.
    pub(crate) fn frames(&mut self) -> Vec<Frame> {
        let mut pending = std::mem::take(&mut self.pending);
        pending.sort_unstable_by_key(|(tag, ..)| *tag);
        let mut frames = Vec::new();
        let mut rest = &pending[..];
        while let Some(covered) = self.settle_leading_run(rest, &mut frames) {
            rest = &rest[covered..];
        }
        for &(tag, disposition, settlement) in rest {
            frames.push(Frame::single(tag, disposition, settlement));
            self.mark_settled(tag);
        }
        // Keeps the allocation for the next call.
        pending.clear();
        self.pending = pending;
        frames
    }

    /// Settles the run of equal dispositions that starts at the lowest outstanding tag, across tags that were
    /// settled one by one before.
    ///
    /// `pending` is sorted by tag. Returns how many of its entries the run covers.
    fn settle_leading_run(
        &mut self,
        pending: &[(u64, Disposition, Settlement)],
        frames: &mut Vec<Frame>,
    ) -> Option<usize> {
        let &(tag, disposition, _) = pending.first()?;
        if tag != self.lowest_outstanding {
            return None;
        }
        let mut frame = Frame { disposition, tag, multiple: false, settlements: [0; Settlement::ALL.len()] };
        let mut covered = 0;
        for &(tag, other, settlement) in pending {
            if tag != self.lowest_outstanding || other != disposition {
                break;
            }
            frame.tag = tag;
            frame.settlements[settlement as usize] += 1;
            covered += 1;
            self.lowest_outstanding = match self.settled_ranges.remove(&(tag + 1)) {
                Some(last) => last + 1,
                None => tag + 1,
            };
        }
        frame.multiple = covered > 1;
        frames.push(frame);
        Some(covered)
    }

    /// Adds a tag that was settled alone, and merges it with the ranges on both sides.
    fn mark_settled(&mut self, tag: u64) {
        let last = self.settled_ranges.remove(&(tag + 1)).unwrap_or(tag);
        match self.settled_ranges.range_mut(..tag).next_back() {
            Some((_, end)) if *end + 1 == tag => *end = last,
            _ => {
                self.settled_ranges.insert(tag, last);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Disposition::*, *};
    use proptest::prelude::*;

    fn ledger(settled: &[(u64, Settlement)]) -> Ledger {
        let mut ledger = Ledger::new();
        settled.iter().for_each(|&(tag, settlement)| ledger.record(tag, settlement));
        ledger
    }

    fn summary(frames: &[Frame]) -> Vec<(Disposition, u64, bool)> {
        frames.iter().map(|frame| (frame.disposition, frame.tag, frame.multiple)).collect()
    }

    #[test]
    fn a_run_from_the_lowest_tag_is_one_multiple_frame() {
        let mut ledger = ledger(&[(2, Settlement::Retried), (1, Settlement::Acked), (3, Settlement::Acked)]);
        assert_eq!(ledger.pending(), 3);
        let frames = ledger.frames();
        assert_eq!(summary(&frames), [(Ack, 3, true)]);
        assert_eq!(frames[0].settlements[Settlement::Acked as usize], 2);
        assert_eq!(frames[0].settlements[Settlement::Retried as usize], 1);
        assert_eq!(ledger.pending(), 0);
    }

    #[test]
    fn deliveries_beyond_a_gap_are_settled_one_by_one() {
        let mut ledger = ledger(&[(2, Settlement::Acked), (4, Settlement::Requeued)]);
        assert_eq!(summary(&ledger.frames()), [(Ack, 2, false), (Requeue, 4, false)]);
        ledger.record(1, Settlement::Acked);
        ledger.record(3, Settlement::Acked);
        assert_eq!(summary(&ledger.frames()), [(Ack, 3, true)]);
    }

    #[test]
    fn acks_and_requeues_get_frames_of_their_own() {
        let mut ledger = ledger(&[
            (1, Settlement::Acked),
            (2, Settlement::Acked),
            (3, Settlement::Requeued),
            (4, Settlement::Requeued),
            (5, Settlement::Dead),
        ]);
        assert_eq!(summary(&ledger.frames()), [(Ack, 2, true), (Requeue, 4, true), (Ack, 5, false)]);
    }

    #[test]
    fn no_frame_covers_an_abandoned_delivery() {
        let mut ledger =
            ledger(&[(1, Settlement::Abandoned), (2, Settlement::Acked), (3, Settlement::Acked)]);
        assert_eq!(ledger.pending(), 2, "an abandoned delivery needs no frame");
        assert_eq!(summary(&ledger.frames()), [(Ack, 2, false), (Ack, 3, false)]);
        assert_eq!(ledger.pending(), 0);
    }

    #[test]
    #[should_panic = "delivery 1 is settled twice"]
    fn recording_a_settled_delivery_again_panics() {
        let mut ledger = ledger(&[(1, Settlement::Acked)]);
        ledger.frames();
        ledger.record(1, Settlement::Acked);
    }

    #[test]
    fn cost_and_memory_do_not_grow_behind_a_long_task() {
        let mut ledger = Ledger::new();
        for tag in 2..=100_001 {
            ledger.record(tag, Settlement::Acked);
            if tag % 50 == 0 {
                ledger.frames();
                // `frames` reads nothing else, so its cost is bounded by these sizes.
                assert_eq!((ledger.pending.len(), ledger.settled_ranges.len()), (0, 1));
            }
        }
        assert_eq!(ledger.frames().len(), 1);
        assert_eq!(ledger.settled_ranges.len(), 1);
        assert!(ledger.pending.capacity() <= 128, "{}", ledger.pending.capacity());
        ledger.record(1, Settlement::Acked);
        assert_eq!(summary(&ledger.frames()), [(Ack, 1, false)]);
        assert_eq!((ledger.settled_ranges.len(), ledger.lowest_outstanding), (0, 100_002));
    }

    #[test]
    fn settled_ranges_merge_when_the_gap_between_them_closes() {
        let mut ledger = ledger(&[
            (2, Settlement::Acked),
            (4, Settlement::Acked),
            (6, Settlement::Abandoned),
            (7, Settlement::Acked),
        ]);
        ledger.frames();
        assert_eq!(ledger.settled_ranges, BTreeMap::from([(2, 2), (4, 4), (7, 7)]));
        ledger.record(3, Settlement::Requeued);
        assert_eq!(summary(&ledger.frames()), [(Requeue, 3, false)]);
        assert_eq!(ledger.settled_ranges, BTreeMap::from([(2, 4), (7, 7)]));
        ledger.record(5, Settlement::Acked);
        ledger.record(1, Settlement::Acked);
        assert_eq!(summary(&ledger.frames()), [(Ack, 5, true)]);
        assert_eq!((ledger.lowest_outstanding, ledger.settled_ranges.len()), (6, 1), "tag 6 is abandoned");
    }

    /// A simpler ledger that visits every tag from the lowest outstanding one. Both must return the same frames.
    mod reference {
        use std::collections::VecDeque;

        use super::{Disposition, Frame, Settlement};

        #[derive(Clone, Copy, PartialEq)]
        enum Slot {
            Outstanding,
            Recorded(Disposition, Settlement),
            Sent,
            Abandoned,
        }

        pub(super) struct Ledger {
            first: u64,
            slots: VecDeque<Slot>,
        }

        impl Ledger {
            pub(super) fn new() -> Self {
                Self { first: 1, slots: VecDeque::new() }
            }

            pub(super) fn record(&mut self, tag: u64, settlement: Settlement) {
                let at = (tag - self.first) as usize;
                if at >= self.slots.len() {
                    self.slots.resize(at + 1, Slot::Outstanding);
                }
                self.slots[at] = match settlement {
                    Settlement::Requeued => Slot::Recorded(Disposition::Requeue, settlement),
                    Settlement::Abandoned | Settlement::LostSettlement => Slot::Abandoned,
                    _ => Slot::Recorded(Disposition::Ack, settlement),
                };
            }

            pub(super) fn frames(&mut self) -> Vec<Frame> {
                let mut frames: Vec<_> = std::iter::from_fn(|| self.leading_run()).collect();
                for (at, slot) in self.slots.iter_mut().enumerate() {
                    let Slot::Recorded(disposition, settlement) = *slot else { continue };
                    frames.push(Frame::single(self.first + at as u64, disposition, settlement));
                    *slot = Slot::Sent;
                }
                frames
            }

            fn leading_run(&mut self) -> Option<Frame> {
                while self.slots.front() == Some(&Slot::Sent) {
                    self.slots.pop_front();
                    self.first += 1;
                }
                let Some(&Slot::Recorded(disposition, _)) = self.slots.front() else { return None };
                let (mut last, mut covered, mut settlements) = (self.first, 0, [0; Settlement::ALL.len()]);
                loop {
                    match self.slots.front() {
                        Some(Slot::Recorded(other, settlement)) if *other == disposition => {
                            last = self.first;
                            covered += 1;
                            settlements[*settlement as usize] += 1;
                        }
                        Some(Slot::Sent) => {}
                        _ => break,
                    }
                    self.slots.pop_front();
                    self.first += 1;
                }
                Some(Frame { disposition, tag: last, multiple: covered > 1, settlements })
            }
        }
    }

    /// Settles deliveries as a broker does.
    fn apply(frames: &[Frame], broker: &mut [Option<Disposition>]) {
        for frame in frames {
            let from = if frame.multiple { 0 } else { frame.tag as usize - 1 };
            let mut covered = 0;
            for settled in &mut broker[from..frame.tag as usize] {
                if settled.is_none() {
                    *settled = Some(frame.disposition);
                    covered += 1;
                } else {
                    assert!(frame.multiple, "tag {} is settled twice", frame.tag);
                }
            }
            assert_eq!(
                covered,
                frame.settlements.iter().sum::<u32>(),
                "the counts must match the settled deliveries"
            );
        }
    }

    fn settlement() -> impl Strategy<Value = Settlement> {
        prop_oneof![
            5 => Just(Settlement::Acked),
            2 => Just(Settlement::Requeued),
            1 => Just(Settlement::Dead),
            1 => Just(Settlement::Abandoned),
        ]
    }

    proptest! {
        #[test]
        fn every_delivery_is_settled_once_and_as_recorded(
            settlements in prop::collection::vec(settlement(), 1..60),
            order in prop::collection::vec(0usize..1000, 60),
            flush_every in 1usize..20,
        ) {
            let n = settlements.len();
            let mut left: Vec<usize> = (0..n).collect();
            let (mut ledger, mut reference) = (Ledger::new(), reference::Ledger::new());
            let mut broker = vec![None; n];
            for (step, pick) in order.iter().enumerate().take(n) {
                let i = left.remove(pick % left.len());
                ledger.record(i as u64 + 1, settlements[i]);
                reference.record(i as u64 + 1, settlements[i]);
                if step % flush_every == 0 {
                    let frames = ledger.frames();
                    prop_assert_eq!(&frames, &reference.frames());
                    apply(&frames, &mut broker);
                }
            }
            apply(&ledger.frames(), &mut broker);
            prop_assert_eq!(ledger.pending(), 0);
            for (settled, settlement) in broker.iter().zip(&settlements) {
                let expected = match settlement {
                    Settlement::Requeued => Some(Requeue),
                    Settlement::Abandoned => None,
                    _ => Some(Ack),
                };
                prop_assert_eq!(*settled, expected);
            }
        }
    }
}
