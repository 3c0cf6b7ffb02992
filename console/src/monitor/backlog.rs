//! How long a fleet needs for the tasks that wait in a lane.
//!
//! The mean duration of tasks that ended says nothing about those that hang. So the ages of running tasks count, too: a
//! task that runs for longer than the mean is expected to run as long again, and its slot serves nothing until then.

/// The state of a lane's slots and of what waits for them. Times in seconds.
#[derive(Debug, Default)]
pub(super) struct LaneWork {
    /// Tasks that do not run yet.
    pub(super) waiting: u64,
    /// Slots without a task.
    pub(super) free: u64,
    /// The ages of the running tasks, each with the number of tasks.
    pub(super) ages: Vec<(f64, u64)>,
    /// Mean duration of an attempt; unknown until one has ended.
    pub(super) service: Option<f64>,
    /// How long nothing has left the queue although tasks wait.
    pub(super) stalled: f64,
}

impl LaneWork {
    /// Time until a task that arrives now starts, and at least the age of the oldest waiting task if none of them starts;
    /// infinite without a slot, unknown if nothing ran yet. While tasks start, the oldest one has waited behind others: its age
    /// says nothing about a task that arrives now.
    pub(super) fn seconds(&self) -> Option<f64> {
        let running = self.ages.iter().map(|(_, tasks)| *tasks).sum::<u64>() as f64;
        if self.free == 0 && self.ages.is_empty() {
            return Some(if self.waiting > 0 { f64::INFINITY } else { 0.0 });
        }
        if self.waiting == 0 && self.free > 0 {
            return Some(0.0);
        }
        // The ages are a lower bound of the durations.
        let sum = || self.ages.iter().map(|(age, tasks)| age * *tasks as f64).sum::<f64>();
        let of_ages = || (running > 0.0).then(|| sum() / running);
        let service = self.service.or_else(of_ages)?;
        let left = |age: f64| if age < service { service - age } else { age };
        let mut ends: Vec<_> = self.ages.iter().map(|(age, tasks)| (left(*age), *tasks)).collect();
        ends.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        Some(time_to_start(self.waiting, self.free, &ends, service).max(self.stalled))
    }
}

/// The time at which slots that become free at `ends`, each for a number of slots, and `free` others now, have started `waiting` tasks of `service`
/// seconds each, and have one slot for the next task.
fn time_to_start(waiting: u64, free: u64, ends: &[(f64, u64)], service: f64) -> f64 {
    // At time t a slot that became free at e has done (t - e) / service tasks. Slots are added in the order of their
    // ends until the next one would end later than the result.
    let (mut slots, mut sum_of_ends) = (free as f64, 0.0);
    let mut time = f64::INFINITY;
    for (end, count) in ends.iter().copied().chain([(f64::INFINITY, 1)]) {
        if slots > 0.0 {
            time = (waiting as f64 * service + sum_of_ends) / slots;
        }
        if time <= end {
            break;
        }
        slots += count as f64;
        sum_of_ends += end * count as f64;
    }
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(work: LaneWork) -> f64 {
        work.seconds().unwrap()
    }

    #[test]
    fn fast_tasks_are_worked_off_by_all_slots() {
        let ages = vec![(0.05, 8)];
        let work = LaneWork { waiting: 800, ages, service: Some(0.1), ..LaneWork::default() };
        assert!((seconds(work) - 10.05).abs() < 1e-9);
        let idle = LaneWork { waiting: 80, free: 8, service: Some(0.1), ..LaneWork::default() };
        assert!((seconds(idle) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn tasks_that_hang_in_every_slot_make_the_backlog_at_least_as_old_as_they_are() {
        let hung = |waiting| LaneWork {
            waiting,
            ages: vec![(300.0, 8)],
            service: Some(0.001),
            ..LaneWork::default()
        };
        assert!(seconds(hung(800)) > 300.0);
        assert!((seconds(hung(0)) - 300.0).abs() < 1e-9, "a task that arrives now waits, too");
    }

    #[test]
    fn a_slot_that_hangs_serves_nothing_and_the_others_go_on() {
        let ages = vec![(0.0, 7), (3_600.0, 1)];
        let work = LaneWork { waiting: 700, ages, service: Some(0.1), ..LaneWork::default() };
        assert!((seconds(work) - 10.1).abs() < 1e-9);
    }

    #[test]
    fn without_an_ended_attempt_the_ages_stand_for_the_durations() {
        let work = LaneWork { waiting: 8, ages: vec![(60.0, 4)], ..LaneWork::default() };
        assert!((seconds(work) - 180.0).abs() < 1e-9);
        assert_eq!(LaneWork { waiting: 8, free: 4, ..LaneWork::default() }.seconds(), None);
    }

    #[test]
    fn a_lane_of_which_nothing_leaves_is_as_late_as_its_oldest_task() {
        let work = LaneWork { waiting: 1, free: 1, service: Some(0.1), stalled: 90.0, ..LaneWork::default() };
        assert!((seconds(work) - 90.0).abs() < 1e-9);
    }

    #[test]
    fn without_a_slot_the_time_is_infinite() {
        let none = |waiting| LaneWork { waiting, service: Some(0.1), ..LaneWork::default() };
        assert_eq!((seconds(none(1)), seconds(none(0))), (f64::INFINITY, 0.0));
    }
}
