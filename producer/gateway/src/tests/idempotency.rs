//! Idempotency keys and ids of records: they belong to their sender, and a key to one body.

use garenne_protocol::task::TaskId;

use super::{
    security::{entry, with_senders},
    *,
};

const UNTIMED: &str = r#"{"device":"d1","metric":"m","value":1}"#;

struct Answer {
    status: u16,
    body: Value,
}

impl Answer {
    fn ids(&self) -> &Value {
        assert_eq!(self.status, 202, "{}", self.body);
        &self.body["ids"]
    }

    fn code(&self) -> (u16, &str) {
        (self.status, self.body["code"].as_str().unwrap_or_default())
    }
}

async fn post(gateway: &Running, token: Option<&str>, path: &str, key: &str, body: &str) -> Answer {
    let url = format!("http://{}{path}", gateway.address);
    let mut request = reqwest::Client::new().post(url).header("idempotency-key", key).body(body.to_owned());
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let response = request.send().await.unwrap();
    Answer { status: response.status().as_u16(), body: response.json().await.unwrap() }
}

const TASKS: &str = "devices = [\"*\"]\nkinds = [\"*\"]";

async fn two_senders() -> (Running, tempfile::TempDir) {
    with_senders(&(entry("roof", "a", TASKS) + &entry("cellar", "b", TASKS))).await
}

#[tokio::test]
async fn the_same_key_of_two_senders_gives_different_ids() {
    let (gateway, _folder) = two_senders().await;
    for (path, body) in [("/v1/readings", UNTIMED), ("/v1/tasks/bench.noop", "{}")] {
        let key = format!("key of {path}");
        let first = post(&gateway, Some("a"), path, &key, body).await;
        let again = post(&gateway, Some("a"), path, &key, body).await;
        let other = post(&gateway, Some("b"), path, &key, body).await;
        assert_eq!(first.ids(), again.ids(), "{path}");
        assert_ne!(first.ids(), other.ids(), "{path}");
        assert_ne!(first.ids()[0], key, "a sender cannot choose the id of another one's task");
    }
    let record = r#"{"device":"d1","metric":"m","value":1,"id":"r-1"}"#;
    let first = post(&gateway, Some("a"), "/v1/readings", "x", record).await;
    let other = post(&gateway, Some("b"), "/v1/readings", "x", record).await;
    assert!(first.ids() != other.ids() && first.ids()[0] != "r-1");
}

#[tokio::test]
async fn a_key_with_another_body_is_refused_and_publishes_nothing() {
    let (gateway, _folder) = two_senders().await;
    let other_body = UNTIMED.replace('1', "2");
    post(&gateway, Some("a"), "/v1/readings", "k", UNTIMED).await.ids();
    assert_eq!(post(&gateway, Some("a"), "/v1/readings", "k", &other_body).await.code(), (422, "key-reused"));
    // Another sender may use the key.
    post(&gateway, Some("b"), "/v1/readings", "k", &other_body).await.ids();
    post(&gateway, Some("a"), "/v1/tasks/bench.noop", "t", "{}").await.ids();
    assert_eq!(
        post(&gateway, Some("a"), "/v1/tasks/bench.noop", "t", "{\"a\":1}").await.code(),
        (422, "key-reused")
    );
    assert_eq!(
        post(&gateway, Some("a"), "/v1/tasks/bench.fail", "t", "{}").await.code(),
        (422, "key-reused")
    );
    assert_eq!(gateway.publisher.tasks().len(), 3);
}

#[tokio::test]
async fn a_refused_body_can_be_corrected_under_its_key_and_an_unconfirmed_one_cannot() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    assert_eq!(post(&gateway, None, "/v1/readings", "k", "{}").await.status, 422);
    gateway.publisher.fail(Some(PublishError::Blocked));
    assert_eq!(post(&gateway, None, "/v1/readings", "k", UNTIMED).await.status, 503);
    gateway.publisher.fail(None);
    // The broker may have stored it: only the same body is a repetition.
    let other = UNTIMED.replace('1', "2");
    assert_eq!(post(&gateway, None, "/v1/readings", "k", &other).await.code(), (422, "key-reused"));
    post(&gateway, None, "/v1/readings", "k", UNTIMED).await.ids();
    assert_eq!(gateway.publisher.tasks().len(), 1);
}

/// The bodies of the tasks of a request.
async fn bodies_of(gateway: &Running, path: &str, key: &str, body: &str) -> Vec<Value> {
    let before = gateway.publisher.tasks().len();
    let request =
        reqwest::Client::new().post(format!("http://{}{path}", gateway.address)).body(body.to_owned());
    let request = if key.is_empty() { request } else { request.header("idempotency-key", key) };
    assert!(request.send().await.unwrap().status().is_success(), "{path} {body}");
    gateway.bodies().split_off(before)
}

/// Otherwise a sink, which tells readings apart by device, metric and time, would store each repetition.
#[tokio::test]
async fn a_repeated_reading_without_a_time_has_the_time_of_the_first_one() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let own_id = r#"{"device":"d","metric":"m","value":1,"id":"r-1"}"#;
    let other_value = own_id.replace(":1", ":2");
    for (path, key, body) in [
        ("/v1/readings", "k1", UNTIMED),
        ("/v1/readings", "k2", r#"[{"n":"d:m","v":1,"t":-60},{"n":"d:m","v":2,"t":-30}]"#),
        ("/write", "k3", "m a=1,b=2\nm c=3"),
        ("/v1/readings", "", own_id),
    ] {
        let first = bodies_of(&gateway, path, key, body).await;
        assert_eq!(first, bodies_of(&gateway, path, key, body).await, "{path} {body}");
    }
    let mut connection = gateway.lines().await;
    connection.write_all(format!("{own_id}\n").as_bytes()).await.unwrap();
    assert_eq!(line(&mut connection).await, "ok r-1");
    let bodies = gateway.bodies();
    let [.., before, repeated] = &bodies[..] else { panic!("{bodies:?}") };
    assert_eq!(before, repeated);
    // Others are readings of their own.
    let mut times = Vec::new();
    for (key, body) in [("k4", UNTIMED), ("k5", UNTIMED), ("", UNTIMED), ("", &other_value), ("", own_id)] {
        let bodies = bodies_of(&gateway, "/v1/readings", key, body).await;
        times.push(bodies[0]["time"].as_str().unwrap().to_owned());
    }
    assert!(times.is_sorted_by(|one, other| one < other), "{times:?}");
}

/// A worker gives readings without a time the one of their task's version.
#[tokio::test]
async fn a_repeated_task_or_event_has_the_version_of_the_first_one() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let event = |id: &str| {
        json!({"specversion": "1.0", "id": id, "source": "/roof", "type": "reading.process",
            "data": {"device": "d", "metric": "m", "value": 1}})
    };
    let events = json!([event("e-1"), event("e-2")]).to_string();
    let one = event("e-1").to_string();
    let post = async |path: &str, content_type: &str, key: &str, body: &str| {
        let before = gateway.publisher.tasks().len();
        let request = reqwest::Client::new().post(format!("http://{}{path}", gateway.address));
        let request = request.header("content-type", content_type).body(body.to_owned());
        let request = if key.is_empty() { request } else { request.header("idempotency-key", key) };
        assert_eq!(request.send().await.unwrap().status(), 202, "{path} {body}");
        let tasks = gateway.publisher.tasks().split_off(before);
        tasks.into_iter().map(|task| task.version).collect::<Vec<_>>()
    };
    const BATCH: &str = "application/cloudevents-batch+json";
    let first = post("/v1/events", BATCH, "", &events).await;
    assert!(first.is_sorted_by(|one, next| one < next), "{first:?}");
    assert_eq!(post("/v1/events", BATCH, "", &events).await, first);
    assert_eq!(post("/v1/events", "application/cloudevents+json", "", &one).await, first[..1]);
    let task = post("/v1/tasks/reading.process", "application/json", "k1", UNTIMED).await;
    assert_eq!(post("/v1/tasks/reading.process", "application/json", "k1", UNTIMED).await, task);
    assert!(post("/v1/tasks/reading.process", "application/json", "k2", UNTIMED).await > task);
}

/// The key of lines is one of their body and their precision, and ids follow positions in the body.
#[tokio::test]
async fn lines_and_metrics_have_the_ids_of_their_key() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    let client = reqwest::Client::new();
    let posted = async |path: &str, key: &str, body: &str| {
        let request = client.post(format!("http://{}{path}", gateway.address)).header("idempotency-key", key);
        let request = request.header("content-type", "application/json").body(body.to_owned());
        request.send().await.unwrap().status().as_u16()
    };
    let published = || gateway.publisher.tasks().into_iter().map(|task| task.id).collect::<Vec<_>>();
    for path in ["/write", "/api/v2/write"] {
        let before = published().len();
        assert_eq!(posted(path, path, "m a=1,b=2\nm c=3").await, 204);
        assert_eq!(posted(path, path, "m a=1,b=2\nm c=3").await, 204);
        let ids = published().split_off(before);
        assert_eq!((ids.len(), &ids[..3]), (6, &ids[3..]), "readings without a time, sent again");
        assert_eq!(posted(path, path, "m a=1,b=2\nm c=4").await, 400);
        assert_eq!(posted(&format!("{path}?precision=s"), path, "m a=1,b=2\nm c=3").await, 400);
        assert_eq!(published().len(), before + 6);
    }
    // A line that is refused changes no id of another, and the key is used up.
    let before = published().len();
    assert_eq!(posted("/write", "k", "m a=1,b=nan 4070908800000000000\nm c=3").await, 400);
    assert_eq!(posted("/write", "k", "m c=3").await, 400);
    let first = TaskId::parse("k").unwrap();
    assert_eq!(published().split_off(before), [TaskId::derived(&first, "2")]);
    // Of a request of which nothing is stored it is not.
    assert_eq!(posted("/write", "k2", "m a=nan").await, 400);
    assert_eq!(posted("/write", "k2", "m a=1").await, 204);
    let metrics = |value: f64| {
        let point = json!({"timeUnixNano": "1763600000000000000", "asDouble": value, "attributes": [
            {"key": "device.id", "value": {"stringValue": "d"}}]});
        json!({"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "t", "gauge": {"dataPoints": [point]}}]}]}]})
            .to_string()
    };
    assert_eq!(posted("/v1/metrics", "k3", &metrics(1.0)).await, 200);
    assert_eq!(posted("/v1/metrics", "k3", &metrics(2.0)).await, 400);
    let key = TaskId::parse("k3").unwrap();
    assert_eq!(published().last(), Some(&TaskId::derived(&key, "0")));
}

#[tokio::test]
async fn without_authentication_a_tasks_id_is_its_key() {
    let gateway = start(MemorySender::new(), Limits::default()).await;
    assert_eq!(post(&gateway, None, "/v1/tasks/bench.noop", "key-1", "{}").await.ids()[0], "key-1");
}
