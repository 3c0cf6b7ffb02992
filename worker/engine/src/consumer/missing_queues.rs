//! Queues and exchanges that copies of tasks cannot reach because they do not exist.
//!
//! The broker returns a copy that it cannot route, and the copy's task waits on this worker. The worker declares
//! its topology again and publishes again. If it may not declare, readiness and a metric name the queue until it
//! exists.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use futures_util::FutureExt;
use garenne_amqp::Target;
use garenne_common::{supervise, telemetry::metrics::NewMetrics};
use prometheus::{IntCounterVec, IntGaugeVec, Registry};
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{Instant, sleep},
};

use super::broker::{QueueAdmin, RestoreError};
use crate::panics::lock;

/// Time between two checks whether a missing queue exists again.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// Bound for remembered and reported names, because a foreign header may name any queue.
const MAX_NAMES: usize = 64;

/// The queues and exchanges that copies could not reach.
pub(crate) struct MissingQueues {
    broker: Box<dyn QueueAdmin>,
    gauge: IntGaugeVec,
    reclaimed: IntCounterVec,
    /// Each missing name, and why it could not be declared.
    missing: Mutex<BTreeMap<PublishTarget, String>>,
    /// When the last check of each name started. A check serves all callers that were waiting when it started.
    last_checks: AsyncMutex<BTreeMap<PublishTarget, Instant>>,
}

/// The queue or exchange that a message is published to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct PublishTarget {
    is_queue: bool,
    name: String,
}

impl PublishTarget {
    fn of(target: &Target) -> Self {
        let is_queue = target.exchange.is_empty();
        let name = if is_queue { &target.routing_key } else { &target.exchange };
        Self { is_queue, name: name.clone() }
    }

    fn kind(&self) -> &'static str {
        if self.is_queue { "queue" } else { "exchange" }
    }
}

impl MissingQueues {
    /// Registers the metric, once per registry, and starts a task that checks the missing names. The task of a copy
    /// that was returned may be gone when its queue exists again.
    pub(crate) fn new(broker: impl QueueAdmin + 'static, registry: &Registry) -> Arc<Self> {
        let help = "1 while copies of tasks cannot reach this queue or exchange because it does not exist.";
        let gauge = NewMetrics(registry).gauges("garenne_queue_missing", help, &["queue"]);
        let help = "Tasks that a worker held when their queue was deleted, by what became of them.";
        let reclaimed = NewMetrics(registry).counters("garenne_orphans_total", help, &["lane", "outcome"]);
        let (missing, last_checks) = (Mutex::default(), AsyncMutex::default());
        let queues = Arc::new(Self { broker: Box::new(broker), gauge, reclaimed, missing, last_checks });
        let weak = Arc::downgrade(&queues);
        supervise::restarting("missing-queues", weak, |queues| check_repeatedly(queues).boxed())
            .spawn()
            .detach();
        queues
    }

    /// Counts a message whose queue was deleted while this worker held it.
    pub(crate) fn count_reclaimed(&self, lane: &str, outcome: &str) {
        self.reclaimed.with_label_values(&[lane, outcome]).inc();
    }

    /// Describes each missing queue or exchange for the readiness check.
    pub(crate) fn problems(&self) -> Vec<String> {
        let problem = |(target, reason): (&PublishTarget, &String)| {
            format!("{} {:?} is missing: {reason}", target.kind(), target.name)
        };
        lock(&self.missing).iter().map(problem).collect()
    }

    /// Declares these queues and exchanges again, as far as the user's permissions allow.
    pub(crate) async fn restore(&self, targets: impl IntoIterator<Item = &Target>) {
        let targets: BTreeSet<_> = targets.into_iter().map(PublishTarget::of).collect();
        for target in targets {
            self.restore_one(target).await;
        }
    }

    /// Whether the broker says that a queue does not exist.
    pub(crate) async fn is_queue_missing(&self, queue: &str) -> bool {
        self.broker.queue_exists(queue).await == Some(false)
    }

    /// Declares again what no copy waits for. Returns whether that made it exist; otherwise readiness and the metric name it.
    pub(crate) async fn restore_unused(&self, target: &Target) -> bool {
        let target = PublishTarget::of(target);
        self.restore_one(target.clone()).await;
        !lock(&self.missing).contains_key(&target)
    }

    async fn restore_one(&self, target: PublishTarget) {
        let called = Instant::now();
        let mut last_checks = self.last_checks.lock().await;
        if last_checks.get(&target).is_some_and(|started| *started >= called) {
            return;
        }
        let started = Instant::now();
        let restored = self.broker.restore_topology().await;
        let (declared, reason) = match restored {
            Ok(()) => (Some(true), "this worker's settings do not declare it".to_owned()),
            Err(error @ RestoreError::Refused(_)) => (Some(false), error.to_string()),
            Err(error @ RestoreError::Unavailable) => (None, error.to_string()),
        };
        // An exchange is reachable only with its bindings, which a passive declaration does not check.
        let exists = if target.is_queue { self.broker.queue_exists(&target.name).await } else { declared };
        match exists {
            Some(true) => self.mark_restored(&target),
            Some(false) => self.mark_missing(&target, reason),
            None => {}
        }
        if last_checks.len() >= MAX_NAMES {
            last_checks.clear();
        }
        last_checks.insert(target, started);
    }

    fn mark_restored(&self, target: &PublishTarget) {
        if lock(&self.missing).remove(target).is_some() {
            self.set_gauge(target, 0);
            tracing::info!(queue = target.name, "missing {} exists again", target.kind());
        }
    }

    fn mark_missing(&self, target: &PublishTarget, reason: String) {
        let mut missing = lock(&self.missing);
        if missing.len() >= MAX_NAMES && !missing.contains_key(target) {
            let (queue, kind) = (&target.name, target.kind());
            tracing::warn!(queue, reason, limit = MAX_NAMES, "{kind} is missing; too many to report it");
            return;
        }
        if missing.insert(target.clone(), reason.clone()).is_none() {
            tracing::error!(queue = target.name, reason, "a {} is missing", target.kind());
        }
        self.set_gauge(target, 1);
    }

    fn set_gauge(&self, target: &PublishTarget, missing: i64) {
        self.gauge.with_label_values(&[&target.name]).set(missing);
    }

    async fn check_all(&self) {
        let missing: Vec<_> = lock(&self.missing).keys().cloned().collect();
        for target in missing {
            let exists = match target.is_queue {
                true => self.broker.queue_exists(&target.name).await == Some(true),
                false => self.broker.restore_topology().await.is_ok(),
            };
            if exists {
                self.mark_restored(&target);
            }
        }
    }
}

/// Checks the missing names at intervals until the worker has ended.
async fn check_repeatedly(queues: &Weak<MissingQueues>) {
    loop {
        sleep(PROBE_INTERVAL).await;
        let Some(queues) = queues.upgrade() else { return };
        queues.check_all().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use futures_util::future::BoxFuture;

    use super::*;

    /// A broker on which every queue except `foreign` can be created and deleted.
    #[derive(Default)]
    struct FakeBroker {
        queue_exists: AtomicBool,
        unavailable: AtomicBool,
        may_declare: bool,
        declarations: AtomicUsize,
        queue_checks: AtomicUsize,
    }

    impl QueueAdmin for Arc<FakeBroker> {
        fn restore_topology(&self) -> BoxFuture<'_, Result<(), RestoreError>> {
            async {
                tokio::task::yield_now().await;
                self.declarations.fetch_add(1, Ordering::Relaxed);
                if self.unavailable.load(Ordering::Relaxed) {
                    return Err(RestoreError::Unavailable);
                }
                if !self.may_declare {
                    return Err(RestoreError::Refused("this user may not create it".into()));
                }
                self.queue_exists.store(true, Ordering::Relaxed);
                Ok(())
            }
            .boxed()
        }

        fn queue_exists<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Option<bool>> {
            self.queue_checks.fetch_add(1, Ordering::Relaxed);
            let exists = queue != "foreign" && self.queue_exists.load(Ordering::Relaxed);
            std::future::ready((!self.unavailable.load(Ordering::Relaxed)).then_some(exists)).boxed()
        }
    }

    fn missing(fake: &Arc<FakeBroker>) -> (Arc<MissingQueues>, Registry) {
        let registry = Registry::new();
        (MissingQueues::new(Arc::clone(fake), &registry), registry)
    }

    fn gauges(registry: &Registry) -> Vec<(String, i64)> {
        let families = registry.gather();
        let metrics = families.iter().flat_map(|family| family.get_metric());
        metrics.map(|it| (it.get_label()[0].value().to_owned(), it.get_gauge().get_value() as i64)).collect()
    }

    fn dead_letter_queue() -> Target {
        Target::queue("dead".into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_queue_is_declared_at_once() {
        let fake = Arc::new(FakeBroker { may_declare: true, ..FakeBroker::default() });
        let (missing, registry) = missing(&fake);
        missing.restore(&[dead_letter_queue(), dead_letter_queue()]).await;
        assert_eq!(
            fake.declarations.load(Ordering::Relaxed),
            1,
            "one declaration for two messages to one queue"
        );
        assert_eq!((missing.problems().len(), gauges(&registry).len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_cannot_be_declared_is_reported_until_it_exists() {
        let fake = Arc::new(FakeBroker::default());
        let (missing, registry) = missing(&fake);
        missing.restore(&[dead_letter_queue()]).await;
        assert_eq!(missing.problems(), [r#"queue "dead" is missing: this user may not create it"#]);
        assert_eq!(gauges(&registry), [("dead".to_owned(), 1)]);
        sleep(PROBE_INTERVAL * 3 + PROBE_INTERVAL / 2).await;
        assert_eq!(
            fake.queue_checks.load(Ordering::Relaxed),
            4,
            "one check by restore and one by each probe"
        );
        fake.queue_exists.store(true, Ordering::Relaxed);
        sleep(PROBE_INTERVAL).await;
        assert_eq!((missing.problems().len(), gauges(&registry)), (0, vec![("dead".to_owned(), 0)]));
        sleep(PROBE_INTERVAL * 5).await;
        assert_eq!(fake.queue_checks.load(Ordering::Relaxed), 5, "it is not checked while it exists");
        fake.queue_exists.store(false, Ordering::Relaxed);
        missing.restore(&[dead_letter_queue()]).await;
        sleep(PROBE_INTERVAL).await;
        assert_eq!(fake.queue_checks.load(Ordering::Relaxed), 7, "it is checked again");
    }

    #[tokio::test(start_paused = true)]
    async fn one_check_serves_all_callers_that_wait_for_it() {
        let fake = Arc::new(FakeBroker::default());
        let (missing, _) = missing(&fake);
        let target = dead_letter_queue();
        let waiting = (0..100).map(|_| missing.restore([&target]));
        futures_util::future::join_all(waiting).await;
        // Callers during the first check share the second.
        assert!(fake.declarations.load(Ordering::Relaxed) <= 2, "{:?}", fake.declarations);
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_outside_the_topology_is_reported_as_unknown() {
        let fake = Arc::new(FakeBroker { may_declare: true, ..FakeBroker::default() });
        let (missing, _) = missing(&fake);
        missing.restore(&[Target::queue("foreign".into())]).await;
        assert_eq!(
            missing.problems(),
            [r#"queue "foreign" is missing: this worker's settings do not declare it"#]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_unavailable_broker_changes_nothing() {
        let fake = Arc::new(FakeBroker { unavailable: true.into(), ..FakeBroker::default() });
        let (missing, _) = missing(&fake);
        let shards_exchange = Target::exchange("shards.fast".into(), "kind".into());
        missing.restore([&dead_letter_queue(), &shards_exchange]).await;
        assert!(missing.problems().is_empty());
        fake.unavailable.store(false, Ordering::Relaxed);
        sleep(Duration::from_millis(1)).await;
        missing.restore(&[dead_letter_queue()]).await;
        fake.unavailable.store(true, Ordering::Relaxed);
        sleep(PROBE_INTERVAL * 2).await;
        assert_eq!(missing.problems().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_exchange_is_checked_by_declaring_the_topology() {
        let fake = Arc::new(FakeBroker::default());
        let (missing, _) = missing(&fake);
        let shards_exchange = Target::exchange("shards.fast".into(), "kind".into());
        missing.restore([&shards_exchange]).await;
        assert_eq!(missing.problems(), [r#"exchange "shards.fast" is missing: this user may not create it"#]);
        assert_eq!(fake.queue_checks.load(Ordering::Relaxed), 0, "an exchange is not checked as a queue");
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_remembered_names_is_bounded() {
        let fake = Arc::new(FakeBroker::default());
        let (missing, registry) = missing(&fake);
        for n in 0..2 * MAX_NAMES {
            missing.restore(&[Target::queue(format!("foreign-{n}"))]).await;
        }
        assert_eq!((missing.problems().len(), gauges(&registry).len()), (MAX_NAMES, MAX_NAMES));
        assert!(missing.last_checks.lock().await.len() <= MAX_NAMES);
    }
}
