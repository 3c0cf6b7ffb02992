use std::sync::Mutex;

use garenne_protocol::task::{ContentType, TaskId};
use tokio::sync::Semaphore;

use super::*;

/// Notes what it is given and confirms when told to.
struct Post {
    sent: Mutex<Vec<Vec<String>>>,
    gate: Arc<Semaphore>,
    failure: Option<PublishError>,
}

impl Parcels for Post {
    fn send(&self, tasks: Vec<NewTask>) -> BoxFuture<'static, Result<(), PublishError>> {
        self.sent.lock().unwrap().push(tasks.iter().map(|task| task.id.to_string()).collect());
        let (gate, failure) = (Arc::clone(&self.gate), self.failure.clone());
        Box::pin(async move {
            gate.acquire().await.unwrap().forget();
            failure.map_or(Ok(()), Err)
        })
    }
}

fn post(failure: Option<PublishError>) -> Arc<Post> {
    Arc::new(Post { sent: Mutex::default(), gate: Arc::new(Semaphore::new(0)), failure })
}

fn reading() -> Kind {
    Kind::parse("reading.process").unwrap()
}

fn task(id: &str) -> NewTask {
    NewTask { id: TaskId::parse(id).unwrap(), ..NewTask::new(reading(), ContentType::Json, b"{}".to_vec()) }
}

fn config(records: usize, messages: usize) -> GatherConfig {
    GatherConfig { records, bytes: Size::kib(1), wait: Duration::from_millis(5), messages }
}

struct Bench {
    post: Arc<Post>,
    outlet: Arc<GatherOutlet>,
}

impl Bench {
    fn new(config: GatherConfig) -> Self {
        let post = post(None);
        Self { outlet: GatherOutlet::start(post.clone(), config, reading()), post }
    }

    /// Delivers, and lets everything that can happen without time passing happen.
    async fn deliver(&self, ids: &[&str]) -> tokio::task::JoinHandle<Result<(), PublishError>> {
        let (outlet, tasks) = (Arc::clone(&self.outlet), ids.iter().map(|id| task(id)).collect());
        let delivering = tokio::spawn(async move { outlet.deliver(tasks).await });
        settle().await;
        delivering
    }

    fn sent(&self) -> Vec<Vec<String>> {
        self.post.sent.lock().unwrap().clone()
    }
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn alone_at_once_and_together_while_a_confirm_is_under_way() {
    let bench = Bench::new(config(100, 16));
    let first = bench.deliver(&["a"]).await;
    assert_eq!(bench.sent(), [["a"]]);
    let others = [bench.deliver(&["b"]).await, bench.deliver(&["c", "d"]).await];
    assert_eq!(bench.sent().len(), 1);
    bench.post.gate.add_permits(1);
    first.await.unwrap().unwrap();
    settle().await;
    assert_eq!(bench.sent()[1], ["b", "c", "d"]);
    assert!(!others[0].is_finished(), "no receipt before the confirm");
    bench.post.gate.add_permits(1);
    for other in others {
        other.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_allowed_for_a_confirm_of_others() {
    let bench = Bench::new(config(100, 16));
    let _first = bench.deliver(&["a"]).await;
    let _second = bench.deliver(&["b"]).await;
    tokio::time::sleep(Duration::from_millis(4)).await;
    assert_eq!(bench.sent().len(), 1);
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(bench.sent()[1], ["b"]);
}

#[tokio::test(start_paused = true)]
async fn packs_are_bounded_in_records_bytes_and_number() {
    let bench = Bench::new(config(2, 4));
    let mut flights = Vec::new();
    for id in ["a", "b", "c", "d", "e", "f", "g"] {
        flights.push(bench.deliver(&[id]).await);
    }
    assert_eq!(bench.sent(), [vec!["a"], vec!["b", "c"]], "two are under way, the rest waits");
    bench.post.gate.add_permits(100);
    for flight in flights {
        flight.await.unwrap().unwrap();
    }
    assert!(bench.sent().iter().all(|pack| pack.len() <= 2));
    let mut all = bench.sent().concat();
    all.sort();
    assert_eq!(all, ["a", "b", "c", "d", "e", "f", "g"]);
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_place_in_time_is_told_and_nothing_of_it_is_sent() {
    let bench = Bench::new(config(2, 2));
    let _sent = bench.deliver(&["a"]).await;
    let mut waiting = Vec::new();
    for id in ["b", "c", "d", "e"] {
        waiting.push(bench.deliver(&[id]).await);
    }
    tokio::time::sleep(PATIENCE + Duration::from_millis(100)).await;
    for waiting in waiting {
        let refused = waiting.await.unwrap().unwrap_err();
        assert_eq!(refused.to_string(), "publisher is busy: no place in a message within 1s");
    }
    bench.post.gate.add_permits(100);
    settle().await;
    assert_eq!(bench.sent(), [["a"]]);
}

#[tokio::test(start_paused = true)]
async fn large_requests_occupy_half_of_the_messages_and_small_ones_the_rest() {
    let bench = Bench::new(config(32, 4));
    let many: Vec<_> = (0..320).map(|n| format!("large-{n}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let large = bench.deliver(&many).await;
    assert_eq!(bench.sent().len(), 2, "the other eight parts wait");
    tokio::time::sleep(PATIENCE / 2).await;
    let first = bench.deliver(&["a", "b"]).await;
    assert_eq!(bench.sent()[2..], [["a", "b"]], "a small request waits for none of them");
    let second = bench.deliver(&["c"]).await;
    tokio::time::sleep(PATIENCE / 4).await;
    assert_eq!(bench.sent()[3..], [["c"]]);
    tokio::time::sleep(PATIENCE / 2).await;
    assert!(!first.is_finished() && !second.is_finished(), "no receipt before the confirm");
    bench.post.gate.add_permits(100);
    for small in [first, second] {
        small.await.unwrap().unwrap();
    }
    let refused = large.await.unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "publisher is busy: no place in a message within 1s");
    assert_eq!(bench.sent().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_small_where_sixteen_such_fit_into_one_message() {
    let outlet = Bench::new(config(32, 2)).outlet;
    let of = |bytes: usize| NewTask { body: vec![b'1'; bytes], ..task("a") };
    assert!(outlet.is_small(&[of(32), of(32)]));
    assert!(!outlet.is_small(&[of(1), of(1), of(1)]));
    assert!(!outlet.is_small(&[of(65)]));
}

#[tokio::test(start_paused = true)]
async fn a_large_request_is_split_and_answered_once_all_of_it_is_safe() {
    let bench = Bench::new(config(3, 16));
    let delivering = bench.deliver(&["a", "b", "c", "d", "e", "f", "g"]).await;
    bench.post.gate.add_permits(2);
    settle().await;
    assert!(!delivering.is_finished());
    bench.post.gate.add_permits(2);
    delivering.await.unwrap().unwrap();
    assert_eq!(bench.sent().concat().len(), 7);
}

#[tokio::test(start_paused = true)]
async fn what_a_record_cannot_say_travels_alone() {
    let bench = Bench::new(config(100, 16));
    let _first = bench.deliver(&["a"]).await;
    let grouped = NewTask { group: Some("g".to_owned()), ..task("grouped") };
    let large = NewTask { body: vec![b'1'; 2000], ..task("large") };
    let outlet = Arc::clone(&bench.outlet);
    let other = NewTask { kind: Kind::parse("spectrum.analyze").unwrap(), ..task("other") };
    let tasks = vec![task("b"), grouped, large, other];
    let delivering = tokio::spawn(async move { outlet.deliver(tasks).await });
    settle().await;
    assert_eq!(bench.sent(), [["a"], ["grouped"], ["large"], ["other"]]);
    bench.post.gate.add_permits(100);
    delivering.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pack_that_is_not_safe_promises_nobody_anything() {
    let post = post(Some(PublishError::InDoubt("the connection ended".to_owned())));
    let outlet = GatherOutlet::start(post.clone(), config(100, 16), reading());
    post.gate.add_permits(100);
    let outcomes = join_all(["a", "b", "c"].map(|id| outlet.deliver(vec![task(id)]))).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(PublishError::InDoubt(_)))));
}

#[test]
fn bounds_that_cannot_be_kept_are_refused_by_name() {
    let refused = |config: GatherConfig| config.validate().unwrap_err().to_string();
    let default = GatherConfig::default();
    assert!(default.validate().is_ok());
    assert!(GatherConfig { records: 1, wait: Duration::ZERO, ..default }.validate().is_ok());
    for (config, name) in [
        (GatherConfig { records: 0, ..default }, "group_commit.records"),
        (GatherConfig { records: 1001, ..default }, "group_commit.records"),
        (GatherConfig { bytes: Size::mib(2), ..default }, "group_commit.bytes"),
        (GatherConfig { wait: Duration::from_secs(2), ..default }, "group_commit.wait"),
        (GatherConfig { messages: 1, ..default }, "group_commit.messages"),
    ] {
        assert!(refused(config).contains(name), "{}", refused(config));
    }
}
