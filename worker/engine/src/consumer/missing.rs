//! Queues that a copy was returned from, until they are there again.
//!
//! A copy that no queue takes keeps its task here. The worker declares its topology again and publishes again;
//! where it may not declare, readiness and a metric name the queue until somebody else has.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use garenne_amqp::Target;
use prometheus::{IntGaugeVec, Opts, Registry};
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{Instant, sleep},
};

use super::connection::{ConsumerConnection, RestoreError};

/// Between two looks whether a missing queue is back.
const PROBE: Duration = Duration::from_secs(2);
/// Names that are remembered and shown; a foreign header may name any queue.
const MOST: usize = 64;

/// What is asked of a broker about its queues.
pub(crate) trait Queues: Send + Sync + 'static {
    /// Declares what is missing of the worker's topology; says why it cannot.
    fn restore(&self) -> impl Future<Output = Result<(), RestoreError>> + Send;

    /// Whether a queue is there; nothing when the broker cannot be asked.
    fn exists(&self, queue: &str) -> impl Future<Output = Option<bool>> + Send;
}

impl Queues for ConsumerConnection {
    async fn restore(&self) -> Result<(), RestoreError> {
        ConsumerConnection::restore(self).await
    }

    async fn exists(&self, queue: &str) -> Option<bool> {
        ConsumerConnection::exists(self, queue).await
    }
}

/// The queues and exchanges that copies could not reach.
pub(crate) struct MissingQueues<Q = ConsumerConnection> {
    queues: Q,
    gauge: IntGaugeVec,
    state: Mutex<State>,
    /// When what was last looked for, by the begin of the look: one serves all that waited for it.
    looked: AsyncMutex<HashMap<PublishTarget, Instant>>,
}

#[derive(Default)]
struct State {
    /// Why each is not back.
    missing: BTreeMap<PublishTarget, String>,
    /// Whether they are looked for at intervals.
    probing: bool,
}

/// What a message is published to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum PublishTarget {
    Queue(String),
    Exchange(String),
}

impl PublishTarget {
    fn of(target: &Target) -> Self {
        match target.exchange.as_str() {
            "" => Self::Queue(target.routing_key.clone()),
            exchange => Self::Exchange(exchange.to_owned()),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Queue(_) => "queue",
            Self::Exchange(_) => "exchange",
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Queue(name) | Self::Exchange(name) => name,
        }
    }
}

impl<Q: Queues> MissingQueues<Q> {
    /// None is missing so far. Once for each registry.
    pub(crate) fn new(queues: Q, registry: &Registry) -> Arc<Self> {
        let opts = Opts::new(
            "garenne_queue_missing",
            "1 while copies of tasks cannot reach this queue or exchange of the worker's, because it is not there.",
        );
        let gauge = IntGaugeVec::new(opts, &["queue"]).expect("the metric's name and labels are valid");
        registry.register(Box::new(gauge.clone())).expect("each metric is registered once");
        Arc::new(Self { queues, gauge, state: Mutex::default(), looked: AsyncMutex::default() })
    }

    /// Why copies cannot be published, for an operator.
    pub(crate) fn problems(&self) -> Vec<String> {
        let state = self.state();
        let problem =
            |(it, why): (&PublishTarget, &String)| format!("{} {:?} is missing: {why}", it.kind(), it.name());
        state.missing.iter().map(problem).collect()
    }

    /// Makes sure that these can be published to again, as far as this user may.
    pub(crate) async fn restore(self: &Arc<Self>, targets: impl IntoIterator<Item = &Target>) {
        let entrances: BTreeSet<_> = targets.into_iter().map(PublishTarget::of).collect();
        for entrance in entrances {
            self.restore_one(entrance).await;
        }
    }

    async fn restore_one(self: &Arc<Self>, entrance: PublishTarget) {
        let asked = Instant::now();
        let mut looked = self.looked.lock().await;
        if looked.get(&entrance).is_some_and(|begun| *begun >= asked) {
            return;
        }
        let begun = Instant::now();
        let restored = self.queues.restore().await;
        let there = match &entrance {
            PublishTarget::Queue(queue) => self.queues.exists(queue).await,
            // A look at it says nothing of the bindings that it needs.
            PublishTarget::Exchange(_) => match restored {
                Ok(()) => Some(true),
                Err(RestoreError::Refused(_)) => Some(false),
                Err(RestoreError::Unasked) => None,
            },
        };
        match there {
            Some(true) => self.found(&entrance),
            Some(false) => {
                let why = match restored {
                    Err(RestoreError::Refused(why)) => why,
                    Ok(()) => "this worker's settings have no such queue".to_owned(),
                    Err(RestoreError::Unasked) => "it cannot be declared now".to_owned(),
                };
                self.note(&entrance, why);
            }
            None => {}
        }
        if looked.len() >= MOST {
            looked.clear();
        }
        looked.insert(entrance, begun);
    }

    fn found(&self, entrance: &PublishTarget) {
        if self.state().missing.remove(entrance).is_some() {
            self.show(entrance, 0);
            tracing::info!(queue = entrance.name(), "the missing {} is there again", entrance.kind());
        }
    }

    fn note(self: &Arc<Self>, entrance: &PublishTarget, why: String) {
        let mut state = self.state();
        if state.missing.len() >= MOST && !state.missing.contains_key(entrance) {
            tracing::warn!(queue = entrance.name(), why, "missing, and too many others are to show it");
            return;
        }
        if state.missing.insert(entrance.clone(), why.clone()).is_none() {
            tracing::error!(queue = entrance.name(), why, "tasks wait for a missing {}", entrance.kind());
        }
        self.show(entrance, 1);
        if !std::mem::replace(&mut state.probing, true) {
            tokio::spawn(probe(Arc::downgrade(self)));
        }
    }

    fn show(&self, entrance: &PublishTarget, missing: i64) {
        self.gauge.with_label_values(&[entrance.name()]).set(missing);
    }

    /// Looks for all of them; answers whether any is still missing.
    async fn look(&self) -> bool {
        let missing: Vec<_> = self.state().missing.keys().cloned().collect();
        for entrance in missing {
            let there = match &entrance {
                PublishTarget::Queue(queue) => self.queues.exists(queue).await == Some(true),
                PublishTarget::Exchange(_) => self.queues.restore().await.is_ok(),
            };
            if there {
                self.found(&entrance);
            }
        }
        let mut state = self.state();
        state.probing = !state.missing.is_empty();
        state.probing
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at intervals until none is missing: the task that found one missing may be gone by then.
async fn probe<Q: Queues>(of: Weak<MissingQueues<Q>>) {
    loop {
        sleep(PROBE).await;
        let Some(queues) = of.upgrade() else { return };
        if !queues.look().await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    /// A broker where one queue may be missing, and may be declared or not.
    #[derive(Default)]
    struct Fake {
        there: AtomicBool,
        silent: AtomicBool,
        may_declare: bool,
        declared: AtomicUsize,
        looks: AtomicUsize,
    }

    impl Queues for Arc<Fake> {
        async fn restore(&self) -> Result<(), RestoreError> {
            tokio::task::yield_now().await;
            self.declared.fetch_add(1, Ordering::Relaxed);
            if self.silent.load(Ordering::Relaxed) {
                return Err(RestoreError::Unasked);
            }
            if !self.may_declare {
                return Err(RestoreError::Refused("this user may not create it".into()));
            }
            self.there.store(true, Ordering::Relaxed);
            Ok(())
        }

        async fn exists(&self, queue: &str) -> Option<bool> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            let there = queue != "foreign" && self.there.load(Ordering::Relaxed);
            (!self.silent.load(Ordering::Relaxed)).then_some(there)
        }
    }

    fn missing(fake: &Arc<Fake>) -> (Arc<MissingQueues<Arc<Fake>>>, Registry) {
        let registry = Registry::new();
        (MissingQueues::new(Arc::clone(fake), &registry), registry)
    }

    fn shown(registry: &Registry) -> Vec<(String, i64)> {
        let families = registry.gather();
        let metrics = families.iter().flat_map(|family| family.get_metric());
        metrics.map(|it| (it.get_label()[0].value().to_owned(), it.get_gauge().get_value() as i64)).collect()
    }

    fn dead() -> Target {
        Target::queue("dead".into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_may_be_declared_is_there_again_at_once() {
        let fake = Arc::new(Fake { may_declare: true, ..Fake::default() });
        let (missing, registry) = missing(&fake);
        missing.restore(&[dead(), dead()]).await;
        assert_eq!(fake.declared.load(Ordering::Relaxed), 1, "two messages for one queue");
        assert_eq!((missing.problems().len(), shown(&registry).len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_may_not_be_declared_is_named_until_it_is_back() {
        let fake = Arc::new(Fake::default());
        let (missing, registry) = missing(&fake);
        missing.restore(&[dead()]).await;
        assert_eq!(missing.problems(), [r#"queue "dead" is missing: this user may not create it"#]);
        assert_eq!(shown(&registry), [("dead".to_owned(), 1)]);
        sleep(PROBE * 3 + PROBE / 2).await;
        assert_eq!(fake.looks.load(Ordering::Relaxed), 4, "one probe looks every two seconds");
        fake.there.store(true, Ordering::Relaxed);
        sleep(PROBE).await;
        assert_eq!((missing.problems().len(), shown(&registry)), (0, vec![("dead".to_owned(), 0)]));
        sleep(PROBE * 5).await;
        assert_eq!(fake.looks.load(Ordering::Relaxed), 5, "nothing is looked for any longer");
        fake.there.store(false, Ordering::Relaxed);
        missing.restore(&[dead()]).await;
        sleep(PROBE + PROBE / 2).await;
        assert_eq!(fake.looks.load(Ordering::Relaxed), 7, "the probe begins again");
    }

    #[tokio::test(start_paused = true)]
    async fn one_look_serves_all_that_wait_for_it() {
        let fake = Arc::new(Fake::default());
        let (missing, _) = missing(&fake);
        let target = dead();
        let waiting = (0..100).map(|_| missing.restore([&target]));
        futures_util::future::join_all(waiting).await;
        // Those that asked while the first look was under way have the next one's answer.
        assert!(fake.declared.load(Ordering::Relaxed) <= 2, "{:?}", fake.declared);
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_is_no_part_of_the_topology_is_said_to_be_unknown() {
        let fake = Arc::new(Fake { may_declare: true, ..Fake::default() });
        let (missing, _) = missing(&fake);
        missing.restore(&[Target::queue("foreign".into())]).await;
        assert_eq!(
            missing.problems(),
            [r#"queue "foreign" is missing: this worker's settings have no such queue"#]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_broker_that_does_not_answer_misses_nothing_and_finds_nothing() {
        let fake = Arc::new(Fake { silent: true.into(), ..Fake::default() });
        let (missing, _) = missing(&fake);
        let divider = Target::exchange("shards.fast".into(), "kind".into());
        missing.restore([&dead(), &divider]).await;
        assert!(missing.problems().is_empty());
        fake.silent.store(false, Ordering::Relaxed);
        sleep(Duration::from_millis(1)).await;
        missing.restore(&[dead()]).await;
        fake.silent.store(true, Ordering::Relaxed);
        sleep(PROBE * 2).await;
        assert_eq!(missing.problems().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_exchange_is_back_once_the_topology_is() {
        let fake = Arc::new(Fake::default());
        let (missing, _) = missing(&fake);
        let divider = Target::exchange("shards.fast".into(), "kind".into());
        missing.restore([&divider]).await;
        assert_eq!(missing.problems(), [r#"exchange "shards.fast" is missing: this user may not create it"#]);
        assert_eq!(fake.looks.load(Ordering::Relaxed), 0, "a look at it as at a queue would say nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn foreign_names_do_not_fill_the_memory() {
        let fake = Arc::new(Fake::default());
        let (missing, registry) = missing(&fake);
        for n in 0..2 * MOST {
            missing.restore(&[Target::queue(format!("foreign-{n}"))]).await;
        }
        assert_eq!((missing.problems().len(), shown(&registry).len()), (MOST, MOST));
        assert!(missing.looked.lock().await.len() <= MOST);
    }
}
