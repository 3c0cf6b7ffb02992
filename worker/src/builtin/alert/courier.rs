//! Takes alerts to their webhooks: batches per webhook, a breaker per host, quick retries, deadlines.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use garenne_common::{
    resilience::{
        Backoff, BatchConfig, BatchError, Batcher, Breaker, BreakerConfig, BreakerError, BreakerState, Retry,
        deadline,
    },
    telemetry::{Traces, traces::Begun},
};
use garenne_protocol::{
    sensor::Timestamp,
    task::{TaskId, TraceContext, header},
};
use hyper::header::{HeaderMap, HeaderValue};
use serde::Serialize;
use serde_json::{Map, Value};
use time::{OffsetDateTime, format_description::well_known::Rfc2822};

use super::{
    DEFAULT_WEBHOOK, Delivered,
    post::{Answer, Post, PostError},
    settings::{AlertSettings, HookUrl, SigningSecret},
    span,
};

/// Webhooks and hosts that are remembered at most; the idle ones make room.
const MOST_KNOWN: usize = 256;

/// When a host is left alone: after five failures without a quiet minute, for half a minute.
const BREAKER: BreakerConfig = BreakerConfig {
    failures: 5,
    successes: 2,
    error_free: Duration::from_secs(60),
    open_for: Duration::from_secs(30),
};

/// The pauses before the quick retries.
const PAUSES: Backoff =
    Backoff::LimitedExponential { first: Duration::from_millis(200), limit: Duration::from_secs(2) };

/// Delivers alerts.
pub(super) struct Courier {
    settings: AlertSettings,
    breaker: BreakerConfig,
    pauses: Backoff,
    post: Arc<Post>,
    lines: Mutex<HashMap<String, Arc<Line>>>,
    breakers: Mutex<HashMap<String, Breaker>>,
}

/// Where an alert goes.
#[derive(Clone)]
pub(super) struct Destination {
    url: HookUrl,
    secret: Option<SigningSecret>,
    headers: HeaderMap,
}

/// An alert on its way.
#[derive(Clone, Serialize)]
pub(super) struct Item {
    pub(super) id: TaskId,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) timestamp: Timestamp,
    pub(super) data: Map<String, Value>,
    /// Where its batch notes what became of it.
    #[serde(skip)]
    delivered: Arc<OnceLock<Delivered>>,
    /// The trace that it belongs to.
    #[serde(skip)]
    pub(super) trace: Option<TraceContext>,
    #[serde(skip)]
    pub(super) traces: Traces,
}

/// Why an alert is not delivered.
#[derive(Debug, thiserror::Error)]
pub(super) enum Setback {
    /// There is no such destination, or there may not be.
    #[error("{0}")]
    Nowhere(String),
    /// The receiver does not want it: trying again would not help.
    #[error("{host} answers {status}{text}")]
    Refused { host: String, status: u16, text: String, batch: usize },
    /// The receiver is busy, or broken.
    #[error("{host} answers {status}{text}")]
    Busy { host: String, status: u16, text: String, after: Option<Duration> },
    /// No answer.
    #[error("{host}: {detail}")]
    Unreachable { host: String, detail: String },
    /// Not tried: the host failed too often lately.
    #[error("{host} failed too often and is left alone for {left:?}")]
    LeftAlone { host: String, left: Duration },
    /// The worker stops.
    #[error("the worker stops")]
    Closed,
}

impl Setback {
    /// Whether a second try in a moment may do.
    fn is_brief(&self) -> bool {
        matches!(self, Self::Busy { after: None, .. } | Self::Unreachable { .. })
    }
}

/// The way to one webhook.
struct Line {
    sender: Arc<Sender>,
    batcher: Batcher<Item, Setback>,
}

/// What sends a batch.
struct Sender {
    destination: Destination,
    post: Arc<Post>,
    breaker: Breaker,
    retry: Retry<Setback>,
    timeout: Duration,
}

impl Item {
    pub(super) fn new(id: TaskId, kind: String, timestamp: Timestamp, data: Map<String, Value>) -> Self {
        let (trace, traces) = (None, Traces::default());
        Self { id, kind, timestamp, data, delivered: Arc::default(), trace, traces }
    }

    /// The same, in a trace.
    pub(super) fn within(self, trace: Option<TraceContext>, traces: &Traces) -> Self {
        Self { trace, traces: traces.clone(), ..self }
    }
}

impl Courier {
    pub(super) fn new(settings: AlertSettings) -> Self {
        Self::with_patience(settings, BREAKER, PAUSES)
    }

    pub(super) fn with_patience(settings: AlertSettings, breaker: BreakerConfig, pauses: Backoff) -> Self {
        let post = Arc::new(Post::new(settings.allow_networks.clone()));
        Self { settings, breaker, pauses, post, lines: Mutex::default(), breakers: Mutex::default() }
    }

    /// Finds out where an alert goes.
    pub(super) fn destination(
        &self,
        webhook: Option<&str>,
        url: Option<&str>,
    ) -> Result<Destination, Setback> {
        let webhooks = &self.settings.webhooks;
        let found = match url {
            Some(url) => {
                let url = HookUrl::parse(url).map_err(|why| Setback::Nowhere(format!("url: {why}")))?;
                match webhooks.values().find(|webhook| webhook.url.as_ref() == Some(&url)) {
                    Some(webhook) => webhook,
                    None => return Ok(Destination { url, secret: None, headers: HeaderMap::new() }),
                }
            }
            None => {
                let name = webhook.unwrap_or(DEFAULT_WEBHOOK);
                let missing =
                    || Setback::Nowhere(format!("no webhook {name:?}: alert.webhooks.{name}.url is not set"));
                webhooks.get(name).ok_or_else(missing)?
            }
        };
        let url = found.url.clone().expect("validated with the settings");
        let headers = found.header_map().expect("validated with the settings");
        Ok(Destination { url, secret: found.secret.clone(), headers })
    }

    /// Delivers an alert with others to the same webhook.
    pub(super) async fn deliver(
        &self,
        destination: Destination,
        item: Item,
    ) -> Result<Delivered, Arc<Setback>> {
        let line = self.line(destination);
        let outcome = match line.batcher.add(item.clone()).await {
            Ok(()) => Ok(()),
            // One of a batch that was refused may be to blame: each by itself then.
            Err(BatchError::Failed(setback)) if matches!(*setback, Setback::Refused { batch: 2.., .. }) => {
                line.sender.send(vec![item.clone()]).await.map_err(Arc::new)
            }
            Err(BatchError::Failed(setback)) => Err(setback),
            Err(BatchError::Filtered(_) | BatchError::Closed) => Err(Arc::new(Setback::Closed)),
        };
        outcome.and_then(|()| item.delivered.get().cloned().ok_or_else(|| Arc::new(Setback::Closed)))
    }

    fn line(&self, destination: Destination) -> Arc<Line> {
        let mut lines = lock(&self.lines);
        let key = destination.url.url().as_str().to_owned();
        if let Some(line) = lines.get(&key) {
            return Arc::clone(line);
        }
        if lines.len() >= MOST_KNOWN {
            // One in use has an owner besides this map; there are no more of those than running tasks.
            lines.retain(|_, line| Arc::strong_count(line) > 1);
        }
        let sender = Arc::new(Sender {
            breaker: self.breaker(destination.url.authority()),
            destination,
            post: Arc::clone(&self.post),
            retry: Retry::new(self.pauses, self.settings.retries).with_jitter().when(Setback::is_brief),
            timeout: self.settings.timeout,
        });
        let config = BatchConfig { size: self.settings.batch, wait: self.settings.window };
        let sending = Arc::clone(&sender);
        let batcher = Batcher::start(config, move |items| {
            let sender = Arc::clone(&sending);
            async move { sender.send(items).await }
        });
        let line = Arc::new(Line { sender, batcher });
        lines.insert(key, Arc::clone(&line));
        line
    }

    fn breaker(&self, authority: String) -> Breaker {
        let mut breakers = lock(&self.breakers);
        if breakers.len() >= MOST_KNOWN {
            breakers.retain(|_, breaker| breaker.state() != BreakerState::Closed);
        }
        if breakers.len() >= MOST_KNOWN {
            breakers.clear();
        }
        breakers.entry(authority).or_insert_with(|| Breaker::new(self.breaker)).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is posted.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    timestamp: Timestamp,
    data: Alerts<'a>,
}

#[derive(Serialize)]
struct Alerts<'a> {
    alerts: &'a [Item],
}

impl Sender {
    /// Sends a batch; the same id and body with each retry, so that the receiver knows it again.
    async fn send(&self, items: Vec<Item>) -> Result<(), Setback> {
        let id = webhook_id(&items);
        // As old as its newest alert: the same batch has the same body whenever it is sent.
        let timestamp = items.iter().map(|item| item.timestamp).max().expect("a batch has an alert");
        let body = Body { kind: "garenne.alerts", timestamp, data: Alerts { alerts: &items } };
        let body = Bytes::from(serde_json::to_vec(&body).expect("text and JSON"));
        let status = self.retry.run(|| self.traced(&id, body.clone(), &items)).await?;
        for item in &items {
            let delivered = Delivered { webhook_id: id.clone(), status, batch: items.len() };
            // A repetition changes nothing.
            let _ = item.delivered.set(delivered);
        }
        Ok(())
    }

    async fn traced(&self, id: &str, body: Bytes, items: &[Item]) -> Result<u16, Setback> {
        let Begun { context, span } = span::begin(items, self.destination.url.url());
        let outcome = self.attempt(id, body, items.len(), context.as_ref()).await;
        span::end(span, &outcome);
        outcome
    }

    async fn attempt(
        &self,
        id: &str,
        body: Bytes,
        batch: usize,
        trace: Option<&TraceContext>,
    ) -> Result<u16, Setback> {
        let host = || self.destination.url.authority();
        // Only what speaks of the host's health counts for its breaker.
        let asked = self.breaker.run(|| async {
            match deadline(
                self.timeout,
                self.post.send(self.destination.url.url(), self.headers(id, &body, trace), body),
            )
            .await
            {
                Ok(Ok(answer)) if answer.status >= 500 => Err(busy(host(), &answer)),
                Ok(Ok(answer)) => Ok(Ok(answer)),
                Ok(Err(error @ PostError::Forbidden { .. })) => Ok(Err(Setback::Nowhere(error.to_string()))),
                Ok(Err(error)) => Err(Setback::Unreachable { host: host(), detail: error.to_string() }),
                Err(late) => Err(Setback::Unreachable { host: host(), detail: late.to_string() }),
            }
        });
        let answer = match asked.await {
            Ok(answer) => answer?,
            Err(BreakerError::Open { left }) => return Err(Setback::LeftAlone { host: host(), left }),
            Err(BreakerError::Failed(setback)) => return Err(setback),
        };
        match answer.status {
            200..=299 => Ok(answer.status),
            408 | 425 | 429 => Err(busy(host(), &answer)),
            300..=399 => {
                let text = ": redirects are not followed".to_owned();
                Err(Setback::Refused { host: host(), status: answer.status, text, batch })
            }
            _ => Err(Setback::Refused { host: host(), status: answer.status, text: quoted(&answer), batch }),
        }
    }

    fn headers(&self, id: &str, body: &[u8], trace: Option<&TraceContext>) -> HeaderMap {
        let Destination { headers, secret, .. } = &self.destination;
        let mut headers = headers.clone();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let value = |text: &str| HeaderValue::from_str(text).expect("visible ASCII");
        headers.insert("webhook-id", value(id));
        headers.insert("idempotency-key", value(id));
        headers.insert("webhook-timestamp", now.into());
        if let Some(trace) = trace {
            headers.insert(header::TRACEPARENT, value(trace.parent()));
            headers.remove(header::TRACESTATE);
            if let Some(state) = trace.state() {
                headers.insert(header::TRACESTATE, value(state));
            }
        }
        if let Some(secret) = secret {
            headers.insert("webhook-signature", value(&secret.sign(id, now, body)));
        }
        headers
    }
}

/// The id of an alert alone, where a header can carry it; else one that follows from all of them, in
/// whatever order they came together.
fn webhook_id(items: &[Item]) -> String {
    // The specification signs id, time and body with full stops between them.
    let plain = |id: &str| id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    match items {
        [item] if plain(item.id.as_str()) => item.id.to_string(),
        _ => {
            let mut ids: Vec<_> = items.iter().map(|item| item.id.as_str()).collect();
            ids.sort_unstable();
            uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, ids.join("\n").as_bytes()).to_string()
        }
    }
}

fn busy(host: String, answer: &Answer) -> Setback {
    let after = answer.retry_after.as_deref().and_then(|text| retry_after(text, OffsetDateTime::now_utc()));
    Setback::Busy { host, status: answer.status, text: quoted(answer), after }
}

fn quoted(answer: &Answer) -> String {
    if answer.text.is_empty() { String::new() } else { format!(": {}", answer.text) }
}

/// The longest wait a receiver is believed: an hour.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// `Retry-After`: seconds, or a date.
fn retry_after(text: &str, now: OffsetDateTime) -> Option<Duration> {
    let wait = match text.trim().parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = OffsetDateTime::parse(text.trim(), &Rfc2822).ok()?;
            Duration::try_from(date - now).unwrap_or_default()
        }
    };
    Some(wait.min(LONGEST_WAIT))
}

#[cfg(test)]
mod tests;
