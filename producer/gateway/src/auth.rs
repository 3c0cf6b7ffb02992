//! Authentication by tokens from a file, which is read again when it changes, and by client certificates.

mod caller;
mod peer;
mod token_file;

use std::{collections::HashMap, path::Path, sync::Arc};

use garenne_common::config::ConfigError;
use sha2::{Digest, Sha256};

use crate::{refusal::Refusal, reloaded::Reloaded};
pub(crate) use caller::Caller;
use caller::Hash;
pub(crate) use peer::Peer;

type Tokens = HashMap<Hash, Caller>;

/// Decides which connections may send. The default requires no authentication.
#[derive(Default)]
pub struct Access {
    /// The callers of the token file, by the hashes of their tokens.
    tokens: Option<Reloaded<Tokens>>,
    /// Whether client certificates are required where there is no token.
    certificates: bool,
}

impl Access {
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
        let tokens = tokens.map(|path| {
            let path = path.to_owned();
            Reloaded::new("tokens", vec![path.clone()], move || token_file::read(&path, max_request_records))
        });
        Ok(Self { tokens: tokens.transpose()?, certificates })
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
        let device = peer.device.clone();
        let caller = match (&self.tokens, token) {
            (Some(tokens), Some(token)) => {
                known(tokens, &Sha256::digest(token).into(), device).ok_or("unknown token")
            }
            _ if device.is_some() || !self.is_required() => Ok(Caller::without_token(device)),
            (Some(_), None) => Err("no token"),
            (None, _) => Err("no client certificate"),
        };
        let caller = caller.map_err(Refusal::unauthorized)?;
        peer.set_authenticated();
        Ok(caller)
    }

    /// The caller of a long-lived connection as the token file has it now, with its present rate limit.
    ///
    /// # Errors
    /// Its token is no longer in the token file.
    pub(crate) fn renewed(&self, caller: &Caller) -> Result<Caller, Refusal> {
        let (Some(tokens), Some(hash)) = (&self.tokens, &caller.token) else { return Ok(caller.clone()) };
        let known = known(tokens, hash, caller.device.clone());
        known.ok_or_else(|| Refusal::unauthorized("the token was removed"))
    }

    /// Reads the token file again if it has changed. If it is invalid, the previous tokens stay valid.
    pub(crate) fn refresh(&self) {
        if let Some(tokens) = &self.tokens {
            tokens.refresh();
        }
    }
}

/// The caller with this token, as the token file has it now.
fn known(tokens: &Reloaded<Tokens>, token: &Hash, device: Option<Arc<str>>) -> Option<Caller> {
    tokens.get().get(token).map(|known| Caller { device, ..known.clone() })
}

#[cfg(test)]
mod tests;
