use futures_util::FutureExt;
use garenne_protocol::{
    task::{ContentType, Envelope, Kind, NewTask, TaskId},
    topology::LIFECYCLE_KEPT,
};
use serde_json::{Value, json};
use tokio::{
    task::{JoinHandle, yield_now},
    time::advance,
};

use super::*;
use crate::fleet::crash_detector::{ALIVE_AFTER, RECONNECT_GRACE};

mod fake_fleet;

pub(crate) use fake_fleet::{FakeFleet, member};

fn now() -> i64 {
    epoch_ms(clock::now())
}

fn read(member: &Member, record: &Value) -> bool {
    member.read_lifecycle(&serde_json::to_vec(record).unwrap())
}

pub(crate) fn hello(member: &Member, worker: &str, incarnation: &str) {
    let record =
        json!({"event": "hello", "worker": worker, "incarnation": incarnation, "at": now(), "kinds": ["k"]});
    assert!(!read(member, &record));
}

/// The start record of a worker with one kind, which consumes these lanes.
pub(crate) fn hello_in(member: &Member, worker: &str, kind: &str, lanes: &[&str]) {
    let record = json!({"event": "hello", "worker": worker, "incarnation": format!("{worker}-1"), "at": now(),
                        "kinds": [kind], "lanes": lanes});
    assert!(!read(member, &record));
}

pub(crate) fn run(member: &Member, worker: &str, incarnation: &str, task: &str) {
    let record = json!({"event": "run-started", "worker": worker, "incarnation": incarnation, "at": now(), "task": task});
    assert!(!read(member, &record));
}

/// Asks beside the test which runs of task `t` crashed their workers.
fn look_for_crashes(member: &Arc<Member>) -> JoinHandle<Vec<WorkerIncarnation>> {
    let member = Arc::clone(member);
    tokio::spawn(async move { member.crashed_runs("t", None).await })
}

fn incarnation_of(worker: &str, incarnation: &str) -> WorkerIncarnation {
    WorkerIncarnation::new(worker, incarnation)
}

#[test]
fn hello_and_goodbye_go_to_the_events_exchange() {
    let (member, fake) = member();
    assert_eq!((&*member.worker, member.names.events()), ("me", "p.events".to_owned()));
    member.publish_hello().now_or_never().unwrap();
    member.publish_goodbye().now_or_never().unwrap();
    let published = fake.published.lock().unwrap();
    let incarnation = &member.incarnation;
    for ((exchange, key, record, _), event) in published.iter().zip(["hello", "goodbye"]) {
        assert_eq!((exchange.as_str(), key.as_str()), ("p.events", "life.me"));
        assert_eq!(record["event"], event);
        assert_eq!((&record["worker"], &record["incarnation"]), (&json!("me"), &json!(incarnation)));
        assert!((now() - record["at"].as_i64().unwrap()).abs() < 60_000);
    }
    assert_eq!(published[0].2["kinds"], json!(["mine"]));
    assert_eq!(published.len(), 2);
}

#[test]
fn two_members_have_two_incarnations() {
    let (one, other) = (member().0, member().0);
    assert!(WorkerIncarnation::parse(&format!("me/{}", one.incarnation)).is_some());
    assert_ne!(one.incarnation, other.incarnation);
}

#[test]
fn a_member_recognizes_only_its_own_first_mark() {
    let (member, fake) = member();
    member.publish_mark("p.directives").now_or_never().unwrap().unwrap();
    let (exchange, key, record, _) = fake.published.lock().unwrap()[0].clone();
    assert_eq!((exchange.as_str(), key.as_str()), ("", "p.directives"));
    assert!(read(&member, &record));
    assert!(member.read_directive(record.to_string().as_bytes(), &|_| ()));
    let later = json!({"mark": format!("{}/1", member.incarnation)});
    for other in [json!({"mark": "another"}), later, json!({"nonsense": 1})] {
        assert!(!read(&member, &other));
        assert!(!member.read_directive(other.to_string().as_bytes(), &|_| ()));
    }
}

#[test]
fn a_mark_that_cannot_be_published_is_an_error() {
    let (member, fake) = member();
    fake.failures.store(1, Ordering::Relaxed);
    assert!(member.publish_mark("p.directives").now_or_never().unwrap().is_err());
}

/// A crash shows only if the stream still contains the start record.
#[tokio::test(start_paused = true)]
async fn a_running_member_always_has_a_start_record_in_the_stream() {
    let (member, fake) = member();
    member.publish_hello().await;
    let start = Instant::now();
    let maintaining = tokio::spawn(async move { member.maintain().await });
    for _ in 0..3 * 24 * 60 {
        yield_now().await;
        advance(Duration::from_secs(60)).await;
        yield_now().await;
        let published = fake.published.lock().unwrap();
        let (_, _, record, latest) = published.last().unwrap();
        assert_eq!(record["event"], "hello");
        // Three records in a row may be lost.
        assert!(Instant::now() - *latest < LIFECYCLE_KEPT / 4, "{:?}", Instant::now() - start);
    }
    let hellos = fake.events("hello");
    assert!((15..=20).contains(&hellos), "{hellos} in three days");
    maintaining.abort();
}

#[tokio::test(start_paused = true)]
async fn a_member_reported_as_crashed_repeats_its_start_record() {
    let (member, fake) = member();
    member.publish_hello().await;
    let this = Arc::clone(&member);
    let maintaining = tokio::spawn(async move { this.maintain().await });
    let other = json!({"event": "died", "worker": "me", "incarnation": "another", "at": now()});
    read(&member, &other);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.events("hello"), 1);
    let own = json!({"event": "died", "worker": "me", "incarnation": member.incarnation, "at": now()});
    read(&member, &own);
    assert_eq!(member.lifecycle().recent_crashes(now()), 2);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.events("hello"), 2);
    let me = incarnation_of("me", &member.incarnation);
    assert!(member.lifecycle().running().contains(&me));
    maintaining.abort();
}

#[tokio::test(start_paused = true)]
async fn a_running_member_removes_expired_entries() {
    let (member, _fake) = member();
    read(&member, &json!({"event": "hello", "worker": "w", "incarnation": "i", "at": 1000}));
    let resume = json!({"resume": "g", "at": 1000}).to_string();
    assert!(!member.read_directive(resume.as_bytes(), &|_| ()));
    member.directives.apply(&Directive::PauseGroup { pause: "old".into(), at: 1000 });
    assert_eq!((member.lifecycle().len(), member.directives.paused_groups().len()), (1, 1));
    let this = Arc::clone(&member);
    let maintaining = tokio::spawn(async move { this.maintain().await });
    sleep(CLEANUP_INTERVAL + Duration::from_secs(1)).await;
    assert_eq!((member.lifecycle().len(), member.directives.paused_groups().len()), (0, 0));
    maintaining.abort();
}

#[tokio::test(start_paused = true)]
async fn crashes_are_checked_after_the_broker_had_time_to_show_them() {
    let (member, fake) = member();
    hello(&member, "dead", "a");
    hello(&member, "alive", "b");
    hello(&member, "unknown", "c");
    fake.set_control_queue("alive", Some(true));
    fake.set_control_queue("unknown", None);
    let me = member.incarnation.clone();
    hello(&member, "me", &me);
    let start = Instant::now();
    assert_eq!(member.recent_crashes().await, 1);
    assert!(Instant::now() - start >= CRASH_VISIBLE_AFTER);
    assert_eq!(fake.queue_checks.load(Ordering::Relaxed), 3, "it does not check its own queue");
    yield_now().await;
    let died = fake.records().into_iter().find(|it| it["event"] == "died").unwrap();
    assert_eq!((&died["worker"], &died["incarnation"]), (&json!("dead"), &json!("a")));
    assert_eq!(member.recent_crashes().await, 1);
    assert_eq!(fake.queue_checks.load(Ordering::Relaxed), 5, "the crashed worker is known already");
    assert_eq!(fake.events("died"), 1);
}

#[tokio::test(start_paused = true)]
async fn simultaneous_redeliveries_share_a_check_for_crashes() {
    let (member, fake) = member();
    hello(&member, "alive", "b");
    fake.set_control_queue("alive", Some(true));
    let all = futures_util::future::join_all((0..50).map(|_| member.recent_crashes())).await;
    assert!(all.iter().all(|crashes| *crashes == 0));
    assert!(fake.queue_checks.load(Ordering::Relaxed) <= 2, "{:?}", fake.queue_checks);
}

#[tokio::test(start_paused = true)]
async fn a_crash_counts_before_its_report_is_confirmed() {
    let (member, fake) = member();
    hello(&member, "dead", "a");
    hello(&member, "dead as well", "b");
    fake.silent.store(true, Ordering::Relaxed);
    let start = Instant::now();
    assert_eq!(member.recent_crashes().await, 2);
    assert!(Instant::now() - start < 2 * CRASH_VISIBLE_AFTER);
}

#[tokio::test(start_paused = true)]
async fn a_run_counts_if_its_worker_crashed() {
    let (member, fake) = member();
    hello(&member, "w", "a");
    run(&member, "w", "a", "t");
    let start = Instant::now();
    assert_eq!(member.crashed_runs("t", None).await, [incarnation_of("w", "a")]);
    assert!(Instant::now() - start >= RECONNECT_GRACE);
    let marks: Vec<_> = fake.records().into_iter().filter(|it| it["mark"].is_string()).collect();
    assert_eq!(marks, [1, 2].map(|number| json!({"mark": format!("{}/{number}", member.incarnation)})));
    assert_eq!(fake.published.lock().unwrap()[0].1, "p.lifecycle");
}

/// A worker whose connection was lost ends the run, and crashes afterwards in a run of another task.
#[tokio::test(start_paused = true)]
async fn a_run_does_not_count_if_it_ended_while_its_worker_was_looked_for() {
    let (member, _fake) = member();
    hello(&member, "w", "a");
    run(&member, "w", "a", "t");
    let crashed = look_for_crashes(&member);
    sleep(Duration::from_secs(1)).await;
    assert!(!crashed.is_finished());
    read(
        &member,
        &json!({"event": "run-ended", "worker": "w", "incarnation": "a", "at": now(), "task": "t"}),
    );
    run(&member, "w", "a", "another");
    assert_eq!(crashed.await.unwrap(), []);
    assert_eq!(member.crashed_runs("another", None).await, [incarnation_of("w", "a")]);
}

#[tokio::test(start_paused = true)]
async fn a_run_does_not_count_if_its_worker_is_running() {
    let (member, fake) = member();
    hello(&member, "w", "a");
    run(&member, "w", "a", "t");
    // The worker lost its connection and reconnects in time.
    let crashed = look_for_crashes(&member);
    sleep(RECONNECT_GRACE - Duration::from_secs(1)).await;
    assert!(!crashed.is_finished());
    hello(&member, "w", "a");
    assert_eq!(crashed.await.unwrap(), []);
    // Only its channel was lost.
    fake.set_control_queue("w", Some(true));
    let start = Instant::now();
    assert_eq!(member.crashed_runs("t", None).await, []);
    assert!(Instant::now() - start >= ALIVE_AFTER);
}

#[tokio::test(start_paused = true)]
async fn a_run_is_undecided_while_the_broker_does_not_answer() {
    let (member, fake) = member();
    hello(&member, "w", "a");
    run(&member, "w", "a", "t");
    fake.set_control_queue("w", None);
    let crashed = look_for_crashes(&member);
    sleep(Duration::from_secs(3600)).await;
    assert!(!crashed.is_finished());
    fake.set_control_queue("w", Some(false));
    assert_eq!(crashed.await.unwrap(), [incarnation_of("w", "a")]);
}

#[tokio::test(start_paused = true)]
async fn a_run_does_not_count_if_it_is_counted_ended_or_our_own() {
    let (member, _fake) = member();
    hello(&member, "w", "a");
    run(&member, "w", "a", "t");
    assert_eq!(member.crashed_runs("t", Some(&incarnation_of("w", "a"))).await, [], "it is counted already");
    assert_eq!(member.crashed_runs("t", Some(&incarnation_of("w", "b"))).await, [incarnation_of("w", "a")]);
    assert_eq!(member.crashed_runs("never", None).await, []);
    let me = member.incarnation.clone();
    run(&member, "me", &me, "own");
    assert_eq!(member.crashed_runs("own", None).await, [], "a run of this worker");
    run(&member, "w", "a", "u");
    read(&member, &json!({"event": "goodbye", "worker": "w", "incarnation": "a", "at": now()}));
    assert_eq!(member.crashed_runs("u", None).await, [], "its worker stopped cleanly");
}

/// A message that crashed `v` is delivered again while another one with its id crashes `w`, and `x` runs a third one.
#[tokio::test(start_paused = true)]
async fn each_crash_counts_though_other_messages_with_the_id_began_to_run_since() {
    let (member, fake) = member();
    for (worker, incarnation) in [("v", "a"), ("w", "b"), ("x", "c")] {
        hello(&member, worker, incarnation);
        run(&member, worker, incarnation, "t");
    }
    fake.set_control_queue("x", Some(true));
    let (v, w) = (incarnation_of("v", "a"), incarnation_of("w", "b"));
    assert_eq!(member.crashed_runs("t", Some(&w)).await, []);
    let all = member.crashed_runs("t", None).await;
    assert_eq!(member.crashed_runs("t", Some(&v)).await, all[1..]);
    assert_eq!(all, [v, w]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_mark_is_published_again() {
    let (member, fake) = member();
    fake.failures.store(3, Ordering::Relaxed);
    fake.lost_marks.store(2, Ordering::Relaxed);
    let start = Instant::now();
    member.catch_up().await;
    assert!(Instant::now() - start >= 2 * MARK_TIMEOUT);
    assert_eq!(fake.records().len(), 3);
    member.catch_up().await;
    assert_eq!(fake.records().len(), 4, "each call publishes a mark of its own");
}

#[tokio::test(start_paused = true)]
async fn a_late_mark_does_not_lower_the_highest_mark() {
    let (member, _fake) = member();
    for number in [7, 3] {
        read(&member, &json!({"mark": format!("{}/{number}", member.incarnation)}));
    }
    assert_eq!(*member.marks_read.borrow(), 7);
    read(&member, &json!({"mark": "another/9"}));
    assert_eq!(*member.marks_read.borrow(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_run_is_recorded_from_its_start_to_its_end() {
    let (member, fake) = member();
    fake.failures.store(2, Ordering::Relaxed);
    member.run_started("t").await;
    let me = incarnation_of("me", &member.incarnation);
    assert!(member.lifecycle().runners_of("t").eq([&me]), "retried until it was confirmed");
    member.run_ended("t").await;
    assert_eq!(member.lifecycle().runners_of("t").count(), 0);
    assert_eq!((fake.events("run-started"), fake.events("run-ended")), (1, 1));
    let published = fake.published.lock().unwrap();
    assert!(published.iter().all(|(exchange, key, ..)| exchange.is_empty() && key == "p.lifecycle"));
}

#[test]
fn handlers_of_other_workers_are_known() {
    let (member, _fake) = member();
    hello(&member, "w", "a");
    let known = |kind| member.workers_of(kind, "any").anywhere;
    assert_eq!((known("k"), known("other")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_kind_lives_while_a_record_names_it_and_its_workers_control_queue_exists() {
    let (member, fake) = member();
    hello(&member, "one", "a");
    hello(&member, "two", "b");
    fake.set_control_queue("one", Some(true));
    fake.set_control_queue("two", Some(true));
    let checks = || fake.queue_checks.load(Ordering::Relaxed);
    futures_util::future::join_all((0..50).map(|_| member.look_for_kind("k"))).await;
    assert_eq!((member.workers_of("k", "any").anywhere, checks()), (2, 1), "one that runs is enough");
    assert!(fake.records().is_empty(), "nothing has to be read for a known kind");
    for worker in ["one", "two"] {
        fake.set_control_queue(worker, Some(false));
    }
    sleep(KIND_CHECK_INTERVAL).await;
    member.look_for_kind("k").await;
    assert_eq!(member.workers_of("k", "any").anywhere, 0);
    yield_now().await;
    assert_eq!(fake.events("died"), 2);
    member.look_for_kind("other").await;
    assert!(fake.records().iter().any(|it| it["mark"].is_string()), "a worker that has just started counts");
    assert!(lock(&member.kind_checks).len() <= 1, "unknown kinds are not remembered");
}

fn grouped(id: &str, group: &str, published: i64) -> Arc<Envelope> {
    let mut task = NewTask::new(Kind::parse("k").unwrap(), ContentType::Json, Vec::new());
    task.id = TaskId::parse(id).unwrap();
    task.group = Some(group.to_owned());
    let now = std::time::UNIX_EPOCH + Duration::from_millis(published.unsigned_abs());
    Arc::new(Envelope::read("k", &task.properties(now), None, |_| true, now).unwrap())
}

/// Applies a directive as read from the stream, and returns the tasks that it stops.
fn stopped_by(member: &Member, directive: &Value) -> Vec<String> {
    let stopped = Mutex::new(Vec::new());
    let first_mark = member.read_directive(directive.to_string().as_bytes(), &|task: &str| {
        stopped.lock().unwrap().push(task.to_owned());
    });
    assert!(!first_mark);
    stopped.into_inner().unwrap()
}

#[test]
fn a_stop_covers_no_task_published_after_it() {
    let (member, _fake) = member();
    let tasks = [grouped("before", "g", 5000), grouped("after", "g", 5001), grouped("other", "h", 1)];
    tasks.iter().for_each(|task| member.grouped.track(task));
    let stop = json!({"group": "g", "at": 5000});
    assert_eq!(stopped_by(&member, &stop), ["before"]);
    assert!(stopped_by(&member, &stop).is_empty(), "the same directive again changes nothing");
    assert_eq!(stopped_by(&member, &json!({"task": "t", "at": 1})), ["t"]);
    assert!(stopped_by(&member, &json!({"pause": "h", "at": 9})).is_empty());
    assert_eq!(member.directives.paused_groups(), ["h"]);
    assert!(stopped_by(&member, &json!({"resume": "h", "at": 10})).is_empty());
    assert!(member.directives.paused_groups().is_empty());
}

#[test]
fn local_orders_take_effect_at_once() {
    let (member, _fake) = member();
    member.apply_locally(|at| Directive::PauseGroup { pause: "g".into(), at });
    assert_eq!(member.directives.paused_groups(), ["g"]);
    // Orders are compared by the millisecond, and the later one counts.
    let paused_at = now();
    while now() == paused_at {
        std::hint::spin_loop();
    }
    member.apply_locally(|at| Directive::ResumeGroup { resume: "g".into(), at });
    assert!(member.directives.paused_groups().is_empty());
    member.apply_locally(|at| Directive::StopTask { task: "t".into(), at });
    let task = Envelope { group: None, ..Envelope::clone(&grouped("t", "g", 1)) };
    assert_eq!(member.directives.effect_on(&task, None, clock::now()), Some(DirectiveEffect::Stopped));
}
