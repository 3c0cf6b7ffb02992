use std::path::Path;

use rustls::pki_types::CertificateDer;

use super::*;

/// Writes a new certificate for `localhost` and its key into `folder`.
fn certify(folder: &Path) -> CertificateDer<'static> {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
    std::fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
    certificate.der().clone()
}

/// Asks `/livez` over TLS and trusts only this certificate.
async fn ask_over_tls(addr: SocketAddr, trusted: CertificateDer<'static>) -> std::io::Result<String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted).unwrap();
    let config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let stream = TcpStream::connect(addr).await?;
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    Ok(String::from_utf8(answer).unwrap())
}

#[tokio::test]
async fn with_a_certificate_the_port_speaks_tls_only_and_takes_a_renewed_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| Some(folder.path().join(name));
    let first = certify(folder.path());
    let tls = ServerTls::load("admin_tls", file("cert.pem"), file("key.pem")).unwrap();
    let (addr, port, _received) = opened(tls, Duration::from_secs(10)).await;
    assert!(ask_over_tls(addr, first.clone()).await.unwrap().starts_with("HTTP/1.1 200 OK"));
    let mut plain = TcpStream::connect(addr).await.unwrap();
    plain.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "an answer without TLS");
    // A client that never begins the handshake does not stop the others.
    let _silent = TcpStream::connect(addr).await.unwrap();

    let second = certify(folder.path());
    assert!(ask_over_tls(addr, second).await.unwrap().starts_with("HTTP/1.1 200 OK"));
    assert!(ask_over_tls(addr, first).await.is_err(), "the old certificate");
    port.close().await;
}

#[test]
fn a_certificate_that_cannot_be_used_is_refused_with_its_setting() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| Some(folder.path().join(name));
    certify(folder.path());
    std::fs::write(folder.path().join("empty.pem"), "").unwrap();
    std::fs::write(folder.path().join("other.pem"), rcgen::KeyPair::generate().unwrap().serialize_pem())
        .unwrap();
    for (cert, key, expected) in [
        (
            "empty.pem",
            "key.pem",
            "setting dashboard.tls_cert) cannot be used: the file contains no certificate",
        ),
        ("cert.pem", "missing.pem", "setting dashboard.tls_key) cannot be used: "),
        (
            "cert.pem",
            "other.pem",
            "setting dashboard.tls_key) cannot be used: does not match the certificate: ",
        ),
    ] {
        let error = ServerTls::load("dashboard.tls", file(cert), file(key)).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(ServerTls::load("admin_tls", None, None).unwrap().is_none());
}
