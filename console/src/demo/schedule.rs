//! What happens to the workers, and when.

use std::{collections::VecDeque, time::Duration};

/// Something done to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// A burst of readings, so that the workers have something in hand.
    Burst,
    /// SIGTERM: it finishes what runs and hands the rest back.
    StopSoftly,
    /// SIGKILL: it finishes nothing.
    Kill,
}

/// Acts in the order of their times since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedule(VecDeque<(Duration, Act)>);

/// Between a burst and what happens during it.
const INTO_THE_BURST: Duration = Duration::from_millis(600);

impl Schedule {
    /// A soft stop a third of the way into `span`, a kill after two thirds, each during a burst.
    pub(super) fn over(span: Duration) -> Self {
        let during_burst = |at: Duration, act| [(at.saturating_sub(INTO_THE_BURST), Act::Burst), (at, act)];
        let acts = [during_burst(span / 3, Act::StopSoftly), during_burst(span * 2 / 3, Act::Kill)];
        Self(acts.into_iter().flatten().collect())
    }

    /// The next act that is due at `elapsed`; each is answered once.
    pub(super) fn due(&mut self, elapsed: Duration) -> Option<Act> {
        self.0.pop_front_if(|(at, _)| *at <= elapsed).map(|(_, act)| act)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_act_comes_once_in_its_third() {
        let mut schedule = Schedule::over(Duration::from_secs(30));
        let mut seen = Vec::new();
        for tenth in 0..300 {
            let now = Duration::from_millis(tenth * 100);
            while let Some(act) = schedule.due(now) {
                seen.push((tenth, act));
            }
        }
        assert_eq!(seen, [(94, Act::Burst), (100, Act::StopSoftly), (194, Act::Burst), (200, Act::Kill)]);
        assert_eq!(schedule, Schedule(VecDeque::new()));
    }

    #[test]
    fn a_very_short_demo_still_has_all_of_it() {
        let mut schedule = Schedule::over(Duration::from_secs(1));
        let acts: Vec<_> = std::iter::from_fn(|| schedule.due(Duration::from_secs(1))).collect();
        assert_eq!(acts, [Act::Burst, Act::StopSoftly, Act::Burst, Act::Kill]);
    }
}
