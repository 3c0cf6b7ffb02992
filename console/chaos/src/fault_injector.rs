//! Injects faults into a worker fleet, its broker and its network.

use std::{
    process::Stdio,
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_amqp::Broker;
use garenne_common::telemetry::metrics::Role;
use tokio::{
    process::Command,
    sync::Mutex,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    error::ChaosError,
    fault::Fault,
    fault_proxy::FaultProxy,
    fault_schedule::FaultStep,
    process::{ProcessError, Signal},
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
    outages: JoinSet<(usize, Result<Outage, ChaosError>)>,
    /// Broker restarts and network cuts run one after the other, even if they are due together.
    outage_lock: Arc<Mutex<()>>,
}

/// What one fault did to the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injected {
    /// The worker, `broker` or `network`.
    pub target: String,
    /// The worker that was started instead of the target.
    pub replacement: Option<String>,
}

#[derive(Clone, Debug)]
struct BrokerRestart {
    broker: Broker,
    command: String,
}

/// When the broker or the network was away.
#[derive(Debug)]
struct Outage {
    from: SystemTime,
    until: SystemTime,
}

impl FaultInjector {
    /// An injector of faults of workers. A paused worker continues after `pause`.
    #[must_use]
    pub fn new(pause: Duration) -> Self {
        Self {
            pause,
            restart: None,
            proxy: None,
            paused: Vec::new(),
            outages: JoinSet::new(),
            outage_lock: Arc::default(),
        }
    }

    /// Makes [`Fault::BrokerRestart`] run this shell command. It may return before the broker accepts connections.
    #[must_use]
    pub fn with_broker_restart(self, broker: Broker, command: String) -> Self {
        Self { restart: Some(BrokerRestart { broker, command }), ..self }
    }

    /// Makes [`Fault::Cut`] stall this proxy and reset its connections.
    #[must_use]
    pub fn with_proxy(self, proxy: FaultProxy) -> Self {
        Self { proxy: Some(Arc::new(proxy)), ..self }
    }

    /// Whether no fault lasts that keeps tasks from being executed.
    #[must_use]
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
    ) -> Result<Option<Injected>, ProcessError> {
        let FaultStep { fault, pick } = step;
        let injected = match fault {
            Fault::Kill => fleet.stop_and_replace(pick, Signal::KILL)?,
            Fault::Soft => fleet.stop_and_replace(pick, Signal::TERM)?,
            Fault::Hard => fleet.stop_and_replace(pick, Signal::QUIT)?,
            Fault::Pause => self.pause(pick, fleet),
            Fault::BrokerRestart if self.restart.is_some() => Some(("broker".to_owned(), None)),
            Fault::Cut if self.proxy.is_some() => Some(("network".to_owned(), None)),
            Fault::BrokerRestart | Fault::Cut => None,
        };
        let Some((target, replacement)) = injected else { return Ok(None) };
        let event = timeline.record(Some(fault), target.clone(), replacement.clone());
        match fault {
            Fault::BrokerRestart => self.start_broker_restart(event),
            Fault::Cut => self.start_cut(event),
            _ => {}
        }
        Ok(Some(Injected { target, replacement }))
    }

    fn pause(&mut self, pick: usize, fleet: &mut WorkerFleet) -> Option<(String, Option<String>)> {
        let worker = fleet.pick(pick)?;
        worker.signal(Signal::STOP);
        let name = worker.name().to_owned();
        self.paused.push((Instant::now() + self.pause, name.clone()));
        Some((name, None))
    }

    fn start_broker_restart(&mut self, event: usize) {
        let Some(restart) = self.restart.clone() else { return };
        let lock = Arc::clone(&self.outage_lock);
        self.outages.spawn(async move {
            let _alone = lock.lock().await;
            (event, restart.run().await)
        });
    }

    fn start_cut(&mut self, event: usize) {
        let Some(proxy) = self.proxy.clone() else { return };
        let (lock, pause) = (Arc::clone(&self.outage_lock), self.pause);
        self.outages.spawn(async move {
            let _alone = lock.lock().await;
            (event, Ok(cut(&proxy, pause).await))
        });
    }

    /// Continues paused workers whose time has come, and records the outages that are over.
    ///
    /// # Errors
    /// If a broker restart failed.
    pub fn poll(&mut self, fleet: &WorkerFleet, timeline: &mut Timeline) -> Result<(), ChaosError> {
        self.paused.retain(|(until, name)| {
            let is_paused = *until > Instant::now();
            if !is_paused && let Some(worker) = fleet.worker(name) {
                worker.signal(Signal::CONT);
            }
            is_paused
        });
        while let Some(ended) = self.outages.try_join_next() {
            let (event, outage) = ended?;
            let Outage { from, until } = outage?;
            timeline.set_span(event, from, until);
        }
        Ok(())
    }
}

/// Stalls the network, then resets its connections: a network that was split and forgot them.
async fn cut(proxy: &FaultProxy, pause: Duration) -> Outage {
    let from = SystemTime::now();
    proxy.stall();
    sleep(pause).await;
    proxy.drop_connections();
    proxy.heal();
    Outage { from, until: SystemTime::now() }
}

impl BrokerRestart {
    /// Runs the command and waits until the broker accepts connections.
    async fn run(&self) -> Result<Outage, ChaosError> {
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
                    return Ok(Outage { from, until });
                }
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => sleep(CONNECT_INTERVAL).await,
            }
        }
    }

    /// The command's output goes to standard error.
    async fn run_command(&self) -> Result<(), ChaosError> {
        let command = self.command.clone();
        let run = Command::new("sh")
            .args(["-c", &command])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .status();
        match run.await {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(ChaosError::RestartCommand { command, detail: status.to_string() }),
            Err(error) => Err(ChaosError::RestartCommand { command, detail: error.to_string() }),
        }
    }
}
