//! `garenne-producer mqtt`: starts the bridge, waits for a stop command, and drains it.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
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
use garenne_gateway::{BrokerSettings, READING};
use garenne_map::MapChain;
use garenne_protocol::{heartbeat::Program, task::TaskId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    bridge::Bridge,
    connection::ConnectError,
    converter::Converter,
    endpoint::Endpoint,
    instruments::Instruments,
    settings::{MqttSettings, Shared},
    status::Status,
    store::Store,
    uplink::Uplink,
};

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
    let traces = broker.traces("garenne-mqtt", client_id.clone(), &metrics)?;

    let spool = shared.spool.open().await?;
    let opening = Uplink::open(&broker, &shared, settings.linger, spool.as_ref(), (&metrics, &traces));
    let (tasks, uplink) = tokio::select! {
        opened = opening => opened?,
        () = stop_requested(&mut commands) => return Ok(Exit::Done),
    };
    let store = Store::new(tasks, client_id.clone());
    let converter = Converter::new(
        maps,
        kind,
        routes.readings_are_sharded(),
        shared.records,
        instruments.unmeasured.clone(),
    );

    let connected = metrics.connection().up(Role::Publish);
    let patience = broker.connect_timeout;
    let status = Status::new(connected, instruments.clone(), spool, uplink.letters());
    let interval = broker.common.events.heartbeat;
    let (id, incarnation) = (client_id.clone(), TaskId::random().to_string());
    let source = HeartbeatSource::new(Program::Bridge, id, incarnation, interval, metrics.clone());
    let heartbeat = status.heartbeats(source, mqtt_broker, settings.subscribe.clone());
    let heartbeats = uplink.start_heartbeats(&broker, heartbeat);
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
    heartbeats.stop().await;
    uplink.close().await;
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
