//! Which deliveries of a channel are settled, and the fewest frames that tell the broker.
//!
//! Pure bookkeeping: tags in, frames out. A completed run that starts at the lowest outstanding tag
//! becomes one `multiple` frame; what completed beyond a gap is settled singly, because the gap may
//! be a task that runs for minutes while its neighbours' credit, or they themselves, are wanted.

use std::collections::VecDeque;

use garenne_common::shutdown::Fate;

/// What the broker is told of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Done with.
    Ack,
    /// Back to the queue.
    Requeue,
}

/// A frame to send, and how many deliveries of each fate it settles (in the order of [`Fate::ALL`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) verdict: Verdict,
    pub(crate) tag: u64,
    /// Everything outstanding up to and with the tag.
    pub(crate) multiple: bool,
    pub(crate) fates: [u32; Fate::ALL.len()],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Outstanding,
    Decided(Verdict, Fate),
    Sent,
    /// Left to the broker: nothing may cover it.
    Left,
}

/// The book of one channel.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Tag of the first slot. Tags of a channel are consecutive from 1.
    first: u64,
    slots: VecDeque<Slot>,
    decided: usize,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self { first: 1, slots: VecDeque::new(), decided: 0 }
    }

    /// A delivery is decided, once.
    pub(crate) fn decide(&mut self, tag: u64, fate: Fate) {
        let at = tag.checked_sub(self.first).expect("a delivery is decided once");
        let at = usize::try_from(at).expect("no more deliveries are outstanding than fit in memory");
        if at >= self.slots.len() {
            self.slots.resize(at + 1, Slot::Outstanding);
        }
        debug_assert_eq!(self.slots[at], Slot::Outstanding, "a delivery is decided once");
        self.slots[at] = match fate {
            Fate::Requeued => Slot::Decided(Verdict::Requeue, fate),
            Fate::Abandoned | Fate::LostSettlement => Slot::Left,
            Fate::Acked | Fate::Retried | Fate::Dead | Fate::Suspected => Slot::Decided(Verdict::Ack, fate),
        };
        self.decided += usize::from(self.slots[at] != Slot::Left);
    }

    /// Decided and not yet sent.
    pub(crate) fn decided(&self) -> usize {
        self.decided
    }

    /// The frames that settle everything decided; runs from the lowest outstanding tag first. What they
    /// cover counts as sent.
    pub(crate) fn frames(&mut self) -> Vec<Frame> {
        let mut frames: Vec<_> = std::iter::from_fn(|| self.head_run()).collect();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if self.decided == 0 {
                break;
            }
            let Slot::Decided(verdict, fate) = *slot else { continue };
            let mut fates = [0; Fate::ALL.len()];
            fates[fate as usize] = 1;
            frames.push(Frame { verdict, tag: self.first + at as u64, multiple: false, fates });
            *slot = Slot::Sent;
            self.decided -= 1;
        }
        frames
    }

    /// Takes the run of equal verdicts at the head, over slots that were sent singly before.
    fn head_run(&mut self) -> Option<Frame> {
        while self.slots.front() == Some(&Slot::Sent) {
            self.slots.pop_front();
            self.first += 1;
        }
        let Some(&Slot::Decided(verdict, _)) = self.slots.front() else { return None };
        let mut last = self.first;
        let mut covered = 0;
        let mut fates = [0; Fate::ALL.len()];
        loop {
            match self.slots.front() {
                Some(Slot::Decided(same, fate)) if *same == verdict => {
                    last = self.first;
                    covered += 1;
                    fates[*fate as usize] += 1;
                }
                Some(Slot::Sent) => {}
                _ => break,
            }
            self.slots.pop_front();
            self.first += 1;
        }
        self.decided -= covered;
        Some(Frame { verdict, tag: last, multiple: covered > 1, fates })
    }
}

#[cfg(test)]
mod tests {
    use super::{Verdict::*, *};
    use proptest::prelude::*;

    fn ledger(decided: &[(u64, Fate)]) -> Ledger {
        let mut ledger = Ledger::new();
        decided.iter().for_each(|&(tag, fate)| ledger.decide(tag, fate));
        ledger
    }

    fn shown(frames: &[Frame]) -> Vec<(Verdict, u64, bool)> {
        frames.iter().map(|frame| (frame.verdict, frame.tag, frame.multiple)).collect()
    }

    #[test]
    fn a_run_from_the_lowest_tag_is_one_frame_and_counts_its_fates() {
        let mut ledger = ledger(&[(2, Fate::Retried), (1, Fate::Acked), (3, Fate::Acked)]);
        let frames = ledger.frames();
        assert_eq!(shown(&frames), [(Ack, 3, true)]);
        assert_eq!(frames[0].fates[Fate::Acked as usize], 2);
        assert_eq!(frames[0].fates[Fate::Retried as usize], 1);
        assert_eq!(ledger.decided(), 0);
    }

    #[test]
    fn beyond_a_gap_each_is_settled_singly_and_the_gap_closes_alone() {
        let mut ledger = ledger(&[(2, Fate::Acked), (4, Fate::Requeued)]);
        assert_eq!(shown(&ledger.frames()), [(Ack, 2, false), (Requeue, 4, false)]);
        ledger.decide(1, Fate::Acked);
        ledger.decide(3, Fate::Acked);
        assert_eq!(shown(&ledger.frames()), [(Ack, 3, true)]);
    }

    #[test]
    fn runs_of_either_verdict_alternate() {
        let mut ledger = ledger(&[
            (1, Fate::Acked),
            (2, Fate::Acked),
            (3, Fate::Requeued),
            (4, Fate::Requeued),
            (5, Fate::Dead),
        ]);
        assert_eq!(shown(&ledger.frames()), [(Ack, 2, true), (Requeue, 4, true), (Ack, 5, false)]);
    }

    #[test]
    fn nothing_covers_what_is_left_to_the_broker() {
        let mut ledger = ledger(&[(1, Fate::Abandoned), (2, Fate::Acked), (3, Fate::Acked)]);
        assert_eq!(shown(&ledger.frames()), [(Ack, 2, false), (Ack, 3, false)]);
        assert_eq!(ledger.decided(), 0);
    }

    /// What a broker makes of the frames.
    fn apply(frames: &[Frame], broker: &mut [Option<Verdict>]) {
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
            assert_eq!(covered, frame.fates.iter().sum::<u32>(), "counted is not what was settled");
        }
    }

    fn fate() -> impl Strategy<Value = Fate> {
        prop_oneof![5 => Just(Fate::Acked), 2 => Just(Fate::Requeued), 1 => Just(Fate::Dead), 1 => Just(Fate::Abandoned)]
    }

    proptest! {
        #[test]
        fn every_delivery_is_settled_once_and_as_decided(
            fates in prop::collection::vec(fate(), 1..60),
            order in prop::collection::vec(0usize..1000, 60),
            flush_every in 1usize..20,
        ) {
            let n = fates.len();
            let mut left: Vec<usize> = (0..n).collect();
            let mut ledger = Ledger::new();
            let mut broker = vec![None; n];
            for (step, pick) in order.iter().enumerate().take(n) {
                let i = left.remove(pick % left.len());
                ledger.decide(i as u64 + 1, fates[i]);
                if step % flush_every == 0 {
                    apply(&ledger.frames(), &mut broker);
                }
            }
            apply(&ledger.frames(), &mut broker);
            prop_assert_eq!(ledger.decided(), 0);
            for (settled, fate) in broker.iter().zip(&fates) {
                let expected = match fate {
                    Fate::Requeued => Some(Requeue),
                    Fate::Abandoned => None,
                    _ => Some(Ack),
                };
                prop_assert_eq!(*settled, expected);
            }
        }
    }
}
