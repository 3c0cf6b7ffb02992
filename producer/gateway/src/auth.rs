//! Authentication by tokens from a file, which is read again when it changes, and by client certificates.

mod caller;
mod peer;
mod token_file;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{PoisonError, RwLock, RwLockReadGuard},
    time::Duration,
};

use garenne_common::config::ConfigError;
use sha2::{Digest, Sha256};

use crate::{
    file_stamp::{FileStamp, file_stamp},
    refusal::Refusal,
};
pub(crate) use caller::Caller;
use caller::Hash;
pub(crate) use peer::Peer;

/// Decides which connections may send.
pub struct Access {
    tokens: Option<Tokens>,
    /// Whether client certificates are required where there is no token.
    certificates: bool,
}

/// The token file and its current content.
struct Tokens {
    path: PathBuf,
    max_request_records: u32,
    table: RwLock<TokenTable>,
}

struct TokenTable {
    callers: HashMap<Hash, Caller>,
    /// Incremented each time the file is read again.
    generation: u64,
    stamp: FileStamp,
}

impl Access {
    /// Requires no authentication.
    pub fn open() -> Self {
        Self { tokens: None, certificates: false }
    }

    /// Requires a token of the file `tokens`, if given, or a client certificate if `certificates` is true. Without
    /// either no authentication is required. One request may hold `max_request_records`.
    ///
    /// # Errors
    /// The file cannot be read, or one of its lines is invalid.
    pub fn new(
        tokens: Option<&Path>,
        certificates: bool,
        max_request_records: usize,
    ) -> Result<Self, ConfigError> {
        let tokens = tokens
            .map(|path| {
                let max_request_records = u32::try_from(max_request_records).unwrap_or(u32::MAX);
                // Before the file is read: a change during the read is then noticed later.
                let stamp = file_stamp(path);
                let callers =
                    token_file::read(path, max_request_records, 0).map_err(|problem| ConfigError::File {
                        what: "token file",
                        path: path.to_owned(),
                        origin: "setting tokens".to_owned(),
                        problem,
                    })?;
                let table = RwLock::new(TokenTable { callers, generation: 0, stamp });
                Ok(Tokens { path: path.to_owned(), max_request_records, table })
            })
            .transpose()?;
        Ok(Self { tokens, certificates })
    }

    /// Whether senders must authenticate.
    pub(crate) fn is_required(&self) -> bool {
        self.tokens.is_some() || self.certificates
    }

    /// Authenticates `peer` by its certificate and `token`.
    ///
    /// # Errors
    /// [`Refusal::Unauthorized`].
    pub(crate) fn caller(&self, peer: &Peer, token: Option<&str>) -> Result<Caller, Refusal> {
        let caller = self.identify(peer, token)?;
        peer.set_authenticated();
        Ok(caller)
    }

    fn identify(&self, peer: &Peer, token: Option<&str>) -> Result<Caller, Refusal> {
        match (&self.tokens, token, &peer.device) {
            (Some(tokens), Some(token), device) => {
                let caller = tokens.caller(&Sha256::digest(token.as_bytes()).into());
                caller
                    .map(|caller| caller.with_device(device.clone()))
                    .ok_or(Refusal::Unauthorized("unknown token"))
            }
            (_, _, Some(device)) => Ok(Caller::certified(device.clone())),
            (None, _, None) if !self.certificates => Ok(Caller::anonymous()),
            (None, _, None) => Err(Refusal::Unauthorized("no client certificate")),
            (Some(_), None, None) => Err(Refusal::Unauthorized("no token")),
        }
    }

    /// Checks that the token of a caller on a long-lived connection is still in the token file, and updates the
    /// caller's rate limit.
    ///
    /// # Errors
    /// [`Refusal::Unauthorized`].
    pub(crate) fn refresh_caller(&self, caller: &mut Caller) -> Result<(), Refusal> {
        let (Some(tokens), Some(token)) = (&self.tokens, caller.token()) else { return Ok(()) };
        if tokens.read().generation == token.generation {
            return Ok(());
        }
        let device = caller.device().cloned();
        let renewed = tokens.caller(&token.hash).ok_or(Refusal::Unauthorized("the token was removed"))?;
        *caller = renewed.with_device(device);
        Ok(())
    }

    /// Checks the token file at this interval and reads it again when it has changed. An invalid file is logged and
    /// the previous tokens stay valid.
    pub async fn watch(&self, interval: Duration) {
        let Some(tokens) = &self.tokens else { return std::future::pending().await };
        let mut tick = tokio::time::interval(interval);
        loop {
            tick.tick().await;
            tokens.refresh();
        }
    }
}

impl Tokens {
    fn read(&self) -> RwLockReadGuard<'_, TokenTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn caller(&self, hash: &Hash) -> Option<Caller> {
        self.read().callers.get(hash).cloned()
    }

    fn refresh(&self) {
        let stamp = file_stamp(&self.path);
        let generation = {
            let table = self.read();
            if table.stamp == stamp {
                return;
            }
            table.generation + 1
        };
        let read = token_file::read(&self.path, self.max_request_records, generation);
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.stamp = stamp;
        match read {
            Ok(callers) => {
                tracing::info!(file = %self.path.display(), tokens = callers.len(), "token file reloaded");
                table.callers = callers;
                table.generation = generation;
            }
            Err(problem) => {
                tracing::error!(file = %self.path.display(), problem, "token file is invalid, keeping the previous tokens");
            }
        }
    }
}

#[cfg(test)]
mod tests;
