//! The retry ladder: which fixed-delay queue a wait goes through.

use std::time::Duration;

use thiserror::Error;

use super::delay::Delay;

/// The rungs every lane has, shortest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ladder(Vec<Delay>);

/// A ladder nobody could climb.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LadderError {
    /// Too few or too many rungs.
    #[error("retry.delays has {0} entries, 1 to {max} are allowed", max = Ladder::MAX_RUNGS)]
    Count(usize),
    /// A rung out of bounds.
    #[error("retry.delays has {0}, from 100ms to 24h is allowed")]
    Bounds(Delay),
    /// Not ascending.
    #[error("retry.delays must ascend, but {1} follows {0}")]
    Order(Delay, Delay),
}

impl Default for Ladder {
    fn default() -> Self {
        Self([1, 5, 15, 60, 300, 900, 3600].map(|s| Delay::from_millis(s * 1000)).to_vec())
    }
}

impl Ladder {
    /// Each rung is a queue per lane, so there are not many.
    pub const MAX_RUNGS: usize = 16;

    /// A ladder of these delays.
    ///
    /// # Errors
    /// [`LadderError`] when there are none or too many, one is out of bounds, or they do not ascend.
    pub fn new(delays: Vec<Delay>) -> Result<Self, LadderError> {
        if !(1..=Self::MAX_RUNGS).contains(&delays.len()) {
            return Err(LadderError::Count(delays.len()));
        }
        if let Some(&out) = delays.iter().find(|d| !(100..=86_400_000).contains(&d.as_millis())) {
            return Err(LadderError::Bounds(out));
        }
        if let Some(pair) = delays.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(LadderError::Order(pair[0], pair[1]));
        }
        Ok(Self(delays))
    }

    /// The rungs, shortest first.
    pub fn rungs(&self) -> &[Delay] {
        &self.0
    }

    /// The longest rung that does not overshoot `wait`; the shortest where all do. A longer wait
    /// takes several rungs, the task carrying its due time.
    pub fn rung_below(&self, wait: Duration) -> Delay {
        let fits = self.0.iter().rev().find(|delay| delay.as_duration() <= wait);
        *fits.unwrap_or(&self.0[0])
    }

    /// A rung for a retry that should wait about `wait`: one of the two neighbours, the nearer one
    /// more often, so that the mean is `wait` and equal failures spread out. `chance` is uniform in
    /// `0.0..1.0`.
    pub fn rung_near(&self, wait: Duration, chance: f64) -> Delay {
        let below = self.rung_below(wait);
        let Some(&above) = self.0.iter().find(|delay| delay.as_duration() > wait) else { return below };
        if above == below {
            return below;
        }
        let span = (above.as_millis() - below.as_millis()) as f64;
        let past = wait.as_secs_f64() * 1000.0 - below.as_millis() as f64;
        if chance < past / span { above } else { below }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_takes_the_longest_rung_that_fits() {
        let ladder = Ladder::default();
        let rung = |ms| ladder.rung_below(Duration::from_millis(ms)).to_string();
        assert_eq!(
            [rung(10), rung(1_000), rung(59_999), rung(60_000), rung(90_000_000)],
            ["1s", "1s", "15s", "1m", "1h"]
        );
    }

    #[test]
    fn a_retry_spreads_over_its_neighbours_with_the_right_mean() {
        let ladder = Ladder::default();
        let wait = Duration::from_secs(7);
        let total: u64 = (0..1000).map(|i| ladder.rung_near(wait, f64::from(i) / 1000.0).as_millis()).sum();
        assert_eq!(total / 1000, 7000);
        assert_eq!(ladder.rung_near(Duration::from_secs(99_999), 0.0).to_string(), "1h");
    }

    #[test]
    fn refuses_ladders_nobody_could_climb() {
        let new = |ms: &[u64]| Ladder::new(ms.iter().map(|&ms| Delay::from_millis(ms)).collect());
        assert_eq!(new(&[]).unwrap_err().to_string(), "retry.delays has 0 entries, 1 to 16 are allowed");
        assert_eq!(
            new(&[50]).unwrap_err().to_string(),
            "retry.delays has 50ms, from 100ms to 24h is allowed"
        );
        assert_eq!(
            new(&[5000, 1000]).unwrap_err().to_string(),
            "retry.delays must ascend, but 1s follows 5s"
        );
        assert!(new(&[200, 1000]).is_ok());
    }
}
