//! The token for a gateway.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use garenne_common::config::{ConfigError, read_secret_file};
use secrecy::SecretString;

use super::SendError;

/// A token in a file, which is read whenever the token is needed: it may be replaced while readings are sent.
pub(super) struct Token {
    file: PathBuf,
    /// Whether the gateway has accepted it or an earlier one.
    accepted: AtomicBool,
}

impl Token {
    /// The token in this file.
    pub(super) fn of(file: PathBuf) -> Result<Self, ConfigError> {
        read_secret_file("token_file", &file)?;
        Ok(Self { file, accepted: AtomicBool::new(false) })
    }

    /// The token that the file has now. Fails also while the file is being replaced.
    pub(super) fn read(&self) -> Result<SecretString, SendError> {
        read_secret_file("token_file", &self.file)
            .map_err(|error| SendError::Retry { reason: error.to_string(), retry_after: None })
    }

    /// The gateway accepted it.
    pub(super) fn accept(&self) {
        self.accepted.store(true, Relaxed);
    }
}

/// The gateway refused the token. If it has accepted one before, the token has changed there and is about to change in
/// the file; otherwise no reading will be accepted.
pub(super) fn refused(token: Option<&Token>, reason: String) -> SendError {
    match token {
        Some(token) if token.accepted.load(Relaxed) => SendError::Retry { reason, retry_after: None },
        _ => SendError::fatal(reason),
    }
}
