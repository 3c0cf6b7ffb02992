//! Handlers that are HTTP services.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use garenne_common::webhook::SigningSecret;
use garenne_tests::harness::{
    client::{headers, text, with_id},
    handler::{KIND, output_of, publish, worker_with},
    port,
    test_env::TestEnv,
    tools::Tools,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A service that answers as a task asks for. It ends when the value is dropped.
struct Service {
    address: SocketAddr,
    state: ServiceState,
    serving: JoinHandle<()>,
}

#[derive(Clone, Default)]
struct ServiceState {
    requests: Arc<Mutex<Vec<Request>>>,
    is_ill: Arc<AtomicBool>,
}

#[derive(Clone)]
struct Request {
    at: Instant,
    headers: HeaderMap,
    status: StatusCode,
}

impl Request {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

impl Service {
    async fn start(listener: TcpListener) -> Result<Self> {
        let (address, state) = (listener.local_addr()?, ServiceState::default());
        let routes = Router::new().route("/tasks", post(run)).route("/healthz", get(health));
        let routes = routes.with_state(state.clone());
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, routes).await;
        });
        Ok(Self { address, state, serving })
    }

    fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn settings(&self, more: &str) -> String {
        format!("url = \"http://{0}/tasks\"\nhealth = \"http://{0}/healthz\"\n{more}", self.address)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn health(State(state): State<ServiceState>) -> StatusCode {
    if state.is_ill.load(Ordering::Relaxed) { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
}

/// Answers with the status that the payload has for this attempt, and then with 200. An ill service answers 404.
async fn run(State(state): State<ServiceState>, headers: HeaderMap, Json(payload): Json<Value>) -> Response {
    let attempt = headers.get("garenne-attempt").and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let status = payload["answers"].get(attempt.unwrap_or(1) - 1).and_then(Value::as_u64);
    let status = match state.is_ill.load(Ordering::Relaxed) {
        true => StatusCode::NOT_FOUND,
        false => StatusCode::from_u16(status.unwrap_or(200).try_into().unwrap_or(200)).unwrap_or_default(),
    };
    let request = Request { at: Instant::now(), headers, status };
    state.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    let body = payload["says"].as_str().map_or_else(|| payload.to_string(), str::to_owned);
    (status, [(RETRY_AFTER, "1")], body).into_response()
}

#[tokio::test]
async fn the_status_of_a_response_says_what_becomes_of_the_task() -> Result<()> {
    let env = TestEnv::new().await?;
    let service = Service::start(TcpListener::bind("127.0.0.1:0").await?).await?;
    let settings = service
        .settings(&format!("secret = \"{SECRET}\"\nheaders = {{ x-tenant = \"acme\" }}\nmax_attempts = 2"));
    let worker = worker_with(&env, "http", &settings)?.env("GARENNE_RETRY__DELAYS", "1s").start().await?;
    let body = json!({"n": 1});
    assert_eq!(output_of(&env, &worker, "json", body.clone()).await?, body);
    assert_eq!(output_of(&env, &worker, "text", json!({"says": "three files"})).await?, "three files");
    assert_eq!(output_of(&env, &worker, "empty", json!({"says": ""})).await?, Value::Null);
    let request = service.requests().remove(0);
    assert_eq!((request.header("garenne-task-id"), request.header("garenne-kind")), ("json", "odd.task"));
    assert_eq!((request.header("garenne-lane"), request.header("x-tenant")), ("default", "acme"));
    let (id, time) = (request.header("webhook-id"), request.header("webhook-timestamp").parse()?);
    let secret: SigningSecret = SECRET.parse().map_err(anyhow::Error::msg)?;
    assert_eq!(request.header("webhook-signature"), secret.sign(id, time, body.to_string().as_bytes()));

    // Transient: another attempt, not before `Retry-After`.
    publish(&env, "busy", json!({"answers": [503]})).await?;
    assert_eq!(worker.until_done_with("busy").await?.attempt, 2);
    for (answers, reason, error) in [
        (json!([422]), "rejected", "422 Unprocessable Entity: no"),
        (json!([410]), "rejected", "410 Gone: no"),
        (json!([500, 500]), "attempts-exhausted", "500 Internal Server Error: no (attempt 2 of 2)"),
        // The service is healthy, so that is an error of the task.
        (json!([404, 404]), "attempts-exhausted", "404 Not Found: no (attempt 2 of 2)"),
    ] {
        publish(&env, "failing", json!({"answers": answers, "says": "no"})).await?;
        let dead = env.take_all("garenne.dead", 1).await?.remove(0);
        assert_eq!(dead.text("garenne-reason"), reason, "{dead:?}");
        assert_eq!(dead.text("garenne-error"), error);
    }
    let with_key = async |key: &str| {
        let properties = with_id("keyed").with_headers(headers([("garenne-key", text(key))]));
        env.client().publish("garenne.tasks", KIND, properties, b"{}").await
    };
    with_key("gr\u{fc}n").await?;
    worker.until_done_with("keyed").await?;
    let keyed = service.requests().pop().context("the request of the task with a key")?;
    assert_eq!(keyed.headers["garenne-key"].as_bytes(), "gr\u{fc}n".as_bytes());
    with_key("a\nb").await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!(dead.text("garenne-reason"), "rejected");
    let error = "the task's key cannot be the header garenne-key: it has a control character";
    assert_eq!(dead.text("garenne-error"), error);
    worker.stop().await?;
    Ok(())
}

/// A service is not there yet, and is replaced later, when it answers 404 for a while.
#[tokio::test]
async fn a_service_that_is_not_ready_costs_no_attempt() -> Result<()> {
    let env = TestEnv::new().await?;
    // Of the harness's range: no other socket takes it before the service starts.
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port::free_port()?));
    let settings =
        format!("url = \"http://{address}/tasks\"\nhealth = \"http://{address}/healthz\"\nmax_attempts = 1");
    let mut worker = worker_with(&env, "rollout", &settings)?.begin().await?;
    worker.until_not_ready_for("no handler of odd.task is ready").await?;
    publish(&env, "early", json!({})).await?;
    env.until_lane("default", 1, 0).await?;
    let mut tools = Tools::start(&env, &[]).await?;
    tools.until_seen("handler-not-ready", "kind odd.task", 1).await?;
    let service = Service::start(TcpListener::bind(address).await?).await?;
    worker.until_ready().await?;
    assert_eq!(worker.until_done_with("early").await?.attempt, 1);

    service.state.is_ill.store(true, Ordering::Relaxed);
    publish(&env, "meanwhile", json!({})).await?;
    worker.until_not_ready_for("no handler of odd.task is ready").await?;
    service.state.is_ill.store(false, Ordering::Relaxed);
    worker.until_ready().await?;
    assert_eq!(worker.until_done_with("meanwhile").await?.attempt, 1);
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (2, 0), "{receipt:?}");
    Ok(())
}

/// The kind pauses, and not only the task that was refused.
#[tokio::test]
async fn too_many_requests_pause_the_kind() -> Result<()> {
    let env = TestEnv::new().await?;
    let service = Service::start(TcpListener::bind("127.0.0.1:0").await?).await?;
    let plan = worker_with(&env, "limited", &service.settings(""))?.env("GARENNE_RETRY__DELAYS", "1s");
    let worker = plan.option("--lane", "default:prefetch=2,concurrency=1..1").start().await?;
    publish(&env, "refused", json!({"answers": [429]})).await?;
    for index in 0..5 {
        publish(&env, &format!("other-{index}"), json!({})).await?;
    }
    worker.until_done(6).await?;
    let requests = service.requests();
    let refused = requests.iter().position(|request| request.status == StatusCode::TOO_MANY_REQUESTS);
    let refused = refused.context("the refused request")?;
    let next = requests.get(refused + 1).context("a request after the pause")?;
    let pause = next.at - requests[refused].at;
    assert!(pause >= Duration::from_millis(900), "{pause:?}");
    worker.stop().await?;
    Ok(())
}
