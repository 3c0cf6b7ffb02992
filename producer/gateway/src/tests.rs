//! The gateway over real sockets, with tasks kept in memory.

mod cloud_events;
mod connections;
mod forward;
mod hostile;
mod hostile_lines;
mod hostile_unread;
mod idempotency;
mod influx;
mod influx_lines;
mod keep_alive;
mod maps;
mod origins;
mod otlp;
mod partial;
mod proxies;
mod requests;
mod scopes;
mod security;
mod spool;
mod traces;

use std::{sync::Arc, time::Duration};

use garenne_amqp::PublishError;
use garenne_common::{
    config::{Concurrency, Size},
    telemetry::{Metrics, Traces, metrics::Role},
};
use garenne_protocol::{task::Kind, topology::Names};
use garenne_publish::{
    BrokerSender, GroupCommit, GroupCommitConfig, Routes, SpoolDrain, SpoolSettings, SpoolingSender,
    TaskSender, Uplink, export_metrics, testing::MemorySender,
};
use garenne_spool::Spool;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    runtime::Handle,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Access, ForwardSettings, GatewayContext, GatewaySettings, Ingest, Instruments, Limits, Maps,
    MemoryBudget, ServerKind, Tls,
};

struct Running {
    address: std::net::SocketAddr,
    publisher: Arc<MemorySender>,
    stop: CancellationToken,
    serving: JoinHandle<bool>,
    metrics: Metrics,
    context: Arc<GatewayContext>,
}

async fn start(publisher: Arc<MemorySender>, limits: Limits) -> Running {
    start_on(ServerKind::default(), publisher, limits).await
}

async fn start_on(kind: ServerKind, publisher: Arc<MemorySender>, limits: Limits) -> Running {
    start_secured(kind, publisher, limits, (Access::default(), None)).await
}

async fn start_secured(
    kind: ServerKind,
    publisher: Arc<MemorySender>,
    limits: Limits,
    security: (Access, Option<Tls>),
) -> Running {
    start_traced(kind, publisher, limits, security, Traces::default()).await
}

async fn start_traced(
    kind: ServerKind,
    publisher: Arc<MemorySender>,
    limits: Limits,
    security: (Access, Option<Tls>),
    traces: Traces,
) -> Running {
    let settings = GatewaySettings { server: kind, limits, ..GatewaySettings::default() };
    start_with(settings, publisher, security, traces).await
}

async fn start_with(
    settings: GatewaySettings,
    publisher: Arc<MemorySender>,
    security: (Access, Option<Tls>),
    traces: Traces,
) -> Running {
    settings.validate().unwrap();
    let direct: Arc<dyn TaskSender> = match traces.is_on() {
        true => {
            let kind = Kind::parse("reading.process").unwrap();
            let groups = GroupCommit::start(publisher.clone(), GroupCommitConfig::off(), kind);
            Arc::new(BrokerSender::new(groups, &traces, &Names::new("garenne")))
        }
        false => publisher.clone(),
    };
    let spooling = SpoolingSender::direct(direct);
    serve_on(settings, (publisher, spooling), security, traces).await
}

/// A gateway with a spool, which is drained.
async fn start_with_spool(publisher: Arc<MemorySender>, spool: SpoolSettings) -> (Running, Spool) {
    let settings = GatewaySettings { spool, ..GatewaySettings::default() };
    let opened = settings.spool.open().await.unwrap().unwrap();
    let wait = settings.spool.spool_after;
    let spooling = SpoolingSender::with_spool(publisher.clone(), opened.clone(), wait);
    SpoolDrain::new(opened.clone(), publisher.clone(), settings.spool.drain_rate())
        .start(CancellationToken::new())
        .detach();
    let running = serve_on(settings, (publisher, spooling), Default::default(), Traces::default()).await;
    export_metrics(&running.metrics, &opened).unwrap();
    (running, opened)
}

/// A gateway that forwards what it accepts to `url`.
async fn start_site(
    url: &str,
    token_file: Option<std::path::PathBuf>,
    spool: SpoolSettings,
) -> (Running, Spool) {
    let forward = ForwardSettings { url: Some(url.parse().unwrap()), token_file, ..Default::default() };
    let settings = GatewaySettings { spool, forward, ..GatewaySettings::default() };
    settings.validate().unwrap();
    let metrics = Metrics::new("gateway");
    let forwarder = settings.forward.forwarder(metrics.connection().up(Role::Publish)).unwrap().unwrap();
    let (spooling, uplink) =
        Uplink::forwarding(Box::new(forwarder), &settings.spool, &metrics).await.unwrap();
    let opened = uplink.spool().unwrap().clone();
    // The drain runs on.
    std::mem::forget(uplink);
    let unused = MemorySender::new();
    (serve_on(settings, (unused, spooling), Default::default(), Traces::default()).await, opened)
}

async fn serve_on(
    settings: GatewaySettings,
    (publisher, spooling): (Arc<MemorySender>, SpoolingSender),
    security: (Access, Option<Tls>),
    traces: Traces,
) -> Running {
    let maps = Maps::load(&settings.maps).unwrap();
    let (network, records, limits) = (settings.network(), settings.record_limits(), settings.limits);
    let metrics = Metrics::new("gateway");
    let budget = MemoryBudget::new(&limits);
    let instruments = Instruments::register(&metrics, &budget).unwrap();
    let routes = Routes::new(["reading.#", "bench.#", "alert.#", "window.#"].map(str::to_owned));
    let ingest = Ingest::new(spooling, routes, &limits, records);
    ingest.register(&metrics).unwrap();
    let server = settings.server.start(&limits, &instruments, &Handle::current()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let (access, tls) = security;
    let context =
        Arc::new(GatewayContext { ingest, access, network, tls, limits, maps, budget, instruments, traces });
    let serving = tokio::spawn(crate::serve(listener, Arc::clone(&context), server, stop.clone()));
    Running { address, publisher, stop, serving, metrics, context }
}

impl Running {
    async fn post(&self, path: &str, content_type: &str, body: &str) -> (u16, Value) {
        let response = reqwest::Client::new()
            .post(format!("http://{}{path}", self.address))
            .header("content-type", content_type)
            .body(body.to_owned())
            .send()
            .await
            .unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    async fn lines(&self) -> BufReader<TcpStream> {
        BufReader::new(TcpStream::connect(self.address).await.unwrap())
    }

    fn bodies(&self) -> Vec<Value> {
        self.publisher.tasks().iter().map(|task| serde_json::from_slice(&task.body).unwrap()).collect()
    }
}

async fn line(connection: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    connection.read_line(&mut line).await.unwrap();
    line.trim_end().to_owned()
}

const READING: &str =
    r#"{"device":"d1","metric":"temperature","value":21.5,"unit":"Cel","time":"2026-11-20T07:30:00Z"}"#;
