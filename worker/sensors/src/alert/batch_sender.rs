//! Sends a batch of alerts to one webhook, with a deadline, retries and the host's circuit breaker.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use garenne_common::{
    resilience::{Breaker, BreakerError, Retry, Semaphore, deadline},
    telemetry::traces::Begun,
    webhook::{SigningSecret, parse_retry_after},
};
use garenne_protocol::{
    sensor::Timestamp,
    task::{TraceContext, header},
};
use hyper::header::{HeaderMap, HeaderValue};
use serde::Serialize;
use time::OffsetDateTime;

use super::{
    address::AllowedAddresses,
    delivery::{Delivered, DeliveryError, OutgoingAlert},
    settings::WebhookUrl,
    span,
    webhook_client::{WebhookClient, WebhookResponse},
};

/// The destination of an alert.
#[derive(Clone)]
pub(super) struct Destination {
    /// The name of the webhook; `None` for a URL of a payload.
    pub(super) webhook: Option<String>,
    pub(super) url: WebhookUrl,
    /// The addresses that the host may have.
    pub(super) addresses: AllowedAddresses,
    /// Requests are unsigned without it.
    pub(super) secret: Option<SigningSecret>,
    pub(super) headers: HeaderMap,
    /// Grows with each change of the files that the settings came from; `None` if they came from none.
    pub(super) generation: Option<u64>,
}

impl Destination {
    /// Identifies the destination. Alerts to one destination share their requests.
    pub(super) fn key(&self) -> String {
        let Some(name) = &self.webhook else { return format!("url {}", self.url.url()) };
        format!("webhook {} {name}", self.generation.unwrap_or_default())
    }

    /// Identifies the host, with its port. A host in a payload is another one than the same host in the settings, so
    /// that senders cannot open the circuit of a webhook or use up its requests.
    pub(super) fn host_key(&self) -> String {
        let origin = if self.webhook.is_some() { "webhook" } else { "url" };
        format!("{origin} {}", self.url.authority())
    }
}

/// Sends batches to one destination.
pub(super) struct BatchSender {
    pub(super) destination: Destination,
    pub(super) client: Arc<WebhookClient>,
    pub(super) breaker: Breaker,
    /// A permit for each request to the host.
    pub(super) permits: Semaphore,
    pub(super) retry: Retry<DeliveryError>,
    /// Time limit for one request.
    pub(super) timeout: Duration,
}

/// The body of a request.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    timestamp: Timestamp,
    data: Alerts<'a>,
}

#[derive(Serialize)]
struct Alerts<'a> {
    alerts: &'a [OutgoingAlert],
}

impl BatchSender {
    /// Sends a batch. Each retry has the same id and body, so that the receiver can recognize it.
    pub(super) async fn send(&self, alerts: Vec<OutgoingAlert>) -> Result<(), DeliveryError> {
        let id = webhook_id(&alerts);
        // The time of the newest alert and not of sending: a repeated batch has the same body.
        let timestamp = alerts.iter().map(|alert| alert.timestamp).max().expect("a batch is not empty");
        let body = Body { kind: "garenne.alerts", timestamp, data: Alerts { alerts: &alerts } };
        let body = Bytes::from(serde_json::to_vec(&body).expect("text and JSON can be serialized"));
        let status = self.retry.run(|| self.attempt(&id, body.clone(), &alerts)).await?;
        for alert in &alerts {
            let delivered = Delivered { webhook_id: id.clone(), status, batch: alerts.len() };
            // Already set if the alert was sent before: the first delivery counts.
            let _ = alert.delivered.set(delivered);
        }
        Ok(())
    }

    /// One request, with its trace span.
    async fn attempt(&self, id: &str, body: Bytes, alerts: &[OutgoingAlert]) -> Result<u16, DeliveryError> {
        let host = || self.destination.url.authority();
        let permit = self.permits.acquire().await;
        let _permit = permit.map_err(|problem| DeliveryError::Busy { host: host(), problem })?;
        let Begun { context, span } = span::begin(alerts, self.destination.url.url());
        let headers = self.headers(id, &body, context.as_ref());
        let sent = self.breaker.run(|| async {
            match self.request(headers, body, alerts.len()).await {
                Err(error) if error.counts_for_breaker() => Err(error),
                outcome => Ok(outcome),
            }
        });
        let outcome = sent.await.unwrap_or_else(|error| match error {
            BreakerError::Open { left } => Err(DeliveryError::CircuitOpen { host: host(), remaining: left }),
            BreakerError::Failed(error) => Err(error),
        });
        span::end(span, &outcome);
        outcome
    }

    async fn request(
        &self,
        headers: HeaderMap,
        body: Bytes,
        batch_size: usize,
    ) -> Result<u16, DeliveryError> {
        let host = || self.destination.url.authority();
        let Destination { url, addresses, .. } = &self.destination;
        let exchange = self.client.send(url, addresses, headers, body);
        let response = deadline(self.timeout, exchange).await.unwrap_or_else(|elapsed| {
            Err(DeliveryError::Unreachable { host: host(), detail: elapsed.to_string() })
        })?;
        let status = response.status;
        let rejected = |detail| Err(DeliveryError::Rejected { host: host(), status, detail, batch_size });
        match status {
            200..=299 => Ok(status),
            408 | 425 | 429 | 500.. => Err(server_error(host(), &response)),
            // The receiver may know the new credentials before the files have them, or after.
            401 | 403 if self.destination.generation.is_some() => Err(server_error(host(), &response)),
            300..=399 => rejected(": redirects are not followed".to_owned()),
            _ => rejected(detail(&response)),
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

/// The `webhook-id` of a batch: the id of its only alert, or a UUID derived from the ids of all, independent of
/// their order.
fn webhook_id(alerts: &[OutgoingAlert]) -> String {
    // The signature separates id, time and body by full stops, so an id must not contain one.
    let is_plain = |id: &str| id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    match alerts {
        [alert] if is_plain(alert.id.as_str()) => alert.id.to_string(),
        _ => {
            let mut ids: Vec<_> = alerts.iter().map(|alert| alert.id.as_str()).collect();
            ids.sort_unstable();
            uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, ids.join("\n").as_bytes()).to_string()
        }
    }
}

fn server_error(host: String, response: &WebhookResponse) -> DeliveryError {
    let now = OffsetDateTime::now_utc();
    let retry_after = response.retry_after.as_deref().and_then(|text| parse_retry_after(text, now));
    DeliveryError::ServerError { host, status: response.status, detail: detail(response), retry_after }
}

fn detail(response: &WebhookResponse) -> String {
    if response.text.is_empty() { String::new() } else { format!(": {}", response.text) }
}
