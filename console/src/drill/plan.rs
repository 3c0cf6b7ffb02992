//! Which trouble comes when: the same for the same seed.

use std::collections::VecDeque;

use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde::Serialize;

/// A kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// SIGKILL to a worker.
    Kill,
    /// SIGTERM to a worker.
    Soft,
    /// SIGQUIT to a worker.
    Hard,
    /// SIGSTOP, later SIGCONT.
    Pause,
    /// The broker goes away and comes back.
    BrokerRestart,
    /// The workers' network falls silent, then comes back without its connections.
    Cut,
}

impl Act {
    /// The word for it in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Soft => "soft stop",
            Self::Hard => "hard stop",
            Self::Pause => "pause",
            Self::BrokerRestart => "broker restart",
            Self::Cut => "network cut",
        }
    }
}

/// How much of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "each is the number of acts of its name")]
pub struct Counts {
    pub kills: u32,
    pub softs: u32,
    pub hards: u32,
    pub pauses: u32,
    pub broker_restarts: u32,
    pub cuts: u32,
}

/// One act.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// When: once this share of the tasks is published, 0 to 1. By progress and not by time, so that
    /// a slow machine sees the same drill.
    pub at: f64,
    /// What.
    pub act: Act,
    /// Chooses the worker: the number modulo those there are.
    pub pick: usize,
}

/// Acts in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan(VecDeque<Step>);

/// Nothing happens before and after these shares: the start and the drain have tests of their own.
const WINDOW: (f64, f64) = (0.05, 0.95);

impl Plan {
    /// The plan that `seed` gives: every act somewhere in its own slice of the window, so that they
    /// spread out and their order is random.
    pub fn seeded(seed: u64, counts: Counts) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let Counts { kills, softs, hards, pauses, broker_restarts, cuts } = counts;
        let mut acts: Vec<Act> = [
            (kills, Act::Kill),
            (softs, Act::Soft),
            (hards, Act::Hard),
            (pauses, Act::Pause),
            (broker_restarts, Act::BrokerRestart),
            (cuts, Act::Cut),
        ]
        .into_iter()
        .flat_map(|(count, act)| (0..count).map(move |_| act))
        .collect();
        acts.shuffle(&mut random);
        let slice = (WINDOW.1 - WINDOW.0) / acts.len().max(1) as f64;
        let step = |(index, act)| {
            let at = WINDOW.0 + slice * (index as f64 + random.random_range(0.0..1.0));
            Step { at, act, pick: random.random_range(0..1_000_000) }
        };
        Self(acts.into_iter().enumerate().map(step).collect())
    }

    /// The next step that is due at `progress`; each is answered once.
    pub fn due(&mut self, progress: f64) -> Option<Step> {
        self.0.pop_front_if(|step| step.at <= progress)
    }

    /// Whether everything has happened.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: Counts = Counts { kills: 10, softs: 5, hards: 5, pauses: 1, broker_restarts: 2, cuts: 1 };

    #[test]
    fn the_same_seed_makes_the_same_trouble() {
        assert_eq!(Plan::seeded(7, COUNTS), Plan::seeded(7, COUNTS));
        assert_ne!(Plan::seeded(7, COUNTS), Plan::seeded(8, COUNTS));
    }

    #[test]
    fn everything_asked_for_happens_once_in_order_within_the_window() {
        let mut plan = Plan::seeded(3, COUNTS);
        assert_eq!(plan.due(0.04), None);
        let steps: Vec<_> = std::iter::from_fn(|| plan.due(1.0)).collect();
        assert!(plan.is_over());
        assert_eq!(steps.len(), 24);
        assert_eq!(steps.iter().filter(|step| step.act == Act::Kill).count(), 10);
        assert!(steps.iter().all(|step| (0.05..=0.95).contains(&step.at)));
        assert!(steps.is_sorted_by_key(|step| step.at));
    }

    #[test]
    fn no_trouble_is_a_plan_too() {
        assert!(Plan::seeded(1, Counts::default()).is_over());
    }
}
