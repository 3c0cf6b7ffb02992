//! Errors of settings, each on one line.

use std::path::{Path, PathBuf};

use crate::exit::{Exit, HasExit};

/// Why the settings cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A known setting has an invalid value.
    #[error("setting {setting} = {value} ({origin}) is refused: {problem}")]
    Invalid {
        /// The setting's path, as in the configuration file.
        setting: String,
        /// The value, secrets masked.
        value: String,
        /// Where the value came from: flag, environment, file or default.
        origin: String,
        /// The problem, or the allowed values.
        problem: String,
    },
    /// No setting has this name.
    #[error("setting {setting} ({origin}) is unknown: {advice}")]
    Unknown {
        /// The setting's path, as written.
        setting: String,
        /// Where it was written.
        origin: String,
        /// The nearest known name, or all of them.
        advice: String,
    },
    /// A file that a setting refers to cannot be used.
    #[error("{what} {} ({origin}) cannot be used: {problem}", path.display())]
    File {
        /// The purpose of the file.
        what: &'static str,
        /// The file's path.
        path: PathBuf,
        /// The setting or flag that refers to it.
        origin: String,
        /// The cause.
        problem: String,
    },
    /// Each setting is valid, but not in this combination.
    #[error("the settings cannot be used together: {0}")]
    Together(String),
}

impl HasExit for ConfigError {
    fn exit(&self) -> Exit {
        Exit::Config
    }
}

impl ConfigError {
    /// The file `path`, which `origin` refers to, cannot be used because of `problem`.
    pub fn file(
        what: &'static str,
        path: &Path,
        origin: impl Into<String>,
        problem: impl std::fmt::Display,
    ) -> Self {
        Self::File { what, path: path.to_owned(), origin: origin.into(), problem: problem.to_string() }
    }
}

/// A value that its type accepts and validation refuses. [`super::load`] adds where it came from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("setting {setting} = {value} is refused: {problem}")]
pub struct Invalid {
    /// The setting's path, as in the configuration file.
    pub setting: String,
    /// The value, as a user would write it, secrets masked.
    pub value: String,
    /// The problem, or the allowed values.
    pub problem: String,
}

impl HasExit for Invalid {
    fn exit(&self) -> Exit {
        Exit::Config
    }
}

impl Invalid {
    /// `setting` has the value `value`, which is refused because of `problem`.
    pub fn new(
        setting: impl Into<String>,
        value: impl std::fmt::Display,
        problem: impl Into<String>,
    ) -> Self {
        Self { setting: setting.into(), value: value.to_string(), problem: problem.into() }
    }

    /// Refuses the value of a setting unless it is `valid`.
    ///
    /// # Errors
    /// As [`Self::new`] makes it.
    pub fn unless(
        valid: bool,
        setting: impl Into<String>,
        value: impl std::fmt::Display,
        problem: impl Into<String>,
    ) -> Result<(), Self> {
        if valid { Ok(()) } else { Err(Self::new(setting, value, problem)) }
    }

    /// The error for a value that came from `origin`: flag, environment, file or default.
    pub fn given_by(self, origin: impl Into<String>) -> ConfigError {
        let Self { setting, value, problem } = self;
        ConfigError::Invalid { setting, value, origin: origin.into(), problem }
    }
}
