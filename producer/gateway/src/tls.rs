//! TLS, and devices identified by client certificates.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use garenne_common::config::ConfigError;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::file_stamp::{FileStamp, file_stamp};

/// The PEM files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The certificate authority of client certificates; with it every client needs one.
    pub client_ca: Option<PathBuf>,
}

/// TLS with certificates that are reloaded when their files change, so that a renewal needs no restart. Open
/// connections keep their certificates.
pub struct Tls {
    files: TlsFiles,
    current: RwLock<Current>,
}

struct Current {
    acceptor: TlsAcceptor,
    seen: Vec<FileStamp>,
}

impl Tls {
    /// # Errors
    /// A file cannot be read, is invalid, or does not match the others.
    pub fn new(files: TlsFiles) -> Result<Self, ConfigError> {
        // Before the files are read: a change during the read is then noticed later.
        let seen = files.stamps();
        let current = RwLock::new(Current { acceptor: acceptor(&files)?, seen });
        Ok(Self { files, current })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.current.read().unwrap_or_else(PoisonError::into_inner).acceptor.clone()
    }

    /// Checks the files at this interval and reloads them when one has changed. Files that do not match, as while
    /// they are being replaced, are logged and the previous certificates stay in use.
    pub async fn watch(&self, interval: Duration) {
        let mut tick = tokio::time::interval(interval);
        loop {
            tick.tick().await;
            self.refresh();
        }
    }

    pub(super) fn refresh(&self) {
        let seen = self.files.stamps();
        if self.current.read().unwrap_or_else(PoisonError::into_inner).seen == seen {
            return;
        }
        let read = acceptor(&self.files);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        current.seen = seen;
        match read {
            Ok(acceptor) => {
                tracing::info!(certificate = %self.files.certificate.display(), "certificates reloaded");
                current.acceptor = acceptor;
            }
            Err(error) => tracing::error!(%error, "certificates are invalid, keeping the previous ones"),
        }
    }
}

impl TlsFiles {
    fn stamps(&self) -> Vec<FileStamp> {
        [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()]
            .into_iter()
            .flatten()
            .map(|path| file_stamp(path))
            .collect()
    }
}

fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, ConfigError> {
    let refused = |setting: &str, path: &Path, problem: String| ConfigError::File {
        what: "PEM file",
        path: path.to_owned(),
        origin: format!("setting {setting}"),
        problem,
    };
    let chain = certificates(&files.certificate).map_err(|e| refused("tls_cert", &files.certificate, e))?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| refused("tls_key", &files.key, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| refused("tls_cert", &files.certificate, error.to_string()))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let ca_refused = |problem: String| refused("tls_client_ca", path, problem);
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path).map_err(ca_refused)? {
                roots.add(certificate).map_err(|error| ca_refused(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| ca_refused(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| {
        refused("tls_key", &files.key, format!("does not match the certificate: {error}"))
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())?.collect();
    let chain = chain.map_err(|error| error.to_string())?;
    if chain.is_empty() { Err("the file contains no certificate".to_owned()) } else { Ok(chain) }
}

/// The common name of the client's certificate: the device whose readings it may send.
pub(super) fn subject(session: &rustls::ServerConnection) -> Option<Arc<str>> {
    let der = session.peer_certificates()?.first()?;
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.into())
}
