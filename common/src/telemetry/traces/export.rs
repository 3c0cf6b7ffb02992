//! Spans on their way to the collector: bounded, counted, and nobody's trouble.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use opentelemetry::Context;
use opentelemetry_otlp::{SpanExporter as Otlp, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor},
};
use prometheus::IntCounter;
use tokio::runtime::Handle;

use super::post::{Post, Problem};
use crate::telemetry::Metrics;

/// Spans that wait at most, about 4 MB of them; what comes beyond is dropped.
const MOST_WAITING: usize = 4096;

/// Starts what exports to `url`.
///
/// # Errors
/// In words: why it cannot be posted to.
pub(super) fn start(
    url: String,
    timeout: Duration,
    metrics: &Metrics,
    runtime: Handle,
) -> Result<impl SpanProcessor + 'static, String> {
    let post = Post::new(url.starts_with("https:"), timeout, runtime)?;
    let flow = Arc::new(Flow::new(metrics));
    let problem = post.problem();
    let otlp = Otlp::builder()
        .with_http()
        .with_http_client(post)
        .with_endpoint(url)
        .with_timeout(timeout)
        .build()
        .map_err(|error| error.to_string())?;
    let exporter = Counted { next: otlp, flow: Arc::clone(&flow), problem };
    Ok(Bounded { next: batches(exporter), flow })
}

/// Gathers spans and exports them from a thread of its own. How often is `OTEL_BSP_SCHEDULE_DELAY`'s to say.
fn batches(exporter: impl SpanExporter + 'static) -> BatchSpanProcessor {
    let config = BatchConfigBuilder::default().with_max_queue_size(MOST_WAITING).build();
    BatchSpanProcessor::builder(exporter).with_batch_config(config).build()
}

/// What became of the spans.
struct Flow {
    waiting: AtomicUsize,
    exported: IntCounter,
    failed: IntCounter,
    dropped: IntCounter,
    /// Whether somebody was told that spans are dropped.
    told: AtomicBool,
    /// Whether the last batch could not be exported.
    away: AtomicBool,
}

impl Flow {
    fn new(metrics: &Metrics) -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            exported: metrics.spans("exported"),
            failed: metrics.spans("failed"),
            dropped: metrics.spans("dropped"),
            told: AtomicBool::new(false),
            away: AtomicBool::new(false),
        }
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// Lets in what there is room for. The queue behind it has the same bound, and would drop without a count.
#[derive(Debug)]
struct Bounded<P> {
    next: P,
    flow: Arc<Flow>,
}

impl<P: SpanProcessor> SpanProcessor for Bounded<P> {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.next.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.flow.waiting.fetch_add(1, Relaxed) < MOST_WAITING {
            return self.next.on_end(span);
        }
        self.flow.waiting.fetch_sub(1, Relaxed);
        self.flow.dropped.inc();
        if !self.flow.told.swap(true, Relaxed) {
            tracing::warn!(
                waiting = MOST_WAITING,
                "spans are dropped: the collector is slower than they come; garenne_spans_total counts them, otlp.ratio keeps fewer"
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

/// Counts what is exported, and tells once when that fails and once when it works again.
#[derive(Debug)]
struct Counted<E> {
    next: E,
    flow: Arc<Flow>,
    problem: Problem,
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        self.flow.waiting.fetch_sub(count, Relaxed);
        let outcome = self.next.export(batch).await;
        match &outcome {
            Ok(()) => {
                self.flow.exported.inc_by(count as u64);
                if self.flow.away.swap(false, Relaxed) {
                    tracing::info!("the collector takes spans again");
                }
            }
            Err(error) => {
                self.flow.failed.inc_by(count as u64);
                let problem = self.problem.take().unwrap_or_else(|| error.to_string());
                if !self.flow.away.swap(true, Relaxed) {
                    tracing::warn!(problem, "the collector takes no spans: they are dropped until it does");
                }
            }
        }
        outcome
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.next.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.next.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.next.set_resource(resource);
    }
}

#[cfg(test)]
mod tests;
