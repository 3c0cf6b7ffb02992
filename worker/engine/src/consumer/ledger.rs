//! Which deliveries of a channel are settled, and the fewest frames that tell the broker.
//!
//! Pure bookkeeping: tags in, frames out. A completed run that starts at the lowest outstanding tag
//! becomes one `multiple` frame; what completed beyond a gap is settled singly, because the gap may
//! be a task that runs for minutes while its neighbours' credit, or they themselves, are wanted.

use std::collections::BTreeMap;

use garenne_common::shutdown::Settlement;

/// What the broker is told of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Done with.
    Ack,
    /// Back to the queue.
    Requeue,
}

/// A frame to send, and how many deliveries of each settlement it settles (in the order of [`Settlement::ALL`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) verdict: Disposition,
    pub(crate) tag: u64,
    /// Everything outstanding up to and with the tag.
    pub(crate) multiple: bool,
    pub(crate) settlements: [u32; Settlement::ALL.len()],
}

/// The book of one channel.
///
/// Its size and the cost of [`frames`](Self::frames) do not grow with what was settled: behind one long task
/// a hundred thousand settled tags are one range.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Every tag below it is settled. Tags of a channel are consecutive from 1.
    first: u64,
    /// Tags above `first` that were sent singly, as ranges from first to last. Between two ranges at least one
    /// delivery is outstanding or left to the broker, so the prefetch bounds their number.
    sent: BTreeMap<u64, u64>,
    /// Decided and not yet sent, in the order of the decisions.
    decided: Vec<(u64, Disposition, Settlement)>,
    /// Entries looked at so far, for tests of what settling costs.
    #[cfg(test)]
    visited: usize,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self {
            first: 1,
            sent: BTreeMap::new(),
            decided: Vec::new(),
            #[cfg(test)]
            visited: 0,
        }
    }

    /// A delivery is decided, once. One that is left to the broker stays outstanding, so that no frame covers it.
    pub(crate) fn decide(&mut self, tag: u64, settlement: Settlement) {
        assert!(tag >= self.first, "a delivery is decided once");
        let verdict = match settlement {
            Settlement::Requeued => Disposition::Requeue,
            Settlement::Abandoned | Settlement::LostSettlement => return,
            Settlement::Acked | Settlement::Retried | Settlement::Dead | Settlement::Quarantined => {
                Disposition::Ack
            }
        };
        self.decided.push((tag, verdict, settlement));
    }

    /// Decided and not yet sent.
    pub(crate) fn decided(&self) -> usize {
        self.decided.len()
    }

    /// The frames that settle everything decided; runs from the lowest outstanding tag first. What they
    /// cover counts as sent.
    pub(crate) fn frames(&mut self) -> Vec<Frame> {
        let mut decided = std::mem::take(&mut self.decided);
        decided.sort_unstable_by_key(|(tag, ..)| *tag);
        let mut frames = Vec::new();
        let mut rest = &decided[..];
        while let Some(covered) = self.head_run(rest, &mut frames) {
            rest = &rest[covered..];
        }
        for &(tag, verdict, settlement) in rest {
            let mut settlements = [0; Settlement::ALL.len()];
            settlements[settlement as usize] = 1;
            frames.push(Frame { verdict, tag, multiple: false, settlements });
            self.note_sent(tag);
        }
        // Its memory is used again.
        decided.clear();
        self.decided = decided;
        frames
    }

    /// Takes the run of equal verdicts at the lowest outstanding tag, over tags that were sent singly before.
    /// Answers how many of `decided`, which is in the order of the tags, it covers.
    fn head_run(
        &mut self,
        decided: &[(u64, Disposition, Settlement)],
        frames: &mut Vec<Frame>,
    ) -> Option<usize> {
        let &(tag, verdict, _) = decided.first()?;
        if tag != self.first {
            return None;
        }
        let mut frame = Frame { verdict, tag, multiple: false, settlements: [0; Settlement::ALL.len()] };
        let mut covered = 0;
        for &(tag, same, settlement) in decided {
            #[cfg(test)]
            {
                self.visited += 1;
            }
            if tag != self.first || same != verdict {
                break;
            }
            frame.tag = tag;
            frame.settlements[settlement as usize] += 1;
            covered += 1;
            self.first = match self.sent.remove(&(tag + 1)) {
                Some(last) => last + 1,
                None => tag + 1,
            };
        }
        frame.multiple = covered > 1;
        frames.push(frame);
        Some(covered)
    }

    /// Notes a tag that was sent singly, joined to the ranges on both sides of it.
    fn note_sent(&mut self, tag: u64) {
        #[cfg(test)]
        {
            self.visited += 1;
        }
        let last = self.sent.remove(&(tag + 1)).unwrap_or(tag);
        match self.sent.range_mut(..tag).next_back() {
            Some((_, end)) if *end + 1 == tag => *end = last,
            _ => {
                self.sent.insert(tag, last);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Disposition::*, *};
    use proptest::prelude::*;

    fn ledger(decided: &[(u64, Settlement)]) -> Ledger {
        let mut ledger = Ledger::new();
        decided.iter().for_each(|&(tag, settlement)| ledger.decide(tag, settlement));
        ledger
    }

    fn shown(frames: &[Frame]) -> Vec<(Disposition, u64, bool)> {
        frames.iter().map(|frame| (frame.verdict, frame.tag, frame.multiple)).collect()
    }

    #[test]
    fn a_run_from_the_lowest_tag_is_one_frame_and_counts_its_settlements() {
        let mut ledger = ledger(&[(2, Settlement::Retried), (1, Settlement::Acked), (3, Settlement::Acked)]);
        let frames = ledger.frames();
        assert_eq!(shown(&frames), [(Ack, 3, true)]);
        assert_eq!(frames[0].settlements[Settlement::Acked as usize], 2);
        assert_eq!(frames[0].settlements[Settlement::Retried as usize], 1);
        assert_eq!(ledger.decided(), 0);
    }

    #[test]
    fn beyond_a_gap_each_is_settled_singly_and_the_gap_closes_alone() {
        let mut ledger = ledger(&[(2, Settlement::Acked), (4, Settlement::Requeued)]);
        assert_eq!(shown(&ledger.frames()), [(Ack, 2, false), (Requeue, 4, false)]);
        ledger.decide(1, Settlement::Acked);
        ledger.decide(3, Settlement::Acked);
        assert_eq!(shown(&ledger.frames()), [(Ack, 3, true)]);
    }

    #[test]
    fn runs_of_either_verdict_alternate() {
        let mut ledger = ledger(&[
            (1, Settlement::Acked),
            (2, Settlement::Acked),
            (3, Settlement::Requeued),
            (4, Settlement::Requeued),
            (5, Settlement::Dead),
        ]);
        assert_eq!(shown(&ledger.frames()), [(Ack, 2, true), (Requeue, 4, true), (Ack, 5, false)]);
    }

    #[test]
    fn nothing_covers_what_is_left_to_the_broker() {
        let mut ledger =
            ledger(&[(1, Settlement::Abandoned), (2, Settlement::Acked), (3, Settlement::Acked)]);
        assert_eq!(shown(&ledger.frames()), [(Ack, 2, false), (Ack, 3, false)]);
        assert_eq!(ledger.decided(), 0);
    }

    #[test]
    #[should_panic = "a delivery is decided once"]
    fn a_settled_delivery_cannot_be_decided_again() {
        let mut ledger = ledger(&[(1, Settlement::Acked)]);
        ledger.frames();
        ledger.decide(1, Settlement::Acked);
    }

    #[test]
    fn behind_a_long_task_settling_costs_what_was_decided_and_memory_stays_small() {
        let mut ledger = Ledger::new();
        for tag in 2..=100_001 {
            ledger.decide(tag, Settlement::Acked);
            if tag % 50 == 0 {
                ledger.frames();
            }
        }
        assert_eq!(ledger.frames().len(), 1);
        assert_eq!(ledger.visited, 100_000, "each decision is looked at once");
        assert_eq!(ledger.sent.len(), 1);
        assert!(ledger.decided.capacity() <= 128, "{}", ledger.decided.capacity());
        ledger.decide(1, Settlement::Acked);
        assert_eq!(shown(&ledger.frames()), [(Ack, 1, false)]);
        assert_eq!((ledger.visited, ledger.sent.len(), ledger.first), (100_001, 0, 100_002));
    }

    #[test]
    fn ranges_are_as_many_as_there_are_gaps() {
        let mut ledger = ledger(&[
            (2, Settlement::Acked),
            (4, Settlement::Acked),
            (6, Settlement::Abandoned),
            (7, Settlement::Acked),
        ]);
        ledger.frames();
        assert_eq!(ledger.sent, BTreeMap::from([(2, 2), (4, 4), (7, 7)]));
        ledger.decide(3, Settlement::Requeued);
        assert_eq!(shown(&ledger.frames()), [(Requeue, 3, false)]);
        assert_eq!(ledger.sent, BTreeMap::from([(2, 4), (7, 7)]));
        ledger.decide(5, Settlement::Acked);
        ledger.decide(1, Settlement::Acked);
        assert_eq!(shown(&ledger.frames()), [(Ack, 5, true)]);
        assert_eq!((ledger.first, ledger.sent.len()), (6, 1), "what is left to the broker stays in the way");
    }

    /// The former ledger, which looked at every tag from the lowest outstanding one: what the frames must be.
    mod reference {
        use std::collections::VecDeque;

        use super::{Disposition, Frame, Settlement};

        #[derive(Clone, Copy, PartialEq)]
        enum Slot {
            Outstanding,
            Decided(Disposition, Settlement),
            Sent,
            Left,
        }

        pub(super) struct Ledger {
            first: u64,
            slots: VecDeque<Slot>,
        }

        impl Ledger {
            pub(super) fn new() -> Self {
                Self { first: 1, slots: VecDeque::new() }
            }

            pub(super) fn decide(&mut self, tag: u64, settlement: Settlement) {
                let at = (tag - self.first) as usize;
                if at >= self.slots.len() {
                    self.slots.resize(at + 1, Slot::Outstanding);
                }
                self.slots[at] = match settlement {
                    Settlement::Requeued => Slot::Decided(Disposition::Requeue, settlement),
                    Settlement::Abandoned | Settlement::LostSettlement => Slot::Left,
                    _ => Slot::Decided(Disposition::Ack, settlement),
                };
            }

            pub(super) fn frames(&mut self) -> Vec<Frame> {
                let mut frames: Vec<_> = std::iter::from_fn(|| self.head_run()).collect();
                for (at, slot) in self.slots.iter_mut().enumerate() {
                    let Slot::Decided(verdict, settlement) = *slot else { continue };
                    let mut settlements = [0; Settlement::ALL.len()];
                    settlements[settlement as usize] = 1;
                    frames.push(Frame { verdict, tag: self.first + at as u64, multiple: false, settlements });
                    *slot = Slot::Sent;
                }
                frames
            }

            fn head_run(&mut self) -> Option<Frame> {
                while self.slots.front() == Some(&Slot::Sent) {
                    self.slots.pop_front();
                    self.first += 1;
                }
                let Some(&Slot::Decided(verdict, _)) = self.slots.front() else { return None };
                let (mut last, mut covered, mut settlements) = (self.first, 0, [0; Settlement::ALL.len()]);
                loop {
                    match self.slots.front() {
                        Some(Slot::Decided(same, settlement)) if *same == verdict => {
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
                Some(Frame { verdict, tag: last, multiple: covered > 1, settlements })
            }
        }
    }

    /// What a broker makes of the frames.
    fn apply(frames: &[Frame], broker: &mut [Option<Disposition>]) {
        for frame in frames {
            let from = if frame.multiple { 0 } else { frame.tag as usize - 1 };
            let mut covered = 0;
            for settled in &mut broker[from..frame.tag as usize] {
                if settled.is_none() {
                    *settled = Some(frame.verdict);
                    covered += 1;
                } else {
                    assert!(frame.multiple, "tag {} is settled twice", frame.tag);
                }
            }
            assert_eq!(covered, frame.settlements.iter().sum::<u32>(), "counted is not what was settled");
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
        fn every_delivery_is_settled_once_and_as_decided(
            settlements in prop::collection::vec(settlement(), 1..60),
            order in prop::collection::vec(0usize..1000, 60),
            flush_every in 1usize..20,
        ) {
            let n = settlements.len();
            let mut left: Vec<usize> = (0..n).collect();
            let (mut ledger, mut former) = (Ledger::new(), reference::Ledger::new());
            let mut broker = vec![None; n];
            for (step, pick) in order.iter().enumerate().take(n) {
                let i = left.remove(pick % left.len());
                ledger.decide(i as u64 + 1, settlements[i]);
                former.decide(i as u64 + 1, settlements[i]);
                if step % flush_every == 0 {
                    let frames = ledger.frames();
                    prop_assert_eq!(&frames, &former.frames());
                    apply(&frames, &mut broker);
                }
            }
            apply(&ledger.frames(), &mut broker);
            prop_assert_eq!(ledger.decided(), 0);
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
