//! What is wrong with the settings, each on one line.

use std::path::PathBuf;

use crate::exit::{Exit, HasExit};

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A known setting has a value that is not allowed.
    #[error("setting {setting} = {value} ({origin}) is refused: {problem}")]
    Invalid {
        /// The setting's path, as in the configuration file.
        setting: String,
        /// The value, secrets masked.
        value: String,
        /// Where the value came from: flag, environment, file or default.
        origin: String,
        /// What is wrong or what is allowed.
        problem: String,
    },
    /// Nothing is called that.
    #[error("setting {setting} ({origin}) is unknown: {advice}")]
    Unknown {
        /// The setting's path, as written.
        setting: String,
        /// Where it was written.
        origin: String,
        /// The nearest known name, or all of them.
        advice: String,
    },
    /// A file that the settings name cannot be used.
    #[error("{what} {} ({origin}) cannot be used: {problem}", path.display())]
    File {
        /// What the file is for.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Which setting names it.
        origin: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The settings are wrong together in a way that no single one shows.
    #[error("the settings cannot be used together: {0}")]
    Together(String),
}

impl HasExit for ConfigError {
    fn exit(&self) -> Exit {
        Exit::Config
    }
}

/// A setting that its own type accepts and the whole does not; [`super::load`] adds where it came from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("setting {setting} = {value} is refused: {problem}")]
pub struct Invalid {
    /// The setting's path, as in the configuration file.
    pub setting: String,
    /// The value, as a user would write it, secrets masked.
    pub value: String,
    /// What is wrong or what is allowed.
    pub problem: String,
}

impl HasExit for Invalid {
    fn exit(&self) -> Exit {
        Exit::Config
    }
}

impl Invalid {
    /// `setting` has the value `value`, and that is refused because of `problem`.
    pub fn new(
        setting: impl Into<String>,
        value: impl std::fmt::Display,
        problem: impl Into<String>,
    ) -> Self {
        Self { setting: setting.into(), value: value.to_string(), problem: problem.into() }
    }
}
