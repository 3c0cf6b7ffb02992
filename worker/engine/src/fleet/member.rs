//! This worker as a member of the fleet: it reads the records of the others and publishes its own.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use garenne_amqp::{Message, PublishError, Target};
use garenne_common::{backoff::Backoff, clock, supervise};
use garenne_protocol::amqp::BasicProperties;
use garenne_protocol::{
    task::{Directive, WorkerIncarnation, epoch_ms, new_uuid},
    topology::Names,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, interval_at, sleep, sleep_until, timeout},
};

use super::{
    broker::FleetBroker,
    crash_detector::CrashDetector,
    directives::{DirectiveEffect, Directives},
    grouped_tasks::GroupedTasks,
    lifecycle::{Handlers, KindWorkers, LifecycleEvent, LifecycleLog, LifecycleRecord},
    shared_check::SharedCheck,
};
use crate::panics::lock;

/// How long after a redelivery the crash of its former worker is visible. The broker deletes the exclusive queue of
/// a dead connection when it requeues the connection's deliveries.
const CRASH_VISIBLE_AFTER: Duration = Duration::from_millis(250);
/// Time between two observations of a worker that may have crashed.
const CRASH_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time after which a mark that was not read is published again. The stream may have been deleted.
const MARK_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a worker repeats its start record, so that the stream always contains one.
pub(super) const HELLO_INTERVAL: Duration = Duration::from_secs(4 * 3600);
/// How often expired entries are removed.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(600);

/// How long a worker with a handler for a kind counts as running after its control queue was seen, and how long the
/// records count as complete after all were read. Bounds the requests that tasks without a handler cause.
const KIND_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// How often a worker that leaves the catch-all lane to others checks whether they still run.
pub(crate) const CATCH_ALL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// This worker as a member of the fleet.
pub(crate) struct Member {
    pub(super) worker: Arc<str>,
    handlers: Handlers,
    /// Identifies this process among all that have run under the worker's name.
    pub(crate) incarnation: String,
    pub(super) names: Names,
    broker: Box<dyn FleetBroker>,
    lifecycle: Mutex<LifecycleLog>,
    pub(crate) directives: Arc<Directives>,
    /// Tasks are added before they enter a pool, so that a stop of their group finds them.
    pub(crate) grouped: GroupedTasks,
    crash_check: SharedCheck,
    /// Reads the lifecycle records that were written before, for tasks without a handler.
    catch_up_check: SharedCheck,
    /// When a worker with a handler for each of these kinds was last looked up. They are kinds of logged workers.
    kind_checks: Mutex<BTreeMap<String, Instant>>,
    /// Marks published to the lifecycle stream after the first one.
    marks_published: AtomicU64,
    /// The highest number of these marks that was read.
    marks_read: watch::Sender<u64>,
    /// Notified when the start record must be published again: another worker reports that this incarnation crashed,
    /// or the stream is a new one.
    hello_wanted: Notify,
    /// Why a stream cannot be read, by its name.
    unread: Mutex<BTreeMap<String, String>>,
}

/// A record of one of the streams: a directive or a lifecycle record, or a mark.
///
/// A worker publishes a mark to learn when it has read all earlier records. Its first mark is its incarnation, the
/// later ones are `<incarnation>/<number>`.
#[derive(Deserialize)]
#[serde(untagged)]
enum StreamRecord<R> {
    Mark { mark: String },
    Other(R),
}

impl Member {
    pub(crate) fn new(
        worker: Arc<str>,
        handlers: Handlers,
        names: Names,
        broker: impl FleetBroker + 'static,
    ) -> Self {
        Self {
            worker,
            handlers,
            incarnation: new_uuid().to_string(),
            names,
            broker: Box::new(broker),
            lifecycle: Mutex::default(),
            directives: Arc::default(),
            grouped: GroupedTasks::default(),
            crash_check: SharedCheck::default(),
            catch_up_check: SharedCheck::default(),
            kind_checks: Mutex::default(),
            marks_published: AtomicU64::new(0),
            marks_read: watch::Sender::new(0),
            hello_wanted: Notify::new(),
            unread: Mutex::default(),
        }
    }

    /// Whether this worker consumes the catch-all lane and has handlers for its tasks.
    pub(crate) fn serves_catch_all(&self) -> bool {
        self.handlers.catch_all
    }

    /// Applies a directive that is given now, on this worker alone. A later directive to the fleet overrules it.
    pub(crate) fn apply_locally(&self, directive: impl FnOnce(i64) -> Directive) {
        self.directives.apply(&directive(epoch_ms(clock::now())));
    }

    /// Applies a record of the directives stream, and calls `stop_task` for each task on this worker that it stops.
    /// Returns whether the record is this worker's first mark.
    pub(super) fn read_directive(&self, record: &[u8], stop_task: &impl Fn(&str)) -> bool {
        self.read_record(record, "directive", |directive: Directive| {
            // A stream may be read again. An old directive must not stop tasks published since.
            if !self.directives.apply(&directive) {
                return;
            }
            match &directive {
                Directive::StopTask { task, .. } => stop_task(task),
                Directive::StopGroup { group, .. } => {
                    let now = clock::now();
                    for task in self.grouped.tasks_of(group) {
                        if self.directives.effect_on(&task, None, now) == Some(DirectiveEffect::Stopped) {
                            stop_task(task.id.as_str());
                        }
                    }
                }
                // The pause of a lane stops its consumers. The others take effect when a task would start.
                Directive::PauseGroup { .. }
                | Directive::ResumeGroup { .. }
                | Directive::PauseLane { .. }
                | Directive::ResumeLane { .. }
                | Directive::PauseKind { .. }
                | Directive::ResumeKind { .. }
                | Directive::Look { .. } => {}
            }
        })
    }

    /// Applies a record of the lifecycle stream. Returns whether it is this worker's first mark.
    pub(super) fn read_lifecycle(&self, record: &[u8]) -> bool {
        self.read_record(record, "lifecycle event", |record: LifecycleRecord| {
            let is_about_us = record.incarnation == self.incarnation;
            let reported_dead = is_about_us && record.event == LifecycleEvent::Died;
            self.lifecycle().apply(record, Instant::now());
            if reported_dead {
                self.hello_wanted.notify_one();
            }
        })
    }

    /// Records why a stream cannot be read, or that it is read again. `is_new` says that it was declared again.
    pub(super) fn note_stream(&self, stream: &str, problem: Option<String>, is_new: bool) {
        if let Some(problem) = problem {
            if lock(&self.unread).insert(stream.to_owned(), problem.clone()).is_none() {
                tracing::error!(stream, problem, "cannot read a stream");
            }
            return;
        }
        let was_unread = lock(&self.unread).remove(stream).is_some();
        if is_new {
            tracing::warn!(
                stream,
                "the stream was deleted; what it held is lost for workers that start from now on"
            );
            self.hello_wanted.notify_one();
        } else if was_unread {
            tracing::info!(stream, "the stream is read again");
        }
    }

    /// Why a stream is not read, for the readiness check.
    pub(crate) fn stream_problems(&self) -> Vec<String> {
        lock(&self.unread).values().cloned().collect()
    }

    /// Passes a record to `apply`, unless it is a mark. Returns whether it is this worker's first mark.
    fn read_record<R: DeserializeOwned>(&self, record: &[u8], kind: &str, apply: impl FnOnce(R)) -> bool {
        match serde_json::from_slice(record) {
            Ok(StreamRecord::Mark { mark }) => return self.read_mark(&mark),
            Ok(StreamRecord::Other(record)) => apply(record),
            Err(error) => tracing::warn!(%error, "ignored an invalid {kind}"),
        }
        false
    }

    fn read_mark(&self, mark: &str) -> bool {
        let Some(number) = mark.strip_prefix(&self.incarnation) else { return false };
        if let Some(number) = number.strip_prefix('/').and_then(|number| number.parse::<u64>().ok()) {
            self.marks_read.send_modify(|read| *read = number.max(*read));
        }
        number.is_empty()
    }

    /// The number of recent crashes, one of which may be the reason for a redelivery that arrived just now.
    pub(crate) async fn recent_crashes(self: &Arc<Self>) -> usize {
        let visible = Instant::now() + CRASH_VISIBLE_AFTER;
        sleep_until(visible).await;
        self.crash_check.run_since(visible, self.check_for_crashes()).await;
        self.lifecycle().recent_crashes(epoch_ms(clock::now()))
    }

    /// Reports each running worker whose control queue is gone. The reports are published in the background: a
    /// confirm that is late or lost must not delay the quarantine.
    async fn check_for_crashes(self: &Arc<Self>) {
        let running = self.lifecycle().running();
        for worker in running.into_iter().filter(|worker| worker.incarnation() != self.incarnation) {
            self.look_for(&worker).await;
        }
    }

    /// Whether a worker's control queue exists, [`None`] if the broker does not answer. Reports a missing one.
    async fn look_for(self: &Arc<Self>, worker: &WorkerIncarnation) -> Option<bool> {
        let exists = self.broker.control_queue_exists(worker.worker()).await;
        if exists == Some(false) {
            tracing::warn!(%worker, "a worker's control queue is gone without a clean stop");
            let died = record_of(worker.worker(), worker.incarnation(), LifecycleEvent::Died);
            self.lifecycle().apply(died.clone(), Instant::now());
            let this = Arc::clone(self);
            let publishing = async move { this.publish_event(&died).await };
            supervise::isolated("crash-report", publishing).spawn().detach();
        }
        exists
    }

    /// Returns the incarnations that crashed while they ran this quarantined task, which was redelivered, in the order of
    /// their runs. Waits until this is known.
    ///
    /// A run does not count if it ended, or if only a connection was lost. The runs up to that of `counted` count against
    /// the task already.
    pub(crate) async fn crashed_runs(
        &self,
        task: &str,
        counted: Option<&WorkerIncarnation>,
    ) -> Vec<WorkerIncarnation> {
        self.catch_up().await;
        let runners: Vec<_> = self.lifecycle().runners_of(task).cloned().collect();
        let counted = counted.and_then(|counted| runners.iter().position(|runner| runner == counted));
        let mut crashed = Vec::new();
        for runner in runners.into_iter().skip(counted.map_or(0, |at| at + 1)) {
            if runner.incarnation() != self.incarnation && self.has_crashed(&runner).await {
                crashed.push(runner);
            }
        }
        if !crashed.is_empty() {
            // The runs may have ended since, and their workers may have crashed in others.
            self.catch_up().await;
            let log = self.lifecycle();
            crashed.retain(|runner| log.runners_of(task).any(|it| it == runner));
        }
        crashed
    }

    /// Whether an incarnation crashed. Waits until this is known.
    pub(crate) async fn has_crashed(&self, worker: &WorkerIncarnation) -> bool {
        let mut detector = CrashDetector::new(Instant::now());
        loop {
            let queue_exists = self.broker.control_queue_exists(worker.worker()).await;
            let logged = self.lifecycle().state_of(worker);
            if let Some(crashed) = detector.observe(logged, queue_exists, Instant::now()) {
                return crashed;
            }
            sleep(CRASH_POLL_INTERVAL).await;
        }
    }

    /// Publishes a mark to the lifecycle stream and waits until it is read: all earlier records are known then.
    /// Retries until it succeeds.
    async fn catch_up(&self) {
        let mut read = self.marks_read.subscribe();
        loop {
            let number = self.marks_published.fetch_add(1, Ordering::Relaxed) + 1;
            let mark = format!("{}/{number}", self.incarnation);
            self.append_until_confirmed(&serde_json::json!({ "mark": mark })).await;
            if timeout(MARK_TIMEOUT, read.wait_for(|read| *read >= number)).await.is_ok() {
                return;
            }
        }
    }

    /// Records that this worker is about to run a quarantined task. Retries until the record is confirmed, because
    /// the run may crash the worker.
    pub(crate) async fn run_started(&self, task: &str) {
        let started = self.own_record(LifecycleEvent::RunStarted { task: task.to_owned() });
        self.append_until_confirmed(&started).await;
    }

    /// Records that the run has ended. Best effort: without the record, only a crash of this worker counts.
    pub(crate) async fn run_ended(&self, task: &str) {
        let ended = self.own_record(LifecycleEvent::RunEnded { task: task.to_owned() });
        if let Err(error) = self.append(&self.names.lifecycle(), &ended).await {
            tracing::debug!(%error, task, "failed to record the end of a run");
        }
    }

    /// The running workers with a handler for this kind, and which of them consume the lane. As far as the records that
    /// were read so far tell.
    pub(crate) fn workers_of(&self, kind: &str, lane: &str) -> KindWorkers {
        self.lifecycle().workers_of(kind, lane)
    }

    /// Completes once [`workers_of`](Self::workers_of) knows whether a worker with a handler for this kind runs. If the
    /// records name none, all that were written are read first, so that a worker that has just started counts. If they
    /// name one, it counts if the broker has its control queue.
    pub(crate) async fn look_for_kind(self: &Arc<Self>, kind: &str) {
        if self.lifecycle().running_with(kind).is_empty() {
            let since = Instant::now() - KIND_CHECK_INTERVAL;
            self.catch_up_check.run_since(since, self.catch_up()).await;
        }
        let workers = self.lifecycle().running_with(kind);
        {
            let (mut checks, now) = (lock(&self.kind_checks), Instant::now());
            checks.retain(|_, at| now - *at < KIND_CHECK_INTERVAL);
            // One task looks, and the others go on with what is known.
            if workers.is_empty() || checks.contains_key(kind) {
                return;
            }
            checks.insert(kind.to_owned(), now);
        }
        for worker in workers {
            if self.look_for(&worker).await != Some(false) {
                return;
            }
        }
    }

    /// Whether another running worker consumes the catch-all lane for its own handlers. As far as the records that were
    /// read so far tell.
    pub(crate) async fn others_serve_catch_all(self: &Arc<Self>) -> bool {
        let logged = || self.lifecycle().serves_catch_all(&self.incarnation);
        if !logged() {
            return false;
        }
        // One of them may have crashed since it wrote its last record.
        let since = Instant::now() - CATCH_ALL_CHECK_INTERVAL;
        self.crash_check.run_since(since, self.check_for_crashes()).await;
        logged()
    }

    /// Repeats the start record, also when another worker reports this one as crashed, and removes expired entries;
    /// never returns.
    pub(super) async fn maintain(&self) {
        let now = Instant::now();
        let mut hello = interval_at(now + HELLO_INTERVAL, HELLO_INTERVAL);
        let mut cleanup = interval_at(now + CLEANUP_INTERVAL, CLEANUP_INTERVAL);
        loop {
            tokio::select! {
                biased;
                _ = hello.tick() => self.publish_hello().await,
                () = self.hello_wanted.notified() => self.publish_hello().await,
                _ = cleanup.tick() => {
                    let now = clock::now();
                    self.lifecycle().remove_expired(epoch_ms(now));
                    self.directives.remove_expired(now);
                }
            }
        }
    }

    /// Publishes the start record.
    pub(super) async fn publish_hello(&self) {
        let started = LifecycleEvent::Hello(self.handlers.clone());
        self.publish_event(&self.own_record(started)).await;
    }

    /// Publishes the stop record.
    pub(super) async fn publish_goodbye(&self) {
        self.publish_event(&self.own_record(LifecycleEvent::Goodbye)).await;
    }

    fn own_record(&self, event: LifecycleEvent) -> LifecycleRecord {
        record_of(&self.worker, &self.incarnation, event)
    }

    /// Publishes this worker's first mark to a stream.
    pub(super) async fn publish_mark(&self, stream: &str) -> Result<(), PublishError> {
        self.append(stream, &serde_json::json!({ "mark": self.incarnation })).await
    }

    /// Appends a record to a stream. It fails if the stream does not exist.
    async fn append(&self, stream: &str, record: &impl Serialize) -> Result<(), PublishError> {
        self.publish(Target::queue(stream.to_owned()), record).await
    }

    /// Appends a record to the lifecycle stream. Retries until it is confirmed.
    async fn append_until_confirmed(&self, record: &impl Serialize) {
        let mut backoff = Backoff::default();
        while let Err(error) = self.append(&self.names.lifecycle(), record).await {
            tracing::debug!(%error, "cannot publish to the lifecycle stream, retrying");
            sleep(backoff.next_wait()).await;
        }
    }

    /// Publishes an event. Best effort: without it a crash may go unnoticed, which costs at most one more worker.
    async fn publish_event(&self, event: &LifecycleRecord) {
        let target = Target::announce(self.names.events(), format!("life.{}", self.worker));
        if let Err(error) = self.publish(target, event).await {
            tracing::warn!(%error, "failed to publish lifecycle event");
        }
    }

    async fn publish(&self, target: Target, record: &impl Serialize) -> Result<(), PublishError> {
        let body = serde_json::to_vec(record).expect("records consist of text and numbers");
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_content_type("application/json".into())
            .with_message_id(new_uuid().to_string().into());
        self.broker.publish(Message { target, properties, body: body.into() }).await
    }

    fn lifecycle(&self) -> MutexGuard<'_, LifecycleLog> {
        lock(&self.lifecycle)
    }
}

/// A record of what happens to a worker now.
fn record_of(worker: &str, incarnation: &str, event: LifecycleEvent) -> LifecycleRecord {
    let (worker, incarnation) = (worker.to_owned(), incarnation.to_owned());
    LifecycleRecord { worker, incarnation, at: epoch_ms(clock::now()), event }
}

#[cfg(test)]
pub(crate) mod tests;
