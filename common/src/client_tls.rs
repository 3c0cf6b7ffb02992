//! TLS of clients whose certificates are in files.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::{certificates::Certificates, reloaded::Reloaded};

/// A file of [`Certificates`] cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{field}: cannot use {}: {problem}", file.display())]
pub struct CertificateError {
    /// `ca`, `cert` or `key`.
    field: &'static str,
    file: PathBuf,
    problem: String,
}

/// Trusts the authorities of the system and of `files`, and presents the client certificate of `files`.
///
/// # Errors
/// A file cannot be read or is invalid, or the key is another certificate's.
pub fn client_config(files: &Certificates) -> Result<ClientConfig, CertificateError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(ca) = &files.ca {
        for authority in certificates("ca", ca)? {
            roots.add(authority).map_err(refused("ca", ca))?;
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions")
        .with_root_certificates(roots);
    match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => {
            let private_key = PrivateKeyDer::from_pem_file(key).map_err(refused("key", key))?;
            let chain = certificates("cert", cert)?;
            config.with_client_auth_cert(chain, private_key).map_err(refused("key", key))
        }
        _ => Ok(config.with_no_client_auth()),
    }
}

/// What `make` makes of the TLS of these files, again when a file has changed.
///
/// # Errors
/// As [`client_config`].
pub fn reloaded<T>(
    files: Certificates,
    make: impl Fn(ClientConfig) -> T + Send + Sync + 'static,
) -> Result<Reloaded<T>, CertificateError> {
    let paths = [&files.ca, &files.cert, &files.key].into_iter().flatten().cloned().collect();
    Reloaded::new("client certificates", paths, move || client_config(&files).map(&make))
}

fn certificates(field: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let chain = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(refused(field, file))?;
    if chain.is_empty() { Err(refused(field, file)("it contains no certificate")) } else { Ok(chain) }
}

/// Makes the error for a problem with the file of a field.
fn refused<E: Display>(field: &'static str, file: &Path) -> impl FnOnce(E) -> CertificateError {
    move |problem| CertificateError { field, file: file.to_owned(), problem: problem.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_certificate_is_refused_with_its_field() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, "nothing").unwrap();
        let files = Certificates { ca: Some(file.clone()), ..Certificates::default() };
        let error = client_config(&files).unwrap_err().to_string();
        assert_eq!(error, format!("ca: cannot use {}: it contains no certificate", file.display()));
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let signed = rcgen::generate_simple_self_signed(["client".to_owned()]).unwrap();
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        std::fs::write(&cert, signed.cert.pem()).unwrap();
        std::fs::write(&key, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
        let files = Certificates { ca: None, cert: Some(cert), key: Some(key.clone()) };
        let error = client_config(&files).unwrap_err().to_string();
        assert!(error.starts_with(&format!("key: cannot use {}: ", key.display())), "{error}");
    }
}
