//! Authentication by tokens and client certificates, and what each sender may send: the senders file, which is read
//! again when it changes.

mod caller;
mod grant;
mod peer;
mod rate;
mod senders;
mod senders_file;

use std::{path::Path, sync::Arc};

use garenne_common::{config::ConfigError, reloaded::Reloaded};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::refusal::Refusal;
pub(crate) use caller::Caller;
use caller::Hash;
pub(crate) use peer::Peer;
use senders::Senders;

/// Decides which connections may send, and what. The default requires no authentication and allows everything but
/// alerts.
pub struct Access {
    senders: Reloaded<Senders>,
}

impl Default for Access {
    fn default() -> Self {
        Self::new(None, false, 0).expect("no file is read")
    }
}

impl Access {
    /// The senders of `file`. Without it, a client certificate is required if `certificates` is true, and else no
    /// authentication is. One request may hold `max_request_records`.
    pub fn new(
        file: Option<&Path>,
        certificates: bool,
        max_request_records: usize,
    ) -> Result<Self, ConfigError> {
        let max_request_records = u32::try_from(max_request_records).unwrap_or(u32::MAX);
        let context = senders_file::Context { certificates, max_request_records };
        let senders = match file {
            None => Reloaded::new("senders", Vec::new(), move || Ok(Senders::without_file(certificates)))?,
            Some(path) => {
                let path = path.to_owned();
                Reloaded::new("senders", vec![path.clone()], move || senders_file::read(&path, context))?
            }
        };
        Ok(Self { senders })
    }

    /// Whether senders must authenticate.
    pub(crate) fn is_required(&self) -> bool {
        self.senders.get().anonymous.is_none()
    }

    /// Authenticates `peer` by its certificate and `token`.
    pub(crate) fn caller(&self, peer: &Peer, token: Option<&str>) -> Result<Arc<Caller>, Refusal> {
        let caller = self.find(peer, token.map(|token| Sha256::digest(token).into()))?;
        peer.set_authenticated();
        Ok(caller)
    }

    /// The caller of a long-lived connection as the senders file has it now, with its present scopes and rate limit.
    pub(crate) fn renewed(&self, caller: &Arc<Caller>, peer: &Peer) -> Result<Arc<Caller>, Refusal> {
        let is_current = caller.generation == self.senders.generation();
        if is_current && caller.expires.is_none_or(|end| OffsetDateTime::now_utc() < end) {
            return Ok(Arc::clone(caller));
        }
        self.find(peer, caller.token)
    }

    fn find(&self, peer: &Peer, token: Option<Hash>) -> Result<Arc<Caller>, Refusal> {
        // Before the senders: a caller of a newer generation is looked up once too often and never too seldom.
        let generation = self.senders.generation();
        let found = self.senders.get().find(peer, token, OffsetDateTime::now_utc(), generation);
        found.map(Arc::new).map_err(Refusal::unauthorized)
    }

    /// Reads the senders file again if it has changed. If it is invalid, the previous senders stay valid.
    pub(crate) fn refresh(&self) {
        self.senders.refresh();
    }
}

#[cfg(test)]
mod tests;
