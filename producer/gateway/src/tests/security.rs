use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::pem::PemObject,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
};
use sha2::{Digest, Sha256};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::*;
use crate::{
    TlsVersion,
    tls::{self, Tls},
};

pub(super) async fn with_senders(text: &str) -> (Running, tempfile::TempDir) {
    with_senders_and(text, Limits::default()).await
}

pub(super) async fn with_senders_and(text: &str, limits: Limits) -> (Running, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("senders.toml");
    std::fs::write(&path, text).unwrap();
    let access = Access::new(Some(&path), false, 100).unwrap();
    let security = (access, None);
    let gateway = start_secured(ServerKind::default(), MemorySender::new(), limits, security).await;
    (gateway, folder)
}

/// The entry of a token in a senders file.
pub(super) fn entry(name: &str, token: &str, rest: &str) -> String {
    let hash = hex::encode(Sha256::digest(token));
    format!("[[sender]]\nname = {name:?}\ntoken_sha256 = \"{hash}\"\n{rest}\n")
}

/// May send readings of every device.
pub(super) const ANY: &str = "devices = [\"*\"]";

async fn post_as(gateway: &Running, authorization: Option<&str>) -> reqwest::Response {
    let url = format!("http://{}/v1/readings", gateway.address);
    let mut request = reqwest::Client::new().post(url).body(READING);
    if let Some(authorization) = authorization {
        request = request.header("authorization", authorization);
    }
    request.send().await.unwrap()
}

#[tokio::test]
async fn http_requires_a_token() {
    let (gateway, _folder) = with_senders(&entry("roof", "s3cret", ANY)).await;
    let refused = post_as(&gateway, None).await;
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["www-authenticate"]),
        (401, &"Bearer".parse().unwrap())
    );
    assert_eq!(post_as(&gateway, Some("Bearer wrong")).await.status(), 401);
    assert_eq!(post_as(&gateway, Some("Bearer s3cret")).await.status(), 202);
    assert_eq!(post_as(&gateway, Some("Token s3cret")).await.status(), 202);
    // base64 of "anybody:s3cret"
    assert_eq!(post_as(&gateway, Some("Basic YW55Ym9keTpzM2NyZXQ=")).await.status(), 202);
    let description = reqwest::get(format!("http://{}/openapi.json", gateway.address)).await.unwrap();
    assert_eq!(description.status(), 200);
}

#[tokio::test]
async fn the_line_protocol_requires_auth_as_the_first_line() {
    let (gateway, _folder) = with_senders(&entry("roof", "s3cret", ANY)).await;
    let mut lines = gateway.lines().await;
    lines.write_all(format!("{READING}\n{READING}\n").as_bytes()).await.unwrap();
    assert_eq!(
        line(&mut lines).await,
        "error unauthorized not authenticated: the first line must be auth TOKEN"
    );
    assert_eq!(line(&mut lines).await, "");
    let mut lines = gateway.lines().await;
    lines.write_all(format!("auth s3cret\n{READING}\n").as_bytes()).await.unwrap();
    assert_eq!(line(&mut lines).await, "ok roof");
    assert!(line(&mut lines).await.starts_with("ok "));
    assert_eq!(gateway.publisher.tasks().len(), 1);
}

/// The readings of a task, an event or a forwarded task count as those of a request of readings do.
#[tokio::test]
async fn a_rate_counts_the_readings_of_tasks_events_and_forwarded_tasks() {
    let pack = |first: usize, count: usize| -> Vec<Value> {
        let reading =
            |n: usize| json!({"device": "d", "metric": "m", "value": 1, "time": 1_790_000_000 + first + n});
        (0..count).map(reading).collect()
    };
    let event = |first: usize| json!({"specversion": "1.0", "id": first.to_string(), "source": "s", "type": "reading.process", "data": pack(first, 50)});
    let forwarded = |first: usize| json!({"id": first.to_string(), "kind": "reading.process", "payload": pack(first, 50)});
    for (path, media, full, one) in [
        ("/v1/tasks/reading.process", "application/json", json!(pack(0, 100)), json!(pack(0, 1))),
        ("/v1/tasks/bench.noop", "application/json", Value::Null, json!({})),
        (
            "/v1/events",
            "application/cloudevents-batch+json",
            json!([event(0), event(50)]),
            json!([event(100)]),
        ),
        ("/v1/tasks", "application/json", json!([forwarded(0), forwarded(50)]), json!([forwarded(100)])),
    ] {
        let rest = "devices = [\"*\"]\nkinds = [\"*\"]\nforward = true\nrate = 1";
        let (gateway, _folder) = with_senders(&entry("roof", "s3cret", rest)).await;
        let post = async |path: &str, media: &str, body: &Value| {
            let request = reqwest::Client::new().post(format!("http://{}{path}", gateway.address));
            let request = request.bearer_auth("s3cret").header("content-type", media).body(body.to_string());
            request.send().await.unwrap()
        };
        let (first, media_of_first, body) = match full {
            // Any request uses up the same limit.
            Value::Null => ("/v1/readings", "application/json", json!(pack(0, 100))),
            full => (path, media, full),
        };
        assert_eq!(post(first, media_of_first, &body).await.status(), 202, "{path}: a burst of 100 records");
        let refused = post(path, media, &one).await;
        assert_eq!(
            (refused.status().as_u16(), refused.headers().contains_key("retry-after")),
            (429, true),
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_token_has_a_rate_limit() {
    let (gateway, _folder) = with_senders(&entry("roof", "s3cret", "devices = [\"*\"]\nrate = 1")).await;
    let many = format!("[{}]", vec![READING; 100].join(","));
    let mut lines = gateway.lines().await;
    lines.write_all(format!("auth s3cret\n{many}\n{READING}\n").as_bytes()).await.unwrap();
    assert_eq!(line(&mut lines).await, "ok roof");
    assert_eq!(line(&mut lines).await.split(' ').count(), 101);
    assert_eq!(line(&mut lines).await, "error rate-limited rate limit of 1 records per second exceeded");
    let refused = post_as(&gateway, Some("Bearer s3cret")).await;
    assert_eq!((refused.status().as_u16(), refused.headers().contains_key("retry-after")), (429, true));
}

/// A certificate authority, with its certificates in files.
struct Authority {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self { folder: tempfile::tempdir().unwrap(), issuer };
        std::fs::write(authority.path("ca.pem"), authority.issuer.pem()).unwrap();
        authority
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn sign(&self, name: &str) -> (PathBuf, PathBuf) {
        self.sign_until(name, time::OffsetDateTime::now_utc() + Duration::from_secs(3600))
    }

    fn sign_until(&self, name: &str, not_after: time::OffsetDateTime) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_after = not_after;
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let paths = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        std::fs::write(&paths.0, certificate.pem()).unwrap();
        std::fs::write(&paths.1, key.serialize_pem()).unwrap();
        paths
    }

    fn tls(&self, client_ca: bool) -> Tls {
        self.tls_from(client_ca, TlsVersion::default())
    }

    fn tls_from(&self, client_ca: bool, min_version: TlsVersion) -> Tls {
        let (certificate, key) = self.sign("localhost");
        let client_ca = client_ca.then(|| self.path("ca.pem"));
        tls::load_tls(certificate, key, client_ca, min_version).unwrap()
    }

    async fn connect(&self, gateway: &Running, device: Option<&str>) -> TlsStream<TcpStream> {
        let identity = device.map(|device| self.sign(device));
        self.connect_as(gateway, identity, rustls::ALL_VERSIONS).await.unwrap()
    }

    async fn connect_as(
        &self,
        gateway: &Running,
        identity: Option<(PathBuf, PathBuf)>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
            }
        };
        let stream = TcpStream::connect(gateway.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }
}

async fn secured(authority: &Authority, client_ca: bool) -> Running {
    let security = (Access::new(None, client_ca, 100).unwrap(), Some(authority.tls(client_ca)));
    start_secured(ServerKind::default(), MemorySender::new(), Limits::default(), security).await
}

async fn exchange(mut stream: impl tokio::io::AsyncRead + AsyncWriteExt + Unpin, sent: &str) -> String {
    stream.write_all(sent.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // A peer that refuses the certificate closes without close_notify.
    let _ = BufReader::new(stream).read_line(&mut answer).await;
    answer.trim_end().to_owned()
}

#[tokio::test]
async fn tls_and_plain_connections_share_the_port() {
    let authority = Authority::new();
    let gateway = secured(&authority, false).await;
    let stream = authority.connect(&gateway, None).await;
    assert!(exchange(stream, &format!("{READING}\n")).await.starts_with("ok "));
    let stream = authority.connect(&gateway, None).await;
    let head = format!(
        "POST /v1/readings HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{READING}",
        READING.len()
    );
    assert_eq!(exchange(stream, &head).await, "HTTP/1.1 202 Accepted");
    let stream = authority.connect(&gateway, None).await;
    let answer = exchange(stream, "T value=1 1763600000000000001\nT nonsense\n").await;
    assert!(answer.starts_with("error malformed line 2: "), "{answer}");
    assert_eq!(gateway.bodies().last().unwrap()["device"], "T");
    let plain = TcpStream::connect(gateway.address).await.unwrap();
    assert!(exchange(plain, &format!("{READING}\n")).await.starts_with("ok "));
}

#[tokio::test]
async fn a_device_may_send_its_own_readings_only_and_needs_a_certificate() {
    let authority = Authority::new();
    let gateway = secured(&authority, true).await;
    let stream = authority.connect(&gateway, Some("d1")).await;
    assert!(exchange(stream, &format!("{READING}\n")).await.starts_with("ok "));
    let stream = authority.connect(&gateway, Some("d2")).await;
    assert_eq!(
        exchange(stream, &format!("{READING}\n")).await,
        "error foreign-device record 0: device: sender \"d2\" may not send \"d1\""
    );
    let plain = TcpStream::connect(gateway.address).await.unwrap();
    assert_eq!(
        exchange(plain, &format!("{READING}\n")).await,
        "error unauthorized not authenticated: the first line must be auth TOKEN"
    );
    let stream = authority.connect(&gateway, None).await;
    assert_eq!(exchange(stream, &format!("{READING}\n")).await, "");
    assert_eq!(gateway.publisher.tasks().len(), 1);
}

#[tokio::test]
async fn a_renewed_certificate_is_used_without_a_restart_and_an_inconsistent_one_is_not() {
    let authority = Authority::new();
    let gateway = secured(&authority, false).await;
    let tls = gateway.context.tls.as_ref().unwrap();
    let shown = async || {
        let stream = authority.connect(&gateway, None).await;
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    let first = shown().await;
    // The new key does not match the old certificate: the old pair stays in use.
    let (certificate, key) = (authority.path("localhost.pem"), authority.path("localhost.key"));
    let other = KeyPair::generate().unwrap();
    std::fs::write(&key, other.serialize_pem() + "\n").unwrap();
    tls.refresh();
    assert_eq!(shown().await, first);
    let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let renewed = params.signed_by(&other, &authority.issuer).unwrap();
    std::fs::write(&certificate, renewed.pem() + "\n\n").unwrap();
    tls.refresh();
    assert_eq!(shown().await, renewed.der().to_vec());
}

/// A gateway that requires client certificates and has these senders.
async fn with_certificates(authority: &Authority, senders: &str) -> Running {
    let path = authority.path("senders.toml");
    std::fs::write(&path, senders).unwrap();
    let security = (Access::new(Some(&path), true, 100).unwrap(), Some(authority.tls(true)));
    start_secured(ServerKind::default(), MemorySender::new(), Limits::default(), security).await
}

#[tokio::test]
async fn a_certificate_has_the_scope_of_the_first_entry_that_matches_one_of_its_names() {
    let authority = Authority::new();
    let senders = "[[sender]]\nname = \"site\"\ncertificate = \"site-*\"\ndevices = [\"d*\"]\nkinds = [\"reading.*\", \"bench.noop\"]\n\
                   [certificates]\nkinds = []\n";
    let gateway = with_certificates(&authority, senders).await;
    let sent = |device: &'static str| {
        let gateway = &gateway;
        let authority = &authority;
        async move { exchange(authority.connect(gateway, Some(device)).await, &format!("{READING}\n")).await }
    };
    assert!(sent("site-1").await.starts_with("ok "), "a concentrator may send for its devices");
    assert_eq!(sent("d1").await, "error foreign-kind kind: sender \"d1\" may not send \"reading.process\"");
    let head = "POST /v1/tasks/bench.noop HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
    let stream = authority.connect(&gateway, Some("site-1")).await;
    assert_eq!(exchange(stream, head).await, "HTTP/1.1 202 Accepted");
    let stream = authority.connect(&gateway, Some("site-1")).await;
    let other = READING.replace("\"d1\"", "\"pump\"");
    assert!(exchange(stream, &format!("{other}\n")).await.starts_with("error foreign-device "));
}

#[tokio::test]
async fn a_token_on_a_connection_with_a_certificate_must_be_allowed_by_both() {
    let authority = Authority::new();
    let gateway = with_certificates(&authority, &entry("roof", "s3cret", ANY)).await;
    let answers = async |device: &str| {
        let mut stream = BufReader::new(authority.connect(&gateway, Some(device)).await);
        stream.write_all(format!("auth s3cret\n{READING}\n").as_bytes()).await.unwrap();
        let mut answers = [String::new(), String::new()];
        for answer in &mut answers {
            stream.read_line(answer).await.unwrap();
        }
        answers[1].clone()
    };
    assert!(answers("d1").await.starts_with("ok "));
    assert!(
        answers("d2").await.starts_with("error foreign-device "),
        "a stolen token with a certificate of its own"
    );
}

#[tokio::test]
async fn a_connection_ends_when_its_certificate_does() {
    let authority = Authority::new();
    let gateway = secured(&authority, true).await;
    // Certificates have whole seconds.
    let identity = authority.sign_until("d1", time::OffsetDateTime::now_utc() + Duration::from_secs(2));
    let stream = authority.connect_as(&gateway, Some(identity), rustls::ALL_VERSIONS).await.unwrap();
    let mut stream = BufReader::new(stream);
    stream.write_all(format!("{READING}\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_line(&mut answer).await.unwrap();
    assert!(answer.starts_with("ok "), "{answer}");
    let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_line(&mut answer)).await;
    assert_eq!(ended.expect("long before the idle timeout").unwrap(), 0);
    let counted = r#"garenne_gateway_refusals_total{protocol="tls",reason="certificate-expired"} 1"#;
    assert!(gateway.metrics.encode().contains(counted));
}

#[tokio::test]
async fn a_port_for_tls_only_refuses_other_connections_in_their_protocol() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("localhost");
    let settings = crate::GatewaySettings {
        tls_only: true,
        tls_cert: Some(certificate),
        tls_key: Some(key),
        ..Default::default()
    };
    let security = (Access::default(), Some(authority.tls(false)));
    let gateway = start_with(settings, MemorySender::new(), security, Traces::default()).await;
    let plain = async |sent: &str| exchange(TcpStream::connect(gateway.address).await.unwrap(), sent).await;
    assert_eq!(
        plain(&format!("{READING}\n")).await,
        "error tls-required this port accepts TLS only (tls_only)"
    );
    assert_eq!(plain("GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await, "HTTP/1.1 403 Forbidden");
    let stream = authority.connect(&gateway, None).await;
    assert!(exchange(stream, &format!("{READING}\n")).await.starts_with("ok "));
    assert_eq!(gateway.publisher.tasks().len(), 1);
}

#[tokio::test]
async fn versions_below_the_minimum_are_refused() {
    let authority = Authority::new();
    for (min_version, accepts_12) in [(TlsVersion::V12, true), (TlsVersion::V13, false)] {
        let security = (Access::default(), Some(authority.tls_from(false, min_version)));
        let publisher = MemorySender::new();
        let gateway = start_secured(ServerKind::default(), publisher, Limits::default(), security).await;
        let connected = async |version| authority.connect_as(&gateway, None, &[version]).await.is_ok();
        assert_eq!(connected(&rustls::version::TLS12).await, accepts_12, "{min_version}");
        assert!(connected(&rustls::version::TLS13).await, "{min_version}");
    }
}
