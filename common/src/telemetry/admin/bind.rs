//! Where the admin port listens, settled before work starts.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use secrecy::SecretString;
use tokio::net::TcpListener;

use crate::config::{Common, ConfigError, DEFAULT_ADMIN, read_secret_file};

/// How long a client may take over a request's head, and idle between two requests.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// A bound admin port: connections wait from now on, and are answered by [`super::serve`].
pub struct AdminConfig {
    pub(super) listener: TcpListener,
    pub(super) token: Option<SecretString>,
    pub(super) header_timeout: Duration,
    addr: SocketAddr,
}

impl AdminConfig {
    /// Where the port is, with the number it really got.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// As [`bind`], for hosts that have the listener and the token from elsewhere.
    ///
    /// # Errors
    /// The listener has no address any more.
    pub fn new(listener: TcpListener, token: Option<SecretString>) -> std::io::Result<Self> {
        Ok(Self { addr: listener.local_addr()?, listener, token, header_timeout: HEADER_TIMEOUT })
    }

    #[cfg(test)]
    pub(super) fn with_header_timeout(self, header_timeout: Duration) -> Self {
        Self { header_timeout, ..self }
    }
}

/// Binds the admin port and reads its token.
///
/// Unless an address was asked for by name, a taken default gives way to a free port, and the log
/// says which: several workers on one machine need no settings.
///
/// # Errors
/// The address asked for cannot be had, or the token file cannot be used.
pub async fn bind(common: &Common) -> Result<AdminConfig, ConfigError> {
    let token = common
        .admin_token_file
        .as_deref()
        .map(|path| read_secret_file("admin_token_file", path))
        .transpose()?;
    let listener = listen(common.admin, DEFAULT_ADMIN).await?;
    let config = AdminConfig::new(listener, token).map_err(|error| refused(DEFAULT_ADMIN, &error))?;
    ::tracing::info!(address = %config.addr, "admin port is open");
    Ok(config)
}

pub(super) async fn listen(
    asked: Option<SocketAddr>,
    default: SocketAddr,
) -> Result<TcpListener, ConfigError> {
    let wanted = asked.unwrap_or(default);
    match TcpListener::bind(wanted).await {
        Err(error) if asked.is_none() && error.kind() == ErrorKind::AddrInUse => {
            ::tracing::info!(taken = %default, "admin port is taken, a free one is used instead");
            let free = SocketAddr::new(default.ip(), 0);
            TcpListener::bind(free).await.map_err(|error| refused(free, &error))
        }
        bound => bound.map_err(|error| refused(wanted, &error)),
    }
}

fn refused(addr: SocketAddr, error: &std::io::Error) -> ConfigError {
    let advice = match error.kind() {
        ErrorKind::AddrInUse => {
            "is already in use: stop what listens there, name another one, or none for a free port"
        }
        ErrorKind::AddrNotAvailable => "is none of this machine's: name one it has, such as 127.0.0.1:9464",
        ErrorKind::PermissionDenied => "needs a right this user lacks: name a port from 1024 on",
        _ => "cannot be had",
    };
    ConfigError::Invalid {
        setting: "admin".to_owned(),
        value: addr.to_string(),
        origin: "--admin or GARENNE_ADMIN".to_owned(),
        problem: match error.kind() {
            ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable | ErrorKind::PermissionDenied => {
                format!("the address {advice}")
            }
            _ => format!("the address {advice} ({error})"),
        },
    }
}
