//! TLS for the admin port and the dashboard.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsAcceptor;

use crate::{config::ConfigError, reloaded::Reloaded};

/// The certificate of a server. It is read again when its files change, so that a renewal needs no restart. Open
/// connections keep theirs.
pub struct ServerTls(Reloaded<TlsAcceptor>);

impl ServerTls {
    /// Reads the PEM files of the settings `<prefix>_cert` and `<prefix>_key`. [`None`] if they are not set.
    ///
    /// # Errors
    /// A file cannot be read or is invalid, or the key is another certificate's.
    pub fn load(
        prefix: &'static str,
        cert: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> Result<Option<Self>, ConfigError> {
        let (Some(cert), Some(key)) = (cert, key) else { return Ok(None) };
        let files = vec![cert.clone(), key.clone()];
        let read = move || acceptor(prefix, &cert, &key);
        Ok(Some(Self(Reloaded::new("certificates", files, read)?)))
    }

    /// The certificate as the files have it now.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.0.refresh();
        self.0.get().clone()
    }
}

fn acceptor(prefix: &str, cert: &Path, key: &Path) -> Result<TlsAcceptor, ConfigError> {
    let (of_cert, of_key) = (format!("setting {prefix}_cert"), format!("setting {prefix}_key"));
    let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| refused(&of_cert, cert, error))?;
    if chain.is_empty() {
        return Err(refused(&of_cert, cert, "the file contains no certificate"));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| refused(&of_key, key, error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(&of_cert, cert, error))?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| refused(&of_key, key, format!("does not match the certificate: {error}")))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn refused(origin: &str, path: &Path, problem: impl Display) -> ConfigError {
    ConfigError::file("PEM file", path, origin, problem)
}
