//! The fleet over time: heartbeats as they arrive, a snapshot of the queues every few seconds, and the last
//! hour of both in memory.

mod backlog;
mod history;
mod lane;
mod pauses;
mod sample;
mod state;
mod view;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    mem,
    pin::pin,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, future::BoxFuture};
use garenne_common::{
    backoff::Backoff,
    exit::Failure,
    lock::lock,
    supervise::{self, TaskHandle},
};
use garenne_database::{DatabaseError, PostgresPool};
use garenne_operator::{
    operator::Operator,
    queues::{QueueStatus, Snapshot, SnapshotReader},
    ticks::ticks,
};
use garenne_protocol::{heartbeat::Program, task::epoch_ms};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout, timeout_at},
};

pub use history::{SAMPLE_INTERVAL, SampleHistory};
pub use sample::Sample;
pub use view::{KindPoint, NOT_KNOWN, Now, Point};

use crate::{
    diagnose::Problem,
    fleet::{ControlQueues, HeartbeatListener, MemberView, RecordedWorker, Roster, recorded_workers},
    lane_sample::LaneSample,
    scale::{self, Goal},
    topology::find_differences,
};
use state::MonitorState;

/// How long a worker on record may take to send a heartbeat before it is shown as silent: it is asked for one, unless this
/// console writes nothing.
const FIRST_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the first look at the fleet waits for the workers, and how often it asks whether all are heard.
const FIRST_LOOK_TIMEOUT: Duration = Duration::from_secs(2);
const FIRST_LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Time limit for an answer of the broker, after which the queues are not known.
const QUEUES_TIMEOUT: Duration = Duration::from_secs(3);

/// Time limit for an answer of the workers' database.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(3);

/// Pause between two comparisons of the topology. Each reads every exchange, queue and binding.
const COMPARE_INTERVAL: Duration = Duration::from_secs(10);
/// The pause while something differs, so that a repair is noticed soon.
const DIFFERING_INTERVAL: Duration = Duration::from_secs(2);

/// Pause between two readings of the lifecycle stream, and the least one if a worker was started again.
const RECORDS_INTERVAL: Duration = Duration::from_secs(30);
const MIN_RECORDS_PAUSE: Duration = Duration::from_secs(5);

/// Pause between two searches for the control queues of new workers.
const CONFIRM_INTERVAL: Duration = Duration::from_millis(200);

/// Watches one fleet: a task receives heartbeats, one takes snapshots of the queues, one finds out which new workers are
/// real, and the others ask the database, compare the topology, read which workers started, look for alarms, and read who paused
/// what.
pub struct FleetMonitor {
    /// The fleet.
    pub operator: Operator,
    /// The longest wait of a task that arrives now.
    objective: Duration,
    state: Mutex<MonitorState>,
    /// A worker was started again.
    restarted: Notify,
}

impl FleetMonitor {
    /// Starts the monitor, which runs until the returned tasks are dropped. It waits for a broker that cannot
    /// be reached yet.
    pub fn start(operator: Operator, objective: Duration) -> (Arc<Self>, [TaskHandle<()>; 8]) {
        // A read-only console may send no command to a worker; then the management API lists the workers' queues.
        let checks = !operator.read_only || operator.management.is_some();
        let state = Mutex::new(MonitorState::new(checks, now()));
        let monitor = Arc::new(Self { operator, objective, state, restarted: Notify::new() });
        type Run = for<'a> fn(&'a mut Arc<FleetMonitor>) -> BoxFuture<'a, ()>;
        let run = |name, task: Run| supervise::restarting(name, Arc::clone(&monitor), task).spawn();
        let tasks = [
            run("heartbeats", |it| it.keep_listening().boxed()),
            run("queue samples", |it| it.keep_sampling().boxed()),
            run("new workers", |it| it.keep_confirming().boxed()),
            run("database check", |it| it.keep_asking().boxed()),
            run("pauses", |it| it.keep_reading_pauses().boxed()),
            run("topology check", |it| it.keep_comparing().boxed()),
            run("lifecycle records", |it| it.keep_reading_records().boxed()),
            run("alarm check", |it| it.keep_checking_alarms().boxed()),
        ];
        (monitor, tasks)
    }

    async fn read_records(&self) -> Result<BTreeMap<String, RecordedWorker>, Failure> {
        let connection = self.operator.connect().await?;
        let recorded = recorded_workers(&connection, &self.operator.names.lifecycle(), now()).await;
        Operator::leave(connection).await;
        recorded
    }

    async fn keep_listening(&self) {
        let mut backoff = Backoff::default();
        loop {
            let Err(error) = self.listen(&mut backoff).await;
            let retry_in = backoff.next_wait();
            tracing::warn!(%error, ?retry_in, "heartbeats unavailable, reconnecting");
            lock(&self.state).lost(&error.to_string());
            sleep(retry_in).await;
        }
    }

    async fn keep_sampling(&self) {
        self.await_workers().await;
        let mut reader = SnapshotReader::default();
        let mut tick = ticks(SAMPLE_INTERVAL);
        loop {
            tick.tick().await;
            self.sample_queues(&mut reader).await;
        }
    }

    /// Waits for the workers' answers, so that the first sample is not one without workers.
    async fn await_workers(&self) {
        let until = Instant::now() + FIRST_LOOK_TIMEOUT;
        let is_complete = || {
            let state = lock(&self.state);
            state.first_heard && state.roster.unconfirmed().is_empty()
        };
        while Instant::now() < until && !is_complete() {
            sleep(FIRST_LOOK_INTERVAL).await;
        }
    }

    /// Searches for the control queues of the workers that are not confirmed.
    async fn keep_confirming(&self) {
        let control_queues = ControlQueues::new(&self.operator);
        let mut tick = ticks(CONFIRM_INTERVAL);
        loop {
            tick.tick().await;
            let unconfirmed = lock(&self.state).roster.unconfirmed();
            if unconfirmed.is_empty() || self.operator.read_only {
                continue;
            }
            let found = control_queues.find(unconfirmed).await;
            let mut state = lock(&self.state);
            found.iter().for_each(|(worker, exists)| state.roster.confirm(worker, *exists));
        }
    }

    /// Asks the workers' database for an answer, if there is one.
    async fn keep_asking(&self) {
        let Ok((pool, _)) = self.operator.database_with(1) else { return std::future::pending().await };
        let mut tick = ticks(SAMPLE_INTERVAL);
        loop {
            tick.tick().await;
            let problem = database_problem(&pool).await;
            lock(&self.state).database_problem = problem;
        }
    }

    /// Reads which workers started: one that ends within seconds sends too few heartbeats to be noticed by them.
    async fn keep_reading_records(&self) {
        let mut tick = ticks(RECORDS_INTERVAL);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = self.restarted.notified() => {}
            }
            match self.read_records().await {
                Ok(recorded) => lock(&self.state).add_recorded(&recorded, false, now()),
                Err(failure) => tracing::debug!(%failure, "cannot read the lifecycle stream"),
            }
            sleep(MIN_RECORDS_PAUSE).await;
        }
    }

    /// Compares the broker's topology with the settings.
    async fn keep_comparing(&self) {
        loop {
            let found = find_differences(&self.operator).await.map_err(|failure| failure.to_string());
            let differs = found.as_ref().is_ok_and(|found| !found.is_empty());
            lock(&self.state).differences = found;
            sleep(if differs { DIFFERING_INTERVAL } else { COMPARE_INTERVAL }).await;
        }
    }

    /// Asks the management API for alarms, if this console publishes nothing that an alarm would block.
    async fn keep_checking_alarms(&self) {
        if !self.operator.read_only {
            return std::future::pending().await;
        }
        let mut tick = ticks(SAMPLE_INTERVAL);
        loop {
            tick.tick().await;
            let reported = match &self.operator.management {
                Some(management) => management.alarms().await.map_err(|failure| failure.to_string()),
                None => Err("this console publishes nothing, and no --management-url is set".to_owned()),
            };
            lock(&self.state).alarm_reported(reported, now());
        }
    }

    /// Receives heartbeats on one connection until an error ends it.
    async fn listen(&self, backoff: &mut Backoff) -> Result<Infallible, Failure> {
        let mut listener = HeartbeatListener::open(&self.operator).await?;
        lock(&self.state).connected(now());
        backoff.reset();
        let due = listener.requested + FIRST_HEARTBEAT_TIMEOUT;
        let mut has_settled = false;
        loop {
            let next = match has_settled {
                true => Ok(listener.next().await),
                false => timeout_at(due, listener.next()).await,
            };
            let now = now();
            let mut state = lock(&self.state);
            if let Ok(heartbeat) = next {
                let heartbeat = heartbeat?;
                state.broker_heard(listener.alarm.as_deref(), now);
                if let Some(heartbeat) = heartbeat {
                    if state.roster.is_other_run(&heartbeat) {
                        self.restarted.notify_one();
                    }
                    state.roster.record(heartbeat, now);
                    let MonitorState { pauses, roster, .. } = &mut *state;
                    pauses.forget_ended(roster, now);
                }
            }
            let is_heard = |(worker, run): (&str, &str)| state.roster.has_heard(worker, run);
            if !has_settled && (Instant::now() >= due || listener.expected().all(is_heard)) {
                has_settled = true;
                state.add_recorded(&mem::take(&mut listener.recorded), !self.operator.read_only, now);
                state.first_heard = true;
            }
        }
    }

    /// Takes a snapshot of the queues and records a sample.
    async fn sample_queues(&self, reader: &mut SnapshotReader) {
        let mut reading = pin!(reader.read(&self.operator));
        let snapshot = match timeout(QUEUES_TIMEOUT, &mut reading).await {
            Ok(snapshot) => snapshot,
            Err(_) => {
                // The reading goes on: it ends with the reason.
                lock(&self.state).no_answer(format!("the broker has not answered within {QUEUES_TIMEOUT:?}"));
                reading.await
            }
        };
        let now = now();
        let mut state = lock(&self.state);
        state.has_looked = true;
        // Nobody is forgotten while nobody can be heard.
        if state.is_heard(now) {
            state.roster.forget(now);
        }
        let refused = state.roster.take_refused();
        if refused > 0 {
            tracing::warn!(refused, "heartbeats refused: they name more processes than a fleet has");
        }
        match snapshot {
            Ok(snapshot) => {
                state.queue_problem = None;
                state.record(&self.operator, snapshot, now);
            }
            Err(failure) => state.queue_problem = Some(failure.to_string()),
        }
        // So that it is known later since when they last.
        state.diagnose(&self.operator, self.objective, now);
    }

    /// The newest sample, unless it is too old to act on. The error says why there is none.
    pub fn latest(&self) -> Result<Sample, String> {
        let state = lock(&self.state);
        let max_age = i64::try_from(SAMPLE_INTERVAL.as_millis()).unwrap_or(i64::MAX) * 4;
        match state.history.newest() {
            Some(sample) if now() - sample.at <= max_age => Ok(sample.clone()),
            _ => Err(state
                .queue_problem
                .clone()
                .unwrap_or_else(|| "no sample of the queues was taken yet".to_owned())),
        }
    }

    /// The number of workers that a lane needs, and the sample it was computed from; `None` for an unknown
    /// lane. While queues or workers cannot be read, it fails, and the caller should not change the number.
    pub fn replicas(&self, lane: &str, goal: &Goal) -> Result<Option<(u32, LaneSample)>, String> {
        let newest = self.latest()?;
        let state = lock(&self.state);
        if let Some(problem) = state.unheard(now()) {
            return Err(format!("no heartbeats from workers: {problem}"));
        }
        let Some(sample) = newest.lanes.get(lane) else { return Ok(None) };
        if let Some(problem) = &sample.problem {
            return Err(problem.clone());
        }
        let window = i64::try_from(goal.window.as_millis()).unwrap_or(i64::MAX);
        let (loads, complete) = state.history.loads(lane, newest.at.saturating_sub(window));
        Ok(Some((scale::settled(&loads, complete, goal), sample.clone())))
    }

    /// The current state of the fleet.
    pub fn now(&self) -> Now {
        Now::of(&self.operator, self.objective, &mut lock(&self.state), now())
    }

    /// Whether heartbeats arrive: without them no backlog is known.
    pub fn is_heard(&self) -> bool {
        lock(&self.state).is_heard(now())
    }

    /// What is wrong, the worst first; [`None`] before the first look at the fleet.
    pub fn problems(&self) -> Option<Vec<Problem>> {
        let mut state = lock(&self.state);
        let problems = state.diagnose(&self.operator, self.objective, now());
        state.has_looked.then_some(problems)
    }

    /// The workers.
    pub fn workers(&self) -> Vec<MemberView> {
        lock(&self.state).roster.members(Program::Worker, now())
    }

    /// One point per sample of the last hour, oldest first.
    pub fn history(&self) -> Vec<Point> {
        view::points(&lock(&self.state).history)
    }

    /// Every queue of the newest snapshot.
    pub fn queues(&self) -> Option<BTreeMap<String, QueueStatus>> {
        lock(&self.state).snapshot.as_ref().map(|snapshot| snapshot.queues.clone())
    }

    /// Unroutable messages since this console started, those that were in the queue at its start included.
    pub fn unroutable(&self) -> u64 {
        lock(&self.state).unroutable
    }
}

/// The lanes as a console knows them that looks once: without rates.
pub fn lanes(
    operator: &Operator,
    roster: &Roster,
    snapshot: &Snapshot,
    now: i64,
) -> BTreeMap<String, LaneSample> {
    let sample = |lane| lane::sample(operator, roster, &SampleHistory::default(), lane, now);
    snapshot.lanes.iter().map(|lane| (lane.name.clone(), sample(lane))).collect()
}

/// Why a database does not answer.
pub async fn database_problem(pool: &PostgresPool) -> Option<String> {
    let asking = async { pool.client().await?.simple_query("").await.map_err(DatabaseError::from) };
    match timeout(DATABASE_TIMEOUT, asking).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no answer within {DATABASE_TIMEOUT:?}")),
    }
}

fn now() -> i64 {
    epoch_ms(SystemTime::now())
}
