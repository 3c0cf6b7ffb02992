//! Binds the admin port before work starts.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use tokio::net::TcpListener;

use super::tls::ServerTls;
use crate::{
    config::{AllowedHosts, Common, ConfigError, DEFAULT_ADMIN, Invalid, reloaded_secret},
    reloaded::Reloaded,
};

/// Time limit for a client to send a request's head, and for an idle connection.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// A bound admin port. Connections queue in the backlog until [`super::AdminPort::open`] accepts them.
pub struct AdminConfig {
    pub(super) listener: TcpListener,
    pub(super) token: Option<Arc<Reloaded<SecretString>>>,
    pub(super) tls: Option<ServerTls>,
    pub(super) allowed_hosts: AllowedHosts,
    pub(super) header_timeout: Duration,
}

/// Binds the admin port and reads its token.
///
/// If no address is configured and the default port is in use, binds a free port and logs it, so that several workers
/// on one host need no settings.
///
/// # Errors
/// The address cannot be bound, or the token file cannot be used.
pub async fn bind(common: &Common) -> Result<AdminConfig, ConfigError> {
    let token = common.admin_token_file.clone().map(|path| reloaded_secret("admin_token_file", path));
    let token = token.transpose()?.map(Arc::new);
    let tls = ServerTls::load("admin_tls", common.admin_tls_cert.clone(), common.admin_tls_key.clone())?;
    let listener = listen(common.admin, DEFAULT_ADMIN).await?;
    let address = listener.local_addr().map_err(|error| refused(DEFAULT_ADMIN, &error))?;
    ::tracing::info!(%address, "admin port is open");
    let allowed_hosts = common.allowed_hosts.clone();
    Ok(AdminConfig { listener, token, tls, allowed_hosts, header_timeout: HEADER_TIMEOUT })
}

pub(super) async fn listen(
    asked: Option<SocketAddr>,
    default: SocketAddr,
) -> Result<TcpListener, ConfigError> {
    let wanted = asked.unwrap_or(default);
    match TcpListener::bind(wanted).await {
        Err(error) if asked.is_none() && error.kind() == ErrorKind::AddrInUse => {
            ::tracing::info!(taken = %default, "default admin port is in use, binding a free one");
            let free = SocketAddr::new(default.ip(), 0);
            TcpListener::bind(free).await.map_err(|error| refused(free, &error))
        }
        bound => bound.map_err(|error| refused(wanted, &error)),
    }
}

fn refused(addr: SocketAddr, error: &std::io::Error) -> ConfigError {
    let problem = match error.kind() {
        ErrorKind::AddrInUse => {
            "is already in use: stop the process that listens there, choose another address, or leave the setting out"
        }
        ErrorKind::AddrNotAvailable => {
            "is not assigned to this host: choose one that is, such as 127.0.0.1:9464"
        }
        ErrorKind::PermissionDenied => "needs a privilege that this user lacks: choose a port from 1024 on",
        _ => &format!("cannot be bound ({error})"),
    };
    Invalid::new("admin", addr, format!("the address {problem}")).given_by("--admin or GARENNE_ADMIN")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::exit::{Exit, HasExit};

    #[tokio::test]
    async fn a_free_port_replaces_a_default_in_use() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = taken.local_addr().unwrap();
        let got = listen(None, addr).await.unwrap().local_addr().unwrap();
        assert_eq!(got.ip(), addr.ip());
        assert_ne!(got.port(), addr.port());
    }

    #[tokio::test]
    async fn a_configured_address_in_use_is_refused() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = taken.local_addr().unwrap();
        let error = bind(&Common { admin: Some(addr), ..Common::default() }).await.err().unwrap();
        assert_eq!(
            error.to_string(),
            format!(
                "setting admin = {addr} (--admin or GARENNE_ADMIN) is refused: the address is already in use: \
                 stop the process that listens there, choose another address, or leave the setting out"
            )
        );
        assert_eq!(error.exit(), Exit::Config);
    }
}
