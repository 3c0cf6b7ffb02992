//! The engine of a run: a worker fleet, the faults injected into it, its broker and its network, and the account of its
//! tasks.

use std::{
    ops::Range,
    process::Stdio,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, ensure};
use garenne_amqp::Broker;
use garenne_common::{supervise, telemetry::metrics::Role};
use rustix::process::Signal;
use serde::Serialize;
use tokio::{
    process::Command,
    sync::Mutex,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    account::{Account, Expected},
    fault::{Fault, Injected},
    fault_proxy::FaultProxy,
    fleet::{WorkerExit, WorkerFleet},
    timeline::Timeline,
};

/// How long a broker may take to accept connections after a restart.
pub(crate) const BROKER_RESTART_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval between two attempts to connect to a restarting broker.
const CONNECT_INTERVAL: Duration = Duration::from_millis(20);

/// A run under way. The caller publishes tasks and decides when a fault is due; the engine keeps the fleet at its
/// size and the account complete. It does nothing between two calls of [`poll`](Self::poll).
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) fleet: WorkerFleet,
    pub(crate) account: Account,
    pub(crate) timeline: Timeline,
    /// Tasks that stopping workers requeued, from their receipts; nothing if none wrote a receipt.
    pub(crate) requeued: Option<u64>,
    pub(crate) crashes: Crashes,
    means: FaultMeans,
    /// Pauses, broker restarts and network cuts under way, with the index of their event in the timeline.
    lasting: JoinSet<Result<Result<(usize, Outage)>, supervise::Failure>>,
    /// Broker restarts and network cuts run one after the other, even if they are due together.
    outage_lock: Arc<Mutex<()>>,
}

/// Workers that ended without a shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Crashes {
    /// By a fault, or because they did not stop in time.
    pub(crate) killed: u64,
    /// Although nothing stopped them.
    pub(crate) by_themselves: u64,
}

/// What faults other than signals need.
#[derive(Debug, Default)]
pub(crate) struct FaultMeans {
    /// How long a worker is paused and a network stalled.
    pub(crate) pause: Duration,
    /// For [`Fault::BrokerRestart`].
    pub(crate) restart: Option<BrokerRestart>,
    /// Between the workers and the broker, for [`Fault::Cut`].
    pub(crate) proxy: Option<Arc<FaultProxy>>,
}

/// How the broker is restarted.
#[derive(Clone, Debug)]
pub(crate) struct BrokerRestart {
    pub(crate) broker: Broker,
    /// A shell command. It may return before the broker accepts connections.
    pub(crate) command: String,
}

/// When the broker or the network was away.
type Outage = Range<SystemTime>;

impl Engine {
    /// A run that starts now with a fleet that is already there.
    pub(crate) fn new(fleet: WorkerFleet, means: FaultMeans) -> Self {
        let mut account = Account::default();
        account.excuse_stall();
        Self {
            fleet,
            account,
            timeline: Timeline::starting(SystemTime::now()),
            requeued: None,
            crashes: Crashes::default(),
            means,
            lasting: JoinSet::new(),
            outage_lock: Arc::default(),
        }
    }

    /// Whether no fault lasts that keeps tasks from being executed.
    pub(crate) fn is_idle(&self) -> bool {
        self.lasting.is_empty()
    }

    /// Seconds since the start.
    pub(crate) fn seconds(&self) -> f64 {
        self.timeline.seconds(SystemTime::now())
    }

    /// Adds tasks that were acknowledged to their sender.
    pub(crate) fn acknowledged(&mut self, tasks: Vec<Expected>) {
        self.timeline.published(SystemTime::now(), tasks.len() as u64);
        self.account.acknowledged(tasks);
    }

    /// Injects a fault and records it. Returns nothing if the fault has no target: no worker is left, or there are no
    /// means.
    pub(crate) fn inject(&mut self, fault: Fault, pick: usize) -> Result<Option<Injected>> {
        let event = self.timeline.events.len();
        let injected = match fault {
            Fault::Kill => self.fleet.stop_and_replace(pick, Signal::KILL)?,
            Fault::Soft => self.fleet.stop_and_replace(pick, Signal::TERM)?,
            Fault::Hard => self.fleet.stop_and_replace(pick, Signal::QUIT)?,
            Fault::Pause => match self.fleet.pick(pick) {
                Some(worker) => {
                    worker.process.signal(Signal::STOP);
                    let target = worker.process.name().to_owned();
                    Some(self.start_lasting(&target, event, pause(self.means.pause)))
                }
                None => None,
            },
            Fault::BrokerRestart => {
                let (restart, lock) = (self.means.restart.clone(), Arc::clone(&self.outage_lock));
                restart.map(|restart| self.start_lasting("broker", event, restart.run(lock)))
            }
            Fault::Cut => {
                let (proxy, lock) = (self.means.proxy.clone(), Arc::clone(&self.outage_lock));
                proxy.map(|proxy| self.start_lasting("network", event, cut(proxy, self.means.pause, lock)))
            }
            // The demo kills its processes itself.
            Fault::Bridge | Fault::Mosquitto => None,
        };
        if let Some(Injected { target, replacement }) = &injected {
            self.timeline.record(Some(fault), target.clone(), replacement.clone());
        }
        Ok(injected)
    }

    /// Starts a fault of `target` that lasts, whose event has this index in the timeline.
    fn start_lasting(
        &mut self,
        target: &str,
        event: usize,
        outage: impl Future<Output = Result<Outage>> + Send + 'static,
    ) -> Injected {
        let outage = async move { Ok((event, outage.await?)) };
        supervise::isolated("outage", outage).spawn_into(&mut self.lasting);
        Injected { target: target.to_owned(), replacement: None }
    }

    /// Reads the execution logs, replaces crashed workers, and ends the faults whose time is up. Returns the workers
    /// that have ended since the last call.
    pub(crate) fn poll(&mut self) -> Result<Vec<WorkerExit>> {
        self.read_logs()?;
        let exits = self.fleet.replace_crashed()?;
        self.record(&exits);
        while let Some(ended) = self.lasting.try_join_next() {
            let (event, outage) = ended.context("fault task failed")?.context("fault task failed")??;
            self.timeline.set_span(event, outage);
            // The target of a pause is a worker, unless that has ended.
            if let Some(paused) = self.fleet.worker(&self.timeline.events[event].target) {
                paused.process.signal(Signal::CONT);
            }
        }
        Ok(exits)
    }

    /// Stops all workers in order, kills those that do not end within `limit`, and reads the rest of their logs.
    pub(crate) async fn stop(&mut self, limit: Duration) -> Result<Vec<WorkerExit>> {
        let exits = self.fleet.stop(limit).await?;
        self.record(&exits);
        self.read_logs()?;
        Ok(exits)
    }

    fn record(&mut self, exits: &[WorkerExit]) {
        for exit in exits {
            if let Some(receipt) = &exit.receipt {
                *self.requeued.get_or_insert(0) += receipt.requeued;
            }
            self.crashes.killed += u64::from(exit.killed);
            if exit.stopped_for.is_none() {
                self.crashes.by_themselves += 1;
                self.timeline.record(None, exit.name.clone(), exit.replacement.clone());
            }
        }
    }

    fn read_logs(&mut self) -> Result<()> {
        let lines = self.fleet.executions()?;
        let now = SystemTime::now();
        for execution in &lines {
            self.timeline.executed(execution, now);
        }
        self.account.executed(lines);
        Ok(())
    }
}

/// A stopped worker. It is no outage of the broker or the network.
async fn pause(pause: Duration) -> Result<Outage> {
    let from = SystemTime::now();
    sleep(pause).await;
    Ok(from..from)
}

/// Stalls the network, then resets its connections: a network that was split and forgot them.
async fn cut(proxy: Arc<FaultProxy>, pause: Duration, lock: Arc<Mutex<()>>) -> Result<Outage> {
    let _alone = lock.lock().await;
    let from = SystemTime::now();
    proxy.stall();
    sleep(pause).await;
    proxy.reset();
    Ok(from..SystemTime::now())
}

impl BrokerRestart {
    /// Runs the command and waits until the broker accepts connections.
    async fn run(self, lock: Arc<Mutex<()>>) -> Result<Outage> {
        let _alone = lock.lock().await;
        let from = SystemTime::now();
        let failed = || format!("broker restart command {:?} failed", self.command);
        let mut command = Command::new("sh");
        // The command's errors go to standard error.
        command.args(["-c", &self.command]).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let status = command.status().await.with_context(failed)?;
        ensure!(status.success(), "{}: {status}", failed());
        let deadline = Instant::now() + BROKER_RESTART_TIMEOUT;
        loop {
            // The start of the attempt: workers that connect at the same time are connected before it returns.
            let until = SystemTime::now();
            match self.broker.connect(Role::Operate).await {
                Ok(connection) => {
                    // A failed close does no harm: the connection was only a probe.
                    let _ = connection.close(200, "done".into()).await;
                    return Ok(from..until);
                }
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => sleep(CONNECT_INTERVAL).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{account::Verdicts, fleet::WorkerCommand, launcher::Launcher};

    #[tokio::test]
    async fn a_killed_worker_is_replaced_and_its_tasks_are_in_the_account() {
        let dir = tempfile::tempdir().unwrap();
        let command = "sh -c 'echo \"{\\\"task_id\\\":\\\"{name}\\\"}\"; exec sleep 60'";
        let launcher = Launcher::without_settings(dir.path());
        let fleet = WorkerFleet::start(launcher, WorkerCommand::Shell(command.to_owned()), 1).unwrap();
        let mut engine = Engine::new(fleet, FaultMeans::default());
        let expected = ["worker-1", "worker-2"].map(|id| Expected { id: id.to_owned(), reading: None });
        engine.acknowledged(expected.into());
        while engine.account.open() == 2 {
            assert!(engine.poll().unwrap().is_empty());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let injected = engine.inject(Fault::Kill, 0).unwrap().unwrap();
        assert_eq!(
            (injected.target.as_str(), injected.replacement.as_deref()),
            ("worker-1", Some("worker-2"))
        );
        while engine.account.open() == 1 {
            engine.poll().unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Without a proxy there is no network to cut.
        assert_eq!(engine.inject(Fault::Cut, 0).unwrap(), None);
        engine.stop(Duration::from_secs(60)).await.unwrap();
        engine.timeline.conclude();
        assert!(Verdicts::of(&engine.account).totals.kept());
        assert_eq!(engine.crashes, Crashes { killed: 1, by_themselves: 0 });
        assert_eq!((engine.requeued, engine.timeline.events.len()), (None, 1), "a shell writes no receipt");
        assert_eq!(engine.timeline.executed.iter().sum::<u64>(), 2);
    }
}
