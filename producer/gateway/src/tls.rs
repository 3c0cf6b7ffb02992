//! TLS, and devices identified by client certificates.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
    sync::Arc,
};

use garenne_common::config::ConfigError;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::reloaded::Reloaded;

/// The PEM files.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    /// The certificate chain.
    pub(crate) certificate: PathBuf,
    /// The private key.
    pub(crate) key: PathBuf,
    /// The certificate authority of client certificates; with it every client needs one.
    pub(crate) client_ca: Option<PathBuf>,
}

/// TLS with certificates that are reloaded when their files change, so that a renewal needs no restart. Open
/// connections keep their certificates.
pub type Tls = Reloaded<TlsAcceptor>;

/// Reads the certificates.
///
/// # Errors
/// A file cannot be read, is invalid, or does not match the others.
pub(crate) fn load(files: TlsFiles) -> Result<Tls, ConfigError> {
    let paths = [Some(&files.certificate), Some(&files.key), files.client_ca.as_ref()];
    let paths = paths.into_iter().flatten().cloned().collect();
    Reloaded::new("certificates", paths, move || acceptor(&files))
}

fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, ConfigError> {
    let TlsFiles { certificate, key, client_ca } = files;
    let chain = certificates("tls_cert", certificate)?;
    let private_key = PrivateKeyDer::from_pem_file(key).map_err(refused("tls_key", key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(refused("tls_cert", certificate))?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates("tls_client_ca", path)? {
                roots.add(certificate).map_err(refused("tls_client_ca", path))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(refused("tls_client_ca", path))?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, private_key)
        .map_err(|error| refused("tls_key", key)(format!("does not match the certificate: {error}")))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(setting: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let chain = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(refused(setting, path))?;
    if chain.is_empty() { Err(refused(setting, path)("the file contains no certificate")) } else { Ok(chain) }
}

/// Makes the error for a problem with the file of a setting.
fn refused<E: Display>(setting: &str, path: &Path) -> impl FnOnce(E) -> ConfigError {
    let (origin, path) = (format!("setting {setting}"), path.to_owned());
    move |problem| ConfigError::File { what: "PEM file", path, origin, problem: problem.to_string() }
}

/// The common name of the client's certificate: the device whose readings it may send.
pub(super) fn subject(session: &rustls::ServerConnection) -> Option<Arc<str>> {
    let der = session.peer_certificates()?.first()?;
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.into())
}
