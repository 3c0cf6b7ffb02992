//! The retry ladder's settings: whoever declares or checks the topology needs them.

use std::time::Duration;

use garenne_protocol::topology::{Delay, Ladder};
use serde::{Deserialize, Serialize};

use super::Invalid;

/// The delays of the retry ladder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// One queue per lane and delay: 1 to 16 of them, ascending, each from 100 ms to 24 h.
    #[serde(with = "super::list")]
    pub delays: Vec<Span>,
}

/// A duration written as `500ms`, `5s` or `2m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Span(#[serde(with = "humantime_serde")] pub Duration);

impl Default for Retry {
    fn default() -> Self {
        let delays = Ladder::default().rungs().iter().map(|delay| Span(delay.as_duration())).collect();
        Self { delays }
    }
}

impl Retry {
    /// The ladder of these delays.
    ///
    /// # Errors
    /// What is wrong with `retry.delays`.
    pub fn ladder(&self) -> Result<Ladder, Invalid> {
        let delays = self.delays.iter().map(|span| Delay::from(span.0)).collect();
        Ladder::new(delays).map_err(|problem| {
            let shown: Vec<_> =
                self.delays.iter().map(|span| humantime::format_duration(span.0).to_string()).collect();
            Invalid::new("retry.delays", shown.join(","), problem.to_string())
        })
    }
}
