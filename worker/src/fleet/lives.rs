//! Which workers died without a good-bye.
//!
//! A redelivery count alone cannot tell a crash from a hand-back: before RabbitMQ 4.3 every return
//! counts, and a lost connection always does. An unclean death can be told: its worker said hello
//! and no good-bye, and its exclusive queue is gone.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// A record of the stream of lives. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum Life {
    /// A worker begins to consume, or does so again after it lost its connection.
    Hello { worker: String, incarnation: String, at: i64 },
    /// It stopped after settling everything.
    Goodbye { worker: String, incarnation: String, at: i64 },
    /// Somebody noticed that it is gone without a good-bye.
    Died { worker: String, incarnation: String, at: i64 },
}

/// Everybody's life, as far as told.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    /// Incarnation to worker: said hello, not known to be gone.
    open: HashMap<String, String>,
    /// Incarnation to the time its death was noticed.
    died: HashMap<String, i64>,
    gone: HashSet<String>,
}

/// How long an unclean death speaks against tasks that came back.
const EVIDENCE: Duration = Duration::from_secs(3600);

impl Lives {
    /// Takes a record. A new incarnation under a name means that the one before it is dead: two
    /// cannot hold the same exclusive queue.
    pub(crate) fn apply(&mut self, life: Life) {
        match life {
            Life::Hello { worker, incarnation, at } => {
                self.died.remove(&incarnation);
                self.gone.remove(&incarnation);
                let replaced = self.open.extract_if(|other, name| *name == worker && *other != incarnation);
                self.died.extend(replaced.map(|(other, _)| (other, at)));
                self.open.insert(incarnation, worker);
            }
            Life::Goodbye { incarnation, .. } => {
                self.open.remove(&incarnation);
                self.died.remove(&incarnation);
                self.gone.insert(incarnation);
            }
            Life::Died { incarnation, at, .. } => {
                self.open.remove(&incarnation);
                if !self.gone.contains(&incarnation) {
                    self.died.entry(incarnation).or_insert(at);
                }
            }
        }
    }

    /// Those who said hello and may be dead: worker and incarnation.
    pub(crate) fn open(&self) -> Vec<(String, String)> {
        self.open.iter().map(|(incarnation, worker)| (worker.clone(), incarnation.clone())).collect()
    }

    /// Unclean deaths that still count at `now`, milliseconds since 1970.
    pub(crate) fn deaths(&self, now: i64) -> usize {
        let oldest = now - i64::try_from(EVIDENCE.as_millis()).unwrap_or(i64::MAX);
        self.died.values().filter(|at| **at >= oldest).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(worker: &str, incarnation: &str) -> Life {
        Life::Hello { worker: worker.into(), incarnation: incarnation.into(), at: 1000 }
    }

    fn goodbye(worker: &str, incarnation: &str) -> Life {
        Life::Goodbye { worker: worker.into(), incarnation: incarnation.into(), at: 2000 }
    }

    #[test]
    fn rolling_restarts_are_no_deaths() {
        let mut lives = Lives::default();
        for i in 0..25 {
            lives.apply(hello("w", &i.to_string()));
            lives.apply(goodbye("w", &i.to_string()));
        }
        assert_eq!((lives.deaths(3000), lives.open().len()), (0, 0));
    }

    #[test]
    fn a_new_incarnation_tells_of_the_death_of_the_last() {
        let mut lives = Lives::default();
        lives.apply(hello("w", "a"));
        lives.apply(hello("w", "b"));
        assert_eq!((lives.deaths(3000), lives.open().len()), (1, 1));
        assert_eq!(lives.deaths(1000 + 3_600_001), 0);
    }

    #[test]
    fn who_comes_back_was_not_dead() {
        let mut lives = Lives::default();
        lives.apply(hello("w", "a"));
        lives.apply(Life::Died { worker: "w".into(), incarnation: "a".into(), at: 1500 });
        assert_eq!(lives.deaths(2000), 1);
        lives.apply(hello("w", "a"));
        assert_eq!(lives.deaths(2000), 0);
    }

    #[test]
    fn a_late_notice_does_not_undo_a_good_bye() {
        let mut lives = Lives::default();
        lives.apply(hello("w", "a"));
        lives.apply(goodbye("w", "a"));
        lives.apply(Life::Died { worker: "w".into(), incarnation: "a".into(), at: 2500 });
        assert_eq!(lives.deaths(3000), 0);
    }
}
