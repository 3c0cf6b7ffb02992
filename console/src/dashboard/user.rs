//! The sender of a request.

use std::{net::IpAddr, sync::Arc};

use garenne_protocol::audit::AuditActor;

use crate::accounts::{PasswordHash, Role};

/// The name of everybody who logs in with the admin token.
pub(super) const TOKEN_USER: &str = "admin-token";

/// A person who is logged in.
#[derive(Clone, Debug)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) login: Login,
}

/// How a person has logged in.
#[derive(Clone, Debug)]
pub(super) enum Login {
    /// With the admin token of this generation of its file.
    Token(u64),
    /// With a password, which had this hash.
    Password(Arc<PasswordHash>),
    /// At a trusted proxy, which names the person in every request.
    Proxy,
}

/// A person who may give a command, and their address.
#[derive(Clone, Debug)]
pub(super) struct Requester {
    pub(super) name: String,
    pub(super) address: IpAddr,
}

impl Requester {
    /// As a record of a command names them.
    pub(super) fn actor(&self) -> AuditActor {
        AuditActor {
            name: self.name.clone(),
            via: "dashboard".to_owned(),
            address: Some(self.address.to_string()),
            ..AuditActor::default()
        }
    }
}
