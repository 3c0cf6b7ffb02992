use std::{
    collections::HashMap,
    sync::{Weak, atomic::AtomicBool},
};

use futures_util::{FutureExt, future::BoxFuture};
use serde_json::Value;

use super::super::*;

/// A broker with the lifecycle stream and control queues. The member reads each published record at once.
#[derive(Default)]
pub(crate) struct FakeFleet {
    /// Exchange, routing key, record and time of each publication.
    pub(super) published: Mutex<Vec<(String, String, Value, Instant)>>,
    /// Whether the control queue of each worker exists; `None` if the broker does not answer.
    control_queues: Mutex<HashMap<String, Option<bool>>>,
    /// Number of publications that fail before one succeeds.
    pub(super) failures: AtomicU64,
    /// Number of marks that are lost with a deleted stream.
    pub(super) lost_marks: AtomicU64,
    pub(super) queue_checks: AtomicU64,
    /// Whether publications are never confirmed.
    pub(crate) silent: AtomicBool,
    reader: Mutex<Weak<Member>>,
}

impl FakeFleet {
    fn take_one(counter: &AtomicU64) -> bool {
        counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    pub(super) fn records(&self) -> Vec<Value> {
        self.published.lock().unwrap().iter().map(|(_, _, record, _)| record.clone()).collect()
    }

    pub(crate) fn events(&self, event: &str) -> usize {
        self.records().iter().filter(|record| record["event"] == event).count()
    }

    pub(crate) fn set_control_queue(&self, worker: &str, exists: Option<bool>) {
        self.control_queues.lock().unwrap().insert(worker.to_owned(), exists);
    }
}

struct FakeBroker(Arc<FakeFleet>);

impl FleetBroker for FakeBroker {
    fn publish(&self, message: Message) -> BoxFuture<'_, Result<(), PublishError>> {
        let fake = &self.0;
        if FakeFleet::take_one(&fake.failures) {
            return std::future::ready(Err(PublishError::Blocked)).boxed();
        }
        if fake.silent.load(Ordering::Relaxed) {
            return std::future::pending().boxed();
        }
        let record: Value = serde_json::from_slice(&message.body).unwrap();
        assert!(message.properties.message_id().is_some(), "a returned message is matched by its id");
        let Target { exchange, routing_key, .. } = message.target;
        fake.published.lock().unwrap().push((exchange, routing_key, record.clone(), Instant::now()));
        let lost = record["mark"].is_string() && FakeFleet::take_one(&fake.lost_marks);
        if let Some(member) = fake.reader.lock().unwrap().upgrade()
            && !lost
        {
            member.read_lifecycle(&message.body);
        }
        std::future::ready(Ok(())).boxed()
    }

    fn control_queue_exists<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Option<bool>> {
        self.0.queue_checks.fetch_add(1, Ordering::Relaxed);
        let exists = self.0.control_queues.lock().unwrap().get(worker).copied().unwrap_or(Some(false));
        std::future::ready(exists).boxed()
    }
}

pub(crate) fn member() -> (Arc<Member>, Arc<FakeFleet>) {
    let fake = Arc::new(FakeFleet::default());
    let broker = FakeBroker(Arc::clone(&fake));
    let handlers = Handlers { kinds: vec!["mine".into()], ..Handlers::default() };
    let member = Arc::new(Member::new("me".into(), handlers, Names::new("p"), broker));
    *fake.reader.lock().unwrap() = Arc::downgrade(&member);
    (member, fake)
}
