//! The fleet over time: heartbeats as they come, the queues every few seconds, and the last hour of both
//! in memory.

mod lane;
mod ring;
mod view;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use garenne_common::{backoff::Backoff, exit::Failure};
use garenne_protocol::task::epoch_ms;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

pub use lane::LaneSample;
pub use ring::{Ring, Sample};
pub use view::{GatewayNow, KindPoint, Now, Point, WorkerNow};

use crate::{
    fleet::{Ear, Roster, on_record},
    operator::Operator,
    scale::Goal,
    status::Snapshot,
};

/// Between two looks at the queues.
pub const EVERY: Duration = Duration::from_secs(5);
/// How long one who should be there may take to beat before it is noted as missing, milliseconds.
const FIRST_BEATS: i64 = 10_000;

/// Everything that is known of a fleet.
pub struct Scope {
    /// The fleet.
    pub operator: Operator,
    known: Mutex<Known>,
    /// Counts the looks.
    looks: watch::Sender<u64>,
}

struct Known {
    roster: Roster,
    ring: Ring,
    snapshot: Option<Snapshot>,
    /// Why the queues cannot be seen, or the fleet not be heard; nothing while they can.
    blind: Option<String>,
    deaf: Option<String>,
    /// Messages that no lane took, since this console began.
    unroutable: u64,
}

impl Scope {
    /// Begins to listen and to look, for as long as the tasks are kept. What is not there yet is waited
    /// for.
    pub fn start(operator: Operator) -> (Arc<Self>, JoinSet<()>) {
        let known = Known {
            roster: Roster::new(now()),
            ring: Ring::default(),
            snapshot: None,
            blind: Some("not looked yet".to_owned()),
            deaf: Some("not connected yet".to_owned()),
            unroutable: 0,
        };
        let scope = Arc::new(Self { operator, known: Mutex::new(known), looks: watch::Sender::new(0) });
        let mut tasks = JoinSet::new();
        let ear = Arc::clone(&scope);
        tasks.spawn(async move {
            let mut backoff = Backoff::default();
            loop {
                let problem = ear.listen(&mut backoff).await;
                tracing::warn!(problem, "the fleet is not heard");
                ear.known().deaf = Some(problem);
                sleep(backoff.next_wait()).await;
            }
        });
        let eye = Arc::clone(&scope);
        tasks.spawn(async move {
            let mut connection = None;
            let mut tick = interval(EVERY);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                eye.look(&mut connection).await;
            }
        });
        (scope, tasks)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hears for as long as one connection lasts; answers why it ended.
    async fn listen(&self, backoff: &mut Backoff) -> String {
        let mut ear = match Ear::open(&self.operator).await {
            Ok(ear) => ear,
            Err(failure) => return failure.to_string(),
        };
        if let Err(error) = ear.ask().await {
            return error.to_string();
        }
        let expected = on_record(&ear.connection, &self.operator.names.lifecycle()).await;
        let began = now();
        let mut expected = expected.unwrap_or_else(|failure| {
            tracing::warn!(%failure, "workers that died before this console began are not shown");
            Default::default()
        });
        self.known().deaf = None;
        backoff.reset();
        loop {
            let beat = match ear.next().await {
                Ok(beat) => beat,
                Err(problem) => return problem,
            };
            let now = now();
            let mut known = self.known();
            known.roster.hear(beat, now);
            if !expected.is_empty() && now - began > FIRST_BEATS {
                for (worker, (life, _)) in std::mem::take(&mut expected) {
                    if !known.roster.has_heard(&worker, &life) {
                        known.roster.miss(&worker, now);
                    }
                }
            }
        }
    }

    /// Looks at the queues once, and takes a sample.
    async fn look(&self, connection: &mut Option<lapin::Connection>) {
        let looked = async {
            let version = self.operator.broker.version().await?;
            Snapshot::look(&self.operator, version, connection).await
        };
        let looked: Result<_, Failure> = looked.await;
        let now = now();
        let mut known = self.known();
        known.roster.forget(now);
        match looked {
            Ok(snapshot) => {
                known.blind = None;
                known.take(&self.operator, snapshot, now);
            }
            Err(failure) => {
                known.blind = Some(failure.to_string());
            }
        }
        drop(known);
        self.looks.send_modify(|looks| *looks += 1);
    }

    /// Told after each look at the queues.
    pub fn looks(&self) -> watch::Receiver<u64> {
        self.looks.subscribe()
    }

    /// The newest sample, unless it is too old to act on.
    ///
    /// # Errors
    /// Why there is none.
    pub fn fresh(&self) -> Result<Sample, String> {
        let known = self.known();
        let stale = i64::try_from(EVERY.as_millis()).unwrap_or(i64::MAX) * 4;
        match known.ring.newest() {
            Some(sample) if now() - sample.at <= stale => Ok(sample.clone()),
            _ => Err(known.blind.clone().unwrap_or_else(|| "the queues were not looked at yet".to_owned())),
        }
    }

    /// The workers that a lane needs, and the newest sample it was reckoned from; nothing where there is
    /// no such lane.
    ///
    /// # Errors
    /// What is not known at the moment; whoever scales should leave things as they are.
    pub fn replicas(&self, lane: &str, goal: &Goal) -> Result<Option<(u32, LaneSample)>, String> {
        let newest = self.fresh()?;
        let known = self.known();
        if let Some(deaf) = &known.deaf {
            return Err(format!("the workers are not heard: {deaf}"));
        }
        let Some(sample) = newest.lanes.get(lane) else { return Ok(None) };
        let window = i64::try_from(goal.window.as_millis()).unwrap_or(i64::MAX);
        let (history, complete) = known.ring.loads(lane, newest.at.saturating_sub(window));
        Ok(Some((crate::scale::settled(&history, complete, goal), sample.clone())))
    }
}

fn now() -> i64 {
    epoch_ms(SystemTime::now())
}
