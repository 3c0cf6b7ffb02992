//! From settings to a publisher that works, before anything is promised to anybody.

use garenne_amqp::{Broker, Publisher, PublisherConfig, declare::ensure};
use garenne_common::{
    config::{Invalid, host_name},
    exit::Failure,
    telemetry::{Metrics, Traces, metrics::Role, traces::Service},
};

use crate::settings::ProducerSettings;

/// Connects, makes sure the topology is there, and answers a connected publisher.
///
/// # Errors
/// The broker is away for all of `connect_timeout` (exit code 69), or denies (77), or has something
/// else under one of the names.
pub(crate) async fn publisher(
    settings: &ProducerSettings,
    config: PublisherConfig,
    metrics: &Metrics,
) -> Result<Publisher, Failure> {
    let broker = Broker::configured(&settings.common, "garenne-producer")?;
    let connection = broker.connect_within(Role::Operate, settings.connect_timeout).await?;
    let version = broker.version().await?;
    tracing::info!(broker = %broker.address(), %version, "connected");
    ensure(&connection, &settings.topology(version)).await?;
    if let Err(error) = connection.close(200, "done".into()).await {
        tracing::debug!(%error, "the first connection was gone before it was closed");
    }
    let publisher = Publisher::observed(broker, config, metrics.connection().clone());
    publisher.connect().await?;
    Ok(publisher)
}

/// Where spans go, as the settings say.
///
/// # Errors
/// The collector is nowhere that can be posted to.
pub(crate) fn traces(
    settings: &ProducerSettings,
    name: &'static str,
    instance: String,
    metrics: &Metrics,
) -> Result<Traces, Invalid> {
    Traces::start(
        &settings.common.otlp,
        &Service { name, instance, version: env!("CARGO_PKG_VERSION") },
        metrics,
    )
}

/// What a program that publishes and ends is called in traces.
pub(crate) fn passer_by() -> (&'static str, String) {
    ("garenne-producer", format!("{}-{}", host_name(), std::process::id()))
}
