//! The destination that `--to` selects.

use std::sync::Arc;

use garenne_common::{
    client_tls,
    config::{Certificates, SecretUrl},
    exit::{Exit, Failure},
};
use garenne_mqtt::{MqttPublisher, Version};
use garenne_publish::{BrokerSettings, READING_KIND, Sending, SpoolCounts, SpoolSettings};
use tokio_rustls::TlsConnector;

use super::{
    Destination,
    broker::{BrokerConnection, BrokerDestination},
    http::HttpDestination,
    line_connection::LineConnector,
    lines::LineDestination,
    mqtt::MqttDestination,
    token::Token,
    unusable,
};
use crate::args::SendingArgs;

/// Most unconfirmed messages.
const IN_FLIGHT: usize = 1000;

/// An open destination and what must be closed with it.
pub(crate) struct Endpoint {
    /// Receives the readings.
    pub(crate) destination: Arc<dyn Destination>,
    /// The URL for the summary, without a password.
    pub(crate) name: String,
    /// `None` for a gateway, which starts the traces of its requests itself.
    broker: Option<BrokerConnection>,
    /// Opens more connections of the line protocol.
    lines: Option<Arc<LineConnector>>,
}

impl Endpoint {
    /// Opens the gateway `--to`, or the broker of the settings without it.
    pub(crate) async fn open(
        args: &SendingArgs,
        settings: &BrokerSettings,
        spool: SpoolSettings,
    ) -> Result<Self, Failure> {
        match &args.to {
            Some(to) => {
                let token = args.token_file.clone().map(Token::of).transpose()?;
                Self::gateway(to, token, &args.certificates())
            }
            None => Self::broker(settings, &SpoolSettings { spool: args.spool.clone(), ..spool }).await,
        }
    }

    /// A gateway. No connection is opened yet.
    pub(super) fn gateway(
        to: &str,
        token: Option<Token>,
        certificates: &Certificates,
    ) -> Result<Self, Failure> {
        let usage = |problem: String| Failure::new(Exit::Usage, problem);
        let (scheme, rest) = to.split_once("://").unwrap_or_default();
        if matches!(scheme, "mqtt" | "mqtts") {
            return Self::mqtt(to, token.is_some(), certificates);
        }
        if rest.contains('@') {
            // The URL is not repeated: it has a password.
            return Err(usage("--to has a user or a password, give a token with --token-file".to_owned()));
        }
        let secure = matches!(scheme, "https" | "tls");
        if !secure && *certificates != Certificates::default() {
            return Err(usage(format!("--ca, --cert and --key need https:// or tls://, --to is {to}")));
        }
        let (mut lines, token) = (None, token.map(Arc::new));
        let destination: Arc<dyn Destination> = match scheme {
            "http" | "https" => Arc::new(HttpDestination::new(to, token, certificates.clone())?),
            "tcp" | "tls" => {
                let tls =
                    || client_tls::reloaded(certificates.clone(), |tls| TlsConnector::from(Arc::new(tls)));
                let tls = secure.then(tls).transpose().map_err(|error| unusable(&error))?;
                let connector = Arc::new(LineConnector::new(rest, token, tls).map_err(usage)?);
                lines = Some(Arc::clone(&connector));
                Arc::new(LineDestination::new(connector))
            }
            _ => {
                return Err(usage(format!(
                    "--to {to} is invalid, expected http://, https://, tcp://, tls://, mqtt:// or mqtts:// and HOST:PORT"
                )));
            }
        };
        Ok(Self { destination, name: to.to_owned(), broker: None, lines })
    }

    /// An MQTT broker. No connection is opened yet.
    fn mqtt(to: &str, has_token: bool, certificates: &Certificates) -> Result<Self, Failure> {
        let usage = |problem: String| Failure::new(Exit::Usage, problem);
        if has_token {
            return Err(usage(
                "--token-file needs a gateway, an MQTT broker has user and password".to_owned(),
            ));
        }
        // Errors do not repeat the URL: it may have a password.
        let url: SecretUrl = to.parse().map_err(|error| usage(format!("--to is invalid: {error}")))?;
        if url.scheme() != "mqtts" && *certificates != Certificates::default() {
            return Err(usage("--ca, --cert and --key need mqtts://, --to is mqtt://".to_owned()));
        }
        let publisher = MqttPublisher::new(&url, certificates.clone(), Version::default());
        let publisher = publisher.map_err(|problem| usage(format!("--to is invalid: {problem}")))?;
        let destination = Arc::new(MqttDestination(publisher));
        Ok(Self { destination, name: url.masked().to_owned(), broker: None, lines: None })
    }

    async fn broker(settings: &BrokerSettings, spool: &SpoolSettings) -> Result<Self, Failure> {
        let kind =
            settings.routes().kind(READING_KIND).map_err(|refusal| Failure::new(Exit::Config, refusal))?;
        let broker = BrokerConnection::open(settings, Sending::command(IN_FLIGHT), spool).await?;
        let destination = BrokerDestination {
            tasks: Arc::clone(&broker.tasks),
            kind,
            sharded: settings.lanes.spread(READING_KIND),
        };
        let name = settings.common.amqp_url.masked().to_owned();
        Ok(Self { destination: Arc::new(destination), name, broker: Some(broker), lines: None })
    }

    /// The destination for one of many senders: with the line protocol a connection of its own.
    pub(crate) fn for_sender(&self) -> Arc<dyn Destination> {
        match &self.lines {
            Some(connector) => Arc::new(LineDestination::new(Arc::clone(connector))),
            None => Arc::clone(&self.destination),
        }
    }

    /// Closes the connection to the broker. Returns the counts of the spool, if there is one.
    pub(crate) async fn close(self) -> Option<SpoolCounts> {
        // It has a handle of the spool, which is to be closed.
        drop(self.destination);
        self.broker?.close().await
    }
}

#[cfg(test)]
mod tests;
