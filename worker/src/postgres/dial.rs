//! How a connection is made: with the URL as its file has it now, and encrypted where it says so.

use std::{
    error::Error,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use deadpool_postgres::Connect;
use futures_util::future::BoxFuture;
use garenne_common::config::{Certificates, SecretUrl};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, NoTls, Socket, tls::MakeTlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::PostgresError;

/// A database, and how it is spoken to.
#[derive(Clone, Debug)]
pub struct Database {
    url: SecretUrl,
    certificates: Certificates,
}

impl Database {
    /// The database at a URL, whose `sslmode` is `require` or `verify-full` where the connection is to be encrypted:
    /// then with an authority of the system's or of `certificates` behind it, and the host's name in it.
    ///
    /// # Errors
    /// [`PostgresError::Url`] and [`PostgresError::Mode`].
    pub fn new(url: SecretUrl, certificates: Certificates) -> Result<Self, PostgresError> {
        read(&url)?;
        Ok(Self { url, certificates })
    }

    /// Whether its URL demands TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        read(&self.url).is_ok_and(|target| target.encrypted)
    }

    /// Its URL, read.
    pub(super) fn target(&self) -> Result<Target, PostgresError> {
        read(&self.url)
    }
}

/// A URL, read.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) config: Config,
    pub(super) encrypted: bool,
}

/// Reads a URL. An `sslmode` that only tries to encrypt keeps nobody from listening who can interfere: without one
/// that demands it the connection is a plain one.
fn read(url: &SecretUrl) -> Result<Target, PostgresError> {
    let (base, query) = url.expose().split_once('?').unwrap_or((url.expose(), ""));
    let is_mode = |option: &&str| option.starts_with("sslmode=");
    let mode = query.split('&').rfind(is_mode).map_or("disable", |option| &option["sslmode=".len()..]);
    let encrypted = match mode {
        "disable" | "prefer" => false,
        "require" | "verify-full" => true,
        other => return Err(PostgresError::Mode(other.to_owned())),
    };
    let others: Vec<_> = query.split('&').filter(|option| !option.is_empty() && !is_mode(option)).collect();
    let mut config: Config = format!("{base}?{}", others.join("&")).parse().map_err(PostgresError::Url)?;
    config.ssl_mode(if encrypted {
        tokio_postgres::config::SslMode::Require
    } else {
        tokio_postgres::config::SslMode::Disable
    });
    Ok(Target { config, encrypted })
}

/// Connects the pool's members.
pub(super) struct Dial {
    database: Database,
    /// As its URL was when it could be read last.
    last: Mutex<Target>,
}

impl Dial {
    pub(super) fn new(database: Database, target: Target) -> Self {
        Self { database, last: Mutex::new(target) }
    }

    fn last(&self) -> MutexGuard<'_, Target> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What its file says now, if it came from one.
    async fn current(&self) -> Target {
        if let Some(file) = self.database.url.file() {
            let again = self.database.url.read_again().await;
            match again.and_then(|url| read(&url).map_err(|error| error.to_string())) {
                Ok(target) => *self.last() = target,
                Err(problem) => {
                    let file = file.display();
                    tracing::warn!(%file, problem, "postgres_url cannot be read again: the last one is used");
                }
            }
        }
        self.last().clone()
    }
}

impl Connect for Dial {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        Box::pin(async {
            let Target { config, encrypted } = self.current().await;
            if !encrypted {
                let (client, connection) = config.connect(NoTls).await?;
                return Ok((client, tokio::spawn(carry(connection))));
            }
            let certificates = self.database.certificates.clone();
            let tls = tokio::task::spawn_blocking(move || tls(&certificates)).await;
            let tls = Encryption(tls.unwrap_or_else(|error| Err(error.to_string())));
            let (client, connection) = config.connect(tls).await?;
            Ok((client, tokio::spawn(carry(connection))))
        })
    }
}

async fn carry(connection: impl Future<Output = Result<(), tokio_postgres::Error>>) {
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to Postgres ended");
    }
}

/// TLS, or why there is none to be had: the client takes only its own errors and those of a handshake.
struct Encryption(Result<MakeRustlsConnect, String>);

impl MakeTlsConnect<Socket> for Encryption {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type TlsConnect = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
    type Error = Box<dyn Error + Send + Sync>;

    fn make_tls_connect(&mut self, host: &str) -> Result<Self::TlsConnect, Self::Error> {
        match &mut self.0 {
            Ok(tls) => Ok(MakeTlsConnect::<Socket>::make_tls_connect(tls, host)?),
            Err(problem) => Err(problem.clone().into()),
        }
    }
}

/// Trusts the system's authorities and those of the files, and shows the certificate there.
fn tls(files: &Certificates) -> Result<MakeRustlsConnect, String> {
    let of = |setting: &'static str, file: &std::path::Path| {
        let file = file.display().to_string();
        move |problem: String| format!("postgres_tls.{setting}: {file} cannot be used: {problem}")
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(ca) = &files.ca {
        for authority in chain(ca).map_err(of("ca", ca))? {
            roots.add(authority).map_err(|error| of("ca", ca)(error.to_string()))?;
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring knows them")
        .with_root_certificates(roots);
    let config = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => {
            let secret =
                PrivateKeyDer::from_pem_file(key).map_err(|error| of("key", key)(error.to_string()))?;
            let shown = chain(cert).map_err(of("cert", cert))?;
            config.with_client_auth_cert(shown, secret).map_err(|error| of("key", key)(error.to_string()))?
        }
        _ => config.with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

fn chain(file: &std::path::Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(file).map_err(|error| error.to_string())?.collect();
    let chain = chain.map_err(|error| error.to_string())?;
    if chain.is_empty() { Err("it holds no certificate".to_owned()) } else { Ok(chain) }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::{Host, SslMode};

    use super::*;

    fn target(url: &str) -> Result<Target, String> {
        read(&url.parse().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn only_a_mode_that_demands_it_encrypts() {
        for (query, encrypted) in [
            ("", false),
            ("?sslmode=disable", false),
            ("?sslmode=prefer", false),
            ("?sslmode=require", true),
            ("?connect_timeout=3&sslmode=verify-full", true),
        ] {
            let target = target(&format!("postgres://u:p%3Fw@db.example:5433/x{query}")).unwrap();
            let mode = if encrypted { SslMode::Require } else { SslMode::Disable };
            assert_eq!((target.encrypted, target.config.get_ssl_mode()), (encrypted, mode), "{query}");
            assert_eq!(target.config.get_hosts(), [Host::Tcp("db.example".into())]);
            assert_eq!(target.config.get_password(), Some(b"p?w".as_slice()));
            assert_eq!(target.config.get_connect_timeout().is_some(), query.contains("connect_timeout"));
        }
    }

    #[test]
    fn a_mode_that_is_none_is_refused_by_name() {
        assert_eq!(
            target("postgres://db/x?sslmode=verify-ca").err().unwrap(),
            "sslmode \"verify-ca\" is none of disable, prefer, require and verify-full (the last two check the \
             certificate and the host's name)"
        );
    }

    #[test]
    fn a_file_that_is_no_certificate_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, "nothing").unwrap();
        let files = Certificates { ca: Some(file.clone()), ..Certificates::default() };
        let problem = tls(&files).err().unwrap();
        assert_eq!(
            problem,
            format!("postgres_tls.ca: {} cannot be used: it holds no certificate", file.display())
        );
    }
}
