use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use garenne_common::config::{Lane, Lanes, Size, Sources, load_with};

use super::*;
use crate::handler::RetryPolicy;
use crate::{TaskContext, TaskError};

#[derive(serde::Deserialize)]
struct Any {}
crate::json_payload!(Any, "any.thing");

async fn any(_: TaskContext, _: Any) -> Result<(), TaskError> {
    Ok(())
}

fn refusal(config: WorkerConfig, options: TaskOptions) -> Option<String> {
    Worker::builder(config).handle_with(any, options).build().err().map(|error| error.to_string())
}

fn with_lanes<const N: usize>(lanes: [(&str, Lane); N]) -> WorkerConfig {
    let lanes: Lanes = lanes.into_iter().map(|(name, lane)| (name.to_owned(), lane)).collect();
    WorkerConfig { lanes, ..WorkerConfig::default() }
}

/// The refusal of the same settings in a file, without its origin.
fn refusal_of_file(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("worker.toml");
    std::fs::write(&path, text).unwrap();
    let sources = Sources { file: Some(path.clone()), ..Sources::default() };
    let refused = load_with::<WorkerConfig>(sources, []).unwrap_err().to_string();
    let origins = [format!(" (file {})", path.display()), " (the default)".to_owned()];
    origins.iter().fold(refused, |text, origin| text.replace(origin.as_str(), ""))
}

#[test]
fn settings_made_in_code_are_refused_as_those_of_a_file() {
    let default = WorkerConfig::default;
    let bound = || Lane::bound_to(["a.#"]);
    let cases = [
        (WorkerConfig { max_payload: Size::mib(0), ..default() }, "max_payload = \"0B\""),
        (WorkerConfig { max_attempts: 0, ..default() }, "max_attempts = 0"),
        (WorkerConfig { worker_id: Some("my worker".into()), ..default() }, "worker_id = \"my worker\""),
        (
            with_lanes([("a", bound()), ("b", bound())]),
            "lanes.a.bindings = [\"a.#\"]\nlanes.b.bindings = [\"a.#\"]",
        ),
        (with_lanes([("my lane", bound())]), "lanes.\"my lane\".bindings = [\"a.#\"]"),
        (
            with_lanes([("a", Lane { prefetch: 0, ..bound() })]),
            "lanes.a.bindings = [\"a.#\"]\nlanes.a.prefetch = 0",
        ),
        (
            with_lanes([("a", Lane { default_kind: Some("my kind".into()), ..bound() })]),
            "lanes.a.bindings = [\"a.#\"]\nlanes.a.default_kind = \"my kind\"",
        ),
        (
            with_lanes([("a", Lane::bound_to(["a".repeat(256)]))]),
            &format!("lanes.a.bindings = [\"{}\"]", "a".repeat(256)),
        ),
    ];
    for (config, file) in cases {
        let refused = refusal(config, TaskOptions::short()).unwrap_or_else(|| panic!("{file} is accepted"));
        assert_eq!(refused, refusal_of_file(file), "{file}");
    }
    let unbound = with_lanes([("a", bound()), ("b", Lane::default())]);
    assert_eq!(
        refusal(unbound, TaskOptions::short()).unwrap(),
        "setting lanes.b = a lane without bindings is refused: expected lanes.b.bindings, a list of routing keys ([] \
         where it is only published to directly), or one of the lanes a"
    );
    let mut prefix = default();
    prefix.common.prefix = "my fleet".into();
    assert_eq!(refusal(prefix, TaskOptions::short()).unwrap(), refusal_of_file("prefix = \"my fleet\""));
}

/// Nothing listens on port 1. The handle stops a worker that still tries to connect.
#[tokio::test]
async fn a_handle_stops_a_worker_and_no_port_is_open_unless_a_setting_asks_for_it() {
    let mut config = WorkerConfig::default();
    config.common.amqp_url = "amqp://127.0.0.1:1".parse().unwrap();
    let build = |config: &WorkerConfig| Worker::builder(config.clone()).handle(any).build().unwrap();
    let worker = build(&config);
    assert!(!worker.has_admin_port());
    let handle = worker.handle();
    assert_eq!(handle.ready().unwrap_err().len(), 1);
    assert!(handle.metrics().contains("garenne_"), "{}", handle.metrics());
    handle.quiet().await;
    handle.drain(Mode::Light).await;
    let receipt = worker.run_until(std::future::pending()).await.unwrap();
    assert_eq!((receipt.mode, receipt.delivered), (Mode::Light, 0));
    assert_eq!(handle.until_ready().await, Err(EndedEarly));
    // The worker has stopped, and nobody reads commands.
    handle.resume().await;
    config.common.admin = Some("127.0.0.1:0".parse().unwrap());
    match Worker::builder(config).handle(any).build() {
        Ok(worker) => assert!(worker.has_admin_port()),
        Err(error) => assert!(error.to_string().contains("without the feature `admin`"), "{error}"),
    }
}

#[test]
fn a_lane_of_tasks_that_are_only_published_directly_says_so() {
    let direct = Lane { direct: true, ..Lane::default() };
    assert_eq!(refusal(with_lanes([("a", direct)]), TaskOptions::short()), None);
    assert_eq!(refusal(WorkerConfig::default(), TaskOptions::short()), None);
}

#[test]
fn a_worker_that_no_lane_gives_tasks_is_refused() {
    assert_eq!(
        refusal(with_lanes([("sms", Lane::bound_to(["sms.#"]))]), TaskOptions::short()).unwrap(),
        "no lane takes a kind of this worker (any.thing): add a lane whose bindings match one, such as \"any.#\", or a \
         catch-all lane"
    );
}

#[tokio::test]
async fn data_may_be_given_in_an_arc() {
    async fn count(counts: crate::Data<AtomicU32>, _: Any) -> Result<(), TaskError> {
        counts.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    let counts = Arc::new(AtomicU32::new(0));
    let builder = Worker::builder(WorkerConfig::default()).data(Arc::clone(&counts)).handle(count);
    crate::testing::TestWorker::new(builder).unwrap().run("any.thing", "{}").await;
    assert_eq!(counts.load(Ordering::Relaxed), 1);
}

#[test]
fn options_with_which_no_task_could_succeed_are_refused() {
    let refused = |options| refusal(WorkerConfig::default(), options).unwrap();
    assert_eq!(
        refused(TaskOptions::long().deadline(Duration::ZERO)),
        "the deadline of kind \"any.thing\" is 0, expected 1ms or more"
    );
    let never = RetryPolicy::default().attempts(0);
    assert_eq!(
        refused(TaskOptions::short().retry(never)),
        "the number of attempts of kind \"any.thing\" is 0, expected 1 or more"
    );
}
