use super::*;

impl LifecycleLog {
    /// The number of entries.
    pub(in crate::fleet) fn len(&self) -> usize {
        self.workers.len() + self.runs.len()
    }
}

fn record(worker: &str, incarnation: &str, at: i64, event: LifecycleEvent) -> LifecycleRecord {
    LifecycleRecord { worker: worker.into(), incarnation: incarnation.into(), at, event }
}

fn hello_at(worker: &str, incarnation: &str, at: i64) -> LifecycleRecord {
    record(
        worker,
        incarnation,
        at,
        LifecycleEvent::Hello(Handlers { kinds: vec!["k".into()], catch_all: false, lanes: None }),
    )
}

fn hello(worker: &str, incarnation: &str) -> LifecycleRecord {
    hello_at(worker, incarnation, 1000)
}

fn goodbye(worker: &str, incarnation: &str) -> LifecycleRecord {
    record(worker, incarnation, 2000, LifecycleEvent::Goodbye)
}

fn died_at(worker: &str, incarnation: &str, at: i64) -> LifecycleRecord {
    record(worker, incarnation, at, LifecycleEvent::Died)
}

fn started(worker: &str, incarnation: &str, task: &str) -> LifecycleRecord {
    record(worker, incarnation, 1000, LifecycleEvent::RunStarted { task: task.into() })
}

fn ended(worker: &str, incarnation: &str, task: &str) -> LifecycleRecord {
    record(worker, incarnation, 1000, LifecycleEvent::RunEnded { task: task.into() })
}

fn lifecycle(records: impl IntoIterator<Item = LifecycleRecord>) -> LifecycleLog {
    let mut lifecycle = LifecycleLog::default();
    records.into_iter().for_each(|event| lifecycle.apply(event, Instant::now()));
    lifecycle
}

fn incarnation(worker: &str, incarnation: &str) -> WorkerIncarnation {
    WorkerIncarnation::new(worker, incarnation)
}

#[test]
fn events_have_a_stable_json_form() {
    let records = [
        (
            hello("w", "i"),
            r#"{"event":"hello","worker":"w","incarnation":"i","at":1000,"kinds":["k"],"catch_all":false}"#,
        ),
        (goodbye("w", "i"), r#"{"event":"goodbye","worker":"w","incarnation":"i","at":2000}"#),
        (died_at("w", "i", 3), r#"{"event":"died","worker":"w","incarnation":"i","at":3}"#),
        (
            started("w", "i", "t"),
            r#"{"event":"run-started","worker":"w","incarnation":"i","at":1000,"task":"t"}"#,
        ),
        (
            ended("w", "i", "t"),
            r#"{"event":"run-ended","worker":"w","incarnation":"i","at":1000,"task":"t"}"#,
        ),
    ];
    for (event, json) in records {
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_value(&event).unwrap(), value);
        assert_eq!(serde_json::from_str::<LifecycleRecord>(json).unwrap(), event);
    }
    let without_kinds = r#"{"event":"hello","worker":"w","incarnation":"i","at":1}"#;
    let read: LifecycleRecord = serde_json::from_str(without_kinds).unwrap();
    assert_eq!(
        read.event,
        LifecycleEvent::Hello(Handlers { kinds: Vec::new(), catch_all: false, lanes: None })
    );
}

#[test]
fn clean_restarts_are_no_crashes() {
    let restarts = (0..25).flat_map(|i| [hello("w", &i.to_string()), goodbye("w", &i.to_string())]);
    let lifecycle = lifecycle(restarts);
    assert_eq!((lifecycle.recent_crashes(3000), lifecycle.running().len()), (0, 0));
    assert_eq!(lifecycle.state_of(&incarnation("w", "7")), Some(LoggedState::Stopped));
}

#[test]
fn a_new_incarnation_shows_that_the_previous_one_crashed() {
    let lifecycle = lifecycle([hello("w", "a"), hello("other", "x"), hello_at("w", "b", 5000)]);
    assert_eq!(lifecycle.recent_crashes(6000), 1);
    let mut running = lifecycle.running();
    running.sort_by(|a, b| a.worker().cmp(b.worker()));
    assert_eq!(running, [incarnation("other", "x"), incarnation("w", "b")]);
    assert_eq!(lifecycle.state_of(&incarnation("w", "a")), Some(LoggedState::Replaced));
    assert_eq!(lifecycle.recent_crashes(5000 + 3_600_000), 1, "dated by the start of the next one");
    assert_eq!(lifecycle.recent_crashes(5000 + 3_600_001), 0);
}

#[test]
fn a_crash_noticed_before_the_next_start_keeps_its_time() {
    let lifecycle = lifecycle([hello("w", "a"), died_at("w", "a", 1500), hello_at("w", "b", 9000)]);
    assert_eq!(lifecycle.state_of(&incarnation("w", "a")), Some(LoggedState::Replaced));
    assert_eq!(
        (lifecycle.recent_crashes(1500 + 3_600_000), lifecycle.recent_crashes(1500 + 3_600_001)),
        (1, 0)
    );
}

#[test]
fn a_later_start_record_of_the_same_incarnation_undoes_its_crash() {
    let mut lifecycle = lifecycle([hello("w", "a"), died_at("w", "a", 1500)]);
    assert_eq!((lifecycle.recent_crashes(2000), lifecycle.running().len()), (1, 0));
    assert!(matches!(lifecycle.state_of(&incarnation("w", "a")), Some(LoggedState::QueueMissing { .. })));
    let last_seen = Instant::now() + Duration::from_secs(5);
    lifecycle.apply(hello("w", "a"), last_seen);
    assert_eq!((lifecycle.recent_crashes(2000), lifecycle.running().len()), (0, 1));
    assert_eq!(lifecycle.state_of(&incarnation("w", "a")), Some(LoggedState::Running { last_seen }));
}

#[test]
fn a_crash_keeps_the_time_of_its_first_record() {
    let first = Instant::now();
    let mut lifecycle = LifecycleLog::default();
    lifecycle.apply(hello("w", "a"), first);
    lifecycle.apply(died_at("w", "a", 1500), first);
    lifecycle.apply(died_at("w", "a", 9_000_000), first + Duration::from_secs(9));
    assert_eq!(lifecycle.state_of(&incarnation("w", "a")), Some(LoggedState::QueueMissing { since: first }));
    assert_eq!(lifecycle.recent_crashes(9_000_000), 0);
}

#[test]
fn a_late_crash_record_does_not_undo_a_clean_stop() {
    let lifecycle = lifecycle([hello("w", "a"), goodbye("w", "a"), died_at("w", "a", 2500)]);
    assert_eq!(
        (lifecycle.recent_crashes(3000), lifecycle.state_of(&incarnation("w", "a"))),
        (0, Some(LoggedState::Stopped))
    );
}

#[test]
fn a_crash_counts_without_a_start_record() {
    let lifecycle = lifecycle([died_at("w", "a", 2500)]);
    assert_eq!(lifecycle.recent_crashes(3000), 1);
    assert!(matches!(lifecycle.state_of(&incarnation("w", "a")), Some(LoggedState::QueueMissing { .. })));
}

#[test]
fn an_incarnation_is_identified_by_worker_and_incarnation() {
    let lifecycle = lifecycle([hello("w", "a")]);
    assert!(matches!(lifecycle.state_of(&incarnation("w", "a")), Some(LoggedState::Running { .. })));
    assert_eq!(lifecycle.state_of(&incarnation("forged", "a")), None);
    assert_eq!(lifecycle.state_of(&incarnation("w", "forged")), None);
}

/// The workers of the runs that have not ended.
fn runners(log: &LifecycleLog, task: &str) -> Vec<String> {
    log.runners_of(task).map(ToString::to_string).collect()
}

#[test]
fn a_run_lasts_until_its_own_end_whoever_else_runs_the_task() {
    let mut lifecycle = lifecycle([hello("v", "a"), hello("w", "b"), started("v", "a", "t")]);
    assert_eq!(runners(&lifecycle, "t"), ["v/a"]);
    assert!(runners(&lifecycle, "other").is_empty());
    lifecycle.apply(started("w", "b", "t"), Instant::now());
    assert_eq!(runners(&lifecycle, "t"), ["v/a", "w/b"]);
    lifecycle.apply(ended("v", "a", "t"), Instant::now());
    assert_eq!(runners(&lifecycle, "t"), ["w/b"]);
    lifecycle.apply(ended("w", "b", "t"), Instant::now());
    assert!(runners(&lifecycle, "t").is_empty());
}

#[test]
fn a_workers_next_run_or_its_clean_stop_ends_its_previous_run() {
    let mut lifecycle =
        lifecycle([started("w", "b", "x"), started("v", "a", "t"), started("v", "a", "u"), hello("v", "a")]);
    assert_eq!((runners(&lifecycle, "t"), runners(&lifecycle, "u")), (vec![], vec!["v/a".to_owned()]));
    assert_eq!(runners(&lifecycle, "x"), ["w/b"]);
    lifecycle.apply(goodbye("v", "a"), Instant::now());
    assert!(runners(&lifecycle, "u").is_empty());
    assert_eq!(runners(&lifecycle, "x"), ["w/b"], "a run of another worker");
    lifecycle.apply(died_at("w", "b", 2000), Instant::now());
    assert_eq!(runners(&lifecycle, "x"), ["w/b"], "a crash does not end the run");
}

#[test]
fn the_oldest_of_many_runs_are_dropped() {
    let mut lifecycle = lifecycle([]);
    for run in 0..20 {
        lifecycle.apply(started("w", &run.to_string(), "t"), Instant::now());
    }
    let runners = runners(&lifecycle, "t");
    assert_eq!((runners.len(), runners[0].as_str()), (MOST_RUNS, "w/4"));
}

#[test]
fn a_handler_is_known_while_its_worker_is_running() {
    let mut lifecycle = lifecycle([hello("w", "a")]);
    let has_handler = |log: &LifecycleLog, kind| log.workers_of(kind, "any").anywhere == 1;
    assert!(has_handler(&lifecycle, "k"));
    assert!(!has_handler(&lifecycle, "other"));
    lifecycle.apply(died_at("w", "a", 1500), Instant::now());
    assert!(!has_handler(&lifecycle, "k"));
    lifecycle.apply(hello("w", "a"), Instant::now());
    assert!(has_handler(&lifecycle, "k"));
    lifecycle.apply(goodbye("w", "a"), Instant::now());
    assert!(!has_handler(&lifecycle, "k"));
}

#[test]
fn the_workers_of_a_kind_are_counted_by_the_lanes_that_they_consume() {
    let with = |worker: &str, kind: &str, lanes: Option<&[&str]>| {
        let lanes = lanes.map(|lanes| lanes.iter().map(ToString::to_string).collect());
        let handlers = Handlers { kinds: vec![kind.into()], catch_all: false, lanes };
        record(worker, &format!("{worker}1"), 1, LifecycleEvent::Hello(handlers))
    };
    let log = lifecycle([
        with("mailer", "email.send", Some(&["default", "mail"])),
        with("stock", "reading.process", Some(&["fast"])),
        with("older", "email.send", None),
    ]);
    let found = |kind, lane| {
        let KindWorkers { anywhere, in_lane, lane_consumers } = log.workers_of(kind, lane);
        (anywhere, in_lane, lane_consumers)
    };
    assert_eq!(found("email.send", "mail"), (2, 2, 2), "a record without lanes stands for all of them");
    assert_eq!(found("email.send", "fast"), (2, 1, 2));
    assert_eq!(found("reading.process", "mail"), (1, 0, 2));
    assert_eq!(found("image.resize", "mail"), (0, 0, 2));
    assert_eq!(log.running_with("reading.process"), [incarnation("stock", "stock1")]);
}

#[test]
fn entries_expire_with_the_records_of_the_stream() {
    let kept = span_ms(LIFECYCLE_KEPT);
    let records = (0..1000).flat_map(|n| {
        let (worker, incarnation) = (format!("w{n}"), format!("i{n}"));
        let last = match n % 3 {
            0 => goodbye(&worker, &incarnation),
            1 => died_at(&worker, &incarnation, 2000),
            _ => hello_at(&worker, &incarnation, 2000),
        };
        [hello(&worker, &incarnation), started(&worker, &incarnation, &format!("t{n}")), last]
    });
    let mut lifecycle = lifecycle(records);
    assert!(lifecycle.len() > 1000);
    lifecycle.remove_expired(1000 + kept);
    assert!(lifecycle.len() > 1000, "nothing has expired");
    lifecycle.remove_expired(1001 + kept);
    assert_eq!(lifecycle.len(), 1000, "the runs have expired");
    lifecycle.remove_expired(2000 + kept);
    assert_eq!(lifecycle.len(), 1000);
    lifecycle.apply(hello_at("alive", "x", 2001), Instant::now());
    lifecycle.remove_expired(2001 + kept);
    assert_eq!(lifecycle.len(), 1);
    assert_eq!(lifecycle.running(), [incarnation("alive", "x")]);
}

#[test]
fn a_replaced_worker_expires_by_the_time_of_its_replacement() {
    let mut lifecycle = lifecycle([hello("w", "a"), hello_at("w", "b", 5000)]);
    lifecycle.remove_expired(5000 + span_ms(LIFECYCLE_KEPT));
    assert_eq!(lifecycle.state_of(&incarnation("w", "a")), Some(LoggedState::Replaced));
    lifecycle.remove_expired(5001 + span_ms(LIFECYCLE_KEPT));
    assert_eq!(lifecycle.len(), 0);
}

#[test]
fn the_catch_all_lane_is_served_by_running_workers_with_handlers_for_it() {
    let serving = |worker: &str, kind: &str| {
        let handlers = Handlers { kinds: vec![kind.into()], catch_all: true, lanes: None };
        let event = LifecycleEvent::Hello(handlers);
        record(worker, &format!("{worker}1"), 1, event)
    };
    let mut log = LifecycleLog::default();
    let now = Instant::now();
    log.apply(hello("stock", "stock1"), now);
    assert!(!log.serves_catch_all("me"));
    log.apply(serving("me", "mine"), now);
    assert!(!log.serves_catch_all("me1"), "the worker itself");
    log.apply(serving("resizer", "image.resize"), now);
    assert!(log.serves_catch_all("me1"));
    log.apply(goodbye("resizer", "resizer1"), now);
    assert!(!log.serves_catch_all("me1"));
}
