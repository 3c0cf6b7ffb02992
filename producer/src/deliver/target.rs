//! `--to`: which destination it names.

use std::sync::Arc;

use garenne_amqp::{Publisher, PublisherConfig};
use garenne_common::{
    exit::{Exit, Failure},
    telemetry::{Metrics, Traces, traces::LAST_EXPORT},
};

use garenne_gateway::{
    BrokerSettings, READING,
    outlet::{BrokerOutlet, TracedOutlet},
};

use super::{BrokerDestination, Destination, HttpDestination, TcpDestination};
use crate::service::instance;

/// A destination, and the publisher behind it where there is one: it is closed last.
pub struct Target {
    /// Takes the readings.
    pub destination: Arc<dyn Destination>,
    /// In words, for the summary.
    pub name: String,
    publisher: Option<Publisher>,
    /// Off but for the broker: a gateway begins the traces of what it takes.
    traces: Traces,
}

impl Target {
    /// A gateway (`http://…`, `tcp://host:port`), or the broker of the settings.
    ///
    /// # Errors
    /// The name is none, or the broker cannot be had.
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
                let problem = format!("--to {to} is refused: expected http://HOST:PORT or tcp://HOST:PORT");
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
        let outlet = BrokerOutlet::new(publisher.clone(), &settings.names(), &settings.lanes);
        let outlet = TracedOutlet::before(outlet, &traces, &settings.names());
        Ok(Self {
            destination: Arc::new(BrokerDestination::new(outlet, kind, settings.lanes.spread(READING))),
            name: settings.common.amqp_url.masked().to_owned(),
            publisher: Some(publisher),
            traces,
        })
    }

    /// Closes what was opened.
    pub async fn close(self) {
        if let Some(publisher) = self.publisher {
            publisher.close().await;
        }
        self.traces.close(LAST_EXPORT).await;
    }
}
