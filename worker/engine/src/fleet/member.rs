//! This worker as a member of the fleet: what it knows of the others, and what it lets them know.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use garenne_amqp::{Backoff, Message, PublishError, Target};
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
    crash::{Finding, Observation},
    directives::{DirectiveEffect, Directives},
    grouped::GroupedTasks,
    lifecycle::{LifecycleEvent, LifecycleLog},
    wire::Wire,
};

/// How long after a message came back its worker's crash is certainly visible: the broker deletes the
/// exclusive queue of a dead connection in the same breath as it requeues its messages.
const SETTLING: Duration = Duration::from_millis(250);
/// Between two looks at a worker that may have crashed.
const LOOK: Duration = Duration::from_millis(250);
/// How long a mark may take to come back before another one is set: the stream may have been deleted.
const MARK_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a worker repeats its start record, so that the stream always has one.
pub(super) const REPEAT: Duration = Duration::from_secs(4 * 3600);
/// How often what is out of date is removed.
const FORGET: Duration = Duration::from_secs(600);

/// Who this worker is to the others.
pub(crate) struct Identity {
    pub(crate) worker: Arc<str>,
    /// The kinds that it has handlers for.
    pub(crate) kinds: Vec<String>,
}

/// This worker among the others.
pub(crate) struct Member {
    identity: Identity,
    incarnation: String,
    names: Names,
    wire: Box<dyn Wire>,
    lifecycle: Mutex<LifecycleLog>,
    directives: Arc<Directives>,
    grouped: GroupedTasks,
    /// When the others were last looked at, begun.
    looked: AsyncMutex<Option<Instant>>,
    /// How many marks were set in the lifecycle stream since the first one, and the highest that was read.
    marks_set: AtomicU64,
    marks_read: watch::Sender<u64>,
    /// Told of records that say this incarnation crashed.
    disputed: Notify,
}

/// A record of either stream: an order or a life, or the mark of a worker that wants to know when it has
/// read all that is there.
#[derive(Deserialize)]
#[serde(untagged)]
enum Record<R> {
    Mark { mark: String },
    Other(R),
}

/// What was read.
enum Read<R> {
    /// This worker's first mark.
    Begun,
    Record(R),
    Nothing,
}

impl Member {
    pub(super) fn new(identity: Identity, names: Names, wire: Box<dyn Wire>) -> Self {
        Self {
            identity,
            incarnation: uuid::Uuid::now_v7().to_string(),
            names,
            wire,
            lifecycle: Mutex::default(),
            directives: Arc::default(),
            grouped: GroupedTasks::default(),
            looked: AsyncMutex::default(),
            marks_set: AtomicU64::new(0),
            marks_read: watch::Sender::new(0),
            disputed: Notify::new(),
        }
    }

    /// This life of the worker.
    pub(crate) fn incarnation(&self) -> &str {
        &self.incarnation
    }

    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    pub(super) fn worker(&self) -> &str {
        &self.identity.worker
    }

    /// What an operator ordered.
    pub(crate) fn directives(&self) -> &Arc<Directives> {
        &self.directives
    }

    /// Notes a task before it enters a pool, so that a stop of its group finds it there.
    pub(crate) fn track_grouped(&self, task: &Arc<Envelope>) {
        self.grouped.note(task);
    }

    /// Stops a record of a batch that is here, as an order to the whole fleet would.
    pub(crate) fn stop_locally(&self, task: &str) {
        let order = StandingOrder::Task { task: task.to_owned(), at: epoch_ms(SystemTime::now()) };
        self.directives.apply(&order);
    }

    /// Pauses or resumes a group on this worker alone; a later order to the fleet overrules it.
    pub(crate) fn pause_locally(&self, group: &str, pause: bool) {
        let (group, at) = (group.to_owned(), epoch_ms(SystemTime::now()));
        self.directives.apply(&match pause {
            true => StandingOrder::Pause { pause: group, at },
            false => StandingOrder::Resume { resume: group, at },
        });
    }

    /// Takes a record of the stream of directives. `stop` is told of each task that must end, as far as
    /// it may be here. Answers whether the record is this worker's first mark.
    pub(super) fn read_directive(&self, record: &[u8], stop: &impl Fn(&str)) -> bool {
        match self.read::<StandingOrder>(record, "directive") {
            Read::Begun => true,
            Read::Record(order) => {
                // An old order that is read again must not stop what was published since.
                if self.directives.apply(&order) {
                    self.enforce(&order, stop);
                }
                false
            }
            Read::Nothing => false,
        }
    }

    /// What a pause covers is put off when its turn comes.
    fn enforce(&self, order: &StandingOrder, stop: &impl Fn(&str)) {
        match order {
            StandingOrder::Task { task, .. } => stop(task),
            StandingOrder::Group { group, .. } => {
                let now = SystemTime::now();
                let tasks = self.grouped.of(group);
                let covered = tasks
                    .iter()
                    .filter(|it| self.directives.effect_on(it, now) == Some(DirectiveEffect::Stopped));
                covered.for_each(|task| stop(task.id.as_str()));
            }
            StandingOrder::Pause { .. } | StandingOrder::Resume { .. } => {}
        }
    }

    /// Takes a record of the lifecycle stream. Answers whether it is this worker's first mark.
    pub(super) fn read_life(&self, record: &[u8]) -> bool {
        match self.read::<LifecycleEvent>(record, "lifecycle event") {
            Read::Begun => true,
            Read::Record(life) => {
                let disputed = matches!(&life, LifecycleEvent::Died { incarnation, .. } if *incarnation == self.incarnation);
                self.lifecycle().apply(life, Instant::now());
                if disputed {
                    self.disputed.notify_one();
                }
                false
            }
            Read::Nothing => false,
        }
    }

    fn read<R: DeserializeOwned>(&self, record: &[u8], what: &str) -> Read<R> {
        match serde_json::from_slice(record) {
            Ok(Record::Mark { mark }) if mark == self.incarnation => Read::Begun,
            Ok(Record::Mark { mark }) => {
                let number = mark.strip_prefix(&self.incarnation).and_then(|rest| rest.strip_prefix('/'));
                if let Some(number) = number.and_then(|number| number.parse::<u64>().ok()) {
                    self.marks_read.send_if_modified(|read| {
                        let more = number > *read;
                        *read = number.max(*read);
                        more
                    });
                }
                Read::Nothing
            }
            Ok(Record::Other(record)) => Read::Record(record),
            Err(error) => {
                tracing::warn!(%error, "unreadable {what}");
                Read::Nothing
            }
        }
    }

    /// Crashes that may have to do with a message that just came back.
    pub(crate) async fn recent_crashes(&self) -> usize {
        let arrived = Instant::now();
        sleep(SETTLING).await;
        let mut looked = self.looked.lock().await;
        if looked.is_none_or(|looked| looked < arrived + SETTLING) {
            *looked = Some(Instant::now());
            self.look_for_crashes().await;
        }
        drop(looked);
        self.lifecycle().deaths(epoch_ms(SystemTime::now()))
    }

    async fn look_for_crashes(&self) {
        let open = self.lifecycle().open();
        for who in open.into_iter().filter(|who| who.incarnation() != self.incarnation) {
            if self.wire.has_queue(who.worker()).await == Some(false) {
                self.note_crash(&who).await;
            }
        }
    }

    async fn note_crash(&self, who: &WorkerIncarnation) {
        let (worker, incarnation) = (who.worker().to_owned(), who.incarnation().to_owned());
        let died = LifecycleEvent::Died { worker, incarnation, at: epoch_ms(SystemTime::now()) };
        tracing::warn!(worker = %who, "a worker's queue is gone without a clean end");
        self.lifecycle().apply(died.clone(), Instant::now());
        self.announce(&died).await;
    }

    /// Who crashed while it ran this task in the quarantine, now that it came back from there. Nothing
    /// where the run is over, or was lost with a connection only; `counted` is the crash that speaks
    /// against the task already. Waits until it can be known.
    pub(crate) async fn crashed_run(
        &self,
        task: &str,
        counted: Option<&WorkerIncarnation>,
    ) -> Option<WorkerIncarnation> {
        self.catch_up().await;
        let run = self.lifecycle().run_of(task).cloned()?;
        if run.incarnation() == self.incarnation || counted == Some(&run) {
            return None;
        }
        self.has_crashed(&run).await.then_some(run)
    }

    /// Whether an incarnation crashed. Waits until that can be known.
    pub(crate) async fn has_crashed(&self, who: &WorkerIncarnation) -> bool {
        let mut observation = Observation::begin(Instant::now());
        loop {
            let queue = self.wire.has_queue(who.worker()).await;
            let recorded = self.lifecycle().recorded(who);
            match observation.observe(recorded, queue, Instant::now()) {
                Finding::Crashed => return true,
                Finding::NotCrashed => return false,
                Finding::Undecided => sleep(LOOK).await,
            }
        }
    }

    /// Sets a mark in the lifecycle stream and waits until it is read: what others wrote before is known
    /// then. Tries until it succeeds.
    async fn catch_up(&self) {
        let mut backoff = Backoff::default();
        loop {
            let number = self.marks_set.fetch_add(1, Ordering::Relaxed) + 1;
            let mut read = self.marks_read.subscribe();
            let mark = format!("{}/{number}", self.incarnation);
            match self.append(&self.names.lifecycle(), &serde_json::json!({ "mark": mark })).await {
                Ok(()) => {
                    let reading = read.wait_for(|read| *read >= number);
                    if timeout(MARK_TIMEOUT, reading).await.is_ok_and(|read| read.is_ok()) {
                        return;
                    }
                }
                Err(error) => tracing::debug!(%error, "cannot set a mark in the lifecycle stream"),
            }
            sleep(backoff.next_wait()).await;
        }
    }

    /// Notes that this worker is about to run a task of the quarantine; it may be its end. Tries until
    /// that is confirmed.
    pub(crate) async fn run_started(&self, task: &str) {
        let mut backoff = Backoff::default();
        loop {
            let (worker, incarnation, at) = self.signature();
            let started = LifecycleEvent::RunStarted { worker, incarnation, at, task: task.to_owned() };
            match self.append(&self.names.lifecycle(), &started).await {
                Ok(()) => return,
                Err(error) => tracing::debug!(%error, task, "cannot note the start of a run"),
            }
            sleep(backoff.next_wait()).await;
        }
    }

    /// Notes that the run is over. Best effort: a run that is not known to be over speaks against its task
    /// only if this worker crashes.
    pub(crate) async fn run_ended(&self, task: &str) {
        let (worker, incarnation, at) = self.signature();
        let ended = LifecycleEvent::RunEnded { worker, incarnation, at, task: task.to_owned() };
        if let Err(error) = self.append(&self.names.lifecycle(), &ended).await {
            tracing::debug!(%error, task, "cannot note the end of a run");
        }
    }

    /// Whether another worker that is on record has a handler for this kind.
    pub(crate) fn has_handler(&self, kind: &str) -> bool {
        self.lifecycle().has_handler(kind)
    }

    /// Repeats the start record, also when another worker says that this one crashed, and removes what
    /// is out of date. For ever.
    pub(super) async fn keep_record(&self) {
        let now = Instant::now();
        let mut repeat = interval_at(now + REPEAT, REPEAT);
        let mut forget = interval_at(now + FORGET, FORGET);
        loop {
            tokio::select! {
                _ = repeat.tick() => self.hello().await,
                () = self.disputed.notified() => self.hello().await,
                _ = forget.tick() => self.forget(),
            }
        }
    }

    fn forget(&self) {
        let now = SystemTime::now();
        self.lifecycle().forget(epoch_ms(now));
        self.directives.forget(now);
    }

    /// Says that this worker is there.
    pub(super) async fn hello(&self) {
        let (worker, incarnation, at) = self.signature();
        self.announce(&LifecycleEvent::Hello { worker, incarnation, at, kinds: self.identity.kinds.clone() })
            .await;
    }

    /// Says that it has settled everything and ends.
    pub(super) async fn goodbye(&self) {
        let (worker, incarnation, at) = self.signature();
        self.announce(&LifecycleEvent::Goodbye { worker, incarnation, at }).await;
    }

    fn signature(&self) -> (String, String, i64) {
        (self.identity.worker.to_string(), self.incarnation.clone(), epoch_ms(SystemTime::now()))
    }

    /// Sets this worker's first mark in a stream.
    pub(super) async fn mark(&self, stream: &str) -> Result<(), PublishError> {
        self.append(stream, &serde_json::json!({ "mark": self.incarnation })).await
    }

    /// Writes a record to the end of a stream that must exist.
    async fn append(&self, stream: &str, record: &impl Serialize) -> Result<(), PublishError> {
        self.publish(Target::queue(stream.to_owned()), record).await
    }

    /// Best effort: without the record a crash goes unnoticed, which costs one more worker at most.
    async fn announce(&self, life: &LifecycleEvent) {
        let target = Target::announce(self.names.events(), format!("life.{}", self.identity.worker));
        if let Err(error) = self.publish(target, life).await {
            tracing::warn!(%error, "failed to publish lifecycle event");
        }
    }

    async fn publish(&self, target: Target, record: &impl Serialize) -> Result<(), PublishError> {
        let body = serde_json::to_vec(record).expect("text and numbers");
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_content_type("application/json".into())
            .with_message_id(uuid::Uuid::now_v7().to_string().into());
        self.wire.publish(Message { target, properties, body: body.into() }).await
    }

    fn lifecycle(&self) -> std::sync::MutexGuard<'_, LifecycleLog> {
        self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod tests;
