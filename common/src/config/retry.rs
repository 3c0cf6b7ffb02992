//! The settings of the retry ladder, for all programs that declare or verify the topology.

use std::time::Duration;

use garenne_protocol::topology::{Delay, Ladder};
use humantime_serde::Serde;
use serde::{Deserialize, Serialize};

use super::Invalid;

/// The delays of the retry ladder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// Delays of the retry queues, one queue per lane and delay: 1 to 16, ascending, each from 100 ms to 24 h. Default:
    /// 1 s, 5 s, 15 s, 1 min, 5 min, 15 min, 1 h.
    #[serde(with = "super::list")]
    pub delays: Vec<Serde<Duration>>,
}

impl Default for Retry {
    fn default() -> Self {
        let delays = Ladder::default().rungs().iter().map(|delay| delay.as_duration().into()).collect();
        Self { delays }
    }
}

impl Retry {
    /// The settings with these delays.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use garenne_common::config::Retry;
    /// let retry = Retry::after([1, 10, 60].map(Duration::from_secs));
    /// assert_eq!(retry.delays.len(), 3);
    /// ```
    pub fn after(delays: impl IntoIterator<Item = Duration>) -> Self {
        Self { delays: delays.into_iter().map(Serde::from).collect() }
    }

    /// The ladder with these delays.
    ///
    /// # Errors
    /// `retry.delays` is invalid.
    pub fn ladder(&self) -> Result<Ladder, Invalid> {
        let delays = self.delays.iter().map(|span| Delay::from(**span)).collect();
        Ladder::new(delays).map_err(|problem| {
            let shown: Vec<_> =
                self.delays.iter().map(|span| humantime::format_duration(**span).to_string()).collect();
            Invalid::new("retry.delays", shown.join(","), problem.to_string())
        })
    }
}
