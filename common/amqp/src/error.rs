//! Errors of connections, each with advice for the operator.

use garenne_common::{
    exit::{Exit, HasExit},
    text::one_line,
};
use garenne_protocol::rights::MissingRight;
use lapin::ErrorKind;
use thiserror::Error;

use crate::reply;

/// Why a connection could not be opened, or was lost.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The broker did not answer, or the connection ended.
    #[error("no broker at {address}: {detail}; is RabbitMQ running there? (setting amqp_url)")]
    Unavailable {
        /// Host and port.
        address: String,
        /// The underlying error, on one line.
        detail: String,
    },
    /// The broker answered and refused.
    #[error(
        "the broker at {address} refused user {user:?} on virtual host {vhost:?}: {detail}; {}",
        advice(detail)
    )]
    Denied {
        /// Host and port.
        address: String,
        /// The user name that was tried.
        user: String,
        /// The virtual host that was tried.
        vhost: String,
        /// The broker's reply text.
        detail: String,
        /// Whether the URL is read again from its file for the next attempt, so that a changed password takes effect.
        from_file: bool,
    },
    /// The broker's server properties hold no version, so its queues cannot be declared.
    #[error("the broker at {address} does not report its version; is it RabbitMQ? (setting amqp_url)")]
    NoVersion {
        /// Host and port.
        address: String,
    },
    /// A file of `amqp_tls` cannot be used: `ca`, `cert` or `key`, and why.
    #[error("amqp_tls.{0}")]
    Certificate(String),
    /// The URL cannot be parsed.
    #[error("amqp_url cannot be parsed: {0}; expected a URL such as amqp://user:password@host:5672/%2f")]
    Url(String),
    /// The URL is one with TLS, and the program is built without it.
    #[error(
        "amqp_url begins with amqps: this program is built without the feature `tls` of the crate garenne"
    )]
    NoTls,
}

/// What an operator does about a refusal.
fn advice(refusal: &str) -> &'static str {
    match MissingRight::of(refusal) {
        Some(_) => "`rabbitmqctl set_permissions` gives the user this right",
        None => {
            "check the user, password and virtual host of the setting amqp_url and the user's permissions"
        }
    }
}

impl HasExit for BrokerError {
    fn exit(&self) -> Exit {
        match self {
            Self::Unavailable { .. } | Self::NoVersion { .. } => Exit::BrokerUnavailable,
            Self::Denied { .. } => Exit::Denied,
            Self::Url(_) | Self::NoTls | Self::Certificate(_) => Exit::Config,
        }
    }
}

/// `host:port`. An IPv6 address is in brackets.
pub(crate) fn address_of(uri: &lapin::uri::AMQPUri) -> String {
    let (host, port) = (&uri.authority.host, uri.authority.port);
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl BrokerError {
    /// True if another attempt with the same settings cannot succeed.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Unavailable { .. } | Self::Denied { from_file: true, .. })
    }

    /// `from_file`: whether the URL is read again from its file for the next attempt.
    pub(crate) fn from_lapin(error: &lapin::Error, uri: &lapin::uri::AMQPUri, from_file: bool) -> Self {
        let address = address_of(uri);
        let refusal = match (reply::of(error), error.kind()) {
            // Password or permission; no such virtual host or no right to enter it.
            (Some((reply::ACCESS_REFUSED | reply::NOT_ALLOWED, text)), _) => text,
            (_, ErrorKind::AuthProviderError(detail)) => detail,
            _ => return Self::Unavailable { address, detail: one_line(&error.to_string()) },
        };
        Self::denied(refusal, uri, from_file)
    }

    pub(crate) fn denied(detail: &str, uri: &lapin::uri::AMQPUri, from_file: bool) -> Self {
        Self::Denied {
            address: address_of(uri),
            user: uri.authority.userinfo.username.clone(),
            vhost: uri.vhost.clone(),
            detail: detail.to_owned(),
            from_file,
        }
    }
}
