//! Cost of a task's spans: traces off, an unsampled trace, and a sampled one that is exported.
//!
//! `./dev bench traces [--json FILE] [--rounds N]`
//!
//! One task is what a worker does for it: parse the context and, if the trace is sampled, make two spans with
//! attributes, the attempt and the sink's write. `kept` is exported to a collector in the same process.

#[path = "../pool/benches/pool/harness.rs"]
mod harness;

use std::{hint::black_box, io, time::SystemTime};

use axum::{Router, body::Bytes, http::StatusCode, routing::post};
use garenne_bench::{Rows, number};
use garenne_common::{
    config::Otlp,
    telemetry::{
        Metrics, Traces,
        traces::{LAST_EXPORT, Service, SpanKind},
    },
};
use garenne_protocol::task::TraceContext;
use harness::{Contestant, Watch, compete};
use tokio::{net::TcpListener, runtime::Runtime};

/// Tasks of one run. Their spans fit the export queue even if none is exported meanwhile.
const TASKS: u64 = 2_000;

const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn task(traces: &Traces, parent: Option<&str>) {
    let parent = parent.and_then(|parent| TraceContext::parse(black_box(parent), None));
    if !black_box(traces.may_keep(parent.as_ref())) {
        return;
    }
    let process = traces.begin(parent.as_ref(), SpanKind::Consumer, |span| {
        span.name("process garenne.tasks.fast".to_owned());
        span.set("messaging.system", "rabbitmq");
        span.set("messaging.operation.type", "process");
        span.set("messaging.destination.name", "garenne.tasks.fast".to_owned());
        span.set("messaging.message.id", "01a1ff60-6ad0-7094-9706-12d8bd958143".to_owned());
        span.set("garenne.kind", "reading.process".to_owned());
        span.set("garenne.attempt", 1);
        span.set("garenne.outcome", "success");
        span.set("garenne.settlement", "acked");
    });
    drop(traces.begin_at(SystemTime::now(), process.context.as_ref(), SpanKind::Client, |span| {
        span.name("write postgres".to_owned());
        span.set("garenne.sink", "postgres");
        span.set("garenne.batch", 200);
        span.set("db.system.name", "postgresql");
    }));
    black_box(process);
}

fn contestant(name: &str, parent: Option<&'static str>, traces: impl Fn() -> Traces + 'static) -> Contestant {
    let runtime = Runtime::new().expect("threads");
    let run = move || {
        let traces = runtime.block_on(async { traces() });
        let watch = Watch::start();
        (0..TASKS).for_each(|_| task(&traces, parent));
        let measured = watch.stop();
        runtime.block_on(traces.close(LAST_EXPORT));
        measured
    };
    Contestant::new(&format!("traces/{name}"), TASKS, run)
}

/// Starts a collector that accepts everything, and returns its URL.
fn collector(runtime: &Runtime) -> String {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let router = Router::new().route("/v1/traces", post(async |_: Bytes| StatusCode::OK));
    runtime.spawn(async move { axum::serve(listener, router).await });
    url
}

fn exporting(url: &str, ratio: f64) -> Traces {
    let otlp = Otlp { endpoint: Some(url.parse().expect("a URL")), ratio, ..Otlp::default() };
    let service = Service { name: "bench", instance: "one".into(), version: "0" };
    Traces::start(&otlp, &service, &Metrics::new("bench")).expect("an address")
}

fn main() -> io::Result<()> {
    let rounds = number("--rounds", 15).map_err(io::Error::other)?;
    let runtime = Runtime::new().expect("threads");
    let url = collector(&runtime);
    let to = move |ratio: f64| {
        let url = url.clone();
        move || exporting(&url, ratio)
    };
    let contestants = vec![
        contestant("off/no-context", None, Traces::default),
        contestant("off/context", Some(SAMPLED), Traces::default),
        contestant("on/unsampled", Some(UNSAMPLED), to(1.0)),
        contestant("on/unsampled-root", None, to(0.0)),
        contestant("on/kept", Some(SAMPLED), to(1.0)),
    ];
    let mut rows = Rows::default();
    compete(contestants, rounds, "", &mut rows);
    rows.publish()
}
