//! Against a real server on the loopback interface that does to each request what its script says.

use std::collections::VecDeque;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::builtin::alert::settings::Webhook;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// What the server does with a connection.
#[derive(Clone, Copy)]
enum Do {
    /// Answers with this status and these header lines.
    Say(u16, &'static str),
    /// Reads the request and never answers.
    Stall,
    /// Resets the connection.
    Reset,
    /// Answers 200, a byte every few milliseconds.
    Drip,
    /// Sends headers and body without end.
    Flood,
}
use Do::{Drip, Flood, Reset, Say, Stall};

/// A request as it arrived.
#[derive(Clone, Debug)]
struct Got {
    head: String,
    body: String,
}

impl Got {
    fn header(&self, name: &str) -> &str {
        let line = self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_default()
    }

    fn alerts(&self) -> Vec<Value> {
        let body: Value = serde_json::from_str(&self.body).unwrap();
        body["data"]["alerts"].as_array().unwrap().clone()
    }
}

struct Server {
    url: String,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Server {
    /// Works the script off, connection by connection, then says 200.
    async fn start(script: impl IntoIterator<Item = Do>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook?token=t", listener.local_addr().unwrap());
        let got: Arc<Mutex<Vec<Got>>> = Arc::default();
        let mut script: VecDeque<_> = script.into_iter().collect();
        let seen = Arc::clone(&got);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let act = script.pop_front().unwrap_or(Say(200, ""));
                tokio::spawn(serve(stream, act, Arc::clone(&seen)));
            }
        });
        Self { url, got }
    }

    fn got(&self) -> Vec<Got> {
        lock(&self.got).clone()
    }
}

async fn serve(mut stream: TcpStream, act: Do, seen: Arc<Mutex<Vec<Got>>>) {
    let got = request(&mut stream).await;
    lock(&seen).push(got);
    match act {
        Say(status, headers) => {
            let answer = format!("HTTP/1.1 {status} X\r\n{headers}content-length: 5\r\n\r\nsorry");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
        Stall => {
            // Until the client has had enough.
            let _ = stream.read(&mut [0; 1]).await;
        }
        Reset => stream.set_zero_linger().unwrap(),
        Drip => {
            for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n" {
                let _ = stream.write_all(&[*byte]).await;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        Flood => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n").await;
            while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
        }
    }
}

async fn request(stream: &mut TcpStream) -> Got {
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 4096];
        let count = stream.read(&mut part).await.unwrap_or(0);
        bytes.extend_from_slice(&part[..count]);
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let got = Got { head: head.to_owned(), body: body.to_owned() };
            if count == 0 || got.body.len().to_string() == got.header("content-length") {
                return got;
            }
        } else if count == 0 {
            return Got { head: text.into_owned(), body: String::new() };
        }
    }
}

fn settings(url: &str) -> AlertSettings {
    let secret = Some(SigningSecret::parse(SECRET).unwrap());
    let headers = [("Authorization".to_owned(), "Bearer x".to_owned())].into();
    let webhook = Webhook { url: Some(HookUrl::parse(url).unwrap()), secret, headers };
    AlertSettings {
        webhooks: [(DEFAULT_WEBHOOK.to_owned(), webhook)].into(),
        allow_networks: vec!["127.0.0.0/8".parse().unwrap()],
        timeout: Duration::from_millis(400),
        window: Duration::from_millis(20),
        ..AlertSettings::default()
    }
}

fn courier(settings: AlertSettings) -> Courier {
    let breaker = BreakerConfig { failures: 4, open_for: Duration::from_millis(300), ..BREAKER };
    Courier::with_patience(settings, breaker, Backoff::Constant { pause: Duration::from_millis(5) })
}

fn item(id: &str) -> Item {
    let data = [("value".to_owned(), Value::from(7))].into_iter().collect();
    let time = Timestamp::from_unix_seconds(1_790_000_000.0).unwrap();
    Item::new(TaskId::parse(id).unwrap(), "reading.threshold".into(), time, data)
}

async fn deliver(courier: &Courier, id: &str) -> Result<Delivered, Arc<Setback>> {
    let destination = courier.destination(None, None).unwrap();
    courier.deliver(destination, item(id)).await
}

#[tokio::test]
async fn a_request_is_what_the_specification_says() {
    let server = Server::start([Say(204, "")]).await;
    let courier = courier(settings(&server.url));
    let delivered = deliver(&courier, "alert-1").await.unwrap();
    assert_eq!(delivered, Delivered { webhook_id: "alert-1".into(), status: 204, batch: 1 });
    let got = server.got().remove(0);
    assert!(got.head.starts_with("POST /hook?token=t HTTP/1.1\r\n"), "{}", got.head);
    let (id, at) = (got.header("webhook-id"), got.header("webhook-timestamp"));
    assert_eq!((id, got.header("idempotency-key")), ("alert-1", "alert-1"));
    let expected = SigningSecret::parse(SECRET).unwrap().sign(id, at.parse().unwrap(), got.body.as_bytes());
    assert_eq!(got.header("webhook-signature"), expected);
    assert_eq!(got.header("authorization"), "Bearer x");
    assert_eq!(got.header("content-type"), "application/json");
    assert_eq!(
        got.body,
        r#"{"type":"garenne.alerts","timestamp":"2026-09-21T14:13:20Z","data":{"alerts":[{"id":"alert-1","type":"reading.threshold","timestamp":"2026-09-21T14:13:20Z","data":{"value":7}}]}}"#
    );
}

const PARENTS: [&str; 2] = [
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "00-1bf7651916cd43dd8448eb211c80319c-c8ad6b7169203331-01",
];

fn trace(parent: &str) -> Option<TraceContext> {
    TraceContext::parse(parent, Some("vendor=1"))
}

#[tokio::test]
async fn a_request_goes_on_with_the_trace_of_its_alert() {
    let server = Server::start([Say(503, ""), Say(200, "")]).await;
    let (courier, (traces, recorder)) = (courier(settings(&server.url)), Traces::recorded());
    let alert = item("a").within(trace(PARENTS[0]), &traces);
    courier.deliver(courier.destination(None, None).unwrap(), alert).await.unwrap();
    let (spans, got) = (recorder.spans(), server.got());
    assert_eq!((spans.len(), got.len()), (2, 2), "{spans:#?}");
    for ((span, got), status) in spans.iter().zip(&got).zip(["503", "200"]) {
        let sent = format!("00-{}-{}-01", span.trace_id, span.span_id);
        assert_eq!((got.header("traceparent"), got.header("tracestate")), (sent.as_str(), "vendor=1"));
        assert_eq!((span.name.as_str(), span.parent_id.as_str()), ("POST", "b7ad6b7169203331"));
        assert_eq!(span.attributes["http.response.status_code"], status);
        assert_eq!(span.error.is_some(), status == "503");
    }
}

#[tokio::test]
async fn a_request_of_several_traces_belongs_to_one_that_is_kept_and_is_linked_to_the_others() {
    let server = Server::start([]).await;
    let (courier, (traces, recorder)) = (courier(settings(&server.url)), Traces::recorded());
    let unsampled = PARENTS[0].replace("-01", "-00");
    let alerts = [("a", unsampled.as_str()), ("b", PARENTS[1]), ("c", PARENTS[0])];
    let send = |(id, parent)| {
        let alert = item(id).within(trace(parent), &traces);
        courier.deliver(courier.destination(None, None).unwrap(), alert)
    };
    futures_util::future::try_join_all(alerts.map(send)).await.unwrap();
    let span = recorder.only("POST");
    assert_eq!(span.parent_id, "c8ad6b7169203331");
    assert_eq!(span.links, ["b7ad6b7169203331", "b7ad6b7169203331"]);
    assert_eq!(span.attributes["garenne.batch"], "3");
}

#[tokio::test]
async fn a_trace_that_nobody_keeps_is_passed_on_as_it_came() {
    let server = Server::start([]).await;
    let courier = courier(settings(&server.url));
    let alert = item("a").within(trace(PARENTS[0]), &Traces::default());
    courier.deliver(courier.destination(None, None).unwrap(), alert).await.unwrap();
    assert_eq!(server.got()[0].header("traceparent"), PARENTS[0]);
    deliver(&courier, "b").await.unwrap();
    assert!(!server.got()[1].head.contains("traceparent"));
}

#[tokio::test]
async fn a_server_that_stalls_resets_and_fails_is_asked_again_until_it_heals() {
    for script in [[Stall, Say(503, "")], [Reset, Say(500, "")], [Flood, Reset], [Drip, Say(200, "")]] {
        let first_is_enough = matches!(script[0], Drip);
        let server = Server::start(script).await;
        let courier = courier(settings(&server.url));
        assert_eq!(deliver(&courier, "a").await.unwrap().status, 200);
        let got = server.got();
        assert_eq!(got.len(), if first_is_enough { 1 } else { 3 });
        // The same request each time: the receiver can tell.
        assert!(got.iter().all(|it| it.body == got[0].body && it.header("webhook-id") == "a"));
    }
}

#[tokio::test]
async fn what_will_not_pass_is_not_tried_again() {
    for (status, headers, said) in [
        (400, "", "400: sorry"),
        (410, "", "410: sorry"),
        (302, "location: http://127.0.0.1:1/\r\n", "302: redirects are not followed"),
    ] {
        let server = Server::start([Say(status, headers)]).await;
        let error = deliver(&courier(settings(&server.url)), "a").await.unwrap_err();
        let host = HookUrl::parse(&server.url).unwrap().authority();
        assert_eq!(error.to_string(), format!("{host} answers {said}"));
        assert!(matches!(*error, Setback::Refused { .. }));
        assert_eq!(server.got().len(), 1);
    }
}

#[tokio::test]
async fn a_busy_receiver_says_when() {
    let server = Server::start([Say(429, "retry-after: 7\r\n")]).await;
    let error = deliver(&courier(settings(&server.url)), "a").await.unwrap_err();
    let Setback::Busy { after: Some(after), status: 429, .. } = *error else { panic!("{error:?}") };
    assert_eq!(after, Duration::from_secs(7));
    assert_eq!(server.got().len(), 1);
}

#[test]
fn retry_after_is_seconds_or_a_date_and_not_for_ever() {
    let now = OffsetDateTime::from_unix_timestamp(784_111_777).unwrap();
    let wait = |text: &str| retry_after(text, now).map(|wait| wait.as_secs());
    assert_eq!(wait("120"), Some(120));
    assert_eq!(wait("Sun, 06 Nov 1994 08:50:07 GMT"), Some(30));
    assert_eq!(wait("Sun, 06 Nov 1994 08:49:00 GMT"), Some(0));
    assert_eq!(wait("999999999999"), Some(3600));
    assert_eq!((wait("soon"), wait("-1")), (None, None));
}

#[tokio::test]
async fn a_host_that_keeps_failing_is_left_alone_until_it_may_have_healed() {
    let server = Server::start([Say(500, ""); 4]).await;
    let courier = courier(AlertSettings { retries: 0, ..settings(&server.url) });
    for _ in 0..4 {
        assert!(matches!(*deliver(&courier, "a").await.unwrap_err(), Setback::Busy { .. }));
    }
    let Setback::LeftAlone { left, .. } = *deliver(&courier, "a").await.unwrap_err() else { panic!() };
    assert!(left <= Duration::from_millis(300));
    assert_eq!(server.got().len(), 4);
    // Nothing but time heals it.
    while let Err(setback) = deliver(&courier, "a").await {
        assert!(matches!(*setback, Setback::LeftAlone { .. }), "{setback}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn alerts_within_a_window_travel_together_and_a_bad_one_spoils_none() {
    let server = Server::start([Say(200, ""), Say(413, "")]).await;
    let courier = courier(settings(&server.url));
    let (a, b) = tokio::join!(deliver(&courier, "a"), deliver(&courier, "b"));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!((a.batch, &a.webhook_id), (2, &b.webhook_id));
    assert_eq!(server.got()[0].alerts().len(), 2);
    // The second batch is refused as a whole, and each of it taken alone.
    let (c, d) = tokio::join!(deliver(&courier, "c"), deliver(&courier, "d"));
    assert_eq!((c.unwrap().webhook_id, d.unwrap().webhook_id), ("c".to_owned(), "d".to_owned()));
    assert_eq!(server.got().iter().map(|got| got.alerts().len()).collect::<Vec<_>>(), [2, 2, 1, 1]);
}

#[tokio::test]
async fn private_addresses_are_not_asked_however_they_are_written() {
    let server = Server::start([]).await;
    let port = HookUrl::parse(&server.url).unwrap().url().port().unwrap();
    let open = settings(&server.url);
    let closed = courier(AlertSettings { allow_networks: Vec::new(), ..open });
    for host in ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "0"] {
        let url = format!("http://{host}:{port}/");
        let destination = closed.destination(None, Some(&url)).unwrap();
        let error = closed.deliver(destination, item("a")).await.unwrap_err();
        assert!(matches!(*error, Setback::Nowhere(_)), "{host}: {error}");
        assert!(error.to_string().contains("not a public address"), "{error}");
    }
    assert!(server.got().is_empty());
}

#[test]
fn only_the_settings_webhooks_are_signed() {
    let courier = Courier::new(AlertSettings::default());
    let error = courier.destination(Some("ops"), None).err().unwrap().to_string();
    assert_eq!(error, "no webhook \"ops\": alert.webhooks.ops.url is not set");
    let error = courier.destination(None, Some("ftp://a/")).err().unwrap().to_string();
    assert_eq!(error, "url: scheme \"ftp\"; http and https are allowed");
    let error = courier.destination(None, Some("http://user:pw@a/")).err().unwrap().to_string();
    assert_eq!(error, "url: a user or password in it; use headers");
}

#[tokio::test]
async fn any_url_is_delivered_to_unsigned() {
    let server = Server::start([]).await;
    let courier = courier(settings(&server.url));
    let other = server.url.replace("/hook", "/other");
    let destination = courier.destination(None, Some(&other)).unwrap();
    courier.deliver(destination, item("a")).await.unwrap();
    let same = courier.destination(None, Some(&server.url)).unwrap();
    courier.deliver(same, item("b")).await.unwrap();
    let signed: Vec<_> = server.got().iter().map(|got| !got.header("webhook-signature").is_empty()).collect();
    assert_eq!(signed, [false, true]);
}
