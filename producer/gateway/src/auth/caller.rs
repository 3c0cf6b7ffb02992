//! An authenticated sender: what it may send, and the ids of its tasks.

use std::sync::Arc;

use garenne_protocol::task::TaskId;
use time::OffsetDateTime;

use super::{grant::Grant, rate::RateLimit};
use crate::refusal::Refusal;

/// The SHA-256 of a token. Neither the senders file nor this process keeps the token itself.
pub(super) type Hash = [u8; 32];

/// How a sender is known. Names of different kinds of credentials are different senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum Credential {
    Token,
    Certificate,
    /// None, on a gateway that knows other senders by their credentials.
    Anonymous,
    /// None, on a gateway without authentication.
    Open,
}

/// An authenticated sender.
pub(crate) struct Caller {
    /// Its name in the answer to `auth`.
    pub(crate) name: Arc<str>,
    /// The time from which it may send nothing.
    pub(crate) expires: Option<OffsetDateTime>,
    pub(super) credential: Credential,
    /// The grants, which must all allow a message. A sender with a token and a certificate has two.
    pub(super) grants: Vec<Arc<Grant>>,
    /// The device that its certificate names.
    pub(super) own_device: Option<Arc<str>>,
    pub(super) limits: Vec<Arc<RateLimit>>,
    pub(super) token: Option<Hash>,
    /// The generation of the senders file that it was found in.
    pub(super) generation: u64,
}

impl Caller {
    /// As [`Caller::check_scope`], with the record in the text of the refusal.
    pub(crate) fn check_records<'a>(
        &self,
        kind: &str,
        devices: impl Iterator<Item = &'a str>,
    ) -> Result<(), Refusal> {
        self.check_scope(kind, devices).map_err(|refusal| match refusal.record {
            Some(record) => refusal.of_record(record),
            None => refusal,
        })
    }

    /// Checks that it may send records of this kind and these devices. The refusal of a device has its index.
    pub(crate) fn check_scope<'a>(
        &self,
        kind: &str,
        devices: impl Iterator<Item = &'a str>,
    ) -> Result<(), Refusal> {
        if !self.grants.iter().all(|grant| grant.allows_kind(kind)) {
            return Err(Refusal::foreign_kind(kind, &self.name));
        }
        if self.has_limited_devices() {
            for (record, device) in devices.enumerate() {
                if !self.allows_device(device) {
                    let refusal = Refusal::foreign_device(device, &self.name);
                    return Err(Refusal { record: Some(record), ..refusal });
                }
            }
        }
        Ok(())
    }

    /// Counts records against its rate limit: all of them or none.
    pub(crate) fn take(&self, records: usize) -> Result<(), Refusal> {
        self.limits.iter().try_for_each(|limit| limit.take(records))
    }

    /// Whether it may forward tasks of others, under the ids that they have.
    pub(crate) fn may_forward(&self) -> bool {
        self.grants.iter().all(|grant| grant.forward)
    }

    /// Whether there are devices that it may not send records of.
    pub(crate) fn has_limited_devices(&self) -> bool {
        !self.grants.iter().all(|grant| grant.allows_every_device())
    }

    /// Whether it may send records of this device.
    pub(crate) fn allows_device(&self, device: &str) -> bool {
        self.grants.iter().all(|grant| grant.allows_device(device, self.own_device.as_deref()))
    }

    /// The task id for an id that it chose: ids of different senders are different, so that no sender can take the id
    /// of another one's task. Without authentication all senders are one, and the id stays as it is.
    pub(crate) fn own_id(&self, id: TaskId) -> TaskId {
        if self.credential == Credential::Open {
            return id;
        }
        let credential: &str = self.credential.into();
        let namespace = TaskId::parse("garenne-sender").expect("a constant");
        // The id of the sender has a fixed length, so that no other pair of sender and id gives the same text.
        let sender = TaskId::derived(&namespace, &format!("{credential}/{}", self.name));
        TaskId::derived(&sender, id.as_str())
    }
}
