use super::*;

fn hello_at(worker: &str, incarnation: &str, at: i64) -> Life {
    Life::Hello { worker: worker.into(), incarnation: incarnation.into(), at, kinds: vec!["k".into()] }
}

fn hello(worker: &str, incarnation: &str) -> Life {
    hello_at(worker, incarnation, 1000)
}

fn goodbye(worker: &str, incarnation: &str) -> Life {
    Life::Goodbye { worker: worker.into(), incarnation: incarnation.into(), at: 2000 }
}

fn died_at(worker: &str, incarnation: &str, at: i64) -> Life {
    Life::Died { worker: worker.into(), incarnation: incarnation.into(), at }
}

fn started(worker: &str, incarnation: &str, task: &str) -> Life {
    Life::RunStarted { worker: worker.into(), incarnation: incarnation.into(), at: 1000, task: task.into() }
}

fn ended(worker: &str, incarnation: &str, task: &str) -> Life {
    Life::RunEnded { worker: worker.into(), incarnation: incarnation.into(), at: 1000, task: task.into() }
}

fn lives(records: impl IntoIterator<Item = Life>) -> Lives {
    let mut lives = Lives::default();
    records.into_iter().for_each(|life| lives.apply(life, Instant::now()));
    lives
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
        assert_eq!(serde_json::from_str::<Life>(json).unwrap(), life);
    }
    let without_kinds = r#"{"event":"hello","worker":"w","incarnation":"i","at":1}"#;
    let Life::Hello { kinds, .. } = serde_json::from_str(without_kinds).unwrap() else { panic!("a start") };
    assert!(kinds.is_empty());
}

#[test]
fn rolling_restarts_are_no_crashes() {
    let restarts = (0..25).flat_map(|i| [hello("w", &i.to_string()), goodbye("w", &i.to_string())]);
    let lives = lives(restarts);
    assert_eq!((lives.deaths(3000), lives.open().len()), (0, 0));
    assert_eq!(lives.recorded(&who("w", "7")), Recorded::Ended);
}

#[test]
fn a_new_incarnation_means_that_the_one_before_crashed() {
    let lives = lives([hello("w", "a"), hello("other", "x"), hello_at("w", "b", 5000)]);
    assert_eq!(lives.deaths(6000), 1);
    let mut open = lives.open();
    open.sort_by(|a, b| a.worker().cmp(b.worker()));
    assert_eq!(open, [who("other", "x"), who("w", "b")]);
    assert_eq!(lives.recorded(&who("w", "a")), Recorded::Replaced);
    assert_eq!(lives.deaths(5000 + 3_600_000), 1, "it happened when the next one started");
    assert_eq!(lives.deaths(5000 + 3_600_001), 0);
}

#[test]
fn a_crash_that_was_noticed_before_the_next_start_keeps_its_time() {
    let lives = lives([hello("w", "a"), died_at("w", "a", 1500), hello_at("w", "b", 9000)]);
    assert_eq!(lives.recorded(&who("w", "a")), Recorded::Replaced);
    assert_eq!((lives.deaths(1500 + 3_600_000), lives.deaths(1500 + 3_600_001)), (1, 0));
}

#[test]
fn a_worker_that_is_heard_again_had_not_crashed() {
    let mut lives = lives([hello("w", "a"), died_at("w", "a", 1500)]);
    assert_eq!((lives.deaths(2000), lives.open().len()), (1, 0));
    assert!(matches!(lives.recorded(&who("w", "a")), Recorded::Missing { .. }));
    let heard = Instant::now() + Duration::from_secs(5);
    lives.apply(hello("w", "a"), heard);
    assert_eq!((lives.deaths(2000), lives.open().len()), (0, 1));
    assert_eq!(lives.recorded(&who("w", "a")), Recorded::Open { heard });
}

#[test]
fn a_crash_is_dated_by_its_first_notice() {
    let first = Instant::now();
    let mut lives = Lives::default();
    lives.apply(hello("w", "a"), first);
    lives.apply(died_at("w", "a", 1500), first);
    lives.apply(died_at("w", "a", 9_000_000), first + Duration::from_secs(9));
    assert_eq!(lives.recorded(&who("w", "a")), Recorded::Missing { since: first });
    assert_eq!(lives.deaths(9_000_000), 0);
}

#[test]
fn a_late_notice_does_not_undo_a_clean_end() {
    let lives = lives([hello("w", "a"), goodbye("w", "a"), died_at("w", "a", 2500)]);
    assert_eq!((lives.deaths(3000), lives.recorded(&who("w", "a"))), (0, Recorded::Ended));
}

#[test]
fn a_crash_counts_also_where_the_start_record_is_gone() {
    let lives = lives([died_at("w", "a", 2500)]);
    assert_eq!(lives.deaths(3000), 1);
    assert!(matches!(lives.recorded(&who("w", "a")), Recorded::Missing { .. }));
}

#[test]
fn an_incarnation_is_known_by_both_of_its_names() {
    let lives = lives([hello("w", "a")]);
    assert!(matches!(lives.recorded(&who("w", "a")), Recorded::Open { .. }));
    assert_eq!(lives.recorded(&who("forged", "a")), Recorded::Nothing);
    assert_eq!(lives.recorded(&who("w", "forged")), Recorded::Nothing);
}

#[test]
fn a_run_belongs_to_the_worker_that_started_it_last() {
    let mut lives = lives([hello("v", "a"), hello("w", "b"), started("v", "a", "t")]);
    assert_eq!(lives.run_of("t"), Some(&who("v", "a")));
    assert_eq!(lives.run_of("other"), None);
    lives.apply(started("w", "b", "t"), Instant::now());
    assert_eq!(lives.run_of("t"), Some(&who("w", "b")));
    lives.apply(ended("v", "a", "t"), Instant::now());
    assert_eq!(lives.run_of("t"), Some(&who("w", "b")), "the end of an earlier run");
    lives.apply(ended("w", "b", "t"), Instant::now());
    assert_eq!(lives.run_of("t"), None);
}

#[test]
fn a_workers_next_run_and_its_clean_end_show_that_the_one_before_is_over() {
    let mut lives =
        lives([started("w", "b", "x"), started("v", "a", "t"), started("v", "a", "u"), hello("v", "a")]);
    assert_eq!((lives.run_of("t"), lives.run_of("u")), (None, Some(&who("v", "a"))));
    assert_eq!(lives.run_of("x"), Some(&who("w", "b")));
    lives.apply(goodbye("v", "a"), Instant::now());
    assert_eq!(lives.run_of("u"), None);
    assert_eq!(lives.run_of("x"), Some(&who("w", "b")), "another worker's");
    lives.apply(died_at("w", "b", 2000), Instant::now());
    assert_eq!(lives.run_of("x"), Some(&who("w", "b")), "a crash is what the run is asked for");
}

#[test]
fn a_handler_is_known_while_its_worker_may_be_alive() {
    let mut lives = lives([hello("w", "a")]);
    assert!(lives.has_handler("k"));
    assert!(!lives.has_handler("other"));
    lives.apply(died_at("w", "a", 1500), Instant::now());
    assert!(!lives.has_handler("k"));
    lives.apply(hello("w", "a"), Instant::now());
    assert!(lives.has_handler("k"));
    lives.apply(goodbye("w", "a"), Instant::now());
    assert!(!lives.has_handler("k"));
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
    let mut lives = lives(records);
    assert!(lives.len() > 1000);
    lives.forget(1000 + kept);
    assert!(lives.len() > 1000, "nothing is too old");
    lives.forget(1001 + kept);
    assert_eq!(lives.len(), 1000, "the runs are");
    lives.forget(2000 + kept);
    assert_eq!(lives.len(), 1000);
    lives.apply(hello_at("alive", "x", 2001), Instant::now());
    lives.forget(2001 + kept);
    assert_eq!(lives.len(), 1);
    assert_eq!(lives.open(), [who("alive", "x")]);
}

#[test]
fn a_replaced_workers_record_ages_from_its_replacement() {
    let mut lives = lives([hello("w", "a"), hello_at("w", "b", 5000)]);
    lives.forget(5000 + ms(LIFECYCLE_KEPT));
    assert_eq!(lives.recorded(&who("w", "a")), Recorded::Replaced);
    lives.forget(5001 + ms(LIFECYCLE_KEPT));
    assert_eq!(lives.len(), 0);
}
