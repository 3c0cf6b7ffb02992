//! What the gateway and the bridge have in common as services: admin port, metrics, traces, heartbeats and readiness.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use garenne_amqp::Publisher;
use garenne_common::{
    exit::{Exit, Failure},
    shutdown::{Command, Mode, stop_requested},
    telemetry::{
        HeartbeatSource, Metrics, Traces,
        admin::{self, AdminPort, Process},
        metrics::Role,
        traces::LAST_EXPORT,
    },
};
use garenne_protocol::{
    heartbeat::{Heartbeat, Program, Stance},
    task::TaskId,
};
use garenne_spool::Spool;
use prometheus::IntGauge;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    broker::BrokerSettings,
    spool::{spool_beat, spool_refusal, spool_warning},
    uplink::Uplink,
};

/// What only one service has. Calls must not block.
pub trait State: Send + Sync + 'static {
    /// The program in heartbeats.
    const PROGRAM: Program;
    /// The name of the service in its metrics.
    const METRICS: &'static str;
    /// The name of the service in its traces.
    const TRACES: &'static str;
    /// The name of the service for operators.
    const NAME: &'static str;
    /// Why it is not ready before it has begun.
    const STARTING: &'static str;
    /// The name of the broker for operators.
    const BROKER: &'static str;

    /// Why it is not ready, besides its connection to the broker.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// Adds to a heartbeat what only this service has.
    fn add_to(&self, heartbeat: &mut Heartbeat);

    /// The state of its local pools, as `/pool` returns it.
    fn pool(&self) -> Value {
        json!({ "lanes": {} })
    }
}

/// A service that has not begun, or runs until a command stops it.
pub struct Service {
    /// The metrics of the process.
    pub metrics: Metrics,
    /// The export of spans.
    pub traces: Traces,
    /// The id in heartbeats and traces.
    id: String,
    broker: BrokerSettings,
    admin: AdminPort,
    commands: mpsc::Receiver<Command>,
}

impl Service {
    /// Opens the admin port. `commands` is the channel that [`garenne_common::shutdown::signal::commands`] returns; the
    /// admin port gets its sender.
    pub async fn open<S: State>(
        broker: &BrokerSettings,
        id: String,
        commands: (mpsc::Sender<Command>, mpsc::Receiver<Command>),
    ) -> Result<Self, Failure> {
        let (sender, commands) = commands;
        let admin = admin::bind(&broker.common).await?;
        let metrics = Metrics::new(S::METRICS);
        let admin = AdminPort::open(admin, metrics.clone(), Mode::SoftTimeout, sender, S::STARTING);
        let traces = broker.traces(S::TRACES, id.clone(), &metrics)?;
        Ok(Self { metrics, traces, id, broker: broker.clone(), admin, commands })
    }

    /// Resolves when a command stops the service. Each call takes one command.
    pub async fn stop_requested(&mut self) {
        stop_requested(&mut self.commands).await;
    }

    /// Begins to publish heartbeats and to answer whether the service is ready.
    pub fn begin<S: State>(&self, uplink: &mut Uplink, state: S) -> Arc<Status<S>> {
        let spool = uplink.spool().cloned();
        let status = Arc::new(Status::new(&self.metrics, spool, uplink.publisher().cloned(), state));
        let interval = self.broker.common.events.heartbeat;
        let incarnation = TaskId::random().to_string();
        let source =
            HeartbeatSource::new(S::PROGRAM, self.id.clone(), incarnation, interval, self.metrics.clone());
        let beating = Arc::clone(&status);
        uplink.start_heartbeats(&self.broker, move || beating.heartbeat(&source));
        self.admin.begin(Arc::clone(&status) as _);
        status
    }

    /// Closes the connection to the broker, exports the remaining spans and closes the admin port. A service that `ended` by
    /// an interruption does not wait for the collector.
    pub async fn close(self, uplink: Uplink, ended: &Result<Exit, Failure>) {
        uplink.close().await;
        let is_interrupted = matches!(ended, Ok(Exit::Interrupted));
        self.traces.close(if is_interrupted { Duration::ZERO } else { LAST_EXPORT }).await;
        self.admin.close().await;
    }
}

/// The state of a service for its admin port and heartbeats.
pub struct Status<S> {
    stopping: AtomicBool,
    /// 1 while the publishing connection is open, or the central gateway confirms.
    connected: IntGauge,
    /// With it, the service is ready without a connection.
    spool: Option<Spool>,
    /// Knows whether messages reach a queue. `None` if the service publishes to none.
    publisher: Option<Publisher>,
    state: S,
}

impl<S: State> Status<S> {
    /// A service that is not stopping.
    pub fn new(metrics: &Metrics, spool: Option<Spool>, publisher: Option<Publisher>, state: S) -> Self {
        let connected = metrics.connection().up(Role::Publish);
        Self { stopping: AtomicBool::new(false), connected, spool, publisher, state }
    }

    /// From now on the service is not ready, and its heartbeats say that it stops.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn no_connection(&self) -> Option<String> {
        (self.connected.get() == 0).then(|| format!("no connection to the {}", S::BROKER))
    }

    /// Why the broker takes no messages. With a spool they are kept on disk meanwhile.
    fn broker_problem(&self) -> Option<String> {
        let publisher = self.publisher.as_ref()?;
        publisher.block_problem().or_else(|| publisher.route_problem())
    }

    fn heartbeat(&self, source: &HeartbeatSource) -> Heartbeat {
        let stance = if self.is_stopping() { Stance::Stopping } else { Stance::Open };
        let spool = self.spool.as_ref().map(spool_beat);
        let mut heartbeat = Heartbeat { spool, ..source.heartbeat(stance) };
        self.state.add_to(&mut heartbeat);
        heartbeat.bound();
        heartbeat
    }
}

impl<S: State> Process for Status<S> {
    fn ready(&self) -> Result<(), Vec<String>> {
        let mut reasons = Vec::new();
        if self.is_stopping() {
            reasons.push(format!("the {} is stopping", S::NAME));
        }
        if let Some(spool) = &self.spool {
            reasons.extend(spool_refusal(spool));
        } else {
            reasons.extend(self.no_connection().into_iter().chain(self.broker_problem()));
        }
        reasons.extend(self.state.problems());
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }

    fn warnings(&self) -> Vec<String> {
        let Some(spool) = &self.spool else { return Vec::new() };
        let unconnected = self.publisher.as_ref().and_then(|_| self.no_connection());
        spool_warning(spool).into_iter().chain(unconnected).chain(self.broker_problem()).collect()
    }

    fn pool(&self) -> Value {
        self.state.pool()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use garenne_spool::{Record, SpoolConfig};

    use super::*;

    struct Nothing;

    impl State for Nothing {
        const PROGRAM: Program = Program::Gateway;
        const METRICS: &'static str = "gateway";
        const TRACES: &'static str = "garenne-gateway";
        const NAME: &'static str = "gateway";
        const STARTING: &'static str = "starting";
        const BROKER: &'static str = "broker";

        fn add_to(&self, _: &mut Heartbeat) {}
    }

    /// Senders get 503 for everything that goes to the spool.
    #[tokio::test]
    async fn a_service_whose_spool_refuses_records_is_not_ready() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("spool");
        let config = SpoolConfig { min_free: garenne_common::config::Size(0), ..SpoolConfig::default() };
        let spool = Spool::open(&path, config).await.unwrap();
        let status = Status::new(&Metrics::new("gateway"), Some(spool.clone()), None, Nothing);
        assert_eq!(status.ready(), Ok(()));
        fs::remove_dir_all(&path).unwrap();
        let record =
            || Record { id: "a".to_owned(), time: std::time::SystemTime::now(), body: b"{}".to_vec() };
        let refusal = spool.append(vec![record()]).await.unwrap_err();
        assert_eq!(status.ready(), Err(vec![format!("the spool refuses records: {refusal}")]));
        fs::create_dir(&path).unwrap();
        spool.append(vec![record()]).await.unwrap();
        assert_eq!(status.ready(), Ok(()));
    }
}
