//! Opens connections, with TLS if the URL demands it.

use std::{
    error::Error,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use deadpool_postgres::Connect;
use futures_util::{FutureExt, future::BoxFuture};
use garenne_common::{config::Certificates, supervise};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, NoTls, Socket, tls::MakeTlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::database::{Database, is_encrypted, parse_url};

/// The server's own time limit for a statement. It ends statements of programs that no longer wait: their time limits
/// are shorter.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(40);

/// Connects the members of the pool.
///
/// A URL that comes from a file is read again for each connection, and so are the certificates, so that
/// renewed ones take effect without a restart.
pub(crate) struct Connector {
    database: Database,
    /// From the last time the URL could be read.
    last: Mutex<Config>,
}

impl Connector {
    pub(crate) fn new(database: Database) -> Self {
        Self { last: Mutex::new(database.config.clone()), database }
    }

    fn last(&self) -> MutexGuard<'_, Config> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URL as its file has it now; the last one if the file cannot be read.
    async fn current(&self) -> Config {
        if let Some(file) = self.database.url.file() {
            let again = self.database.url.read_again().await;
            match again.and_then(|url| parse_url(&url)) {
                Ok(config) => *self.last() = config,
                Err(error) => {
                    let file = file.display();
                    tracing::warn!(%file, error, "failed to read postgres_url again, using the last one");
                }
            }
        }
        self.last().clone()
    }
}

impl Connect for Connector {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        Box::pin(async {
            let config = self.current().await;
            let (client, connection) = if is_encrypted(&config) {
                let certificates = self.database.certificates.clone();
                let tls = supervise::spawn_blocking("postgres certificates", move || load_tls(&certificates));
                let tls = LoadedTls(tls.await.unwrap_or_else(|failure| Err(failure.to_string())));
                let (client, connection) = config.connect(tls).await?;
                (client, connection.boxed())
            } else {
                let (client, connection) = config.connect(NoTls).await?;
                (client, connection.boxed())
            };
            // Exchanges the connection's messages until it ends. The client reports the error to its callers.
            let driver = supervise::isolated("postgres connection", connection);
            let driver = tokio::spawn(async {
                if let Ok(Err(error)) = driver.await {
                    tracing::debug!(%error, "connection to Postgres ended");
                }
            });
            client
                .batch_execute(&format!("SET statement_timeout = {}", STATEMENT_TIMEOUT.as_millis()))
                .await?;
            Ok((client, driver))
        })
    }
}

/// The TLS configuration, or the error of loading it. [`Connect`] can only return errors that the client makes,
/// so the handshake reports this one.
struct LoadedTls(Result<MakeRustlsConnect, String>);

impl MakeTlsConnect<Socket> for LoadedTls {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type TlsConnect = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
    type Error = Box<dyn Error + Send + Sync>;

    fn make_tls_connect(&mut self, host: &str) -> Result<Self::TlsConnect, Self::Error> {
        match &mut self.0 {
            Ok(tls) => Ok(MakeTlsConnect::<Socket>::make_tls_connect(tls, host)?),
            Err(error) => Err(error.clone().into()),
        }
    }
}

/// Trusts the authorities of the system and of `files`, and presents the client certificate of `files`.
fn load_tls(files: &Certificates) -> Result<MakeRustlsConnect, String> {
    let error_in = |setting: &'static str, file: &Path| {
        let file = file.display().to_string();
        move |error: String| format!("postgres_tls.{setting}: cannot use {file}: {error}")
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(ca) = &files.ca {
        for authority in read_certificates(ca).map_err(error_in("ca", ca))? {
            roots.add(authority).map_err(|error| error_in("ca", ca)(error.to_string()))?;
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions")
        .with_root_certificates(roots);
    let config = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => {
            let key_error = error_in("key", key);
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| key_error(error.to_string()))?;
            let chain = read_certificates(cert).map_err(error_in("cert", cert))?;
            config.with_client_auth_cert(chain, secret).map_err(|error| key_error(error.to_string()))?
        }
        _ => config.with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| error.to_string())?;
    if chain.is_empty() { Err("it contains no certificate".to_owned()) } else { Ok(chain) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_certificate_is_refused_with_its_setting() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, "nothing").unwrap();
        let files = Certificates { ca: Some(file.clone()), ..Certificates::default() };
        let error = load_tls(&files).err().unwrap();
        assert_eq!(
            error,
            format!("postgres_tls.ca: cannot use {}: it contains no certificate", file.display())
        );
    }
}
