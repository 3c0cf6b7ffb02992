//! From settings to a publisher that works, before anything is promised to anybody.

use garenne_common::{
    broker::{Broker, Publisher, PublisherConfig, Role},
    exit::Failure,
    telemetry::Metrics,
    topology::ensure,
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
