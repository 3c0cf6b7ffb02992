//! Authentication by tokens from a file, which is read again when it changes, and by client certificates.

mod caller;
mod peer;
mod token_file;

use std::{collections::HashMap, path::Path};

use garenne_common::config::ConfigError;
use sha2::{Digest, Sha256};

use crate::{refusal::Refusal, reloaded::Reloaded};
pub(crate) use caller::Caller;
use caller::Hash;
pub(crate) use peer::Peer;

/// Decides which connections may send.
pub struct Access {
    /// The callers of the token file, by the hashes of their tokens.
    tokens: Option<Reloaded<HashMap<Hash, Caller>>>,
    /// Whether client certificates are required where there is no token.
    certificates: bool,
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
        let max_request_records = u32::try_from(max_request_records).unwrap_or(u32::MAX);
        let callers = |path: &Path| {
            let path = path.to_owned();
            Reloaded::new("tokens", vec![path.clone()], move || {
                token_file::read(&path, max_request_records).map_err(|problem| ConfigError::File {
                    what: "token file",
                    path: path.clone(),
                    origin: "setting tokens".to_owned(),
                    problem,
                })
            })
        };
        Ok(Self { tokens: tokens.map(callers).transpose()?, certificates })
    }

    /// Whether senders must authenticate.
    pub(crate) fn is_required(&self) -> bool {
        self.tokens.is_some() || self.certificates
    }

    /// Authenticates `peer` by its certificate and `token`.
    ///
    /// # Errors
    /// The sender is unknown.
    pub(crate) fn caller(&self, peer: &Peer, token: Option<&str>) -> Result<Caller, Refusal> {
        let caller = self.identify(peer, token)?;
        peer.set_authenticated();
        Ok(caller)
    }

    fn identify(&self, peer: &Peer, token: Option<&str>) -> Result<Caller, Refusal> {
        let device = peer.device.clone();
        match (&self.tokens, token) {
            (Some(tokens), Some(token)) => {
                let known = tokens.get().get(&Hash::from(Sha256::digest(token))).cloned();
                let known = known.ok_or_else(|| Refusal::unauthorized("unknown token"))?;
                Ok(Caller { device, ..known })
            }
            _ if device.is_some() => Ok(Caller::without_token(device)),
            (Some(_), None) => Err(Refusal::unauthorized("no token")),
            (None, _) if self.certificates => Err(Refusal::unauthorized("no client certificate")),
            (None, _) => Ok(Caller::without_token(None)),
        }
    }

    /// The caller of a long-lived connection as the token file has it now, with its present rate limit.
    ///
    /// # Errors
    /// Its token is no longer in the token file.
    pub(crate) fn renewed(&self, caller: &Caller) -> Result<Caller, Refusal> {
        let (Some(tokens), Some(hash)) = (&self.tokens, &caller.token) else { return Ok(caller.clone()) };
        let known = tokens.get().get(hash).cloned();
        let known = known.ok_or_else(|| Refusal::unauthorized("the token was removed"))?;
        Ok(Caller { device: caller.device.clone(), ..known })
    }

    /// Reads the token file again if it has changed. If it is invalid, the previous tokens stay valid.
    pub(crate) fn refresh(&self) {
        if let Some(tokens) = &self.tokens {
            tokens.refresh();
        }
    }
}

#[cfg(test)]
mod tests;
