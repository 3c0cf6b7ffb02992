//! The export of spans to the collector: bounded and counted, in a thread of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use opentelemetry::Context;
use opentelemetry_otlp::{Protocol, SpanExporter as Otlp, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor},
};
use prometheus::IntCounter;
use tokio::runtime::Handle;

use super::collector_client::{CollectorClient, LastProblem};
use crate::telemetry::Metrics;

/// Most spans that wait for export, about 4 MB; further ones are dropped.
const MAX_WAITING: usize = 4096;

/// Starts the export to `url`, within `timeout` per batch.
pub(super) fn start(
    url: String,
    timeout: Duration,
    metrics: &Metrics,
    runtime: Handle,
) -> Result<impl SpanProcessor + 'static, String> {
    let client = CollectorClient::new(url.starts_with("https:"), timeout, runtime)?;
    let state = Arc::new(ExportState::new(metrics));
    let problem = client.problem.clone();
    let otlp = Otlp::builder()
        .with_http()
        .with_http_client(client)
        // Without it, the features of the crate decide, which other crates can add to.
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(url)
        .with_timeout(timeout)
        .build()
        .map_err(|error| error.to_string())?;
    let exporter = CountingExporter { next: otlp, state: Arc::clone(&state), problem };
    Ok(BoundedProcessor { next: batches(exporter), state })
}

/// Collects spans into batches and exports them from its own thread, every `OTEL_BSP_SCHEDULE_DELAY`.
fn batches(exporter: impl SpanExporter + 'static) -> BatchSpanProcessor {
    let config = BatchConfigBuilder::default().with_max_queue_size(MAX_WAITING).build();
    BatchSpanProcessor::builder(exporter).with_batch_config(config).build()
}

/// State of the export and counts of spans by result.
#[derive(Debug)]
struct ExportState {
    /// Spans that ended and were not handed to the exporter yet.
    waiting: AtomicUsize,
    exported: IntCounter,
    failed: IntCounter,
    dropped: IntCounter,
    /// Whether the log says that spans are dropped; it says so once.
    drop_logged: AtomicBool,
    /// Whether the last batch could not be exported.
    failing: AtomicBool,
}

impl ExportState {
    fn new(metrics: &Metrics) -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            exported: metrics.spans("exported"),
            failed: metrics.spans("failed"),
            dropped: metrics.spans("dropped"),
            drop_logged: AtomicBool::new(false),
            failing: AtomicBool::new(false),
        }
    }
}

/// Drops and counts spans beyond [`MAX_WAITING`]. The batch processor's queue has the same bound, but drops without a
/// count.
#[derive(Debug)]
struct BoundedProcessor<P> {
    next: P,
    state: Arc<ExportState>,
}

impl<P: SpanProcessor> SpanProcessor for BoundedProcessor<P> {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.next.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.state.waiting.fetch_add(1, Relaxed) < MAX_WAITING {
            return self.next.on_end(span);
        }
        self.state.waiting.fetch_sub(1, Relaxed);
        self.state.dropped.inc();
        if !self.state.drop_logged.swap(true, Relaxed) {
            tracing::warn!(
                waiting = MAX_WAITING,
                "dropping spans: the collector is too slow; garenne_spans_total counts them, a lower otlp.ratio keeps fewer"
            );
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.next.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.next.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.next.set_resource(resource);
    }
}

/// Counts exported and failed spans, and logs the first failure and the recovery.
#[derive(Debug)]
struct CountingExporter<E> {
    next: E,
    state: Arc<ExportState>,
    problem: LastProblem,
}

impl<E: SpanExporter> SpanExporter for CountingExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        self.state.waiting.fetch_sub(count, Relaxed);
        let outcome = self.next.export(batch).await;
        match &outcome {
            Ok(()) => {
                self.state.exported.inc_by(count as u64);
                if self.state.failing.swap(false, Relaxed) {
                    tracing::info!("the collector accepts spans again");
                }
            }
            Err(error) => {
                self.state.failed.inc_by(count as u64);
                let problem = self.problem.take().unwrap_or_else(|| error.to_string());
                if !self.state.failing.swap(true, Relaxed) {
                    tracing::warn!(problem, "the collector accepts no spans: they are dropped until it does");
                }
            }
        }
        outcome
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.next.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.next.set_resource(resource);
    }
}

#[cfg(test)]
mod tests;
