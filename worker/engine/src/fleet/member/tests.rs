use std::{collections::HashMap, sync::Weak};

use futures_util::{FutureExt, future::BoxFuture};
use garenne_protocol::{
    task::{ContentType, Kind, NewTask, TaskId},
    topology::LIFECYCLE_KEPT,
};
use serde_json::{Value, json};
use tokio::time::advance;

use super::*;
use crate::fleet::crash::{ALIVE_AFTER, RECONNECT_GRACE};

/// A broker with the lifecycle stream and control queues. What is published is read at once by the member.
#[derive(Default)]
pub(crate) struct FakeFleet {
    /// Exchange, routing key, record and time of each publication.
    published: Mutex<Vec<(String, String, Value, Instant)>>,
    /// Workers whose queue is there, or cannot be asked for.
    queues: Mutex<HashMap<String, Option<bool>>>,
    /// How many publications fail before one succeeds.
    failures: AtomicU64,
    /// How many marks get lost with a stream.
    lost_marks: AtomicU64,
    looks: AtomicU64,
    reader: Mutex<Weak<Member>>,
}

impl FakeFleet {
    fn take(counter: &AtomicU64) -> bool {
        counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    fn records(&self) -> Vec<Value> {
        self.published.lock().unwrap().iter().map(|(_, _, record, _)| record.clone()).collect()
    }

    pub(crate) fn events(&self, event: &str) -> usize {
        self.records().iter().filter(|record| record["event"] == event).count()
    }

    fn has_queue(&self, worker: &str, there: Option<bool>) {
        self.queues.lock().unwrap().insert(worker.to_owned(), there);
    }
}

struct FakeWire(Arc<FakeFleet>);

impl Wire for FakeWire {
    fn publish(&self, message: Message) -> BoxFuture<'_, Result<(), PublishError>> {
        let fake = &self.0;
        if FakeFleet::take(&fake.failures) {
            return std::future::ready(Err(PublishError::Blocked)).boxed();
        }
        let record: Value = serde_json::from_slice(&message.body).unwrap();
        assert!(message.properties.message_id().is_some(), "a returned message is told by its id");
        let Target { exchange, routing_key, .. } = message.target;
        fake.published.lock().unwrap().push((exchange, routing_key, record.clone(), Instant::now()));
        let lost = record["mark"].is_string() && FakeFleet::take(&fake.lost_marks);
        if let Some(member) = fake.reader.lock().unwrap().upgrade()
            && !lost
        {
            member.read_life(&message.body);
        }
        std::future::ready(Ok(())).boxed()
    }

    fn has_queue<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Option<bool>> {
        self.0.looks.fetch_add(1, Ordering::Relaxed);
        let there = self.0.queues.lock().unwrap().get(worker).copied().unwrap_or(Some(false));
        std::future::ready(there).boxed()
    }
}

pub(crate) fn member() -> (Arc<Member>, Arc<FakeFleet>) {
    let fake = Arc::new(FakeFleet::default());
    let identity = Identity { worker: "me".into(), kinds: vec!["mine".into()] };
    let member = Arc::new(Member::new(identity, Names::new("p"), Box::new(FakeWire(Arc::clone(&fake)))));
    *fake.reader.lock().unwrap() = Arc::downgrade(&member);
    (member, fake)
}

fn now() -> i64 {
    epoch_ms(SystemTime::now())
}

fn read(member: &Member, record: &Value) -> bool {
    member.read_life(&serde_json::to_vec(record).unwrap())
}

pub(crate) fn hello(member: &Member, worker: &str, incarnation: &str) {
    let record =
        json!({"event": "hello", "worker": worker, "incarnation": incarnation, "at": now(), "kinds": ["k"]});
    assert!(!read(member, &record));
}

pub(crate) fn run(member: &Member, worker: &str, incarnation: &str, task: &str) {
    let record = json!({"event": "run-started", "worker": worker, "incarnation": incarnation, "at": now(), "task": task});
    assert!(!read(member, &record));
}

fn who(worker: &str, incarnation: &str) -> WorkerIncarnation {
    WorkerIncarnation::new(worker, incarnation)
}

#[test]
fn a_member_says_who_it_is_where_the_lifecycle_stream_hears_it() {
    let (member, fake) = member();
    assert_eq!((member.worker(), member.names().events()), ("me", "p.events".to_owned()));
    member.hello().now_or_never().unwrap();
    member.goodbye().now_or_never().unwrap();
    let published = fake.published.lock().unwrap();
    let incarnation = member.incarnation();
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
    assert!(WorkerIncarnation::parse(&format!("me/{}", one.incarnation())).is_some());
    assert_ne!(one.incarnation(), other.incarnation());
}

#[test]
fn a_member_knows_its_own_first_mark_and_no_other() {
    let (member, fake) = member();
    member.mark("p.directives").now_or_never().unwrap().unwrap();
    let (exchange, key, record, _) = fake.published.lock().unwrap()[0].clone();
    assert_eq!((exchange.as_str(), key.as_str()), ("", "p.directives"));
    assert!(read(&member, &record));
    assert!(member.read_directive(record.to_string().as_bytes(), &|_| ()));
    let later = json!({"mark": format!("{}/1", member.incarnation())});
    for other in [json!({"mark": "another"}), later, json!({"nonsense": 1})] {
        assert!(!read(&member, &other));
        assert!(!member.read_directive(other.to_string().as_bytes(), &|_| ()));
    }
}

#[test]
fn a_failing_mark_is_an_error() {
    let (member, fake) = member();
    fake.failures.store(1, Ordering::Relaxed);
    assert!(member.mark("p.directives").now_or_never().unwrap().is_err());
}

/// The start record is what a crash is told by, and the stream keeps it for a bounded time.
#[tokio::test(start_paused = true)]
async fn a_living_member_always_has_a_start_record_in_the_stream() {
    let (member, fake) = member();
    member.hello().await;
    let begun = Instant::now();
    let keeping = tokio::spawn(async move { member.keep_record().await });
    for _ in 0..3 * 24 * 60 {
        tokio::task::yield_now().await;
        advance(Duration::from_secs(60)).await;
        tokio::task::yield_now().await;
        let published = fake.published.lock().unwrap();
        let (_, _, record, latest) = published.last().unwrap();
        assert_eq!(record["event"], "hello");
        // Three may get lost in a row.
        assert!(Instant::now() - *latest < LIFECYCLE_KEPT / 4, "{:?}", Instant::now() - begun);
    }
    let hellos = fake.events("hello");
    assert!((15..=20).contains(&hellos), "{hellos} in three days");
    keeping.abort();
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_said_to_have_crashed_says_that_it_has_not() {
    let (member, fake) = member();
    member.hello().await;
    let this = Arc::clone(&member);
    let keeping = tokio::spawn(async move { this.keep_record().await });
    let other = json!({"event": "died", "worker": "me", "incarnation": "another", "at": now()});
    read(&member, &other);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.events("hello"), 1);
    read(
        &member,
        &json!({"event": "died", "worker": "me", "incarnation": member.incarnation(), "at": now()}),
    );
    assert_eq!(member.lifecycle().deaths(now()), 2);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.events("hello"), 2);
    let me = who("me", member.incarnation());
    assert!(member.lifecycle().open().contains(&me));
    keeping.abort();
}

#[tokio::test(start_paused = true)]
async fn what_is_out_of_date_is_forgotten_while_a_member_lives() {
    let (member, _fake) = member();
    read(&member, &json!({"event": "hello", "worker": "w", "incarnation": "i", "at": 1000}));
    let resume = json!({"resume": "g", "at": 1000}).to_string();
    assert!(!member.read_directive(resume.as_bytes(), &|_| ()));
    member.directives().apply(&StandingOrder::Pause { pause: "old".into(), at: 1000 });
    assert_eq!((member.lifecycle().len(), member.directives().paused().len()), (1, 1));
    let this = Arc::clone(&member);
    let keeping = tokio::spawn(async move { this.keep_record().await });
    sleep(FORGET + Duration::from_secs(1)).await;
    assert_eq!((member.lifecycle().len(), member.directives().paused().len()), (0, 0));
    keeping.abort();
}

#[tokio::test(start_paused = true)]
async fn crashes_are_looked_for_once_the_broker_has_had_time_to_show_them() {
    let (member, fake) = member();
    hello(&member, "dead", "a");
    hello(&member, "alive", "b");
    hello(&member, "unknown", "c");
    fake.has_queue("alive", Some(true));
    fake.has_queue("unknown", None);
    let me = member.incarnation().to_owned();
    hello(&member, "me", &me);
    let begun = Instant::now();
    assert_eq!(member.recent_crashes().await, 1);
    assert!(Instant::now() - begun >= SETTLING);
    assert_eq!(fake.looks.load(Ordering::Relaxed), 3, "it does not look for itself");
    let died = fake.records().into_iter().find(|it| it["event"] == "died").unwrap();
    assert_eq!((&died["worker"], &died["incarnation"]), (&json!("dead"), &json!("a")));
    assert_eq!(member.recent_crashes().await, 1);
    assert_eq!(fake.looks.load(Ordering::Relaxed), 5, "the dead one is known");
    assert_eq!(fake.events("died"), 1);
}

#[tokio::test(start_paused = true)]
async fn many_that_come_back_together_are_looked_into_once() {
    let (member, fake) = member();
    hello(&member, "alive", "b");
    fake.has_queue("alive", Some(true));
    let all = futures_util::future::join_all((0..50).map(|_| member.recent_crashes())).await;
    assert!(all.iter().all(|deaths| *deaths == 0));
    assert!(fake.looks.load(Ordering::Relaxed) <= 2, "{:?}", fake.looks);
}

#[tokio::test(start_paused = true)]
async fn a_run_counts_if_its_worker_crashed() {
    let (member, fake) = member();
    hello(&member, "w", "a");
    run(&member, "w", "a", "t");
    let begun = Instant::now();
    assert_eq!(member.crashed_run("t", None).await, Some(who("w", "a")));
    assert!(Instant::now() - begun >= RECONNECT_GRACE);
    let marks: Vec<_> = fake.records().into_iter().filter(|it| it["mark"].is_string()).collect();
    assert_eq!(marks, [json!({"mark": format!("{}/1", member.incarnation())})]);
    assert_eq!(fake.published.lock().unwrap()[0].1, "p.lifecycle");
}

#[tokio::test(start_paused = true)]
async fn a_run_does_not_count_if_its_worker_is_alive() {
    let (member, fake) = member();
    hello(&member, "w", "a");
    run(&member, "w", "a", "t");
    // Its connection was lost; it comes back in time.
    let this = Arc::clone(&member);
    let judging = tokio::spawn(async move { this.crashed_run("t", None).await });
    sleep(RECONNECT_GRACE - Duration::from_secs(1)).await;
    assert!(!judging.is_finished());
    hello(&member, "w", "a");
    assert_eq!(judging.await.unwrap(), None);
    // Its channel was lost only.
    fake.has_queue("w", Some(true));
    let begun = Instant::now();
    assert_eq!(member.crashed_run("t", None).await, None);
    assert!(Instant::now() - begun >= ALIVE_AFTER);
}

#[tokio::test(start_paused = true)]
async fn a_run_is_not_judged_while_the_broker_cannot_be_asked() {
    let (member, fake) = member();
    hello(&member, "w", "a");
    run(&member, "w", "a", "t");
    fake.has_queue("w", None);
    let this = Arc::clone(&member);
    let judging = tokio::spawn(async move { this.crashed_run("t", None).await });
    sleep(Duration::from_secs(3600)).await;
    assert!(!judging.is_finished());
    fake.has_queue("w", Some(false));
    assert_eq!(judging.await.unwrap(), Some(who("w", "a")));
}

#[tokio::test(start_paused = true)]
async fn a_run_does_not_count_twice_nor_if_it_is_over_or_ours() {
    let (member, _fake) = member();
    hello(&member, "w", "a");
    run(&member, "w", "a", "t");
    assert_eq!(member.crashed_run("t", Some(&who("w", "a"))).await, None, "it is counted already");
    assert_eq!(member.crashed_run("t", Some(&who("w", "b"))).await, Some(who("w", "a")));
    assert_eq!(member.crashed_run("never", None).await, None);
    let me = member.incarnation().to_owned();
    run(&member, "me", &me, "t");
    assert_eq!(member.crashed_run("t", None).await, None, "this worker is alive");
    run(&member, "w", "a", "u");
    read(&member, &json!({"event": "goodbye", "worker": "w", "incarnation": "a", "at": now()}));
    assert_eq!(member.crashed_run("u", None).await, None, "it ended cleanly");
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_gets_lost_is_set_again() {
    let (member, fake) = member();
    fake.failures.store(3, Ordering::Relaxed);
    fake.lost_marks.store(2, Ordering::Relaxed);
    let begun = Instant::now();
    member.catch_up().await;
    assert!(Instant::now() - begun >= 2 * MARK_TIMEOUT);
    assert_eq!(fake.records().len(), 3);
    member.catch_up().await;
    assert_eq!(fake.records().len(), 4, "an earlier mark does not do");
}

#[tokio::test(start_paused = true)]
async fn a_late_mark_does_not_undo_a_later_one() {
    let (member, _fake) = member();
    for number in [7, 3] {
        read(&member, &json!({"mark": format!("{}/{number}", member.incarnation())}));
    }
    assert_eq!(*member.marks_read.borrow(), 7);
    read(&member, &json!({"mark": "another/9"}));
    assert_eq!(*member.marks_read.borrow(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_run_is_on_record_from_its_start_to_its_end() {
    let (member, fake) = member();
    fake.failures.store(2, Ordering::Relaxed);
    member.run_started("t").await;
    let me = who("me", member.incarnation());
    assert_eq!(member.lifecycle().run_of("t"), Some(&me), "tried until it was confirmed");
    member.run_ended("t").await;
    assert_eq!(member.lifecycle().run_of("t"), None);
    assert_eq!((fake.events("run-started"), fake.events("run-ended")), (1, 1));
    let published = fake.published.lock().unwrap();
    assert!(published.iter().all(|(exchange, key, ..)| exchange.is_empty() && key == "p.lifecycle"));
}

#[test]
fn handlers_of_the_fleet_are_known() {
    let (member, _fake) = member();
    hello(&member, "w", "a");
    assert!(member.has_handler("k") && !member.has_handler("other"));
}

fn grouped(id: &str, group: &str, published: i64) -> Arc<Envelope> {
    let mut task = NewTask::new(Kind::parse("k").unwrap(), ContentType::Json, Vec::new());
    task.id = TaskId::parse(id).unwrap();
    task.group = Some(group.to_owned());
    let now = std::time::UNIX_EPOCH + Duration::from_millis(published.unsigned_abs());
    Arc::new(Envelope::read("k", &task.properties(now), None, |_| true, now).unwrap())
}

/// Gives an order as the stream does, and answers the tasks that are told to end.
fn ordered(member: &Member, order: &Value) -> Vec<String> {
    let told = Mutex::new(Vec::new());
    let begun = member.read_directive(order.to_string().as_bytes(), &|task: &str| {
        told.lock().unwrap().push(task.to_owned());
    });
    assert!(!begun);
    told.into_inner().unwrap()
}

#[test]
fn a_stop_ends_what_it_covers_and_nothing_that_was_published_later() {
    let (member, _fake) = member();
    let tasks = [grouped("before", "g", 5000), grouped("after", "g", 5001), grouped("other", "h", 1)];
    tasks.iter().for_each(|task| member.track_grouped(task));
    let stop = json!({"group": "g", "at": 5000});
    assert_eq!(ordered(&member, &stop), ["before"]);
    assert!(ordered(&member, &stop).is_empty(), "read again, it says nothing new");
    assert_eq!(ordered(&member, &json!({"task": "t", "at": 1})), ["t"]);
    assert!(ordered(&member, &json!({"pause": "h", "at": 9})).is_empty());
    assert_eq!(member.directives().paused(), ["h"]);
    assert!(ordered(&member, &json!({"resume": "h", "at": 10})).is_empty());
    assert!(member.directives().paused().is_empty());
}

#[test]
fn orders_to_this_worker_alone_hold_from_now_on() {
    let (member, _fake) = member();
    member.pause_locally("g", true);
    assert_eq!(member.directives().paused(), ["g"]);
    // The later order counts, by the millisecond.
    let paused_at = now();
    while now() == paused_at {
        std::hint::spin_loop();
    }
    member.pause_locally("g", false);
    assert!(member.directives().paused().is_empty());
    member.stop_locally("t");
    let task = Envelope { group: None, ..Envelope::clone(&grouped("t", "g", 1)) };
    assert_eq!(member.directives().effect_on(&task, SystemTime::now()), Some(DirectiveEffect::Stopped));
}
