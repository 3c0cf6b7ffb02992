//! The settings of events and heartbeats.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Invalid;

/// The settings `events.*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Events {
    /// Interval of heartbeats, varied by a tenth: 100 ms to 1 min, or 0 for none.
    #[serde(with = "humantime_serde")]
    pub heartbeat: Duration,
}

impl Default for Events {
    fn default() -> Self {
        Self { heartbeat: Duration::from_secs(2) }
    }
}

impl Events {
    /// # Errors
    /// The heartbeat interval is out of bounds.
    pub fn validate(&self) -> Result<(), Invalid> {
        let bounds = Duration::from_millis(100)..=Duration::from_secs(60);
        let valid = self.heartbeat.is_zero() || bounds.contains(&self.heartbeat);
        let (value, problem) = (self.heartbeat, "expected 100ms to 1m, or 0s for no heartbeats");
        Invalid::unless(valid, "events.heartbeat", humantime::format_duration(value), problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_is_bounded_or_off() {
        let check = |ms| Events { heartbeat: Duration::from_millis(ms) }.validate();
        assert!([0, 100, 2000, 60_000].iter().all(|&ms| check(ms).is_ok()));
        let refused = check(99).unwrap_err();
        assert_eq!((refused.setting.as_str(), refused.value.as_str()), ("events.heartbeat", "99ms"));
        assert_eq!(refused.problem, "expected 100ms to 1m, or 0s for no heartbeats");
        assert!(check(60_001).is_err());
    }
}
