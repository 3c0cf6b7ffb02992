//! Shutdown modes: which of its tasks a process finishes before it stops.

use std::str::FromStr;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error as _};
use strum::{Display, IntoStaticStr};

/// How a stopping worker treats the tasks that it holds. Intake stops in every mode.
///
/// Ordered from mild to strict: a running shutdown can only become stricter.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Display, IntoStaticStr, Serialize,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Mode {
    /// Running and locally queued tasks finish, without a time limit.
    Light,
    /// Running tasks finish, without a time limit; queued ones are requeued.
    Soft,
    /// [`Mode::Soft`] until the shutdown timeout, then [`Mode::Hard`].
    #[default]
    SoftTimeout,
    /// Long tasks are cancelled, queued ones are requeued. Tasks that run beyond the hard grace are given up.
    Hard,
}

impl Mode {
    /// All modes, mildest first.
    pub const ALL: [Mode; 4] = [Mode::Light, Mode::Soft, Mode::SoftTimeout, Mode::Hard];

    /// The name used in settings, on the admin port and in receipts.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether a request for mode `asked` makes a shutdown in this mode stricter. A milder request changes nothing:
    /// a late `light` cannot delay a hard stop.
    pub fn escalates_to(self, asked: Mode) -> bool {
        asked > self
    }
}

/// Text that is not the name of a shutdown mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("shutdown mode {0:?} is unknown, expected light, soft, soft-timeout or hard")]
pub struct UnknownMode(pub String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Mode::ALL
            .into_iter()
            .find(|mode| mode.as_str() == word.trim())
            .ok_or_else(|| UnknownMode(word.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_round_trips_through_text_and_json() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            let json = serde_json::to_string(&mode).unwrap();
            assert_eq!(json, format!("\"{mode}\""));
            assert_eq!(serde_json::from_str::<Mode>(&json).unwrap(), mode);
        }
        assert_eq!(Mode::default().to_string(), "soft-timeout");
    }

    #[test]
    fn an_unknown_mode_error_lists_the_modes() {
        assert_eq!(
            "softly".parse::<Mode>().unwrap_err().to_string(),
            "shutdown mode \"softly\" is unknown, expected light, soft, soft-timeout or hard"
        );
    }

    #[test]
    fn a_shutdown_only_becomes_stricter() {
        assert!(Mode::Light.escalates_to(Mode::Soft));
        assert!(Mode::SoftTimeout.escalates_to(Mode::Hard));
        assert!(!Mode::Hard.escalates_to(Mode::Light));
        assert!(!Mode::Soft.escalates_to(Mode::Soft));
    }
}
