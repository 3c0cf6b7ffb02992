//! Decides when each reading is due.

use std::time::Duration;

use garenne_protocol::sensor::Timestamp;
use tokio::time::Instant;

/// Parses a speed in recorded seconds per second. It is infinite for `max`: as fast as the destination accepts readings.
pub(super) fn speed(text: &str) -> Result<f64, String> {
    if text == "max" {
        return Ok(f64::INFINITY);
    }
    let speed = text.strip_suffix('x').unwrap_or(text).parse().ok();
    speed
        .filter(|speed: &f64| speed.is_finite() && *speed > 0.0)
        .ok_or_else(|| format!("{text:?} is not a speed, expected max or a factor such as 60x or 0.5x"))
}

/// Converts recorded times into instants, relative to the first reading.
#[derive(Debug)]
pub(super) struct Pace {
    speed: f64,
    /// Most readings per second; may be infinite.
    rate: f64,
    started: Option<(Instant, Timestamp)>,
    sent: u64,
}

impl Pace {
    pub(super) fn new(speed: f64, rate: Option<f64>) -> Self {
        Self { speed, rate: rate.unwrap_or(f64::INFINITY), started: None, sent: 0 }
    }

    /// When the next reading, recorded at `time`, is due. A reading that is older than the first one is due at once.
    pub(super) fn due(&mut self, time: Timestamp) -> Instant {
        let (start, first) = *self.started.get_or_insert_with(|| (Instant::now(), time));
        let recorded = time.as_micros().saturating_sub(first.as_micros()).max(0) as f64 / 1e6;
        let seconds = (recorded / self.speed).max(self.sent as f64 / self.rate);
        self.sent += 1;
        start + Duration::from_secs_f64(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_parsed() {
        assert_eq!(speed("60x"), Ok(60.0));
        assert_eq!(speed("0.5"), Ok(0.5));
        assert_eq!(speed("max"), Ok(f64::INFINITY));
        for text in ["0x", "-1x", "fast", "infx", ""] {
            let error = speed(text).unwrap_err();
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
        let mut pace = Pace::new(60.0, None);
        let due: Vec<_> = [1000, 1060, 940, 1120].map(|s| pace.due(at(s)) - start).into();
        assert_eq!(due, [0, 1, 0, 2].map(Duration::from_secs));
        let mut pace = Pace::new(f64::INFINITY, Some(10.0));
        let due: Vec<_> = [0, 0, 0].map(|s| pace.due(at(s)) - start).into();
        assert_eq!(due, [0, 100, 200].map(Duration::from_millis));
    }
}
