//! The sender of a request.

use std::{net::IpAddr, sync::Arc};

use axum::http::StatusCode;
use garenne_protocol::audit::AuditActor;

use super::problem::Problem;
use crate::accounts::{PasswordHash, QUEUES_RIGHT, Role};

/// The name of everybody who logs in with the admin token.
pub(super) const TOKEN_USER: &str = "admin-token";

/// A person who is logged in.
#[derive(Clone, Debug)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) role: Role,
    /// Whether they may look at the messages of queues.
    pub(super) may_look: bool,
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
    pub(super) may_look: bool,
}

impl Requester {
    /// Checks that the person may look at the messages of queues.
    pub(super) fn check_look(&self) -> Result<(), Problem> {
        if self.may_look {
            return Ok(());
        }
        let detail = format!(
            "{} has not the right {QUEUES_RIGHT}: write it at the end of their line in the file of operators (--operators)",
            self.name
        );
        Err(Problem::new(StatusCode::FORBIDDEN, detail))
    }

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
