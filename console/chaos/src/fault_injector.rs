//! Injects faults into a worker fleet, its broker and its network.

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
use tokio::{
    process::Command,
    sync::Mutex,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    fault::{Fault, Injected},
    fault_proxy::FaultProxy,
    fault_schedule::FaultStep,
    timeline::Timeline,
    worker_fleet::WorkerFleet,
};

/// How long a broker may take to accept connections after a restart.
pub const BROKER_RESTART_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval between two attempts to connect to a restarting broker.
const CONNECT_INTERVAL: Duration = Duration::from_millis(20);

/// Injects faults and tracks those that last.
#[derive(Debug)]
pub struct FaultInjector {
    /// How long a worker is paused and a network stalled.
    pause: Duration,
    restart: Option<BrokerRestart>,
    /// Between the workers and the broker, for network cuts.
    proxy: Option<Arc<FaultProxy>>,
    /// Paused workers, and when they continue.
    paused: Vec<(Instant, String)>,
    /// Broker restarts and network cuts, with the index of their event in the timeline.
    outages: JoinSet<Result<Result<(usize, Outage)>, supervise::Failure>>,
    /// Broker restarts and network cuts run one after the other, even if they are due together.
    outage_lock: Arc<Mutex<()>>,
}

/// How the broker is restarted.
#[derive(Clone, Debug)]
pub struct BrokerRestart {
    /// The broker.
    pub broker: Broker,
    /// A shell command. It may return before the broker accepts connections.
    pub command: String,
}

/// When the broker or the network was away.
type Outage = Range<SystemTime>;

impl FaultInjector {
    /// An injector of faults. A paused worker continues after `pause`, and a network cut lasts as long.
    /// [`Fault::BrokerRestart`] needs `restart`, and [`Fault::Cut`] a proxy between the workers and the broker.
    pub fn new(pause: Duration, restart: Option<BrokerRestart>, proxy: Option<FaultProxy>) -> Self {
        Self {
            pause,
            restart,
            proxy: proxy.map(Arc::new),
            paused: Vec::new(),
            outages: JoinSet::new(),
            outage_lock: Arc::default(),
        }
    }

    /// Whether no fault lasts that keeps tasks from being executed.
    pub fn is_idle(&self) -> bool {
        self.paused.is_empty() && self.outages.is_empty()
    }

    /// Injects a fault and records it. Returns nothing if the fault has no target: no worker is left, or the injector
    /// has no restart command or proxy.
    ///
    /// # Errors
    /// If the replacement of a stopped worker cannot be started.
    pub fn inject(
        &mut self,
        step: FaultStep,
        fleet: &mut WorkerFleet,
        timeline: &mut Timeline,
    ) -> Result<Option<Injected>> {
        let FaultStep { fault, pick } = step;
        let event = timeline.events.len();
        let injected = match fault {
            Fault::Kill => fleet.stop_and_replace(pick, Signal::KILL)?,
            Fault::Soft => fleet.stop_and_replace(pick, Signal::TERM)?,
            Fault::Hard => fleet.stop_and_replace(pick, Signal::QUIT)?,
            Fault::Pause => self.pause(pick, fleet),
            Fault::BrokerRestart => {
                self.restart.clone().map(|restart| self.start_outage("broker", event, restart.run()))
            }
            Fault::Cut => {
                let pause = self.pause;
                self.proxy.clone().map(|proxy| self.start_outage("network", event, cut(proxy, pause)))
            }
        };
        if let Some(Injected { target, replacement }) = &injected {
            timeline.record(Some(fault), target.clone(), replacement.clone());
        }
        Ok(injected)
    }

    fn pause(&mut self, pick: usize, fleet: &mut WorkerFleet) -> Option<Injected> {
        let worker = fleet.pick(pick)?;
        worker.process.signal(Signal::STOP);
        let target = worker.name().to_owned();
        self.paused.push((Instant::now() + self.pause, target.clone()));
        Some(Injected { target, replacement: None })
    }

    /// Starts an outage of `target`, whose event has this index in the timeline.
    fn start_outage(
        &mut self,
        target: &str,
        event: usize,
        outage: impl Future<Output = Result<Outage>> + Send + 'static,
    ) -> Injected {
        let lock = Arc::clone(&self.outage_lock);
        let alone = async move {
            let _alone = lock.lock().await;
            Ok((event, outage.await?))
        };
        supervise::isolated("outage", alone).spawn_into(&mut self.outages);
        Injected { target: target.to_owned(), replacement: None }
    }

    /// Continues paused workers whose time has come, and records the outages that are over.
    ///
    /// # Errors
    /// If a broker restart failed.
    pub fn poll(&mut self, fleet: &WorkerFleet, timeline: &mut Timeline) -> Result<()> {
        self.paused.retain(|(until, name)| {
            let is_paused = *until > Instant::now();
            if !is_paused && let Some(worker) = fleet.worker(name) {
                worker.process.signal(Signal::CONT);
            }
            is_paused
        });
        while let Some(ended) = self.outages.try_join_next() {
            let (event, outage) = ended.context("fault task failed")?.context("fault task failed")??;
            timeline.set_span(event, outage);
        }
        Ok(())
    }
}

/// Stalls the network, then resets its connections: a network that was split and forgot them.
async fn cut(proxy: Arc<FaultProxy>, pause: Duration) -> Result<Outage> {
    let from = SystemTime::now();
    proxy.stall();
    sleep(pause).await;
    proxy.reset();
    Ok(from..SystemTime::now())
}

impl BrokerRestart {
    /// Runs the command and waits until the broker accepts connections.
    async fn run(self) -> Result<Outage> {
        let from = SystemTime::now();
        self.run_command().await?;
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

    /// The command's errors go to standard error.
    async fn run_command(&self) -> Result<()> {
        let failed = || format!("broker restart command {:?} failed", self.command);
        let mut command = Command::new("sh");
        command.args(["-c", &self.command]).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let status = command.status().await.with_context(failed)?;
        ensure!(status.success(), "{}: {status}", failed());
        Ok(())
    }
}
