//! `garenne-producer mqtt`: starts the bridge, waits for a stop command, and drains it.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use garenne_amqp::{HeartbeatPublisher, PublisherConfig};
use garenne_common::{
    config::{Invalid, host_name},
    exit::{Exit, Failure},
    shutdown::{Command, Mode, stop_requested},
    supervise,
    telemetry::{
        HeartbeatSource, Metrics,
        admin::{self, AdminPort},
        metrics::Role,
        traces::LAST_EXPORT,
    },
};
use garenne_gateway::{
    BrokerLink, BrokerSettings, FirstConnection, READING, SpoolSettings,
    task_publisher::{
        BrokerPublisher, TracedPublisher,
        group_commit::{GroupCommit, GroupCommitConfig},
    },
};
use garenne_map::MapChain;
use garenne_protocol::{heartbeat::Program, sensor::Limits, task::TaskId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    bridge::Bridge, connection::ConnectError, converter::Converter, endpoint::Endpoint,
    instruments::Instruments, letter_publisher::LetterPublisher, settings::MqttSettings, status::Status,
    store::Store,
};

/// Unconfirmed messages on the AMQP connection. The bridge has at most `mqtt.in_flight` messages of MQTT; group commit
/// makes fewer of them.
const IN_FLIGHT: usize = 8192;

/// Settings of the gateway that the bridge uses too.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Bounds of group commit.
    pub group_commit: GroupCommitConfig,
    /// How far a reading's time may be ahead of the local clock; 0 for no limit.
    pub max_clock_skew: Duration,
    /// The spool.
    pub spool: SpoolSettings,
}

/// Runs the bridge until a command stops it.
///
/// `commands` is the channel that [`garenne_common::shutdown::signal::commands`] returns. The first stop command ends
/// the intake and waits for the confirms of received messages, the second one does not wait.
///
/// # Errors
/// The bridge cannot start: a setting, a map, one of the brokers, or a permission.
pub async fn run(
    broker: BrokerSettings,
    shared: Shared,
    settings: MqttSettings,
    commands: (mpsc::Sender<Command>, mpsc::Receiver<Command>),
) -> Result<Exit, Failure> {
    let (sender, mut commands) = commands;
    let url = settings.required()?.clone();
    let mqtt_broker =
        Endpoint::parse(&url).map_err(|problem| Invalid::new("mqtt.url", url.masked(), problem))?;
    let mqtt_broker = mqtt_broker.address();
    let maps = load_maps(&settings)?;
    let routes = broker.routes();
    let kind = routes.kind(READING).map_err(|refusal| Failure::new(Exit::Config, refusal))?;
    let client_id = settings.client_id.clone();
    let client_id = client_id.unwrap_or_else(|| format!("{}-mqtt-{}", broker.common.prefix, host_name()));
    let admin = admin::bind(&broker.common).await?;
    let metrics = Metrics::new("mqtt");
    let instruments = Instruments::register(&metrics).context("metrics")?;
    let awaited = "starting: connecting to the AMQP broker";
    let admin = AdminPort::open(admin, metrics.clone(), Mode::SoftTimeout, sender, awaited);
    let config = PublisherConfig { in_flight: IN_FLIGHT, ..PublisherConfig::default() };
    let spool = shared.spool.open().await?;
    let first = FirstConnection::of_service(spool.is_some());
    let link = tokio::select! {
        link = BrokerLink::open(&broker, config, &metrics, first) => link?,
        () = stop_requested(&mut commands) => return Ok(Exit::Done),
    };
    let publisher = link.publisher().clone();
    let traces = broker.traces("garenne-mqtt", client_id.clone(), &metrics)?;

    let names = broker.names();
    let direct = BrokerPublisher::new(publisher.clone(), &names, &broker.lanes);
    let group_commit = GroupCommitConfig { linger: settings.linger, ..shared.group_commit };
    let grouped = GroupCommit::in_front_of(direct, group_commit, kind.clone());
    let traced = TracedPublisher::wrap(Arc::clone(&grouped), &traces, &names);
    let with_letters = |tasks| LetterPublisher::in_front_of(tasks, publisher.clone(), names.clone());
    let direct = link.after_topology(with_letters(traced));
    let drained = link.drain_after_topology(with_letters(grouped));
    let spooling = shared.spool.publisher(spool.as_ref(), direct, drained, &metrics);
    let (spooling, draining) = spooling.context("metrics")?;
    let store = Store::new(spooling, client_id.clone());
    let max_ahead = Some(shared.max_clock_skew).filter(|skew| !skew.is_zero());
    let limits = Limits { max_ahead, ..Limits::default() };
    let converter = Converter::new(maps, kind, routes.readings_are_sharded(), limits);

    let connected = metrics.connection().up(Role::Publish);
    let patience = broker.connect_timeout;
    let status = Status::new(connected, instruments.clone(), spool);
    let interval = broker.common.events.heartbeat;
    let (id, incarnation) = (client_id.clone(), TaskId::random().to_string());
    let source = HeartbeatSource::new(Program::Bridge, id, incarnation, interval, metrics.clone());
    let heartbeats = HeartbeatPublisher::start(
        publisher,
        names.events(),
        interval,
        Arc::default(),
        status.heartbeats(source, mqtt_broker, settings.subscribe.clone()),
    );
    admin.begin(Arc::clone(&status) as _);

    let stop = CancellationToken::new();
    let mut bridge = Bridge::new(url, settings, client_id, converter, store, instruments);
    let stopped = stop.clone();
    let bridging = async move { bridge.run(&stopped, patience).await };
    // If it panics, the process stops: a bridge that receives nothing must not look alive.
    let mut bridging = supervise::isolated("mqtt-bridge", bridging).spawn();
    let ended = tokio::select! {
        ended = &mut bridging => exit(ended),
        () = stop_requested(&mut commands) => {
            status.stop();
            stop.cancel();
            tracing::info!("stopping: received messages are stored and acknowledged");
            tokio::select! {
                ended = bridging => exit(ended),
                () = stop_requested(&mut commands) => Ok(Exit::Interrupted),
            }
        }
    };
    status.stop();
    if let Some(draining) = draining {
        draining.abort();
    }
    heartbeats.stop().await;
    link.close().await;
    let interrupted = matches!(ended, Ok(Exit::Interrupted));
    traces.close(if interrupted { Duration::ZERO } else { LAST_EXPORT }).await;
    admin.close().await;
    ended
}

/// How the process ends after the bridge did.
fn exit(ended: Result<Result<(), ConnectError>, supervise::Failure>) -> Result<Exit, Failure> {
    match ended {
        Ok(Ok(())) => Ok(Exit::Done),
        Ok(Err(error)) => {
            let exit = match &error {
                ConnectError::Unavailable { .. } => Exit::BrokerUnavailable,
                ConnectError::Refused { denied: false, .. } => Exit::Failed,
                ConnectError::Refused { .. } | ConnectError::Subscription { .. } => Exit::Denied,
            };
            Err(Failure::new(exit, error))
        }
        Err(failure) => Err(Failure::new(Exit::Failed, format_args!("the bridge stopped: {failure}"))),
    }
}

fn load_maps(settings: &MqttSettings) -> Result<MapChain, Invalid> {
    MapChain::load(&settings.maps)
        .map_err(|error| Invalid::new("mqtt.maps", format_args!("{:?}", error.file), error.problem))
}
