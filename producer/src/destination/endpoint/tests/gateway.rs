//! A gateway in this process that keeps its tasks in memory.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
};

use futures_util::future::BoxFuture;
use garenne_amqp::PublishError;
use garenne_common::{
    config::Certificates,
    telemetry::{Metrics, Traces},
};
use garenne_gateway::{
    Access, GatewayContext, GatewaySettings, Ingest, Instruments, Maps, MemoryBudget, TlsVersion, load_tls,
};
use garenne_protocol::{sensor::Limits as RecordLimits, task::NewTask};
use garenne_publish::{Routes, SpoolingSender, TaskSender};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::{net::TcpListener, runtime::Handle};
use tokio_util::sync::CancellationToken;

/// The token of the only sender, and its SHA-256.
pub(super) const TOKEN: &str = "s3cret";
const TOKEN_SHA256: &str = "1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0";

/// Confirms at once and keeps the tasks.
#[derive(Default)]
struct MemoryPublisher(Mutex<Vec<NewTask>>);

impl TaskSender for MemoryPublisher {
    fn send(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        self.0.lock().unwrap().extend(tasks);
        Box::pin(async { Ok(()) })
    }
}

/// A running gateway and the files of its certificate authority.
pub(super) struct TestGateway {
    port: u16,
    publisher: Arc<MemoryPublisher>,
    authority: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
    stop: CancellationToken,
}

impl TestGateway {
    /// Accepts plain and TLS connections, and of both only those with [`TOKEN`]. With `client_certificates`, TLS
    /// connections need a certificate instead of a token.
    pub(super) async fn start(client_certificates: bool) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        let senders = folder.path().join("senders.toml");
        let entry = format!("[[sender]]\nname = \"replay\"\ntoken_sha256 = \"{TOKEN_SHA256}\"\n");
        std::fs::write(&senders, entry + "kinds = [\"reading.*\"]\ndevices = [\"*\"]\n").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut gateway = Self {
            port: listener.local_addr().unwrap().port(),
            publisher: Arc::default(),
            authority,
            folder,
            stop: CancellationToken::new(),
        };
        let server = gateway.signed("localhost");
        let client_ca = client_certificates.then(|| gateway.file("ca.pem"));
        let tls = load_tls(server.cert.unwrap(), server.key.unwrap(), client_ca, TlsVersion::default());
        let settings = GatewaySettings::default();
        let (network, limits) = (settings.network(), settings.limits);
        let budget = MemoryBudget::new(&limits);
        let instruments = Instruments::register(&Metrics::new("gateway"), &budget).unwrap();
        let publisher = Arc::clone(&gateway.publisher);
        let routes = Routes::new(["reading.#".to_owned()]);
        let context = GatewayContext {
            ingest: Ingest::new(SpoolingSender::direct(publisher), routes, &limits, RecordLimits::default()),
            access: Access::new(Some(&senders), client_certificates, limits.max_records).unwrap(),
            maps: Maps::default(),
            network,
            tls: Some(tls.unwrap()),
            budget,
            instruments,
            limits,
            traces: Traces::default(),
        };
        let server = settings.server.start(&context.limits, &context.instruments, &Handle::current());
        let serving =
            garenne_gateway::serve(listener, Arc::new(context), server.unwrap(), gateway.stop.clone());
        tokio::spawn(serving);
        gateway
    }

    /// Its URL.
    pub(super) fn url(&self, scheme: &str) -> String {
        format!("{scheme}://localhost:{}", self.port)
    }

    /// The devices of the readings that it confirmed, in order.
    pub(super) fn devices(&self) -> Vec<String> {
        let tasks = self.publisher.0.lock().unwrap();
        let body = |task: &NewTask| serde_json::from_slice::<serde_json::Value>(&task.body).unwrap();
        tasks.iter().map(|task| body(task)["device"].as_str().unwrap().to_owned()).collect()
    }

    /// Its authority, without a client certificate.
    pub(super) fn trusted(&self) -> Certificates {
        Certificates { ca: Some(self.file("ca.pem")), ..Certificates::default() }
    }

    /// Its authority, and a client certificate with this common name.
    pub(super) fn signed(&mut self, name: &str) -> Certificates {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let (cert_file, key_file) = (self.file(&format!("{name}.pem")), self.file(&format!("{name}.key")));
        std::fs::write(&cert_file, params.signed_by(&key, &self.authority).unwrap().pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        Certificates { cert: Some(cert_file), key: Some(key_file), ..self.trusted() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for TestGateway {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
