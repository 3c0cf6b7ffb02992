//! Records what the lanes of this worker do, for curves that survive a restart of the dashboard.
//!
//! All workers of the fleet add to one row for each lane and step. A counter's difference is taken from the sums before it is
//! sent, so it is sent at most once: after an error it is lost, and nothing is counted twice. Losing it is no failure of the
//! sink, because results do not depend on it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use garenne::sink::{LaneFigures, SinkContext};
use garenne_common::{lock::lock, random, resilience::deadline};
use garenne_database::{Connection, DatabaseError, PostgresPool, QueryResult, Tables, finish, prune};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_postgres::types::ToSql;

/// Time between two samples of the figures, at most.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// Time limit of a write; the step if that is less.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of the last write, so that a database that hangs does not delay the end of the worker.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the last write waits for settlements that are not sent yet.
const SETTLE_TIME: Duration = Duration::from_millis(300);
const SETTLE_CHECK: Duration = Duration::from_millis(10);
/// Time between two removals of rows that are too old.
const PRUNE_INTERVAL: Duration = Duration::from_secs(3600);

/// What this worker adds to the row of a lane.
#[derive(Clone, Debug, Default, PartialEq)]
struct LaneSums {
    settled: u64,
    slot_seconds: f64,
    busy_seconds: f64,
    held_seconds: f64,
}

/// The figures since the last write.
struct Tally {
    step: Duration,
    since: Instant,
    sampled_at: Instant,
    /// The counters of settled tasks at the last sample.
    counted: BTreeMap<Arc<str>, u64>,
    sums: BTreeMap<Arc<str>, LaneSums>,
}

impl Tally {
    fn new(step: Duration) -> Self {
        let now = Instant::now();
        Self { step, since: now, sampled_at: now, counted: BTreeMap::new(), sums: BTreeMap::new() }
    }

    /// Adds the present figures, as those of the time since the last sample. More than a step is no observation, but a
    /// process that did not run.
    fn sample(&mut self, lanes: Vec<LaneFigures>) {
        let now = Instant::now();
        let seconds = (now - self.sampled_at).min(self.step).as_secs_f64();
        self.sampled_at = now;
        for figures in lanes {
            let counted = self.counted.insert(Arc::clone(&figures.lane), figures.settled).unwrap_or(0);
            let sums = self.sums.entry(figures.lane).or_default();
            sums.settled += figures.settled.saturating_sub(counted);
            sums.slot_seconds += figures.slots as f64 * seconds;
            sums.busy_seconds += figures.busy as f64 * seconds;
            sums.held_seconds += figures.held as f64 * seconds;
        }
    }
}

/// The sums of a write.
#[derive(Debug, PartialEq)]
struct Taken {
    /// The end of the time that they cover.
    at: Instant,
    covered: Duration,
    sums: BTreeMap<Arc<str>, LaneSums>,
}

impl Taken {
    fn of(tally: &mut Tally) -> Self {
        let (since, at) = (std::mem::replace(&mut tally.since, tally.sampled_at), tally.sampled_at);
        Self { at, covered: (at - since).min(tally.step), sums: std::mem::take(&mut tally.sums) }
    }
}

/// Records the lanes of a worker.
pub(super) struct LaneRecorder {
    pool: PostgresPool,
    tables: Tables,
    step: Duration,
    add: String,
    /// Kept when the work begins anew after a panic, so that nothing is counted twice.
    tally: Mutex<Tally>,
}

impl LaneRecorder {
    /// A recorder with steps of so many whole seconds. [`None`] if that is 0.
    pub(super) fn new(pool: PostgresPool, tables: &Tables, step: Duration) -> Option<Self> {
        if step.is_zero() {
            return None;
        }
        // Each worker takes the rows in the order of the lanes. The step is that of the middle of the time covered, by the
        // clock of the database.
        let add = format!(
            "INSERT INTO {tables}_lane_history AS h
             SELECT date_bin(make_interval(secs => $1::float8), upto - make_interval(secs => $2::float8 / 2),
                             '1970-01-01Z'),
                    lane, $1::float8::int4, upto - make_interval(secs => $2), upto, settled, slots, busy, held,
                    coalesce(ready, 0) * $2, CASE WHEN ready IS NULL THEN 0 ELSE $2 END
             FROM (SELECT clock_timestamp() - make_interval(secs => $3::float8) AS upto OFFSET 0) AS covered,
                  unnest($4::text[], $5::int8[], $6::float8[], $7::float8[], $8::float8[], $9::float8[])
                  AS added(lane, settled, slots, busy, held, ready)
             ON CONFLICT (time, lane, step_seconds) DO UPDATE SET
                 since = least(h.since, excluded.since), upto = greatest(h.upto, excluded.upto),
                 settled = h.settled + excluded.settled,
                 slot_seconds = h.slot_seconds + excluded.slot_seconds,
                 busy_seconds = h.busy_seconds + excluded.busy_seconds,
                 held_seconds = h.held_seconds + excluded.held_seconds,
                 ready_seconds = h.ready_seconds + excluded.ready_seconds,
                 ready_weight = h.ready_weight + excluded.ready_weight
             RETURNING extract(epoch FROM clock_timestamp())::float8"
        );
        Some(Self { pool, tables: tables.clone(), step, add, tally: Mutex::new(Tally::new(step)) })
    }

    /// Records until the worker stops, and then the part of a step that is left.
    pub(super) async fn run(&self, context: &SinkContext) {
        let (mut is_failing, mut pruned_at) = (false, None);
        let mut due = Instant::now() + self.jitter();
        while !context.is_stopping() {
            tokio::select! {
                () = context.stopping() => break,
                () = sleep_until(due.min(Instant::now() + SAMPLE_INTERVAL)) => {}
            }
            lock(&self.tally).sample(context.lanes());
            if Instant::now() < due {
                continue;
            }
            let written = tokio::select! {
                written = self.write(context, WRITE_TIMEOUT.min(self.step)) => written,
                // The sums are lost, as after an error.
                () = async { context.stopping().await; sleep(LAST_WRITE_TIMEOUT).await } => break,
            };
            match &written {
                Err(error) if !is_failing => tracing::warn!(%error, "history of lanes not stored"),
                Ok(_) if is_failing => tracing::info!("history of lanes stored again"),
                _ => {}
            }
            is_failing = written.is_err();
            due = Instant::now()
                + written.map_or(self.step, |time| until_next(self.step, time) + self.jitter());
            if !is_failing && pruned_at.is_none_or(|at: Instant| at.elapsed() >= PRUNE_INTERVAL) {
                pruned_at = Some(Instant::now());
                tokio::select! {
                    () = self.prune() => {}
                    () = context.stopping() => break,
                }
            }
        }
        let began = Instant::now();
        while context.lanes().iter().any(|lane| lane.held > 0) && began.elapsed() < SETTLE_TIME {
            sleep(SETTLE_CHECK).await;
        }
        lock(&self.tally).sample(context.lanes());
        if let Err(error) = self.write(context, LAST_WRITE_TIMEOUT).await
            && !is_failing
        {
            tracing::warn!(%error, "last part of the history of lanes not stored");
        }
    }

    /// Writes the sums. Returns the time of the database, in seconds since 1970.
    async fn write(&self, context: &SinkContext, limit: Duration) -> Result<f64, DatabaseError> {
        let taken = Taken::of(&mut lock(&self.tally));
        let rest = || limit.saturating_sub(taken.at.elapsed());
        let ready = async {
            let mut ready = Vec::new();
            for lane in taken.sums.keys() {
                ready.push(context.backlog(lane).await.map(|ready| ready as f64));
            }
            ready
        };
        // A broker that does not answer leaves the time for the database.
        let ready = deadline(limit / 4, ready).await.unwrap_or_else(|_| vec![None; taken.sums.len()]);
        let client = deadline(rest(), self.pool.client()).await.map_err(DatabaseError::transient)??;
        let added = deadline(rest(), self.add(&client, &taken, &ready)).await;
        finish(client, added)
    }

    async fn add(&self, client: &Connection, taken: &Taken, ready: &[Option<f64>]) -> QueryResult<f64> {
        let sums = &taken.sums;
        let lanes: Vec<_> = sums.keys().map(|lane| &**lane).collect();
        let settled: Vec<_> = sums.values().map(|it| it.settled as i64).collect();
        let column = |of: fn(&LaneSums) -> f64| sums.values().map(of).collect::<Vec<_>>();
        let (slots, busy) = (column(|it| it.slot_seconds), column(|it| it.busy_seconds));
        let held = column(|it| it.held_seconds);
        let add = client.prepare_cached(&self.add).await?;
        let seconds = [self.step, taken.covered, taken.at.elapsed()].map(|it| it.as_secs_f64());
        let [step, covered, age] = &seconds;
        let values: [&(dyn ToSql + Sync); 9] =
            [step, covered, age, &lanes, &settled, &slots, &busy, &held, &ready];
        let row = client.query(&add, &values).await?;
        Ok(row.first().map_or(0.0, |row| row.get(0)))
    }

    /// Removes rows that are too old. What is left after an error goes the next time.
    async fn prune(&self) {
        let removing = async {
            let remove = async |client: &mut Connection| prune::lane_history(client, &self.tables).await;
            while self.pool.within(WRITE_TIMEOUT, remove).await? {}
            Ok::<_, DatabaseError>(())
        };
        if let Err(error) = removing.await {
            tracing::debug!(%error, "old history of lanes not removed");
        }
    }

    /// Workers write at different times, up to a fifth of a step after its end.
    fn jitter(&self) -> Duration {
        self.step.mul_f64(random::chance() / 5.0)
    }
}

/// The time from a time of the database, in seconds since 1970, to the next step.
fn until_next(step: Duration, time: f64) -> Duration {
    let step = step.as_secs_f64();
    Duration::from_secs_f64(step - time.rem_euclid(step))
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn fast(busy: usize, held: u64, settled: u64) -> Vec<LaneFigures> {
        vec![LaneFigures::new("fast", 4, busy, held, settled)]
    }

    fn sums(settled: u64, slot_seconds: f64, busy_seconds: f64, held_seconds: f64) -> LaneSums {
        LaneSums { settled, slot_seconds, busy_seconds, held_seconds }
    }

    #[test]
    fn steps_follow_the_clock_of_the_database() {
        let until = |step, time| until_next(Duration::from_secs(step), time).as_secs_f64();
        assert_eq!((until(60, 1_795_437_000.0), until(60, 1_795_437_030.5)), (60.0, 29.5));
        assert_eq!((until(7, 700.0), until(7, 713.25)), (7.0, 0.75));
    }

    #[tokio::test(start_paused = true)]
    async fn gauges_are_weighted_by_time_and_counters_are_differences() {
        let mut tally = Tally::new(Duration::from_secs(60));
        advance(Duration::from_secs(5)).await;
        // Tasks that were settled before the first sample count.
        tally.sample(fast(2, 6, 10));
        advance(Duration::from_secs(10)).await;
        tally.sample(fast(4, 8, 25));
        let sampled_at = Instant::now();
        advance(Duration::from_secs(1)).await;
        let Taken { at, covered, sums: taken } = Taken::of(&mut tally);
        assert_eq!((at, covered, taken.len()), (sampled_at, Duration::from_secs(15), 1));
        assert_eq!(taken["fast"], sums(25, 60.0, 50.0, 110.0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_taken_is_not_taken_again() {
        let mut tally = Tally::new(Duration::from_secs(60));
        tally.sample(fast(0, 0, 10));
        assert_eq!(Taken::of(&mut tally).sums["fast"].settled, 10);
        let nothing = Taken { at: Instant::now(), covered: Duration::ZERO, sums: BTreeMap::new() };
        assert_eq!(Taken::of(&mut tally), nothing);
        advance(Duration::from_secs(1)).await;
        tally.sample(fast(1, 1, 13));
        let taken = Taken::of(&mut tally);
        assert_eq!((taken.covered, &taken.sums["fast"]), (Duration::from_secs(1), &sums(3, 4.0, 1.0, 1.0)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_did_not_run_covers_one_step_at_most() {
        let mut tally = Tally::new(Duration::from_secs(60));
        advance(Duration::from_secs(3600)).await;
        tally.sample(fast(4, 4, 7));
        let taken = Taken::of(&mut tally);
        assert_eq!(
            (taken.covered, &taken.sums["fast"]),
            (Duration::from_secs(60), &sums(7, 240.0, 240.0, 240.0))
        );
    }
}
