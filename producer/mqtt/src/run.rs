//! `garenne-producer mqtt`: starts the bridge, waits for a stop command, and drains it.

use std::sync::Arc;

use anyhow::Context;
use garenne_common::{
    config::{Invalid, host_name},
    exit::{Exit, Failure},
    shutdown::Command,
    supervise,
};
use garenne_map::MapChain;
use garenne_publish::{BrokerSettings, GroupCommitConfig, READING_KIND, Sending, Service, Uplink};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    bridge::Bridge,
    connection::ConnectError,
    converter::Converter,
    endpoint::Endpoint,
    instruments::Instruments,
    letter::letter_of,
    settings::{MqttSettings, Shared},
    status::BridgeState,
    store::Store,
};

/// Runs the bridge until a command stops it.
///
/// `commands` is the channel that [`garenne_common::shutdown::signal::commands`] returns. The first stop command ends
/// the intake and waits for the confirms of received messages, the second one does not wait.
pub async fn run(
    broker: BrokerSettings,
    shared: Shared,
    settings: MqttSettings,
    commands: (mpsc::Sender<Command>, mpsc::Receiver<Command>),
) -> Result<Exit, Failure> {
    let url = settings.required()?.clone();
    let mqtt_broker =
        Endpoint::parse(&url).map_err(|problem| Invalid::new("mqtt.url", url.masked(), problem))?;
    let mqtt_broker = mqtt_broker.address();
    let maps = load_maps(&settings)?;
    let routes = broker.routes();
    let kind = routes.kind(READING_KIND).map_err(|refusal| Failure::new(Exit::Config, refusal))?;
    let client_id = settings.client_id.clone();
    let client_id = client_id.unwrap_or_else(|| format!("{}-mqtt-{}", broker.common.prefix, host_name()));
    let mut service = Service::open::<BridgeState>(&broker, client_id.clone(), commands).await?;
    let (metrics, traces) = (service.metrics.clone(), service.traces.clone());
    let instruments = Instruments::register(&metrics).context("metrics")?;

    let group_commit = GroupCommitConfig { linger: settings.linger, ..shared.group_commit };
    let sending = Sending { letter_of: Some(letter_of), ..Sending::service(group_commit) };
    let (tasks, mut uplink) = tokio::select! {
        opened = Uplink::open(&broker, sending, &shared.spool, (&metrics, &traces)) => opened?,
        () = service.stop_requested() => return Ok(Exit::Done),
    };
    let store = Store::new(tasks, client_id.clone());
    let unmeasured = instruments.unmeasured.clone();
    let converter = Converter::new(maps, kind, routes.readings_are_sharded, shared.records, unmeasured);
    let letters = Arc::clone(uplink.letters().expect("there is a broker"));
    let subscriptions = settings.subscribe.clone();
    let state = BridgeState { mqtt: instruments.clone(), letters, broker: mqtt_broker, subscriptions };
    let status = service.begin(&mut uplink, state);

    let patience = broker.connect_timeout;
    let stop = CancellationToken::new();
    let mut bridge = Bridge::new(url, settings, client_id, converter, store, instruments);
    let stopped = stop.clone();
    let bridging = async move { bridge.run(&stopped, patience).await };
    // If it panics, the process stops: a bridge that receives nothing must not look alive.
    let mut bridging = supervise::isolated("mqtt-bridge", bridging).spawn();
    let ended = tokio::select! {
        ended = &mut bridging => exit(ended),
        () = service.stop_requested() => {
            status.stop();
            stop.cancel();
            tracing::info!("stopping: received messages are stored and acknowledged");
            tokio::select! {
                ended = bridging => exit(ended),
                () = service.stop_requested() => Ok(Exit::Interrupted),
            }
        }
    };
    status.stop();
    service.close(uplink, &ended).await;
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
