//! The destination that `--to` selects.

use std::sync::Arc;

use garenne_amqp::{Publisher, PublisherConfig};
use garenne_common::{
    exit::{Exit, Failure},
    telemetry::{Metrics, Traces, traces::LAST_EXPORT},
};

use garenne_gateway::{
    BrokerSettings, READING,
    task_publisher::{BrokerPublisher, TracedPublisher},
};

use super::{Destination, broker::BrokerDestination, http::HttpDestination, tcp::TcpDestination};
use crate::service::instance;

/// An open destination and what must be closed with it.
pub struct Endpoint {
    /// Receives the readings.
    pub destination: Arc<dyn Destination>,
    /// The URL for the summary, without a password.
    pub name: String,
    publisher: Option<Publisher>,
    /// Spans of publishes to the broker. A gateway starts the traces of its requests itself.
    traces: Traces,
}

impl Endpoint {
    /// Opens the gateway `to` (`http://…` or `tcp://host:port`), or the broker of the settings if it is `None`.
    ///
    /// # Errors
    /// The URL is invalid, or the broker is not available.
    pub async fn open(
        to: Option<&str>,
        token: Option<String>,
        settings: &BrokerSettings,
    ) -> Result<Self, Failure> {
        let Some(to) = to else { return Self::broker(settings).await };
        let destination: Arc<dyn Destination> = match to.split_once("://") {
            Some(("http", _)) => Arc::new(HttpDestination::new(to, token)?),
            Some(("tcp", address)) if address.contains(':') => Arc::new(TcpDestination::new(address)),
            _ => {
                let problem = format!("--to {to} is invalid, expected http://HOST:PORT or tcp://HOST:PORT");
                return Err(Failure::new(Exit::Usage, problem));
            }
        };
        Ok(Self { destination, name: to.to_owned(), publisher: None, traces: Traces::default() })
    }

    async fn broker(settings: &BrokerSettings) -> Result<Self, Failure> {
        let kind = settings.routes().kind(READING).map_err(|refusal| Failure::new(Exit::Config, refusal))?;
        let metrics = Metrics::new("producer");
        let publisher = settings.connect(PublisherConfig::default(), &metrics).await?;
        let traces = settings.traces("garenne-producer", instance(), &metrics)?;
        let task_publisher = BrokerPublisher::new(publisher.clone(), &settings.names(), &settings.lanes);
        let task_publisher = TracedPublisher::wrap(task_publisher, &traces, &settings.names());
        Ok(Self {
            destination: Arc::new(BrokerDestination::new(
                task_publisher,
                kind,
                settings.lanes.spread(READING),
            )),
            name: settings.common.amqp_url.masked().to_owned(),
            publisher: Some(publisher),
            traces,
        })
    }

    /// Closes the connection to the broker and exports the remaining spans.
    pub async fn close(self) {
        if let Some(publisher) = self.publisher {
            publisher.close().await;
        }
        self.traces.close(LAST_EXPORT).await;
    }
}
