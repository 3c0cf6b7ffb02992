//! Which step is due when. A seeded schedule is the same for the same seed.

use std::collections::VecDeque;

use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::fault::Fault;

/// No fault is due before and after these shares of the tasks: the start and the drain have tests of their own.
const WINDOW: (f64, f64) = (0.05, 0.95);

/// A fault and the worker it affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultStep {
    /// The fault.
    pub fault: Fault,
    /// Selects the worker: the index among those that nothing stopped, modulo their number.
    pub pick: usize,
}

/// Steps in the order of the progress at which they are due: a share of the tasks, or a time since the start.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultSchedule<Progress, Step = FaultStep>(VecDeque<(Progress, Step)>);

impl<Progress: PartialOrd, Step> FaultSchedule<Progress, Step> {
    /// A schedule of these steps, which are in order.
    pub fn new(steps: impl IntoIterator<Item = (Progress, Step)>) -> Self {
        Self(steps.into_iter().collect())
    }

    /// The next step that is due at `progress`. Each is returned once.
    pub fn due(&mut self, progress: Progress) -> Option<Step> {
        self.0.pop_front_if(|(at, _)| *at <= progress).map(|(_, step)| step)
    }

    /// Whether every step was returned.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}

impl FaultSchedule<f64> {
    /// The schedule of these faults for a seed, in shares of the published tasks from 0 to 1. Progress instead of time makes a slow
    /// machine run the same schedule. Each fault falls into a slice of its own, so that faults spread out, and their
    /// order is random.
    pub fn seeded(seed: u64, mut faults: Vec<Fault>) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        faults.shuffle(&mut random);
        let slice = (WINDOW.1 - WINDOW.0) / faults.len().max(1) as f64;
        let step = |(index, fault)| {
            let at = WINDOW.0 + slice * (index as f64 + random.random_range(0.0..1.0));
            (at, FaultStep { fault, pick: random.random_range(0..1_000_000) })
        };
        Self(faults.into_iter().enumerate().map(step).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults() -> Vec<Fault> {
        [vec![Fault::Kill; 10], vec![Fault::Soft; 10], vec![Fault::Pause; 4]].concat()
    }

    #[test]
    fn the_same_seed_gives_the_same_schedule() {
        assert_eq!(FaultSchedule::seeded(7, faults()), FaultSchedule::seeded(7, faults()));
        assert_ne!(FaultSchedule::seeded(7, faults()), FaultSchedule::seeded(8, faults()));
    }

    #[test]
    fn every_fault_is_due_once_in_order_within_the_window() {
        let mut schedule = FaultSchedule::seeded(3, faults());
        assert!(schedule.0.iter().is_sorted_by_key(|(at, _)| at));
        assert!(schedule.0.iter().all(|(at, _)| (0.05..=0.95).contains(at)));
        assert_eq!(schedule.due(0.04), None);
        let steps: Vec<_> = std::iter::from_fn(|| schedule.due(1.0)).collect();
        assert!(schedule.is_over());
        assert_eq!(steps.len(), 24);
        assert_eq!(steps.iter().filter(|step| step.fault == Fault::Kill).count(), 10);
    }

    #[test]
    fn a_schedule_without_faults_is_over_from_the_start() {
        assert!(FaultSchedule::seeded(1, Vec::new()).is_over());
    }

    #[test]
    fn steps_can_be_due_at_times() {
        let mut schedule = FaultSchedule::new([(2, "a"), (2, "b"), (5, "c")]);
        assert_eq!(
            [1, 2, 4, 9, 9, 9].map(|now| schedule.due(now)),
            [None, Some("a"), Some("b"), Some("c"), None, None]
        );
    }
}
