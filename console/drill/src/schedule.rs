//! Which step of a run is due when.

use std::{collections::VecDeque, time::Duration};

use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::fault::Fault;

/// No fault is due before and after these shares of the tasks: the start and the drain have tests of their own.
const WINDOW: (f64, f64) = (0.05, 0.95);

/// From a burst to the fault during it.
const BURST_LEAD: Duration = Duration::from_millis(600);

/// A step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A burst of readings, so that the workers have queued tasks.
    Burst,
    /// A fault, and the worker it affects: an index among those that nothing stopped, modulo their number.
    Fault(Fault, usize),
}

/// Steps in the order of the progress at which they are due, from 0 to 1: a share of the tasks, or of the time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Schedule(VecDeque<(f64, Step)>);

impl Schedule {
    /// The schedule of these faults for a seed, in shares of the published tasks. Progress instead of time makes a slow
    /// machine run the same schedule. Each fault falls into a slice of its own, so that faults spread out, and their
    /// order is random.
    pub(crate) fn seeded(seed: u64, mut faults: Vec<Fault>) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        faults.shuffle(&mut random);
        let slice = (WINDOW.1 - WINDOW.0) / faults.len().max(1) as f64;
        let step = |(index, fault)| {
            let at = WINDOW.0 + slice * (index as f64 + random.random_range(0.0..1.0));
            (at, Step::Fault(fault, random.random_range(0..1_000_000)))
        };
        Self(faults.into_iter().enumerate().map(step).collect())
    }

    /// These faults at equal distances within `span`. Those that show most with queued tasks follow a burst.
    pub(crate) fn even(span: Duration, faults: &[Fault]) -> Self {
        let lead = BURST_LEAD.as_secs_f64() / span.as_secs_f64().max(1e-3);
        let steps = faults.iter().enumerate().flat_map(|(index, &fault)| {
            let at = (index + 1) as f64 / (faults.len() + 1) as f64;
            let has_burst = matches!(fault, Fault::Soft | Fault::Kill | Fault::Bridge);
            let burst = has_burst.then_some(((at - lead).max(0.0), Step::Burst));
            burst.into_iter().chain([(at, Step::Fault(fault, index))])
        });
        Self(steps.collect())
    }

    /// The next step that is due at `progress`. Each is returned once.
    pub(crate) fn due(&mut self, progress: f64) -> Option<Step> {
        self.0.pop_front_if(|(at, _)| *at <= progress).map(|(_, step)| step)
    }

    /// Whether every step was returned.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults() -> Vec<Fault> {
        [vec![Fault::Kill; 10], vec![Fault::Soft; 10], vec![Fault::Pause; 4]].concat()
    }

    /// The steps with the second at which each is due.
    fn by_second(mut schedule: Schedule, seconds: u64) -> Vec<(u64, Step)> {
        let mut seen = Vec::new();
        for second in 0..=seconds {
            while let Some(step) = schedule.due(second as f64 / seconds as f64) {
                seen.push((second, step));
            }
        }
        assert!(schedule.is_over());
        seen
    }

    #[test]
    fn the_same_seed_gives_the_same_schedule() {
        assert_eq!(Schedule::seeded(7, faults()), Schedule::seeded(7, faults()));
        assert_ne!(Schedule::seeded(7, faults()), Schedule::seeded(8, faults()));
    }

    #[test]
    fn every_fault_is_due_once_in_order_within_the_window() {
        let mut schedule = Schedule::seeded(3, faults());
        assert!(schedule.0.iter().is_sorted_by_key(|(at, _)| at));
        assert!(schedule.0.iter().all(|(at, _)| (0.05..=0.95).contains(at)));
        assert_eq!(schedule.due(0.04), None);
        let steps: Vec<_> = std::iter::from_fn(|| schedule.due(1.0)).collect();
        assert!(schedule.is_over());
        assert_eq!(steps.len(), 24);
        assert_eq!(steps.iter().filter(|step| matches!(step, Step::Fault(Fault::Kill, _))).count(), 10);
    }

    #[test]
    fn a_schedule_without_faults_is_over_from_the_start() {
        assert!(Schedule::seeded(1, Vec::new()).is_over());
    }

    #[test]
    fn each_fault_of_a_demo_follows_a_burst() {
        let of = |seconds| Schedule::even(Duration::from_secs(seconds), &[Fault::Soft, Fault::Kill]);
        let steps = [Step::Burst, Step::Fault(Fault::Soft, 0), Step::Burst, Step::Fault(Fault::Kill, 1)];
        assert_eq!(by_second(of(30), 30), [(10, steps[0]), (10, steps[1]), (20, steps[2]), (20, steps[3])]);
        assert_eq!(by_second(of(1), 1).into_iter().map(|(_, step)| step).collect::<Vec<_>>(), steps);
    }

    #[test]
    fn mosquitto_and_the_broker_need_no_burst() {
        let faults = [Fault::Bridge, Fault::Mosquitto, Fault::BrokerRestart];
        let [bridge, mosquitto, broker] = [0, 1, 2].map(|index| Step::Fault(faults[index], index));
        let seen = by_second(Schedule::even(Duration::from_secs(40), &faults), 40);
        assert_eq!(seen, [(10, Step::Burst), (10, bridge), (20, mosquitto), (30, broker)]);
    }
}
