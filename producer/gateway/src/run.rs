//! `garenne-producer serve`: starts the gateway, waits for a stop command, and drains it.

use std::{convert::Infallible, io, ops::Deref, sync::Arc, time::Duration};

use anyhow::Context;
use futures_util::FutureExt;
use garenne_common::{
    config::host_name,
    exit::{Exit, Failure},
    shutdown::Command,
    supervise,
    telemetry::{Metrics, Traces, metrics::Role},
};
use garenne_publish::{BrokerSettings, Sending, Service, SpoolingSender, Uplink, group_commit::SLOT_TIMEOUT};
use scopeguard::guard;
use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use crate::{
    accept::{listen, raise_file_limit, serve},
    auth::Access,
    context::GatewayContext,
    ingest::Ingest,
    instruments::Instruments,
    maps::Maps,
    memory::MemoryBudget,
    settings::GatewaySettings,
    status::GatewayState,
    tls,
};

/// How often the senders file and the certificates are checked for changes.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the gateway until a command stops it.
///
/// `commands` is the channel that [`garenne_common::shutdown::signal::commands`] returns; the admin port gets a clone
/// of its sender. The first stop command ends the intake and waits for open requests. The second one returns without
/// waiting.
pub async fn run(
    broker: BrokerSettings,
    settings: GatewaySettings,
    commands: (mpsc::Sender<Command>, mpsc::Receiver<Command>),
) -> Result<Exit, Failure> {
    raise_file_limit();
    let limits = settings.limits.clone();
    let network = settings.network();
    let access =
        Access::new(settings.senders_file.as_deref(), settings.tls_client_ca.is_some(), limits.max_records)?;
    let maps = Maps::load(&settings.maps)?;
    let tls = match (settings.tls_cert.clone(), settings.tls_key.clone()) {
        (Some(certificate), Some(key)) => {
            Some(tls::load_tls(certificate, key, settings.tls_client_ca.clone(), settings.tls_min_version)?)
        }
        _ => None,
    };
    let listener = listen(settings.listen)?;
    let address = listener.local_addr().unwrap_or(settings.listen);
    let id = format!("{}-{}", host_name(), address.port());
    let mut service = Service::open::<GatewayState>(&broker, id, commands).await?;
    let (metrics, traces) = (service.metrics.clone(), service.traces.clone());
    let budget = MemoryBudget::new(&limits);
    let instruments = Instruments::register(&metrics, &budget).context("metrics")?;

    let (tasks, mut uplink) = tokio::select! {
        uplink = open_uplink(&broker, &settings, (&metrics, &traces)) => uplink?,
        () = service.stop_requested() => return Ok(Exit::Done),
    };
    let ingest = Ingest::new(tasks, broker.routes(), &limits, settings.record_limits());
    ingest.register(&metrics).context("metrics")?;
    let connections = connection_runtime().context("cannot start the threads for connections")?;
    let server = settings.server.start(&limits, &instruments, connections.handle());
    let server = server.map_err(|error| Failure::new(Exit::Config, format!("gateway: {error}")))?;
    let context =
        Arc::new(GatewayContext { ingest, access, network, tls, limits, maps, budget, instruments, traces });
    let status = service.begin(&mut uplink, GatewayState { server: settings.server, metrics });

    let watching = Arc::clone(&context);
    let watching = supervise::restarting("watch-files", watching, |it| watch_files(it).boxed()).spawn();
    let stop = CancellationToken::new();
    tracing::info!(%address, server = settings.server.as_str(), "gateway is listening");
    // A gateway that accepts nothing must not look alive: if accepting fails, the process stops.
    let accepting = serve(listener, context, server, stop.clone()).map(Ok::<_, Infallible>);
    let gateway = supervise::essential("gateway", stop.clone(), accepting).spawn_on(connections.handle());

    stop.run_until_cancelled(service.stop_requested()).await;
    status.stop();
    stop.cancel();
    tracing::info!("stopping: no new connections, open requests are completed");
    let ended = tokio::select! {
        drained = gateway => exit(drained),
        () = service.stop_requested() => Ok(Exit::Interrupted),
    };
    watching.abort();
    service.close(uplink, &ended).await;
    ended
}

/// Connects to the broker, or opens the spool of a site that forwards to a central gateway.
async fn open_uplink(
    broker: &BrokerSettings,
    settings: &GatewaySettings,
    (metrics, traces): (&Metrics, &Traces),
) -> Result<(SpoolingSender, Uplink), Failure> {
    if let Some(forwarder) = settings.forward.forwarder(metrics.connection().up(Role::Publish))? {
        return Uplink::forwarding(Box::new(forwarder), &settings.spool, metrics).await;
    }
    let mut sending = Sending::service(settings.group_commit);
    sending.publisher.acquire_timeout = SLOT_TIMEOUT;
    sending.max_confirm_latency = settings.limits.max_confirm_latency;
    Uplink::open(broker, sending, &settings.spool, (metrics, traces)).await
}

/// Starts a tokio runtime for the connections of senders only.
///
/// Publisher confirms, heartbeats and the admin port run on another runtime, so that they do not wait behind the
/// connections. On one runtime, a busy gateway would see late confirms, take the broker for slow, and refuse readings.
///
/// The runtime is shut down in the background: the drop of a `Runtime` blocks, which panics on a thread of another
/// runtime.
fn connection_runtime() -> io::Result<impl Deref<Target = Runtime>> {
    let runtime = Builder::new_multi_thread().thread_name("connections").enable_all().build()?;
    Ok(guard(runtime, Runtime::shutdown_background))
}

/// How the process ends after the gateway did, which returns whether all open requests were answered.
fn exit(drained: Result<bool, supervise::Failure>) -> Result<Exit, Failure> {
    match drained {
        Ok(true) => Ok(Exit::Done),
        Ok(false) => {
            tracing::warn!(
                "some requests were not answered within drain_timeout; their senders may repeat them"
            );
            Ok(Exit::Failed)
        }
        Err(failure) => {
            let problem = format!("the gateway stopped accepting connections: {failure}");
            Err(Failure::new(Exit::Failed, problem))
        }
    }
}

/// Reads the senders file and the certificates again when they change, and reports refusals that were not logged.
async fn watch_files(context: &GatewayContext) {
    let mut tick = tokio::time::interval(FILE_CHECK_INTERVAL);
    loop {
        tick.tick().await;
        context.access.refresh();
        context.instruments.audit.report_suppressed();
        if let Some(tls) = &context.tls {
            tls.refresh();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_accept_loop_is_reported_and_no_drain_timeout() {
        let panicked = exit(Err(supervise::Failure::Panicked("no listener".to_owned()))).unwrap_err();
        assert_eq!(panicked.to_string(), "the gateway stopped accepting connections: panicked: no listener");
        assert_eq!(exit(Ok(false)).unwrap(), Exit::Failed);
    }
}
