use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Request, header},
};
use secrecy::SecretString;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tower::ServiceExt;

use super::{
    routes::{Served, router},
    *,
};
use crate::{
    config::reloaded_secret,
    reloaded::Reloaded,
    shutdown::{Command, Mode},
    telemetry::Metrics,
};

mod strangers;
mod tls;

/// Records its calls, holds task `a/b` and group `g`, and is ready if `waits_for` is empty.
#[derive(Default)]
struct Worker {
    calls: Mutex<Vec<String>>,
    waits_for: Vec<String>,
    warnings: Vec<String>,
}

impl Worker {
    fn record(&self, what: String) {
        self.calls.lock().unwrap().push(what);
    }
}

impl Process for Worker {
    fn ready(&self) -> Result<(), Vec<String>> {
        if self.waits_for.is_empty() { Ok(()) } else { Err(self.waits_for.clone()) }
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    fn pool(&self) -> Value {
        json!({ "lanes": { "fast": { "queued": 3 } } })
    }

    fn tasks(&self) -> Option<&dyn Tasks> {
        Some(self)
    }
}

impl Tasks for Worker {
    fn stop(&self, id: &str) -> bool {
        self.record(format!("stop {id}"));
        id == "a/b"
    }

    fn group(&self, group: &str, command: GroupCommand) -> bool {
        self.record(format!("{command:?} {group}"));
        group == "g"
    }
}

/// Serves `process`; its commands go to `commands`.
fn served(process: Arc<dyn Process>, commands: mpsc::Sender<Command>) -> Arc<Served> {
    let awaited = "not started";
    let metrics = Metrics::new("test");
    Arc::new(Served { metrics, commands, mode: Mode::Soft, awaited, process: process.into() })
}

struct Answer {
    status: u16,
    content_type: String,
    body: String,
}

/// A token that never changes.
fn fixed(token: &str) -> Arc<Reloaded<SecretString>> {
    let token = token.to_owned();
    Arc::new(
        Reloaded::new("tokens", Vec::new(), move || Ok::<_, std::convert::Infallible>(token.clone().into()))
            .unwrap(),
    )
}

/// Sends one request. `process` records the commands that it caused.
async fn ask(process: &Arc<Worker>, token: Option<&str>, method: &str, uri: &str, sent: &str) -> Answer {
    let (commands, mut received) = mpsc::channel(1);
    let router = router(served(process.clone(), commands), token.map(fixed));
    let answer = answer_of(router, method, uri, sent).await;
    while let Ok(command) = received.try_recv() {
        process.record(format!("{command:?}"));
    }
    answer
}

async fn answer_of(router: Router, method: &str, uri: &str, sent: &str) -> Answer {
    let mut request = Request::builder().method(method).uri(uri);
    if !sent.is_empty() {
        request = request.header(header::AUTHORIZATION, sent);
    }
    let response = router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let content_type = response.headers().get(header::CONTENT_TYPE).unwrap().to_str().unwrap().to_owned();
    let status = response.status().as_u16();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    Answer { status, content_type, body: String::from_utf8(body.to_vec()).unwrap() }
}

async fn question(process: Worker, uri: &str) -> Answer {
    ask(&Arc::new(process), None, "GET", uri, "").await
}

fn detail(answer: &Answer) -> String {
    assert_eq!(answer.content_type, "application/problem+json");
    let problem: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(problem["status"], answer.status);
    assert_eq!(problem["type"], "about:blank");
    problem["detail"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn liveness_depends_on_nothing() {
    let process = Worker { waits_for: vec!["broker".into()], ..Worker::default() };
    let answer = question(process, "/livez").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "ok\n"));
}

#[tokio::test]
async fn readiness_lists_the_missing_conditions_and_warnings_that_do_not_change_it() {
    for (waits_for, warnings, status, body) in [
        ("", "", 200, r#"{"ready":true}"#),
        ("broker", "", 503, r#"{"ready":false,"reasons":["broker"]}"#),
        ("", "disk", 200, r#"{"ready":true,"warnings":["disk"]}"#),
        ("broker", "disk", 503, r#"{"ready":false,"reasons":["broker"],"warnings":["disk"]}"#),
    ] {
        let texts = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let process = Worker { waits_for: texts(waits_for), warnings: texts(warnings), ..Worker::default() };
        let answer = question(process, "/readyz").await;
        assert_eq!((answer.status, &*answer.body), (status, body));
    }
}

#[tokio::test]
async fn metrics_and_pool_need_no_token() {
    let answer = question(Worker::default(), "/metrics").await;
    assert_eq!(
        (answer.status, answer.content_type.as_str()),
        (200, "text/plain; version=0.0.4; charset=utf-8")
    );
    assert!(answer.body.contains("garenne_build_info{role=\"test\""), "{}", answer.body);
    let answer = question(Worker::default(), "/pool").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, r#"{"lanes":{"fast":{"queued":3}}}"#));
}

#[tokio::test]
async fn commands_need_the_token() {
    let process = Arc::new(Worker::default());
    let wrong = ["", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Basic secret", "secret"];
    for sent in wrong {
        let answer = ask(&process, Some("secret"), "POST", "/quiet", sent).await;
        assert_eq!(answer.status, 401, "{sent:?}");
        assert_eq!(detail(&answer), "the admin token is missing or wrong: send it as Authorization: Bearer");
    }
    assert!(process.calls.lock().unwrap().is_empty());
    for sent in ["Bearer secret", "bearer secret"] {
        assert_eq!(ask(&process, Some("secret"), "POST", "/quiet", sent).await.status, 202);
    }
    assert_eq!(*process.calls.lock().unwrap(), ["Quiet", "Quiet"]);
}

#[tokio::test]
async fn a_token_that_changes_in_its_file_replaces_the_old_one() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "first\n").unwrap();
    let token = Arc::new(reloaded_secret("admin_token_file", file.path().to_owned()).unwrap());
    let (commands, mut received) = mpsc::channel(8);
    let router = router(served(Arc::<Worker>::default(), commands), Some(token));
    let status = async |token: &str| {
        let request = Request::post("/quiet").header(header::AUTHORIZATION, format!("Bearer {token}"));
        router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().status().as_u16()
    };
    assert_eq!((status("first").await, status("the second").await), (202, 401));
    std::fs::write(file.path(), "the second\n").unwrap();
    assert_eq!((status("first").await, status("the second").await), (401, 202));
    // While the file is being replaced, the last token counts.
    std::fs::write(file.path(), "").unwrap();
    assert_eq!(status("the second").await, 202);
    assert_eq!(received.recv().await, Some(Command::Quiet));
}

#[tokio::test]
async fn without_a_configured_token_commands_explain_how_to_enable_them() {
    let process = Arc::new(Worker::default());
    for uri in ["/shutdown?mode=hard", "/quiet", "/resume", "/tasks/a/stop", "/groups/g/pause"] {
        let answer = ask(&process, None, "POST", uri, "Bearer ").await;
        assert_eq!(answer.status, 403, "{uri}");
        assert_eq!(
            detail(&answer),
            "commands are off: set --admin-token-file or GARENNE_ADMIN_TOKEN_FILE to a file \
             with a token, and send it as Authorization: Bearer"
        );
    }
    assert!(process.calls.lock().unwrap().is_empty());
}

#[tokio::test]
async fn commands_reach_the_process() {
    let process = Arc::new(Worker::default());
    for (uri, body) in [
        ("/shutdown?mode=light", r#"{"shutdown":"light"}"#),
        ("/shutdown", r#"{"shutdown":"soft"}"#),
        ("/quiet", r#"{"quiet":true}"#),
        ("/resume", r#"{"quiet":false}"#),
        ("/tasks/a%2Fb/stop", r#"{"stopping":true,"task":"a/b"}"#),
        ("/groups/g/pause", r#"{"command":"pause","group":"g"}"#),
        ("/groups/g/stop", r#"{"command":"stop","group":"g"}"#),
        ("/groups/g/resume", r#"{"command":"resume","group":"g"}"#),
    ] {
        let answer = ask(&process, Some("t"), "POST", uri, "Bearer t").await;
        assert_eq!((answer.status, answer.body.as_str()), (202, body), "{uri}");
    }
    let calls =
        ["Shutdown(Light)", "Shutdown(Soft)", "Quiet", "Resume", "stop a/b", "Pause g", "Stop g", "Resume g"];
    assert_eq!(*process.calls.lock().unwrap(), calls);
}

#[tokio::test]
async fn a_failed_request_explains_why() {
    let process = Arc::new(Worker::default());
    for (method, uri, status, expected) in [
        (
            "POST",
            "/shutdown?mode=softly",
            400,
            "shutdown mode \"softly\" is unknown, expected light, soft, soft-timeout or hard",
        ),
        ("POST", "/tasks/x/stop", 404, "task \"x\" is not held by this process"),
        ("POST", "/groups/x/stop", 404, "group \"x\" has no tasks in this process"),
        ("POST", "/groups/g/jump", 404, "group command \"jump\" is unknown, expected pause, resume or stop"),
        ("GET", "/shutdown", 405, "GET is not allowed for /shutdown; queries are GET, commands are POST"),
        ("POST", "/metrics", 405, "POST is not allowed for /metrics; queries are GET, commands are POST"),
        (
            "GET",
            "/",
            404,
            "no resource at /; GET /livez, /readyz, /metrics or /pool, \
             POST /shutdown, /quiet, /resume, /tasks/{id}/stop or /groups/{group}/{pause|resume|stop}",
        ),
    ] {
        let answer = ask(&process, Some("t"), method, uri, "Bearer t").await;
        assert_eq!((answer.status, detail(&answer).as_str()), (status, expected), "{method} {uri}");
    }
}

/// A process without tasks, such as the gateway.
struct NoTasks;

impl Process for NoTasks {
    fn ready(&self) -> Result<(), Vec<String>> {
        Ok(())
    }
}

#[tokio::test]
async fn a_process_without_tasks_holds_none() {
    let (commands, _received) = mpsc::channel(1);
    let router = router(served(Arc::new(NoTasks), commands), Some(fixed("t")));
    let pool = answer_of(router.clone(), "GET", "/pool", "").await;
    assert_eq!((pool.status, pool.body.as_str()), (200, r#"{"lanes":{}}"#));
    for (uri, expected) in [
        ("/tasks/x/stop", "task \"x\" is not held by this process"),
        ("/groups/x/stop", "group \"x\" has no tasks in this process"),
    ] {
        let answer = answer_of(router.clone(), "POST", uri, "Bearer t").await;
        assert_eq!((answer.status, detail(&answer).as_str()), (404, expected), "{uri}");
    }
}

async fn free_port() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// An open port whose process has not begun, and the commands that it receives.
async fn opened(
    tls: Option<ServerTls>,
    header_timeout: Duration,
) -> (SocketAddr, AdminPort, mpsc::Receiver<Command>) {
    opened_with(Metrics::new("test"), tls, header_timeout).await
}

/// As [`opened`], with these metrics.
async fn opened_with(
    metrics: Metrics,
    tls: Option<ServerTls>,
    header_timeout: Duration,
) -> (SocketAddr, AdminPort, mpsc::Receiver<Command>) {
    let (listener, addr) = free_port().await;
    let config = AdminConfig {
        listener,
        token: Some(fixed("t")),
        tls,
        allowed_hosts: "admin.example.org".parse().unwrap(),
        header_timeout,
    };
    let (commands, received) = mpsc::channel(1);
    let port = AdminPort::open(config, metrics, Mode::Hard, commands, "not started");
    (addr, port, received)
}

#[tokio::test]
async fn the_port_serves_until_it_is_closed() {
    let (addr, port, _received) = opened(None, Duration::from_secs(10)).await;
    let mut idle = TcpStream::connect(addr).await.unwrap();
    let answer = answered(addr, "GET /livez HTTP/1.1\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("ok\n"), "{answer}");
    port.close().await;
    // An idle client does not delay the shutdown, and its connection is closed.
    assert_eq!(idle.read(&mut [0; 64]).await.unwrap_or(0), 0);
    refused(addr).await;
}

/// Waits until connections to `addr` are refused. A child process that another test starts at the same moment
/// holds a copy of the listening socket until it executes its program.
async fn refused(addr: SocketAddr) {
    let refused = async { while TcpStream::connect(addr).await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(10), refused).await.expect("the port is still open");
}

/// The whole response to a request of this host with these lines.
async fn answered(addr: SocketAddr, lines: &str) -> String {
    exchanged(addr, format!("{lines}host: localhost\r\n")).await
}

/// The whole response to a request with these lines.
async fn exchanged(addr: SocketAddr, lines: String) -> String {
    let mut client = TcpStream::connect(addr).await.unwrap();
    client.write_all(format!("{lines}connection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_process_can_be_observed_and_stopped_before_it_has_started() {
    let (addr, port, mut received) = opened(None, Duration::from_secs(10)).await;
    let ready = "GET /readyz HTTP/1.1\r\n";
    let answer = answered(addr, ready).await;
    assert!(answer.ends_with(r#"{"ready":false,"reasons":["not started"]}"#), "{answer}");
    let stop = "POST /shutdown HTTP/1.1\r\nauthorization: Bearer t\r\n";
    let answer = answered(addr, stop).await;
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    assert_eq!(received.recv().await, Some(Command::Shutdown(Mode::Hard)));

    port.begin(Arc::new(Worker::default()));
    assert!(answered(addr, ready).await.ends_with(r#"{"ready":true}"#));
    answered(addr, stop).await;
    assert_eq!(received.recv().await, Some(Command::Shutdown(Mode::Hard)));

    port.close().await;
    refused(addr).await;
}

#[tokio::test]
async fn a_page_of_another_site_can_neither_read_nor_command() {
    let (addr, _port, mut received) = opened(None, Duration::from_secs(10)).await;
    let ask = |lines: &str| exchanged(addr, lines.to_owned());
    // Its name resolves to this host now.
    let answer = ask("GET /metrics HTTP/1.1\r\nhost: evil.example:9464\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 421 ") && answer.contains("GARENNE_ALLOWED_HOSTS"), "{answer}");
    assert!(ask("GET /metrics HTTP/1.1\r\nhost: admin.example.org\r\n").await.starts_with("HTTP/1.1 200 "));
    // It knows the token, but cannot make the browser hide where it is from.
    let post = "POST /quiet HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer t\r\n";
    assert!(ask(&format!("{post}origin: http://evil.example\r\n")).await.starts_with("HTTP/1.1 403 "));
    assert!(received.try_recv().is_err());
    assert!(ask(post).await.starts_with("HTTP/1.1 202 "));
    assert_eq!(received.recv().await, Some(Command::Quiet));
}

#[tokio::test]
async fn a_request_head_that_never_ends_times_out() {
    let (addr, _port, _received) = opened(None, Duration::from_millis(20)).await;
    let mut client = TcpStream::connect(addr).await.unwrap();
    client.write_all(b"GET /livez HTTP/1.1\r\nhost: ").await.unwrap();
    let mut answer = Vec::new();
    // Ends when the server closes the connection, with an error or without.
    let _ = client.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"));
}
