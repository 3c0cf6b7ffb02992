//! The retry ladder: a lane's queues with fixed delays, and which of them a wait uses. Queue names have the delays
//! as `500ms`, `5s`, `15m`, `1h`.

use std::{fmt, time::Duration};

use thiserror::Error;

/// The delay of a rung of the retry ladder, in whole milliseconds, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Delay(u64);

impl Delay {
    /// A delay of `ms` milliseconds; 0 becomes 1.
    pub const fn from_millis(ms: u64) -> Self {
        Self(if ms == 0 { 1 } else { ms })
    }

    /// The delay in milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The delay as a [`Duration`].
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl From<Duration> for Delay {
    fn from(span: Duration) -> Self {
        Self::from_millis(span.as_millis().try_into().unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ms if ms % 3_600_000 == 0 => write!(f, "{}h", ms / 3_600_000),
            ms if ms % 60_000 == 0 => write!(f, "{}m", ms / 60_000),
            ms if ms % 1_000 == 0 => write!(f, "{}s", ms / 1_000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

/// The delays of the retry queues that every lane has, shortest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ladder(Vec<Delay>);

/// Why a list of delays is not a valid ladder.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct LadderError(String);

impl Default for Ladder {
    fn default() -> Self {
        Self([1, 5, 15, 60, 300, 900, 3600].map(|s| Delay::from_millis(s * 1000)).to_vec())
    }
}

impl Ladder {
    /// The delays of the quarantine, whatever a lane's are. A task that waits for a handler there gets as few copies as in a
    /// lane with the default delays.
    pub fn of_quarantine() -> Self {
        Self([1, 5, 15, 60, 300].map(|s| Delay::from_millis(s * 1000)).to_vec())
    }

    /// The maximum number of rungs. Each is a queue per lane on the broker.
    pub const MAX_RUNGS: usize = 16;

    /// A ladder of these delays.
    ///
    /// # Errors
    /// [`LadderError`] if there are none or too many, one is out of bounds, or they do not ascend.
    pub fn new(delays: Vec<Delay>) -> Result<Self, LadderError> {
        let (count, max) = (delays.len(), Self::MAX_RUNGS);
        if !(1..=max).contains(&count) {
            return Err(LadderError(format!("retry.delays has {count} entries, 1 to {max} are allowed")));
        }
        if let Some(out) = delays.iter().find(|d| !(100..=86_400_000).contains(&d.as_millis())) {
            return Err(LadderError(format!("retry.delays has {out}, 100ms to 24h is allowed")));
        }
        if let Some([first, second]) = delays.array_windows().find(|[first, second]| first >= second) {
            return Err(LadderError(format!("retry.delays must ascend, but {second} follows {first}")));
        }
        Ok(Self(delays))
    }

    /// The rungs, shortest first.
    pub fn rungs(&self) -> &[Delay] {
        &self.0
    }

    /// The longest rung of at most `wait`, or the shortest rung if all are longer. A task whose wait is longer
    /// than the rung passes through several rungs until its due time.
    pub fn rung_below(&self, wait: Duration) -> Delay {
        let below = self.0.iter().rev().find(|delay| delay.as_duration() <= wait);
        *below.unwrap_or(&self.0[0])
    }

    /// The rung below or above `wait`, chosen at random with probabilities that make the mean delay `wait`.
    /// Retries of simultaneous failures are spread out that way. `chance` is a random number, uniform in
    /// `0.0..1.0`. Outside the ladder the result is the shortest or the longest rung.
    pub fn rung_near(&self, wait: Duration, chance: f64) -> Delay {
        let below = self.rung_below(wait);
        let Some(&above) = self.0.iter().find(|delay| delay.as_duration() > wait) else { return below };
        if above == below {
            return below;
        }
        let gap = (above.as_millis() - below.as_millis()) as f64;
        let excess = wait.as_secs_f64() * 1000.0 - below.as_millis() as f64;
        if chance < excess / gap { above } else { below }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_formatted_in_the_largest_whole_unit() {
        let written =
            [500, 1_000, 15_000, 60_000, 90_000, 3_600_000].map(|ms| Delay::from_millis(ms).to_string());
        assert_eq!(written, ["500ms", "1s", "15s", "1m", "90s", "1h"]);
    }

    #[test]
    fn rung_below_is_the_longest_rung_within_the_wait() {
        let ladder = Ladder::default();
        let rung = |ms| ladder.rung_below(Duration::from_millis(ms)).to_string();
        assert_eq!(
            [rung(10), rung(1_000), rung(59_999), rung(60_000), rung(90_000_000)],
            ["1s", "1s", "15s", "1m", "1h"]
        );
    }

    #[test]
    fn rung_near_averages_to_the_wait() {
        let ladder = Ladder::default();
        let wait = Duration::from_secs(7);
        let total: u64 = (0..1000).map(|i| ladder.rung_near(wait, f64::from(i) / 1000.0).as_millis()).sum();
        assert_eq!(total / 1000, 7000);
        assert_eq!(ladder.rung_near(Duration::from_secs(99_999), 0.0).to_string(), "1h");
    }

    #[test]
    fn invalid_ladders_are_refused_with_the_reason() {
        let new = |ms: &[u64]| Ladder::new(ms.iter().map(|&ms| Delay::from_millis(ms)).collect());
        assert_eq!(new(&[]).unwrap_err().to_string(), "retry.delays has 0 entries, 1 to 16 are allowed");
        assert_eq!(new(&[50]).unwrap_err().to_string(), "retry.delays has 50ms, 100ms to 24h is allowed");
        assert_eq!(
            new(&[5000, 1000]).unwrap_err().to_string(),
            "retry.delays must ascend, but 1s follows 5s"
        );
        assert!(new(&[200, 1000]).is_ok());
    }
}
