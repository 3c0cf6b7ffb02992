//! Putting the topology on a broker, or finding out that it is there.

use lapin::{
    Channel, Connection, ErrorKind,
    options::{
        ExchangeBindOptions, ExchangeDeclareOptions, ExchangeUnbindOptions, QueueBindOptions,
        QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use thiserror::Error;

use garenne_common::exit::{Exit, HasExit};
use garenne_protocol::{
    task::header::long,
    topology::{Arg, Binding, Destination, Exchange, ExchangeKind, Queue, Route, Topology},
};

/// Why the topology is not there.
#[derive(Debug, Error)]
pub enum TopologyError {
    /// The user may not create what is missing.
    #[error(
        "{what} {name:?} is missing and this user may not create it: run `garenne topology apply` as a user with the configure right"
    )]
    Denied {
        /// `exchange` or `queue`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// It is there with other arguments.
    #[error(
        "{what} {name:?} exists with other arguments ({detail}): `garenne topology check` lists them; delete it or choose another --prefix"
    )]
    Differs {
        /// `exchange` or `queue`.
        what: &'static str,
        /// Its name.
        name: String,
        /// The broker's words.
        detail: String,
    },
    /// The broker knows no such type of exchange.
    #[error(
        "lanes.{lane}.shards is over 1, which needs the broker's plugin rabbitmq_consistent_hash_exchange: run `rabbitmq-plugins enable rabbitmq_consistent_hash_exchange` on every node, or leave lanes.{lane}.shards at 1"
    )]
    NoPlugin {
        /// The lane with several shards.
        lane: String,
    },
    /// The connection failed on the way.
    #[error("cannot declare the topology: {0}")]
    Broker(#[from] lapin::Error),
}

impl HasExit for TopologyError {
    fn exit(&self) -> Exit {
        match self {
            Self::Denied { .. } => Exit::Denied,
            Self::Differs { .. } | Self::NoPlugin { .. } => Exit::Failed,
            Self::Broker(_) => Exit::BrokerUnavailable,
        }
    }
}

/// Declares everything, whether it is there or not. Needs the configure right.
///
/// # Errors
/// [`TopologyError`]: what is denied or differs is named.
pub async fn apply(connection: &Connection, topology: &Topology) -> Result<(), TopologyError> {
    let channel = connection.create_channel().await?;
    for exchange in &topology.exchanges {
        declare_exchange(&channel, exchange, false).await.map_err(|error| unknown_type(exchange, error))?;
    }
    for queue in &topology.queues {
        declare_queue(&channel, queue, false).await.map_err(|e| explain("queue", &queue.name, e))?;
    }
    let gone = former_dividers(connection, topology).await?;
    for route in &topology.routes {
        match route {
            Route::Bind(binding) => bind(&channel, binding).await,
            Route::Unbind(Binding { exchange, to, .. })
                if gone.contains(&exchange.as_str()) || gone.contains(&to.name()) =>
            {
                Ok(())
            }
            Route::Unbind(binding) => unbind(&channel, binding).await,
        }
        .map_err(|error| {
            let (Route::Bind(binding) | Route::Unbind(binding)) = route;
            explain(binding.to.kind(), binding.to.name(), error)
        })?;
    }
    channel.close(200, "done".into()).await?;
    Ok(())
}

/// The dividers that nobody declares now and that are not there either: nothing is bound to them, and lanes
/// that never had several queues need not be asked for each.
async fn former_dividers<'a>(
    connection: &Connection,
    topology: &'a Topology,
) -> Result<Vec<&'a str>, TopologyError> {
    let declared = |name: &str| topology.exchanges.iter().any(|exchange| exchange.name == name);
    let mut names: Vec<_> = topology.unbound().map(|it| it.exchange.as_str()).collect();
    names.retain(|name| !declared(name));
    names.dedup();
    let mut gone = Vec::new();
    for name in names {
        let channel = connection.create_channel().await?;
        let options = ExchangeDeclareOptions { passive: true, ..Default::default() };
        let kind = lapin::ExchangeKind::Custom(ExchangeKind::ConsistentHash.as_str().into());
        let found = channel.exchange_declare(name.into(), kind, options, FieldTable::default()).await;
        match look(found)? {
            Look::Exists => channel.close(200, "looked".into()).await?,
            Look::Missing => gone.push(name),
            // Unbinding says what is denied.
            Look::Denied => {}
        }
    }
    Ok(gone)
}

/// Makes sure that everything exists: looks first, which needs no right to declare, and creates it all where
/// something is missing.
///
/// From 4.3 the broker lets a user look only at what it has some right on. What this user has no right on is
/// taken to exist: this user can neither use nor create it.
///
/// # Errors
/// [`TopologyError::Denied`] names what is missing and may not be created.
pub async fn ensure(connection: &Connection, topology: &Topology) -> Result<(), TopologyError> {
    let Some((what, name)) = missing(connection, topology).await? else { return Ok(()) };
    apply(connection, topology).await.map_err(|error| match error {
        // What is denied is the first of all, there or not.
        TopologyError::Denied { .. } => TopologyError::Denied { what, name },
        error => error,
    })
}

/// The first that is not there.
async fn missing(
    connection: &Connection,
    topology: &Topology,
) -> Result<Option<(&'static str, String)>, TopologyError> {
    let mut channel = connection.create_channel().await?;
    for exchange in &topology.exchanges {
        match look(declare_exchange(&channel, exchange, true).await)? {
            Look::Exists => {}
            Look::Missing => return Ok(Some(("exchange", exchange.name.clone()))),
            Look::Denied => channel = connection.create_channel().await?,
        }
    }
    for queue in &topology.queues {
        match look(declare_queue(&channel, queue, true).await)? {
            Look::Exists => {}
            Look::Missing => return Ok(Some(("queue", queue.name.clone()))),
            Look::Denied => channel = connection.create_channel().await?,
        }
    }
    channel.close(200, "done".into()).await?;
    Ok(None)
}

/// What a passive declare found.
enum Look {
    Exists,
    /// The broker closed the channel.
    Missing,
    /// The broker closed the channel.
    Denied,
}

fn look(looked: Result<(), lapin::Error>) -> Result<Look, TopologyError> {
    match looked {
        Ok(()) => Ok(Look::Exists),
        Err(error) => match reply_code(&error) {
            Some(404) => Ok(Look::Missing),
            Some(403) => Ok(Look::Denied),
            _ => Err(error.into()),
        },
    }
}

async fn declare_exchange(channel: &Channel, exchange: &Exchange, passive: bool) -> Result<(), lapin::Error> {
    let kind = lapin::ExchangeKind::Custom(exchange.kind.as_str().into());
    let options = ExchangeDeclareOptions { passive, durable: true, ..Default::default() };
    channel.exchange_declare(exchange.name.as_str().into(), kind, options, table(&exchange.arguments)).await
}

async fn declare_queue(channel: &Channel, queue: &Queue, passive: bool) -> Result<(), lapin::Error> {
    let options = QueueDeclareOptions { passive, durable: true, ..Default::default() };
    channel.queue_declare(queue.name.as_str().into(), options, table(&queue.arguments)).await.map(drop)
}

async fn bind(channel: &Channel, binding: &Binding) -> Result<(), lapin::Error> {
    let Binding { exchange, to, key } = binding;
    let (from, key, none) = (exchange.as_str().into(), key.as_str().into(), FieldTable::default());
    match to {
        Destination::Queue(queue) => {
            channel.queue_bind(queue.as_str().into(), from, key, QueueBindOptions::default(), none).await
        }
        Destination::Exchange(to) => {
            channel.exchange_bind(to.as_str().into(), from, key, ExchangeBindOptions::default(), none).await
        }
    }
}

/// Nothing happens where there is no such binding, queue or exchange.
async fn unbind(channel: &Channel, binding: &Binding) -> Result<(), lapin::Error> {
    let Binding { exchange, to, key } = binding;
    let (from, key, none) = (exchange.as_str().into(), key.as_str().into(), FieldTable::default());
    match to {
        Destination::Queue(queue) => channel.queue_unbind(queue.as_str().into(), from, key, none).await,
        Destination::Exchange(to) => {
            let options = ExchangeUnbindOptions::default();
            channel.exchange_unbind(to.as_str().into(), from, key, options, none).await
        }
    }
}

fn table<'a>(arguments: impl IntoIterator<Item = (&'a &'static str, &'a Arg)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        let value = match value {
            Arg::Text(text) => long(text),
            Arg::Number(number) => AMQPValue::LongLongInt(*number),
        };
        table.insert((*name).into(), value);
    }
    table
}

/// AMQP's reply code, where the broker gave one.
pub(crate) fn reply_code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

/// Brokers before 4.0 end the connection over an unknown type (503), later ones the channel (406).
fn unknown_type(exchange: &Exchange, error: lapin::Error) -> TopologyError {
    let unknown = match error.kind() {
        ErrorKind::ProtocolError(broker) => broker.get_message().as_str().contains("unknown exchange type"),
        _ => false,
    };
    match exchange.name.rsplit('.').next() {
        Some(lane) if unknown && exchange.kind == ExchangeKind::ConsistentHash => {
            TopologyError::NoPlugin { lane: lane.to_owned() }
        }
        _ => explain("exchange", &exchange.name, error),
    }
}

fn explain(what: &'static str, name: &str, error: lapin::Error) -> TopologyError {
    match (reply_code(&error), error.kind()) {
        (Some(403), _) => TopologyError::Denied { what, name: name.to_owned() },
        (Some(406), ErrorKind::ProtocolError(broker)) => {
            TopologyError::Differs { what, name: name.to_owned(), detail: broker.get_message().to_string() }
        }
        _ => TopologyError::Broker(error),
    }
}
