//! This worker as a member of the fleet: it reads the records of the others and publishes its own.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use garenne_amqp::{Message, PublishError, Target};
use garenne_common::backoff::Backoff;
use garenne_protocol::{
    task::{Envelope, StandingOrder, WorkerIncarnation, epoch_ms},
    topology::Names,
};
use lapin::BasicProperties;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    sync::{Mutex as AsyncMutex, Notify, watch},
    time::{Instant, interval_at, sleep, timeout},
};

use super::{
    broker::FleetBroker,
    crash_detector::{CrashDetector, CrashStatus},
    directives::{DirectiveEffect, Directives},
    grouped_tasks::GroupedTasks,
    lifecycle::{LifecycleEvent, LifecycleLog},
};

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

/// How this worker presents itself to the fleet.
pub(crate) struct Identity {
    pub(crate) worker: Arc<str>,
    /// The kinds for which it has handlers.
    pub(crate) kinds: Vec<String>,
}

/// This worker as a member of the fleet.
pub(crate) struct Member {
    identity: Identity,
    incarnation: String,
    names: Names,
    broker: Box<dyn FleetBroker>,
    lifecycle: Mutex<LifecycleLog>,
    directives: Arc<Directives>,
    grouped: GroupedTasks,
    /// When the last check for crashes started.
    last_crash_check: AsyncMutex<Option<Instant>>,
    /// Marks published to the lifecycle stream after the first one.
    marks_published: AtomicU64,
    /// The highest number of these marks that was read.
    marks_read: watch::Sender<u64>,
    /// Notified when another worker reports that this incarnation crashed.
    reported_dead: Notify,
}

/// A record of one of the streams: an order or a lifecycle event, or a mark.
///
/// A worker publishes a mark to learn when it has read all earlier records.
#[derive(Deserialize)]
#[serde(untagged)]
enum StreamRecord<R> {
    Mark { mark: String },
    Other(R),
}

/// A record of interest to this worker.
enum ParsedRecord<R> {
    /// This worker's first mark.
    FirstMark,
    Other(R),
    /// Another mark, or an invalid record.
    Ignored,
}

impl Member {
    pub(super) fn new(identity: Identity, names: Names, broker: Box<dyn FleetBroker>) -> Self {
        Self {
            identity,
            incarnation: uuid::Uuid::now_v7().to_string(),
            names,
            broker,
            lifecycle: Mutex::default(),
            directives: Arc::default(),
            grouped: GroupedTasks::default(),
            last_crash_check: AsyncMutex::default(),
            marks_published: AtomicU64::new(0),
            marks_read: watch::Sender::new(0),
            reported_dead: Notify::new(),
        }
    }

    /// Identifies this process among all that have run under the worker's name.
    pub(crate) fn incarnation(&self) -> &str {
        &self.incarnation
    }

    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    pub(super) fn worker(&self) -> &str {
        &self.identity.worker
    }

    pub(crate) fn directives(&self) -> &Arc<Directives> {
        &self.directives
    }

    /// Remembers a task by its group, so that a stop of the group finds it. Call it before the task enters a pool.
    pub(crate) fn track_grouped(&self, task: &Arc<Envelope>) {
        self.grouped.track(task);
    }

    /// Stops a record of a batch on this worker alone.
    pub(crate) fn stop_locally(&self, task: &str) {
        let order = StandingOrder::Task { task: task.to_owned(), at: epoch_ms(SystemTime::now()) };
        self.directives.apply(&order);
    }

    /// Pauses or resumes a group on this worker alone. A later order to the fleet overrules it.
    pub(crate) fn pause_locally(&self, group: &str, pause: bool) {
        let (group, at) = (group.to_owned(), epoch_ms(SystemTime::now()));
        self.directives.apply(&match pause {
            true => StandingOrder::Pause { pause: group, at },
            false => StandingOrder::Resume { resume: group, at },
        });
    }

    /// Applies a record of the directives stream, and calls `stop_task` for each task on this worker that it stops.
    /// Returns whether the record is this worker's first mark.
    pub(super) fn read_directive(&self, record: &[u8], stop_task: &impl Fn(&str)) -> bool {
        match self.parse::<StandingOrder>(record, "directive") {
            ParsedRecord::FirstMark => true,
            ParsedRecord::Other(order) => {
                // A stream may be read again. An old order must not stop tasks published since.
                if self.directives.apply(&order) {
                    self.stop_covered_tasks(&order, stop_task);
                }
                false
            }
            ParsedRecord::Ignored => false,
        }
    }

    /// Stops the waiting and running tasks that an order covers. A pause takes effect when a task would start.
    fn stop_covered_tasks(&self, order: &StandingOrder, stop_task: &impl Fn(&str)) {
        match order {
            StandingOrder::Task { task, .. } => stop_task(task),
            StandingOrder::Group { group, .. } => {
                let now = SystemTime::now();
                let tasks = self.grouped.tasks_of(group);
                let stopped = |task: &&Arc<Envelope>| {
                    self.directives.effect_on(task, now) == Some(DirectiveEffect::Stopped)
                };
                tasks.iter().filter(stopped).for_each(|task| stop_task(task.id.as_str()));
            }
            StandingOrder::Pause { .. } | StandingOrder::Resume { .. } => {}
        }
    }

    /// Applies a record of the lifecycle stream. Returns whether it is this worker's first mark.
    pub(super) fn read_lifecycle_event(&self, record: &[u8]) -> bool {
        match self.parse::<LifecycleEvent>(record, "lifecycle event") {
            ParsedRecord::FirstMark => true,
            ParsedRecord::Other(event) => {
                let reported_dead = matches!(
                    &event,
                    LifecycleEvent::Died { incarnation, .. } if *incarnation == self.incarnation
                );
                self.lifecycle().apply(event, Instant::now());
                if reported_dead {
                    self.reported_dead.notify_one();
                }
                false
            }
            ParsedRecord::Ignored => false,
        }
    }

    fn parse<R: DeserializeOwned>(&self, record: &[u8], kind: &str) -> ParsedRecord<R> {
        match serde_json::from_slice(record) {
            Ok(StreamRecord::Mark { mark }) if mark == self.incarnation => ParsedRecord::FirstMark,
            Ok(StreamRecord::Mark { mark }) => {
                let number = mark.strip_prefix(&self.incarnation).and_then(|rest| rest.strip_prefix('/'));
                if let Some(number) = number.and_then(|number| number.parse::<u64>().ok()) {
                    self.marks_read.send_if_modified(|read| {
                        let higher = number > *read;
                        *read = number.max(*read);
                        higher
                    });
                }
                ParsedRecord::Ignored
            }
            Ok(StreamRecord::Other(record)) => ParsedRecord::Other(record),
            Err(error) => {
                tracing::warn!(%error, "ignored an invalid {kind}");
                ParsedRecord::Ignored
            }
        }
    }

    /// The number of recent crashes, one of which may be the reason for a redelivery that arrived just now.
    pub(crate) async fn recent_crashes(&self) -> usize {
        let redelivered = Instant::now();
        sleep(CRASH_VISIBLE_AFTER).await;
        let mut last_check = self.last_crash_check.lock().await;
        if last_check.is_none_or(|started| started < redelivered + CRASH_VISIBLE_AFTER) {
            *last_check = Some(Instant::now());
            self.check_for_crashes().await;
        }
        drop(last_check);
        self.lifecycle().recent_crashes(epoch_ms(SystemTime::now()))
    }

    async fn check_for_crashes(&self) {
        let running = self.lifecycle().running();
        for worker in running.into_iter().filter(|worker| worker.incarnation() != self.incarnation) {
            if self.broker.control_queue_exists(worker.worker()).await == Some(false) {
                self.report_crash(&worker).await;
            }
        }
    }

    async fn report_crash(&self, crashed: &WorkerIncarnation) {
        let (worker, incarnation) = (crashed.worker().to_owned(), crashed.incarnation().to_owned());
        let died = LifecycleEvent::Died { worker, incarnation, at: epoch_ms(SystemTime::now()) };
        tracing::warn!(worker = %crashed, "a worker's control queue is gone without a clean stop");
        self.lifecycle().apply(died.clone(), Instant::now());
        self.publish_event(&died).await;
    }

    /// Returns the incarnation that crashed while it ran this quarantined task, which was redelivered.
    ///
    /// Returns `None` if the run ended, if only a connection was lost, or if `counted` is that incarnation: its
    /// crash counts against the task already. Waits until this is known.
    pub(crate) async fn crashed_run(
        &self,
        task: &str,
        counted: Option<&WorkerIncarnation>,
    ) -> Option<WorkerIncarnation> {
        self.catch_up().await;
        let runner = self.lifecycle().runner_of(task).cloned()?;
        if runner.incarnation() == self.incarnation || counted == Some(&runner) {
            return None;
        }
        self.has_crashed(&runner).await.then_some(runner)
    }

    /// Whether an incarnation crashed. Waits until this is known.
    pub(crate) async fn has_crashed(&self, worker: &WorkerIncarnation) -> bool {
        let mut detector = CrashDetector::new(Instant::now());
        loop {
            let queue_exists = self.broker.control_queue_exists(worker.worker()).await;
            let logged = self.lifecycle().state_of(worker);
            match detector.observe(logged, queue_exists, Instant::now()) {
                CrashStatus::Crashed => return true,
                CrashStatus::NotCrashed => return false,
                CrashStatus::Undecided => sleep(CRASH_POLL_INTERVAL).await,
            }
        }
    }

    /// Publishes a mark to the lifecycle stream and waits until it is read: all earlier records are known then.
    /// Retries until it succeeds.
    async fn catch_up(&self) {
        let mut backoff = Backoff::default();
        loop {
            let number = self.marks_published.fetch_add(1, Ordering::Relaxed) + 1;
            let mut read = self.marks_read.subscribe();
            let mark = format!("{}/{number}", self.incarnation);
            match self.append(&self.names.lifecycle(), &serde_json::json!({ "mark": mark })).await {
                Ok(()) => {
                    let reading = read.wait_for(|read| *read >= number);
                    if timeout(MARK_TIMEOUT, reading).await.is_ok_and(|read| read.is_ok()) {
                        return;
                    }
                }
                Err(error) => tracing::debug!(%error, "cannot publish a mark to the lifecycle stream"),
            }
            sleep(backoff.next_wait()).await;
        }
    }

    /// Records that this worker is about to run a quarantined task. Retries until the record is confirmed, because
    /// the run may crash the worker.
    pub(crate) async fn run_started(&self, task: &str) {
        let mut backoff = Backoff::default();
        loop {
            let (worker, incarnation, at) = self.event_fields();
            let started = LifecycleEvent::RunStarted { worker, incarnation, at, task: task.to_owned() };
            match self.append(&self.names.lifecycle(), &started).await {
                Ok(()) => return,
                Err(error) => tracing::debug!(%error, task, "failed to record the start of a run, retrying"),
            }
            sleep(backoff.next_wait()).await;
        }
    }

    /// Records that the run has ended. Best effort: without the record, only a crash of this worker counts.
    pub(crate) async fn run_ended(&self, task: &str) {
        let (worker, incarnation, at) = self.event_fields();
        let ended = LifecycleEvent::RunEnded { worker, incarnation, at, task: task.to_owned() };
        if let Err(error) = self.append(&self.names.lifecycle(), &ended).await {
            tracing::debug!(%error, task, "failed to record the end of a run");
        }
    }

    /// Whether a running worker has a handler for this kind.
    pub(crate) fn has_handler(&self, kind: &str) -> bool {
        self.lifecycle().has_handler(kind)
    }

    /// Repeats the start record, also when another worker reports this one as crashed, and removes expired entries;
    /// never returns.
    pub(super) async fn maintain(&self) {
        let now = Instant::now();
        let mut hello = interval_at(now + HELLO_INTERVAL, HELLO_INTERVAL);
        let mut cleanup = interval_at(now + CLEANUP_INTERVAL, CLEANUP_INTERVAL);
        loop {
            tokio::select! {
                _ = hello.tick() => self.publish_hello().await,
                () = self.reported_dead.notified() => self.publish_hello().await,
                _ = cleanup.tick() => self.remove_expired(),
            }
        }
    }

    fn remove_expired(&self) {
        let now = SystemTime::now();
        self.lifecycle().remove_expired(epoch_ms(now));
        self.directives.remove_expired(now);
    }

    /// Publishes the start record.
    pub(super) async fn publish_hello(&self) {
        let (worker, incarnation, at) = self.event_fields();
        let kinds = self.identity.kinds.clone();
        self.publish_event(&LifecycleEvent::Hello { worker, incarnation, at, kinds }).await;
    }

    /// Publishes the stop record.
    pub(super) async fn publish_goodbye(&self) {
        let (worker, incarnation, at) = self.event_fields();
        self.publish_event(&LifecycleEvent::Goodbye { worker, incarnation, at }).await;
    }

    /// The worker, incarnation and time of an event.
    fn event_fields(&self) -> (String, String, i64) {
        (self.identity.worker.to_string(), self.incarnation.clone(), epoch_ms(SystemTime::now()))
    }

    /// Publishes this worker's first mark to a stream.
    pub(super) async fn publish_mark(&self, stream: &str) -> Result<(), PublishError> {
        self.append(stream, &serde_json::json!({ "mark": self.incarnation })).await
    }

    /// Appends a record to a stream. It fails if the stream does not exist.
    async fn append(&self, stream: &str, record: &impl Serialize) -> Result<(), PublishError> {
        self.publish(Target::queue(stream.to_owned()), record).await
    }

    /// Publishes an event. Best effort: without it a crash may go unnoticed, which costs at most one more worker.
    async fn publish_event(&self, event: &LifecycleEvent) {
        let target = Target::announce(self.names.events(), format!("life.{}", self.identity.worker));
        if let Err(error) = self.publish(target, event).await {
            tracing::warn!(%error, "failed to publish lifecycle event");
        }
    }

    async fn publish(&self, target: Target, record: &impl Serialize) -> Result<(), PublishError> {
        let body = serde_json::to_vec(record).expect("records consist of text and numbers");
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_content_type("application/json".into())
            .with_message_id(uuid::Uuid::now_v7().to_string().into());
        self.broker.publish(Message { target, properties, body: body.into() }).await
    }

    fn lifecycle(&self) -> std::sync::MutexGuard<'_, LifecycleLog> {
        self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod tests;
