//! The senders that a gateway knows.

use std::{collections::HashMap, sync::Arc};

use garenne_common::pattern::NamePattern;
use time::OffsetDateTime;

use super::{
    caller::{Caller, Credential, Hash},
    grant::Grant,
    peer::Peer,
};

/// The senders that a gateway knows, and what it allows to others.
pub(super) struct Senders {
    /// Grants of tokens, by their hash.
    pub(super) tokens: HashMap<Hash, Arc<Grant>>,
    /// Grants of certificates with a name that matches a pattern; the first match counts.
    pub(super) certificates: Vec<(NamePattern, Arc<Grant>)>,
    /// The grant of every other certificate.
    pub(super) other_certificates: Arc<Grant>,
    /// The grant of senders without a token and a certificate; `None` if they are refused.
    pub(super) anonymous: Option<(Credential, Arc<Grant>)>,
}

impl Senders {
    /// The senders of a gateway without a senders file: those with a certificate if it requires `certificates`, else
    /// every sender.
    pub(super) fn without_file(certificates: bool) -> Self {
        let open = || (Credential::Open, Arc::new(Grant::open()));
        Self {
            tokens: HashMap::new(),
            certificates: Vec::new(),
            other_certificates: Arc::new(Grant::of_certificates()),
            anonymous: (!certificates).then(open),
        }
    }

    /// The sender with this certificate, if it has one, and this token, if it sent one. Refuses one whose entry has
    /// expired at `now`.
    pub(super) fn find(
        &self,
        peer: &Peer,
        token: Option<Hash>,
        now: OffsetDateTime,
        generation: u64,
    ) -> Result<Caller, &'static str> {
        // A gateway without tokens ignores those that senders present.
        let token = token.filter(|_| !self.tokens.is_empty());
        let own_device = peer.device().cloned();
        let (mut grants, mut found) = (Vec::with_capacity(1), None);
        if let Some(hash) = &token {
            let grant = self.tokens.get(hash).ok_or("unknown token")?;
            found = Some((Credential::Token, Arc::clone(&grant.name)));
            grants.push(Arc::clone(grant));
        }
        if let Some(device) = &own_device {
            found.get_or_insert_with(|| (Credential::Certificate, Arc::clone(device)));
            grants.push(Arc::clone(self.certificate(peer)));
        }
        if found.is_none() {
            let missing = if self.tokens.is_empty() { "no client certificate" } else { "no token" };
            let (credential, grant) = self.anonymous.as_ref().ok_or(missing)?;
            found = Some((*credential, Arc::clone(&grant.name)));
            grants.push(Arc::clone(grant));
        }
        let (credential, name) = found.expect("set above");
        let expires = grants.iter().filter_map(|grant| grant.expires).min();
        if expires.is_some_and(|end| end <= now) {
            return Err("the sender's entry has expired");
        }
        // Senders without a name are told apart by their addresses.
        let limit_of = |grant: &Arc<Grant>| {
            let rate = grant.rate.as_ref()?;
            Some(match credential {
                Credential::Anonymous | Credential::Open => rate.of(&peer.source().to_string()),
                Credential::Token | Credential::Certificate => rate.of(&name),
            })
        };
        let limits = grants.iter().filter_map(limit_of).collect();
        Ok(Caller { name, expires, credential, limits, grants, own_device, token, generation })
    }

    fn certificate(&self, peer: &Peer) -> &Arc<Grant> {
        let matching =
            self.certificates.iter().find(|(pattern, _)| peer.names().any(|it| pattern.matches(it)));
        matching.map_or(&self.other_certificates, |(_, grant)| grant)
    }
}
