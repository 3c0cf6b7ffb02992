//! TLS with certificates from files.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
    sync::Arc,
};

use garenne_common::{config::ConfigError, reloaded::Reloaded};
use rustls::{
    RootCertStore, ServerConfig, SupportedProtocolVersion,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
    version::{TLS12, TLS13},
};
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString};
use tokio_rustls::TlsAcceptor;

/// TLS with certificates that are reloaded when their files change, so that a renewal needs no restart. Open
/// connections keep their certificates.
pub type Tls = Reloaded<TlsAcceptor>;

/// The setting `tls_min_version`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Display, EnumString, Serialize, Deserialize)]
pub enum TlsVersion {
    /// TLS 1.2 and 1.3.
    #[default]
    #[serde(rename = "1.2")]
    #[strum(serialize = "1.2")]
    V12,
    /// TLS 1.3 only.
    #[serde(rename = "1.3")]
    #[strum(serialize = "1.3")]
    V13,
}

impl TlsVersion {
    /// This version and the later ones.
    fn and_later(self) -> Vec<&'static SupportedProtocolVersion> {
        match self {
            Self::V12 => vec![&TLS12, &TLS13],
            Self::V13 => vec![&TLS13],
        }
    }
}

/// Reads a certificate chain and its key in PEM. With `client_ca`, the certificate authority of client certificates,
/// every client needs one.
pub fn load_tls(
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    min_version: TlsVersion,
) -> Result<Tls, ConfigError> {
    let paths = [Some(&certificate), Some(&key), client_ca.as_ref()].into_iter().flatten().cloned().collect();
    let read = move || acceptor(&certificate, &key, client_ca.as_deref(), min_version);
    Reloaded::new("certificates", paths, read)
}

fn acceptor(
    certificate: &Path,
    key: &Path,
    client_ca: Option<&Path>,
    min_version: TlsVersion,
) -> Result<TlsAcceptor, ConfigError> {
    let chain = certificates("tls_cert", certificate)?;
    let private_key = PrivateKeyDer::from_pem_file(key).map_err(refused("tls_key", key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&min_version.and_later())
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
    move |problem| ConfigError::file("PEM file", path, format!("setting {setting}"), problem)
}
