//! The relay: publishes the notices of the outbox as tasks.
//!
//! Each worker with the sink has one. It is woken when its worker has stored notices, and looks every few seconds for
//! those of workers that are gone. A notice is locked while it is published and marked after the broker's confirm. If the
//! database is away before it is marked, the relay remembers that, and marks it when the database is back; the relays of
//! other workers leave it alone, because it has an owner. So it is published at least once, and twice only if a worker ends
//! between the confirm and the mark. The second task has the same id.
//!
//! The relay also records what the worker tells about the tasks of notices that have no result: those that are tried again,
//! and dead letters. Later notices of the same alarm wait for that.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use deadpool_postgres::{Object, Transaction};
use futures_util::future::join_all;
use garenne_common::{backoff::Backoff, lock::lock, resilience::deadline};
use garenne_database::{DatabaseError, PostgresPool, QueryResult, Tables};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::{notice::Notice, outbox::OutboxStatements};
use garenne::sink::SinkContext;
use garenne_sensors::alert;

/// The name of the part in the sink's state.
const PART: &str = "alert relay";
/// Notices that are locked and published at once, at most.
const BATCH: i64 = 100;
/// How often the relay looks for notices of other workers.
const POLL_INTERVAL: Duration = Duration::from_secs(3);
/// How often published notices are deleted.
const DELETE_INTERVAL: Duration = Duration::from_secs(3600);
/// How long notices are published after a stop.
const LAST_NOTICES: Duration = Duration::from_secs(5);
/// Tasks without a result that are remembered until they are recorded, at most.
const MAX_REMEMBERED: usize = 10_000;
/// Time limit of each statement.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Publishes notices.
pub(super) struct Relay {
    pool: PostgresPool,
    outbox: OutboxStatements,
    stored: Notify,
    /// Identifies this worker as the owner of notices.
    owner: String,
    /// Whether it publishes, so that the notices of this worker have an owner.
    is_running: AtomicBool,
    /// Notices that were published while the database did not answer that they were marked.
    unmarked: Mutex<BTreeSet<String>>,
    /// Tasks without a result that are not recorded, and whether they are dead.
    unrecorded: Mutex<BTreeMap<String, bool>>,
}

impl Relay {
    pub(super) fn new(pool: PostgresPool, tables: &Tables, notice_wait: Duration) -> Self {
        Self {
            pool,
            outbox: OutboxStatements::new(tables, notice_wait),
            stored: Notify::new(),
            owner: Uuid::now_v7().to_string(),
            is_running: AtomicBool::new(false),
            unmarked: Mutex::default(),
            unrecorded: Mutex::default(),
        }
    }

    /// Stores notices at the end of a transaction, commits it, and wakes the relay. `done` are tasks that may be those of
    /// notices, and have a result. Returns whether there are notices to publish.
    pub(super) async fn commit(
        &self,
        transaction: Transaction<'_>,
        notices: Vec<Notice>,
        done: &[&str],
    ) -> QueryResult<bool> {
        let owner = self.is_running.load(Ordering::Relaxed).then_some(self.owner.as_str());
        let has_notices = self.outbox.store(&transaction, notices, owner).await?;
        if !done.is_empty() {
            self.outbox.end(&transaction, done, owner).await?;
        }
        transaction.commit().await?;
        if has_notices || !done.is_empty() {
            self.stored.notify_one();
        }
        Ok(has_notices)
    }

    /// Remembers that a task, which may be that of a notice, will be tried again, or is dead.
    pub(super) fn ended_without_result(&self, task_id: &str, is_dead: bool) {
        let mut unrecorded = lock(&self.unrecorded);
        if unrecorded.len() < MAX_REMEMBERED {
            *unrecorded.entry(task_id.to_owned()).or_default() |= is_dead;
            self.stored.notify_one();
        }
    }

    /// Publishes until the worker stops, and then what is left, for a few seconds. The rest is for other workers. Does
    /// nothing if no lane of the worker's settings takes alerts.
    pub(super) async fn run(&self, context: &SinkContext) {
        if !context.publisher().has_lane_for(alert::KIND) {
            return;
        }
        self.is_running.store(true, Ordering::Relaxed);
        let too_long = async {
            context.stopping().await;
            tokio::time::sleep(LAST_NOTICES).await;
        };
        tokio::select! {
            () = self.publish_repeatedly(context) => {}
            () = too_long => tracing::warn!("stored alerts are left to other workers"),
        }
    }

    /// After an error it tries again, with growing pauses.
    async fn publish_repeatedly(&self, context: &SinkContext) {
        let mut backoff = Backoff::limited(Duration::from_millis(100), POLL_INTERVAL).with_jitter();
        let mut next_delete = Instant::now();
        loop {
            let is_last = context.is_stopping();
            match self.publish_batch(context).await {
                Ok(count) => {
                    context.succeeded(PART);
                    backoff.reset();
                    if count == BATCH as usize {
                        continue;
                    }
                    if is_last {
                        return;
                    }
                    if Instant::now() >= next_delete {
                        next_delete = Instant::now() + DELETE_INTERVAL;
                        self.delete_old().await;
                    }
                    tokio::select! {
                        () = self.stored.notified() => {}
                        () = tokio::time::sleep(POLL_INTERVAL) => {}
                        () = context.stopping() => {}
                    }
                }
                Err(error) => {
                    context.failed(PART, &error);
                    let retry_in = backoff.next_wait();
                    tracing::warn!(error, ?retry_in, "alerts not published, will be retried");
                    if is_last {
                        return;
                    }
                    tokio::select! {
                        () = tokio::time::sleep(retry_in) => {}
                        () = context.stopping() => {}
                    }
                }
            }
        }
    }

    /// Publishes the oldest notices. Returns their number.
    async fn publish_batch(&self, context: &SinkContext) -> Result<usize, String> {
        let mut client = self.pool.client().await.map_err(|error| error.to_string())?;
        let published = self.publish_batch_with(&mut client, context).await;
        if published.is_err() {
            // A late answer would be taken for that of the next statement.
            drop(Object::take(client));
        }
        published
    }

    async fn publish_batch_with(&self, client: &mut Object, context: &SinkContext) -> Result<usize, String> {
        self.mark_unmarked(client).await?;
        self.record_unrecorded(client).await?;
        if context.is_lane_paused_for(alert::KIND) {
            in_time(self.outbox.record_pause(client)).await?;
        }
        let publisher = context.publisher();
        let transaction = in_time(client.transaction()).await?;
        let tasks = in_time(self.outbox.lock_unpublished(&transaction, BATCH, &self.owner)).await?;
        if tasks.is_empty() {
            in_time(transaction.rollback()).await?;
            return Ok(0);
        }
        let ids: Vec<_> = tasks.iter().map(|task| task.id.clone()).collect();
        let outcomes = join_all(tasks.into_iter().map(|task| publisher.publish(task))).await;
        let (mut published, mut problem) = (Vec::with_capacity(ids.len()), None);
        for (id, outcome) in ids.iter().zip(outcomes) {
            match outcome {
                Ok(()) => published.push(id.as_str()),
                Err(error) => problem = Some(error.to_string()),
            }
        }
        if !published.is_empty() {
            self.unmarked().extend(published.iter().map(|id| (*id).to_owned()));
            in_time(self.outbox.mark_published(&transaction, &published)).await?;
        }
        in_time(transaction.commit()).await?;
        self.unmarked().clear();
        problem.map_or(Ok(ids.len()), Err)
    }

    /// Marks the notices of an attempt that failed after they were published.
    async fn mark_unmarked(&self, client: &mut Object) -> Result<(), String> {
        let ids: Vec<_> = self.unmarked().iter().cloned().collect();
        if ids.is_empty() {
            return Ok(());
        }
        let transaction = in_time(client.transaction()).await?;
        let ids: Vec<_> = ids.iter().map(String::as_str).collect();
        in_time(self.outbox.mark_published(&transaction, &ids)).await?;
        in_time(transaction.commit()).await?;
        self.unmarked().clear();
        Ok(())
    }

    /// Records the tasks without a result.
    async fn record_unrecorded(&self, client: &mut Object) -> Result<(), String> {
        let tasks = lock(&self.unrecorded).clone();
        if tasks.is_empty() {
            return Ok(());
        }
        let ids = |dead: bool| -> Vec<&str> {
            tasks.iter().filter(|(_, is_dead)| **is_dead == dead).map(|(id, _)| id.as_str()).collect()
        };
        let transaction = in_time(client.transaction()).await?;
        in_time(self.outbox.end(&transaction, &ids(true), Some(&self.owner))).await?;
        in_time(self.outbox.record_attempts(&transaction, &ids(false))).await?;
        in_time(transaction.commit()).await?;
        // What was added or has changed meanwhile stays.
        lock(&self.unrecorded).retain(|id, is_dead| tasks.get(id) != Some(is_dead));
        Ok(())
    }

    fn unmarked(&self) -> MutexGuard<'_, BTreeSet<String>> {
        lock(&self.unmarked)
    }

    /// Deletes notices that were published long ago. Best effort: the next one may succeed.
    async fn delete_old(&self) {
        loop {
            let Ok(client) = self.pool.client().await else { return };
            match in_time(self.outbox.delete_old(&client)).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!(error, "published notices not deleted");
                    drop(Object::take(client));
                    return;
                }
            }
        }
    }
}

/// Runs a statement with a time limit.
async fn in_time<T>(statement: impl Future<Output = QueryResult<T>>) -> Result<T, String> {
    match deadline(STATEMENT_TIMEOUT, statement).await {
        Ok(done) => done.map_err(|error| DatabaseError::from(error).to_string()),
        Err(elapsed) => Err(elapsed.to_string()),
    }
}
