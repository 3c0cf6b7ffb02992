//! The destination that `--to` selects.

use std::sync::Arc;

use garenne_amqp::PublisherConfig;
use garenne_common::exit::{Exit, Failure};
use garenne_gateway::{BrokerSettings, READING};

use super::{
    Destination,
    broker::{BrokerConnection, BrokerDestination},
    http::HttpDestination,
    tcp::TcpDestination,
};
use crate::args::SendingArgs;

/// An open destination and what must be closed with it.
pub(crate) struct Endpoint {
    /// Receives the readings.
    pub(crate) destination: Arc<dyn Destination>,
    /// The URL for the summary, without a password.
    pub(crate) name: String,
    /// `None` for a gateway, which starts the traces of its requests itself.
    broker: Option<BrokerConnection>,
}

impl Endpoint {
    /// Opens the gateway `--to` (`http://…` or `tcp://host:port`), or the broker of the settings without it.
    ///
    /// # Errors
    /// The URL is invalid, the token cannot be read, or the broker is not available.
    pub(crate) async fn open(args: &SendingArgs, settings: &BrokerSettings) -> Result<Self, Failure> {
        let token = args.token()?;
        let Some(to) = &args.to else { return Self::broker(settings).await };
        let destination: Arc<dyn Destination> = match to.split_once("://") {
            Some(("http", _)) => Arc::new(HttpDestination::new(to, token)?),
            Some(("tcp", address)) if address.contains(':') => Arc::new(TcpDestination::new(address)),
            _ => {
                let problem = format!("--to {to} is invalid, expected http://HOST:PORT or tcp://HOST:PORT");
                return Err(Failure::new(Exit::Usage, problem));
            }
        };
        Ok(Self { destination, name: to.clone(), broker: None })
    }

    async fn broker(settings: &BrokerSettings) -> Result<Self, Failure> {
        let kind = settings.routes().kind(READING).map_err(|refusal| Failure::new(Exit::Config, refusal))?;
        let broker = BrokerConnection::open(settings, PublisherConfig::default()).await?;
        let destination = BrokerDestination {
            publisher: Arc::clone(&broker.tasks),
            kind,
            sharded: settings.lanes.spread(READING),
        };
        let name = settings.common.amqp_url.masked().to_owned();
        Ok(Self { destination: Arc::new(destination), name, broker: Some(broker) })
    }

    /// Closes the connection to the broker.
    pub(crate) async fn close(self) {
        if let Some(broker) = self.broker {
            broker.close().await;
        }
    }
}
