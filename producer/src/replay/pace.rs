//! Decides when each reading is due.

use std::{fmt, str::FromStr, time::Duration};

use garenne_protocol::sensor::Timestamp;
use thiserror::Error;
use tokio::time::Instant;

/// The speed of recorded time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// As fast as the destination accepts readings.
    Max,
    /// Recorded seconds per second; finite and above 0.
    Times(f64),
}

/// An invalid speed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a speed, expected max or a factor such as 60x or 0.5x")]
pub struct BadSpeed(String);

impl FromStr for Speed {
    type Err = BadSpeed;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "max" {
            return Ok(Self::Max);
        }
        let times = text.strip_suffix('x').unwrap_or(text).parse().ok();
        times
            .filter(|times: &f64| times.is_finite() && *times > 0.0)
            .map(Self::Times)
            .ok_or_else(|| BadSpeed(text.to_owned()))
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Max => f.write_str("max"),
            Self::Times(times) => write!(f, "{times}x"),
        }
    }
}

/// Converts recorded times into instants, relative to the first reading.
#[derive(Debug)]
pub(super) struct Pace {
    speed: Speed,
    /// Most readings per second.
    rate: Option<f64>,
    started: Option<(Instant, Timestamp)>,
    sent: u64,
}

impl Pace {
    pub(super) fn new(speed: Speed, rate: Option<f64>) -> Self {
        Self { speed, rate, started: None, sent: 0 }
    }

    /// When the next reading, recorded at `time`, is due. A reading that is older than the first one is due at once.
    pub(super) fn due(&mut self, time: Timestamp) -> Instant {
        let (start, first) = *self.started.get_or_insert_with(|| (Instant::now(), time));
        let by_time = match self.speed {
            Speed::Max => Duration::ZERO,
            Speed::Times(times) => {
                let micros = time.as_micros().saturating_sub(first.as_micros()).max(0);
                Duration::from_secs_f64(micros as f64 / 1e6 / times)
            }
        };
        let by_rate =
            self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(self.sent as f64 / rate));
        self.sent += 1;
        start + by_time.max(by_rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_parsed() {
        assert_eq!("60x".parse(), Ok(Speed::Times(60.0)));
        assert_eq!("0.5".parse(), Ok(Speed::Times(0.5)));
        assert_eq!("max".parse(), Ok(Speed::Max));
        for text in ["0x", "-1x", "fast", "infx", ""] {
            let error = text.parse::<Speed>().unwrap_err().to_string();
            assert_eq!(
                error,
                format!("{text:?} is not a speed, expected max or a factor such as 60x or 0.5x")
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn readings_follow_the_speed_and_stay_below_the_rate() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000).unwrap();
        let start = Instant::now();
        let mut pace = Pace::new(Speed::Times(60.0), None);
        let due: Vec<_> = [1000, 1060, 940, 1120].map(|s| pace.due(at(s)) - start).into();
        assert_eq!(due, [0, 1, 0, 2].map(Duration::from_secs));
        let mut pace = Pace::new(Speed::Max, Some(10.0));
        let due: Vec<_> = [0, 0, 0].map(|s| pace.due(at(s)) - start).into();
        assert_eq!(due, [0, 100, 200].map(Duration::from_millis));
    }
}
