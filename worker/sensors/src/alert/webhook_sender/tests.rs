//! Deliveries to a real server on the loopback interface.

mod rotation;
mod server;
mod traces;

use garenne_common::telemetry::Traces;
use garenne_protocol::{sensor::Timestamp, task::TaskId};
use serde_json::Value;

use super::*;
use crate::alert::settings::{PayloadUrls, SigningSecret, Webhook};
use server::{
    Reaction::{Answer, Drip, Flood, Reset, Stall},
    Server,
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn settings(url: &str) -> AlertSettings {
    let secret = Some(SECRET.parse().unwrap());
    let headers = [("Authorization".to_owned(), "Bearer x".to_owned())].into();
    let webhook = Webhook { url: Some(url.parse().unwrap()), secret, headers, ..Webhook::default() };
    AlertSettings {
        webhooks: [(DEFAULT_WEBHOOK.to_owned(), webhook)].into(),
        timeout: Duration::from_millis(400),
        window: Duration::from_millis(20),
        ..AlertSettings::default()
    }
}

/// URLs of the host pattern, also in these networks.
fn urls(host: &str, networks: &[&str]) -> PayloadUrls {
    let networks = networks.iter().map(|network| network.parse().unwrap()).collect();
    PayloadUrls { hosts: vec![host.parse().unwrap()], networks }
}

fn local() -> PayloadUrls {
    urls("127.0.0.1", &["127.0.0.0/8"])
}

fn sender(settings: AlertSettings) -> WebhookSender {
    let breaker = BreakerConfig { failures: 4, open_for: Duration::from_millis(300), ..BREAKER };
    WebhookSender::with_resilience(settings, breaker, Backoff::constant(Duration::from_millis(5))).unwrap()
}

fn alert(id: &str) -> OutgoingAlert {
    let data = [("value".to_owned(), Value::from(7))].into_iter().collect();
    OutgoingAlert {
        id: TaskId::parse(id).unwrap(),
        kind: "reading.threshold".into(),
        timestamp: Timestamp::from_unix_seconds(1_790_000_000.0).unwrap(),
        data,
        delivered: Arc::default(),
        trace: None,
        traces: Traces::default(),
    }
}

async fn deliver(sender: &WebhookSender, id: &str) -> Result<Delivered, Arc<DeliveryError>> {
    let destination = sender.destination(None, None).unwrap();
    sender.deliver(destination, alert(id)).await
}

#[tokio::test]
async fn a_request_follows_the_standard_webhooks_specification() {
    let server = Server::start([Answer(204, "")]).await;
    let sender = sender(settings(&server.url));
    let delivered = deliver(&sender, "alert-1").await.unwrap();
    assert_eq!(delivered, Delivered { webhook_id: "alert-1".into(), status: 204, batch: 1 });
    let request = server.requests().remove(0);
    assert!(request.head.starts_with("POST /hook?token=t HTTP/1.1\r\n"), "{}", request.head);
    let (id, at) = (request.header("webhook-id"), request.header("webhook-timestamp"));
    assert_eq!((id, request.header("idempotency-key")), ("alert-1", "alert-1"));
    let expected =
        SECRET.parse::<SigningSecret>().unwrap().sign(id, at.parse().unwrap(), request.body.as_bytes());
    assert_eq!(request.header("webhook-signature"), expected);
    assert_eq!(request.header("authorization"), "Bearer x");
    assert_eq!(request.header("content-type"), "application/json");
    assert_eq!(
        request.body,
        r#"{"type":"garenne.alerts","timestamp":"2026-09-21T14:13:20Z","data":{"alerts":[{"id":"alert-1","type":"reading.threshold","timestamp":"2026-09-21T14:13:20Z","data":{"value":7}}]}}"#
    );
}

#[tokio::test]
async fn transient_failures_are_retried_with_the_same_request() {
    for script in
        [[Stall, Answer(503, "")], [Reset, Answer(500, "")], [Flood, Reset], [Drip, Answer(200, "")]]
    {
        let first_succeeds = matches!(script[0], Drip);
        // Only a stalled request has to run into the timeout; the others must not on a busy machine.
        let timeout = Duration::from_secs(if matches!(script[0], Stall) { 1 } else { 30 });
        let server = Server::start(script).await;
        let sender = sender(AlertSettings { timeout, ..settings(&server.url) });
        assert_eq!(deliver(&sender, "a").await.unwrap().status, 200);
        let requests = server.requests();
        assert_eq!(requests.len(), if first_succeeds { 1 } else { 3 });
        assert!(requests.iter().all(|it| it.body == requests[0].body && it.header("webhook-id") == "a"));
    }
}

#[tokio::test]
async fn rejected_alerts_are_not_retried() {
    for (status, headers, detail) in [
        (400, "", "400: sorry"),
        (410, "", "410: sorry"),
        (302, "location: http://127.0.0.1:1/\r\n", "302: redirects are not followed"),
    ] {
        let server = Server::start([Answer(status, headers)]).await;
        let error = deliver(&sender(settings(&server.url)), "a").await.unwrap_err();
        let host = server.url.parse::<WebhookUrl>().unwrap().authority();
        assert_eq!(error.to_string(), format!("{host} answered {detail}"));
        assert!(matches!(*error, DeliveryError::Rejected { .. }));
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn retry_after_of_the_receiver_is_returned_without_a_retry() {
    let server = Server::start([Answer(429, "retry-after: 7\r\n")]).await;
    let error = deliver(&sender(settings(&server.url)), "a").await.unwrap_err();
    let DeliveryError::ServerError { retry_after: Some(wait), status: 429, .. } = *error else {
        panic!("{error:?}")
    };
    assert_eq!(wait, Duration::from_secs(7));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn the_circuit_of_a_failing_host_opens_and_closes_again() {
    let server = Server::start([Answer(500, ""); 4]).await;
    let sender = sender(AlertSettings { retries: 0, ..settings(&server.url) });
    for _ in 0..4 {
        assert!(matches!(*deliver(&sender, "a").await.unwrap_err(), DeliveryError::ServerError { .. }));
    }
    let error = deliver(&sender, "a").await.unwrap_err();
    let DeliveryError::CircuitOpen { remaining, .. } = *error else { panic!("{error}") };
    assert!(remaining <= Duration::from_millis(300));
    assert_eq!(server.requests().len(), 4);
    while let Err(error) = deliver(&sender, "a").await {
        assert!(matches!(*error, DeliveryError::CircuitOpen { .. }), "{error}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn alerts_within_the_window_are_batched_and_a_rejected_batch_is_sent_one_by_one() {
    let server = Server::start([Answer(200, ""), Answer(413, "")]).await;
    let sender = sender(settings(&server.url));
    let (a, b) = tokio::join!(deliver(&sender, "a"), deliver(&sender, "b"));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!((a.batch, &a.webhook_id), (2, &b.webhook_id));
    assert_eq!(server.requests()[0].alerts().len(), 2);
    // The second batch is rejected as a whole, and each of its alerts is accepted alone.
    let (c, d) = tokio::join!(deliver(&sender, "c"), deliver(&sender, "d"));
    assert_eq!((c.unwrap().webhook_id, d.unwrap().webhook_id), ("c".to_owned(), "d".to_owned()));
    assert_eq!(
        server.requests().iter().map(|request| request.alerts().len()).collect::<Vec<_>>(),
        [2, 2, 1, 1]
    );
}

#[tokio::test]
async fn private_addresses_in_any_notation_get_no_request() {
    let server = Server::start([]).await;
    let port = server.url.parse::<WebhookUrl>().unwrap().url().port().unwrap();
    let closed = sender(AlertSettings { payload_urls: urls("*", &[]), ..settings(&server.url) });
    for host in ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "0"] {
        let url = format!("http://{host}:{port}/");
        let destination = closed.destination(None, Some(&url)).unwrap();
        let error = closed.deliver(destination, alert("a")).await.unwrap_err();
        assert!(matches!(*error, DeliveryError::InvalidDestination(_)), "{host}: {error}");
        assert!(error.to_string().contains("not a public address"), "{error}");
    }
    assert!(server.requests().is_empty());
}

#[test]
fn invalid_destinations_are_refused_with_the_reason() {
    let settings =
        AlertSettings { payload_urls: urls("*.example.com", &["::/0"]), ..AlertSettings::default() };
    let sender = WebhookSender::new(settings).unwrap();
    let error = sender.destination(None, Some("https://example.org/")).err().unwrap().to_string();
    assert_eq!(
        error,
        "url: host \"example.org\" is not allowed in payloads; alert.payload_urls.hosts allows hosts"
    );
    let error = sender.destination(Some("ops"), None).err().unwrap().to_string();
    assert_eq!(error, "no webhook \"ops\": alert.webhooks.ops.url is not set");
    let error = sender.destination(None, Some("ftp://a/")).err().unwrap().to_string();
    assert_eq!(error, "url: scheme \"ftp\"; expected http or https");
    let error = sender.destination(None, Some("http://user:pw@a/")).err().unwrap().to_string();
    assert_eq!(error, "url: contains a user or password; use headers instead");
}

#[tokio::test]
async fn only_webhooks_of_the_settings_are_signed() {
    let server = Server::start([]).await;
    let sender = sender(AlertSettings { payload_urls: local(), ..settings(&server.url) });
    // At the same time, and the URL is that of the webhook: they share neither request nor headers.
    let by_url = sender.destination(None, Some(&server.url)).unwrap();
    let (by_url, by_name) = tokio::join!(sender.deliver(by_url, alert("url")), deliver(&sender, "name"));
    assert_eq!((by_url.unwrap().batch, by_name.unwrap().batch), (1, 1));
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    for request in requests {
        let by_name = request.header("webhook-id") == "name";
        assert_eq!(request.header("webhook-signature").is_empty(), !by_name);
        assert_eq!(request.header("authorization").is_empty(), !by_name);
    }
}

#[tokio::test]
async fn failures_of_urls_in_payloads_do_not_open_the_circuit_of_a_webhook() {
    let server = Server::start([Answer(500, ""); 4]).await;
    let sender = sender(AlertSettings { payload_urls: local(), retries: 0, ..settings(&server.url) });
    let by_url = || sender.destination(None, Some(&server.url)).unwrap();
    for _ in 0..4 {
        sender.deliver(by_url(), alert("a")).await.unwrap_err();
    }
    let error = sender.deliver(by_url(), alert("a")).await.unwrap_err();
    assert!(matches!(*error, DeliveryError::CircuitOpen { .. }), "{error}");
    assert_eq!(deliver(&sender, "a").await.unwrap().status, 200);
}

#[tokio::test]
async fn requests_to_one_host_take_turns_and_other_hosts_are_not_delayed() {
    let (slow, other) = (Server::start([Stall]).await, Server::start([]).await);
    let mut settings = AlertSettings { per_host: 1, retries: 0, ..settings(&slow.url) };
    for (name, url) in [("second", slow.url.replace("/hook", "/other")), ("third", other.url.clone())] {
        let webhook = Webhook { url: Some(url.parse().unwrap()), ..Webhook::default() };
        settings.webhooks.insert(name.to_owned(), webhook);
    }
    let sender = sender(settings);
    let to = |name| sender.destination(Some(name), None).unwrap();
    let further = async {
        while slow.requests().is_empty() {
            tokio::task::yield_now().await;
        }
        // Another webhook of the same host waits; one of another host does not.
        let waiting = sender.deliver(to("second"), alert("b"));
        let others = async {
            let delivered = sender.deliver(to("third"), alert("c")).await;
            (delivered, slow.requests().len())
        };
        tokio::join!(waiting, others)
    };
    let (first, (second, (third, requests))) = tokio::join!(deliver(&sender, "a"), further);
    assert!(matches!(*first.unwrap_err(), DeliveryError::Unreachable { .. }));
    assert_eq!((third.unwrap().status, requests), (200, 1));
    assert_eq!((second.unwrap().status, slow.requests().len()), (200, 2));
}
