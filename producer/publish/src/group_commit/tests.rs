use std::sync::{
    Barrier, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::future::BoxFuture;
use garenne_protocol::task::{ContentType, TaskId};
use tokio::sync::Semaphore;

use super::*;
use crate::testing::MemorySender;

/// Records the groups and confirms on demand.
struct RecordingPublisher {
    groups: Mutex<Vec<Vec<String>>>,
    gate: Arc<Semaphore>,
    failure: Option<PublishError>,
}

impl GroupSender for RecordingPublisher {
    fn send_group(self: Arc<Self>, tasks: Vec<NewTask>) -> BoxFuture<'static, Result<(), PublishError>> {
        self.groups.lock().unwrap().push(tasks.iter().map(|task| task.id.to_string()).collect());
        let (gate, failure) = (Arc::clone(&self.gate), self.failure.clone());
        Box::pin(async move {
            gate.acquire().await.unwrap().forget();
            failure.map_or(Ok(()), Err)
        })
    }
}

fn recording(failure: Option<PublishError>) -> Arc<RecordingPublisher> {
    Arc::new(RecordingPublisher { groups: Mutex::default(), gate: Arc::new(Semaphore::new(0)), failure })
}

fn reading() -> Kind {
    Kind::parse("reading.process").unwrap()
}

fn task(id: &str) -> NewTask {
    NewTask { id: TaskId::parse(id).unwrap(), ..NewTask::new(reading(), ContentType::Json, b"{}".to_vec()) }
}

fn config(records: usize, messages: usize) -> GroupCommitConfig {
    GroupCommitConfig {
        records,
        bytes: Size::kib(1),
        wait: Duration::from_millis(5),
        messages,
        ..Default::default()
    }
}

#[test]
fn parts_of_many_tasks_have_no_spare_capacity() {
    let tasks = |count: usize| (0..count).map(|n| task(&n.to_string())).collect::<Vec<_>>();
    let parts = parts(tasks(10_001), 1_000);
    let sizes: Vec<_> = parts.iter().map(Vec::len).collect();
    assert_eq!(sizes, [vec![1_000; 10], vec![1]].concat());
    assert_eq!(parts.iter().map(Vec::capacity).sum::<usize>(), 10_001, "a part kept the memory of the whole");
    let ids = parts.iter().flatten().map(|task| task.id.to_string());
    assert!(ids.eq((0..10_001).map(|n| n.to_string())), "the order is kept");
    assert!(super::parts(Vec::new(), 1_000).is_empty());
}

struct Fixture {
    publisher: Arc<RecordingPublisher>,
    group_commit: Arc<GroupCommit>,
}

impl Fixture {
    fn new(config: GroupCommitConfig) -> Self {
        let publisher = recording(None);
        Self { group_commit: GroupCommit::start(publisher.clone(), config, reading()), publisher }
    }

    /// Publishes tasks, and runs everything that is ready without advancing the clock.
    async fn publish(&self, ids: &[&str]) -> tokio::task::JoinHandle<Result<(), PublishError>> {
        let (group_commit, tasks) = (Arc::clone(&self.group_commit), ids.iter().map(|id| task(id)).collect());
        let publishing = tokio::spawn(async move { group_commit.group(tasks).await });
        run_ready().await;
        publishing
    }

    fn groups(&self) -> Vec<Vec<String>> {
        self.publisher.groups.lock().unwrap().clone()
    }
}

async fn run_ready() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_is_published_at_once_or_grouped_while_a_confirm_is_outstanding() {
    let fixture = Fixture::new(config(100, 16));
    let first = fixture.publish(&["a"]).await;
    assert_eq!(fixture.groups(), [["a"]]);
    let others = [fixture.publish(&["b"]).await, fixture.publish(&["c", "d"]).await];
    assert_eq!(fixture.groups().len(), 1);
    fixture.publisher.gate.add_permits(1);
    first.await.unwrap().unwrap();
    run_ready().await;
    assert_eq!(fixture.groups()[1], ["b", "c", "d"]);
    assert!(!others[0].is_finished(), "not resolved before the confirm");
    fixture.publisher.gate.add_permits(1);
    for other in others {
        other.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_is_published_after_its_wait_even_without_a_confirm() {
    let fixture = Fixture::new(config(100, 16));
    let _first = fixture.publish(&["a"]).await;
    let _second = fixture.publish(&["b"]).await;
    tokio::time::sleep(Duration::from_millis(4)).await;
    assert_eq!(fixture.groups().len(), 1);
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(fixture.groups()[1], ["b"]);
}

/// Counts the groups, and confirms each after a millisecond.
#[derive(Default)]
struct SlowPublisher(AtomicUsize);

impl GroupSender for SlowPublisher {
    fn send_group(self: Arc<Self>, _: Vec<NewTask>) -> BoxFuture<'static, Result<(), PublishError>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(tokio::time::sleep(Duration::from_millis(1)).map(Ok))
    }
}

/// The number of groups of a hundred requests, one each `gap` milliseconds, and the longest time to a confirm.
async fn groups_of_requests(linger: u64, gap: u64) -> (usize, Duration) {
    let publisher = Arc::new(SlowPublisher::default());
    let config = GroupCommitConfig { linger: Duration::from_millis(linger), ..config(100, 16) };
    let group_commit = GroupCommit::start(publisher.clone(), config, reading());
    let requests = (0..100).map(|place| {
        let group_commit = Arc::clone(&group_commit);
        async move {
            tokio::time::sleep(Duration::from_millis(place * gap)).await;
            let began = Instant::now();
            group_commit.group(vec![task("a")]).await.unwrap();
            began.elapsed()
        }
    });
    let longest = join_all(requests).await.into_iter().max().unwrap();
    (publisher.0.load(Ordering::Relaxed), longest)
}

#[tokio::test(start_paused = true)]
async fn requests_linger_until_others_come_or_the_time_is_over() {
    for (linger, gap, groups, most) in
        [(0, 3, 100..=100, 1), (10, 3, 20..=30, 14), (10, 50, 100..=100, 14), (1000, 3, 12..=13, 1010)]
    {
        let (found, longest) = groups_of_requests(linger, gap).await;
        assert!(groups.contains(&found), "{found} groups, linger {linger} ms, a request each {gap} ms");
        assert!(longest <= Duration::from_millis(most), "{longest:?}, linger {linger} ms, gap {gap} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn several_requests_at_once_do_not_linger() {
    let (groups, longest) = groups_of_requests(60_000, 0).await;
    assert!(groups <= 2 && longest <= Duration::from_millis(10), "{groups} groups, {longest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_caller_has_gone_is_not_published() {
    let fixture = Fixture::new(config(100, 2));
    let _first = fixture.publish(&["a"]).await;
    let mut gone = Vec::new();
    for id in ["b", "d"] {
        gone.push(fixture.publish(&[id]).await);
    }
    let awaited = fixture.publish(&["c"]).await;
    for request in gone {
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
    }
    fixture.publisher.gate.add_permits(2);
    awaited.await.unwrap().unwrap();
    assert_eq!(fixture.groups(), [["a"], ["c"]]);
}

#[tokio::test(start_paused = true)]
async fn groups_are_bounded_in_records_and_number() {
    let fixture = Fixture::new(config(2, 4));
    let mut in_flight = Vec::new();
    for id in ["a", "b", "c", "d", "e", "f", "g"] {
        in_flight.push(fixture.publish(&[id]).await);
    }
    assert_eq!(fixture.groups(), [vec!["a"], vec!["b", "c"]], "two messages are in flight, the rest waits");
    fixture.publisher.gate.add_permits(100);
    for publishing in in_flight {
        publishing.await.unwrap().unwrap();
    }
    assert!(fixture.groups().iter().all(|group| group.len() <= 2));
    let mut all = fixture.groups().concat();
    all.sort();
    assert_eq!(all, ["a", "b", "c", "d", "e", "f", "g"]);
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_place_are_refused_after_the_timeout_and_not_published() {
    let fixture = Fixture::new(config(2, 2));
    let _sent = fixture.publish(&["a"]).await;
    let mut waiting = Vec::new();
    for id in ["b", "c", "d", "e"] {
        waiting.push(fixture.publish(&[id]).await);
    }
    tokio::time::sleep(SLOT_TIMEOUT + Duration::from_millis(100)).await;
    for waiting in waiting {
        let refused = waiting.await.unwrap().unwrap_err();
        assert_eq!(refused.to_string(), "publisher is busy: no room in a message within 1s");
    }
    fixture.publisher.gate.add_permits(100);
    run_ready().await;
    assert_eq!(fixture.groups(), [["a"]]);
}

#[tokio::test(start_paused = true)]
async fn large_requests_get_half_of_the_messages_and_small_ones_the_rest() {
    let fixture = Fixture::new(config(32, 4));
    let many: Vec<_> = (0..320).map(|n| format!("large-{n}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let large = fixture.publish(&many).await;
    assert_eq!(fixture.groups().len(), 2, "the other eight parts wait");
    tokio::time::sleep(SLOT_TIMEOUT / 2).await;
    let first = fixture.publish(&["a", "b"]).await;
    assert_eq!(fixture.groups()[2..], [["a", "b"]], "a small request does not wait for them");
    let second = fixture.publish(&["c"]).await;
    tokio::time::sleep(SLOT_TIMEOUT / 4).await;
    assert_eq!(fixture.groups()[3..], [["c"]]);
    tokio::time::sleep(SLOT_TIMEOUT / 2).await;
    assert!(!first.is_finished() && !second.is_finished(), "not resolved before the confirm");
    fixture.publisher.gate.add_permits(100);
    for small in [first, second] {
        small.await.unwrap().unwrap();
    }
    let refused = large.await.unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "publisher is busy: no room in a message within 1s");
    assert_eq!(fixture.groups().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_small_if_sixteen_of_its_size_fit_into_one_message() {
    let group_commit = Fixture::new(config(32, 2)).group_commit;
    let of = |bytes: usize| NewTask { body: vec![b'1'; bytes], ..task("a") };
    assert!(group_commit.is_small(&[of(32), of(32)]));
    assert!(!group_commit.is_small(&[of(1), of(1), of(1)]));
    assert!(!group_commit.is_small(&[of(65)]));
}

#[tokio::test(start_paused = true)]
async fn a_large_request_is_split_and_resolves_after_all_confirms() {
    let fixture = Fixture::new(config(3, 16));
    let publishing = fixture.publish(&["a", "b", "c", "d", "e", "f", "g"]).await;
    fixture.publisher.gate.add_permits(2);
    run_ready().await;
    assert!(!publishing.is_finished());
    fixture.publisher.gate.add_permits(2);
    publishing.await.unwrap().unwrap();
    assert_eq!(fixture.groups().concat().len(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_no_batch_record_can_express_gets_its_own_message() {
    let fixture = Fixture::new(config(100, 16));
    let _first = fixture.publish(&["a"]).await;
    let grouped = NewTask { group: Some("g".to_owned()), ..task("grouped") };
    let large = NewTask { body: vec![b'1'; 2000], ..task("large") };
    let group_commit = Arc::clone(&fixture.group_commit);
    let other = NewTask { kind: Kind::parse("spectrum.analyze").unwrap(), ..task("other") };
    let tasks = vec![task("b"), grouped, large, other];
    let publishing = tokio::spawn(async move { group_commit.group(tasks).await });
    run_ready().await;
    assert_eq!(fixture.groups(), [["a"], ["grouped"], ["large"], ["other"]]);
    fixture.publisher.gate.add_permits(100);
    publishing.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_message_fails_all_its_requests() {
    let publisher = recording(Some(PublishError::InDoubt("the connection ended".to_owned())));
    let group_commit = GroupCommit::start(publisher.clone(), config(100, 16), reading());
    publisher.gate.add_permits(100);
    let outcomes = join_all(["a", "b", "c"].map(|id| group_commit.group(vec![task(id)]))).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(PublishError::InDoubt(_)))));
}

/// Panics instead of sending.
struct Panicking;

impl GroupSender for Panicking {
    fn send_group(self: Arc<Self>, _: Vec<NewTask>) -> BoxFuture<'static, Result<(), PublishError>> {
        Box::pin(async { std::panic::resume_unwind(Box::new("broken")) })
    }
}

#[tokio::test]
async fn single_tasks_complete_while_all_threads_of_the_caller_are_busy() {
    let connections = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let memory = MemorySender::gated();
    let groups = GroupCommit::start(memory.clone(), GroupCommitConfig::off(), reading());
    let connection = connections.handle().spawn(async move { groups.group(vec![task("a")]).await });
    memory.received(1).await;

    let threads = connections.handle().metrics().num_workers();
    let (busy, idle) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(threads + 1)));
    for _ in 0..threads {
        let (busy, idle) = (Arc::clone(&busy), Arc::clone(&idle));
        connections.handle().spawn(async move {
            busy.fetch_add(1, Ordering::SeqCst);
            idle.wait();
        });
    }
    while busy.load(Ordering::SeqCst) < threads {
        // A blocked thread may hold the next task in its queue. A new task lets the runtime wake a thread that takes it.
        connections.handle().spawn(async {});
        tokio::task::yield_now().await;
    }
    memory.confirm(1);
    while memory.tasks().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(!connection.is_finished(), "no thread is free to poll it");
    idle.wait();
    connection.await.unwrap().unwrap();
    connections.shutdown_background();
}

#[tokio::test]
async fn tasks_are_in_doubt_if_sending_them_panics() {
    let groups = GroupCommit::start(Arc::new(Panicking), GroupCommitConfig::off(), reading());
    assert!(groups.group(vec![task("a")]).await.unwrap_err().in_doubt());
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let refused = |config: GroupCommitConfig| config.validate().unwrap_err().to_string();
    let default = GroupCommitConfig::default();
    assert!(default.validate().is_ok());
    assert!(GroupCommitConfig { records: 1, wait: Duration::ZERO, ..default }.validate().is_ok());
    for (config, name) in [
        (GroupCommitConfig { records: 0, ..default }, "group_commit.records"),
        (GroupCommitConfig { records: 1001, ..default }, "group_commit.records"),
        (GroupCommitConfig { bytes: Size::mib(2), ..default }, "group_commit.bytes"),
        (GroupCommitConfig { wait: Duration::from_secs(2), ..default }, "group_commit.wait"),
        (GroupCommitConfig { messages: 1, ..default }, "group_commit.messages"),
    ] {
        assert!(refused(config).contains(name), "{}", refused(config));
    }
}
