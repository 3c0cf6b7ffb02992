use super::*;

fn hello_at(worker: &str, incarnation: &str, at: i64) -> LifecycleEvent {
    LifecycleEvent::Hello {
        worker: worker.into(),
        incarnation: incarnation.into(),
        at,
        kinds: vec!["k".into()],
    }
}

fn hello(worker: &str, incarnation: &str) -> LifecycleEvent {
    hello_at(worker, incarnation, 1000)
}

fn goodbye(worker: &str, incarnation: &str) -> LifecycleEvent {
    LifecycleEvent::Goodbye { worker: worker.into(), incarnation: incarnation.into(), at: 2000 }
}

fn died_at(worker: &str, incarnation: &str, at: i64) -> LifecycleEvent {
    LifecycleEvent::Died { worker: worker.into(), incarnation: incarnation.into(), at }
}

fn started(worker: &str, incarnation: &str, task: &str) -> LifecycleEvent {
    LifecycleEvent::RunStarted {
        worker: worker.into(),
        incarnation: incarnation.into(),
        at: 1000,
        task: task.into(),
    }
}

fn ended(worker: &str, incarnation: &str, task: &str) -> LifecycleEvent {
    LifecycleEvent::RunEnded {
        worker: worker.into(),
        incarnation: incarnation.into(),
        at: 1000,
        task: task.into(),
    }
}

fn lifecycle(records: impl IntoIterator<Item = LifecycleEvent>) -> LifecycleLog {
    let mut lifecycle = LifecycleLog::default();
    records.into_iter().for_each(|life| lifecycle.apply(life, Instant::now()));
    lifecycle
}

fn who(worker: &str, incarnation: &str) -> WorkerIncarnation {
    WorkerIncarnation::new(worker, incarnation)
}

#[test]
fn records_are_read_as_they_are_written() {
    let records = [
        (hello("w", "i"), r#"{"event":"hello","worker":"w","incarnation":"i","at":1000,"kinds":["k"]}"#),
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
    for (life, json) in records {
        assert_eq!(serde_json::to_string(&life).unwrap(), json);
        assert_eq!(serde_json::from_str::<LifecycleEvent>(json).unwrap(), life);
    }
    let without_kinds = r#"{"event":"hello","worker":"w","incarnation":"i","at":1}"#;
    let LifecycleEvent::Hello { kinds, .. } = serde_json::from_str(without_kinds).unwrap() else {
        panic!("a start")
    };
    assert!(kinds.is_empty());
}

#[test]
fn rolling_restarts_are_no_crashes() {
    let restarts = (0..25).flat_map(|i| [hello("w", &i.to_string()), goodbye("w", &i.to_string())]);
    let lifecycle = lifecycle(restarts);
    assert_eq!((lifecycle.deaths(3000), lifecycle.open().len()), (0, 0));
    assert_eq!(lifecycle.recorded(&who("w", "7")), Recorded::Ended);
}

#[test]
fn a_new_incarnation_means_that_the_one_before_crashed() {
    let lifecycle = lifecycle([hello("w", "a"), hello("other", "x"), hello_at("w", "b", 5000)]);
    assert_eq!(lifecycle.deaths(6000), 1);
    let mut open = lifecycle.open();
    open.sort_by(|a, b| a.worker().cmp(b.worker()));
    assert_eq!(open, [who("other", "x"), who("w", "b")]);
    assert_eq!(lifecycle.recorded(&who("w", "a")), Recorded::Replaced);
    assert_eq!(lifecycle.deaths(5000 + 3_600_000), 1, "it happened when the next one started");
    assert_eq!(lifecycle.deaths(5000 + 3_600_001), 0);
}

#[test]
fn a_crash_that_was_noticed_before_the_next_start_keeps_its_time() {
    let lifecycle = lifecycle([hello("w", "a"), died_at("w", "a", 1500), hello_at("w", "b", 9000)]);
    assert_eq!(lifecycle.recorded(&who("w", "a")), Recorded::Replaced);
    assert_eq!((lifecycle.deaths(1500 + 3_600_000), lifecycle.deaths(1500 + 3_600_001)), (1, 0));
}

#[test]
fn a_worker_that_is_heard_again_had_not_crashed() {
    let mut lifecycle = lifecycle([hello("w", "a"), died_at("w", "a", 1500)]);
    assert_eq!((lifecycle.deaths(2000), lifecycle.open().len()), (1, 0));
    assert!(matches!(lifecycle.recorded(&who("w", "a")), Recorded::Missing { .. }));
    let heard = Instant::now() + Duration::from_secs(5);
    lifecycle.apply(hello("w", "a"), heard);
    assert_eq!((lifecycle.deaths(2000), lifecycle.open().len()), (0, 1));
    assert_eq!(lifecycle.recorded(&who("w", "a")), Recorded::Open { heard });
}

#[test]
fn a_crash_is_dated_by_its_first_notice() {
    let first = Instant::now();
    let mut lifecycle = LifecycleLog::default();
    lifecycle.apply(hello("w", "a"), first);
    lifecycle.apply(died_at("w", "a", 1500), first);
    lifecycle.apply(died_at("w", "a", 9_000_000), first + Duration::from_secs(9));
    assert_eq!(lifecycle.recorded(&who("w", "a")), Recorded::Missing { since: first });
    assert_eq!(lifecycle.deaths(9_000_000), 0);
}

#[test]
fn a_late_notice_does_not_undo_a_clean_end() {
    let lifecycle = lifecycle([hello("w", "a"), goodbye("w", "a"), died_at("w", "a", 2500)]);
    assert_eq!((lifecycle.deaths(3000), lifecycle.recorded(&who("w", "a"))), (0, Recorded::Ended));
}

#[test]
fn a_crash_counts_also_where_the_start_record_is_gone() {
    let lifecycle = lifecycle([died_at("w", "a", 2500)]);
    assert_eq!(lifecycle.deaths(3000), 1);
    assert!(matches!(lifecycle.recorded(&who("w", "a")), Recorded::Missing { .. }));
}

#[test]
fn an_incarnation_is_known_by_both_of_its_names() {
    let lifecycle = lifecycle([hello("w", "a")]);
    assert!(matches!(lifecycle.recorded(&who("w", "a")), Recorded::Open { .. }));
    assert_eq!(lifecycle.recorded(&who("forged", "a")), Recorded::Nothing);
    assert_eq!(lifecycle.recorded(&who("w", "forged")), Recorded::Nothing);
}

#[test]
fn a_run_belongs_to_the_worker_that_started_it_last() {
    let mut lifecycle = lifecycle([hello("v", "a"), hello("w", "b"), started("v", "a", "t")]);
    assert_eq!(lifecycle.run_of("t"), Some(&who("v", "a")));
    assert_eq!(lifecycle.run_of("other"), None);
    lifecycle.apply(started("w", "b", "t"), Instant::now());
    assert_eq!(lifecycle.run_of("t"), Some(&who("w", "b")));
    lifecycle.apply(ended("v", "a", "t"), Instant::now());
    assert_eq!(lifecycle.run_of("t"), Some(&who("w", "b")), "the end of an earlier run");
    lifecycle.apply(ended("w", "b", "t"), Instant::now());
    assert_eq!(lifecycle.run_of("t"), None);
}

#[test]
fn a_workers_next_run_and_its_clean_end_show_that_the_one_before_is_over() {
    let mut lifecycle =
        lifecycle([started("w", "b", "x"), started("v", "a", "t"), started("v", "a", "u"), hello("v", "a")]);
    assert_eq!((lifecycle.run_of("t"), lifecycle.run_of("u")), (None, Some(&who("v", "a"))));
    assert_eq!(lifecycle.run_of("x"), Some(&who("w", "b")));
    lifecycle.apply(goodbye("v", "a"), Instant::now());
    assert_eq!(lifecycle.run_of("u"), None);
    assert_eq!(lifecycle.run_of("x"), Some(&who("w", "b")), "another worker's");
    lifecycle.apply(died_at("w", "b", 2000), Instant::now());
    assert_eq!(lifecycle.run_of("x"), Some(&who("w", "b")), "a crash is what the run is asked for");
}

#[test]
fn a_handler_is_known_while_its_worker_may_be_alive() {
    let mut lifecycle = lifecycle([hello("w", "a")]);
    assert!(lifecycle.has_handler("k"));
    assert!(!lifecycle.has_handler("other"));
    lifecycle.apply(died_at("w", "a", 1500), Instant::now());
    assert!(!lifecycle.has_handler("k"));
    lifecycle.apply(hello("w", "a"), Instant::now());
    assert!(lifecycle.has_handler("k"));
    lifecycle.apply(goodbye("w", "a"), Instant::now());
    assert!(!lifecycle.has_handler("k"));
}

#[test]
fn what_the_stream_lets_go_of_is_let_go_of_here() {
    let kept = ms(LIFECYCLE_KEPT);
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
    lifecycle.forget(1000 + kept);
    assert!(lifecycle.len() > 1000, "nothing is too old");
    lifecycle.forget(1001 + kept);
    assert_eq!(lifecycle.len(), 1000, "the runs are");
    lifecycle.forget(2000 + kept);
    assert_eq!(lifecycle.len(), 1000);
    lifecycle.apply(hello_at("alive", "x", 2001), Instant::now());
    lifecycle.forget(2001 + kept);
    assert_eq!(lifecycle.len(), 1);
    assert_eq!(lifecycle.open(), [who("alive", "x")]);
}

#[test]
fn a_replaced_workers_record_ages_from_its_replacement() {
    let mut lifecycle = lifecycle([hello("w", "a"), hello_at("w", "b", 5000)]);
    lifecycle.forget(5000 + ms(LIFECYCLE_KEPT));
    assert_eq!(lifecycle.recorded(&who("w", "a")), Recorded::Replaced);
    lifecycle.forget(5001 + ms(LIFECYCLE_KEPT));
    assert_eq!(lifecycle.len(), 0);
}
