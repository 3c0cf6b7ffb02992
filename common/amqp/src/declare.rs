//! Declares the topology on a broker, or verifies by passive declares that it exists.

use lapin::{
    Channel, Connection,
    options::{ExchangeDeclareOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use thiserror::Error;

use garenne_common::exit::{Exit, HasExit};
use garenne_protocol::{
    task::header::long,
    topology::{Arg, Binding, Destination, Exchange, ExchangeKind, Queue, Route, Step, Topology},
};

use crate::{
    error::BrokerError,
    reply::{self, ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED},
};

/// Why the topology could not be declared or verified.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// It is missing, and the user may not create it.
    #[error(
        "{what} {name:?} is missing and this user may not create it: run `garenne topology apply` as a user with the configure permission"
    )]
    Denied {
        /// `exchange` or `queue`.
        what: &'static str,
        /// The name that it has in the broker.
        name: String,
    },
    /// It exists with other arguments.
    #[error(
        "{what} {name:?} exists with other arguments ({detail}): `garenne topology check` lists them; delete it or choose another prefix"
    )]
    Differs {
        /// `exchange` or `queue`.
        what: &'static str,
        /// The name that it has in the broker.
        name: String,
        /// The broker's reply text.
        detail: String,
    },
    /// The broker does not support consistent-hash exchanges.
    #[error(
        "lanes.{lane}.shards is over 1, which needs the broker's plugin rabbitmq_consistent_hash_exchange: run `rabbitmq-plugins enable rabbitmq_consistent_hash_exchange` on every node, or leave lanes.{lane}.shards at 1"
    )]
    NoPlugin {
        /// The lane with several shards.
        lane: String,
    },
    /// The broker has streams switched off.
    #[error(
        "stream {name:?} cannot be declared, because the broker has streams switched off; workers need them for directives and crashes: enable the feature flag stream_queue, and set queue_types.stream.enabled = true in rabbitmq.conf where it is off"
    )]
    NoStreams {
        /// The stream's name.
        name: String,
    },
    /// A lane receives foreign messages from an exchange that does not exist.
    #[error(
        "exchange {name:?}, which lanes.*.exchange names, does not exist: create it, or correct the setting"
    )]
    NoExchange {
        /// The name of the exchange, as the setting has it.
        name: String,
    },
    /// The connection could not be opened.
    #[error(transparent)]
    Connect(#[from] BrokerError),
    /// The connection failed.
    #[error("cannot declare the topology: {0}")]
    Broker(#[from] lapin::Error),
}

impl HasExit for TopologyError {
    fn exit(&self) -> Exit {
        match self {
            Self::Denied { .. } => Exit::Denied,
            Self::Differs { .. }
            | Self::NoPlugin { .. }
            | Self::NoStreams { .. }
            | Self::NoExchange { .. } => Exit::Failed,
            Self::Connect(error) => error.exit(),
            Self::Broker(_) => Exit::BrokerUnavailable,
        }
    }
}

/// Declares all exchanges, queues and bindings, existing ones included. Needs the configure permission.
///
/// # Errors
/// [`TopologyError`] names the exchange or queue that is denied or differs.
pub async fn apply(connection: &Connection, topology: &Topology) -> Result<(), TopologyError> {
    let mut channel = connection.create_channel().await?;
    for step in topology.steps() {
        let route = match step {
            Step::Queue(queue) => {
                let declared = declare_queue(&channel, queue, false).await;
                if queue.is_celerys() && differs(&declared) {
                    channel = connection.create_channel().await?;
                    continue;
                }
                declared.map_err(|error| disabled_type(queue, error))?;
                continue;
            }
            Step::Exchange(exchange) => {
                let declared = declare_exchange(&channel, exchange, false).await;
                if exchange.is_celerys() && differs(&declared) {
                    channel = connection.create_channel().await?;
                    continue;
                }
                declared.map_err(|error| unknown_type(exchange, error))?;
                continue;
            }
            Step::Route(route) => route,
        };
        let (Route::Bind(Binding { exchange, to, .. }) | Route::Unbind(Binding { exchange, to, .. })) = route;
        let changed = change_route(&channel, route).await;
        if is_of_others(topology, to) && changed.as_ref().err().and_then(reply::of).is_some_and(is_not_found)
        {
            let queue = to.name();
            tracing::warn!(queue, "the queue of lanes.*.queue does not exist yet: its owner declares it");
            channel = connection.create_channel().await?;
            continue;
        }
        changed.map_err(|error| {
            // The topology declares all others.
            let is_foreign = !topology.exchanges.iter().any(|declared| declared.name == *exchange);
            match reply::of(&error) {
                Some((NOT_FOUND, _)) if is_foreign => TopologyError::NoExchange { name: exchange.clone() },
                _ => explain(to.kind(), to.name(), error),
            }
        })?;
    }
    channel.close(200, "done".into()).await?;
    Ok(())
}

/// Whether it exists with other arguments.
fn differs(declared: &Result<(), lapin::Error>) -> bool {
    declared.as_ref().err().and_then(reply::of).is_some_and(|(code, _)| code == PRECONDITION_FAILED)
}

/// Whether it is a queue that the topology does not declare.
fn is_of_others(topology: &Topology, to: &Destination) -> bool {
    matches!(to, Destination::Queue(name) if !topology.queues.iter().any(|queue| queue.name == *name))
}

fn is_not_found((code, _): (u16, &str)) -> bool {
    code == NOT_FOUND
}

/// Whether an exchange does not exist. False also if the broker does not tell this user. The check has a channel of its own,
/// which a negative answer closes.
pub(crate) async fn is_missing(connection: &Connection, exchange: &str) -> Result<bool, TopologyError> {
    let channel = connection.create_channel().await?;
    let options = ExchangeDeclareOptions { passive: true, ..Default::default() };
    // A passive declaration does not compare the type.
    let kind = lapin::ExchangeKind::Topic;
    let found = channel.exchange_declare(exchange.into(), kind, options, FieldTable::default()).await;
    let existence = existence(found)?;
    if matches!(existence, Existence::Exists) {
        channel.close(200, "done".into()).await?;
    }
    Ok(matches!(existence, Existence::Missing))
}

/// Makes sure that the topology exists: checks with passive declares, which need no configure permission, and
/// declares everything if something is missing.
///
/// Since 4.3 the broker refuses a passive declare to a user without any permission on the name. Such an exchange
/// or queue counts as existing: this user could neither use nor create it.
///
/// # Errors
/// [`TopologyError::Denied`] names the first one that is missing, if the user may not create it and it is not optional.
pub async fn ensure(connection: &Connection, topology: &Topology) -> Result<(), TopologyError> {
    let Some(Missing { what, name, is_optional }) = missing(connection, topology).await? else {
        return Ok(());
    };
    match apply(connection, topology).await {
        // `apply` is denied at the first name it declares, which may exist: the missing one counts.
        Err(TopologyError::Denied { .. }) if is_optional => {
            tracing::warn!("{}", TopologyError::Denied { what, name });
            Ok(())
        }
        Err(TopologyError::Denied { .. }) => Err(TopologyError::Denied { what, name }),
        applied => applied,
    }
}

/// An exchange or queue that does not exist.
struct Missing {
    what: &'static str,
    name: String,
    is_optional: bool,
}

/// The first exchange or queue that does not exist; an optional one only if all others exist.
async fn missing(connection: &Connection, topology: &Topology) -> Result<Option<Missing>, TopologyError> {
    let mut channel = connection.create_channel().await?;
    let parts = topology.exchanges.iter().map(Step::Exchange).chain(topology.queues.iter().map(Step::Queue));
    let (optional, needed): (Vec<_>, Vec<_>) = parts.partition(is_optional);
    for part in needed.into_iter().chain(optional) {
        let (what, name, found) = match part {
            Step::Exchange(it) => ("exchange", &it.name, declare_exchange(&channel, it, true).await),
            Step::Queue(it) => ("queue", &it.name, declare_queue(&channel, it, true).await),
            Step::Route(_) => continue,
        };
        match existence(found)? {
            Existence::Exists => {}
            Existence::Missing => {
                return Ok(Some(Missing { what, name: name.clone(), is_optional: is_optional(&part) }));
            }
            Existence::Denied => channel = connection.create_channel().await?,
        }
    }
    channel.close(200, "done".into()).await?;
    Ok(None)
}

/// Whether programs can do without it.
fn is_optional(part: &Step<'_>) -> bool {
    match part {
        Step::Exchange(exchange) => exchange.is_celerys(),
        Step::Queue(queue) => queue.is_optional(),
        Step::Route(_) => false,
    }
}

/// Result of a passive declare.
enum Existence {
    Exists,
    /// The broker closed the channel.
    Missing,
    /// The broker closed the channel.
    Denied,
}

fn existence(declared: Result<(), lapin::Error>) -> Result<Existence, TopologyError> {
    let Err(error) = declared else { return Ok(Existence::Exists) };
    match reply::of(&error) {
        Some((NOT_FOUND, _)) => Ok(Existence::Missing),
        Some((ACCESS_REFUSED, _)) => Ok(Existence::Denied),
        _ => Err(error.into()),
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

/// Adds or removes a binding. Removing one does nothing if the binding, queue or exchange does not exist.
async fn change_route(channel: &Channel, route: &Route) -> Result<(), lapin::Error> {
    let (Route::Bind(binding) | Route::Unbind(binding)) = route;
    let (from, to) = (binding.exchange.as_str().into(), binding.to.name().into());
    let (key, none) = (binding.key.as_str().into(), FieldTable::default());
    match (route, &binding.to) {
        (Route::Bind(_), Destination::Queue(_)) => {
            channel.queue_bind(to, from, key, Default::default(), none).await
        }
        (Route::Bind(_), Destination::Exchange(_)) => {
            channel.exchange_bind(to, from, key, Default::default(), none).await
        }
        (Route::Unbind(_), Destination::Queue(_)) => channel.queue_unbind(to, from, key, none).await,
        (Route::Unbind(_), Destination::Exchange(_)) => {
            channel.exchange_unbind(to, from, key, Default::default(), none).await
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

/// For an unknown exchange type, brokers before 4.0 close the connection (503), later ones the channel (406).
fn unknown_type(exchange: &Exchange, error: lapin::Error) -> TopologyError {
    let unknown = reply::of(&error).is_some_and(|(_, text)| text.contains("unknown exchange type"));
    match exchange.name.rsplit('.').next() {
        Some(lane) if unknown && exchange.kind == ExchangeKind::ConsistentHash => {
            TopologyError::NoPlugin { lane: lane.to_owned() }
        }
        _ => explain("exchange", &exchange.name, error),
    }
}

/// For a queue type that is switched off the broker closes the connection with an internal error, which would be taken
/// for a broker that is unavailable.
fn disabled_type(queue: &Queue, error: lapin::Error) -> TopologyError {
    match reply::of(&error) {
        Some((_, text)) if queue.is_stream() && says_disabled(text) => {
            TopologyError::NoStreams { name: queue.name.clone() }
        }
        _ => explain("queue", &queue.name, error),
    }
}

/// Whether the broker's text says that it has not the type of a queue.
fn says_disabled(text: &str) -> bool {
    ["feature flag is disabled", "unsupported queue type", "invalid queue type"]
        .iter()
        .any(|it| text.contains(it))
}

fn explain(what: &'static str, name: &str, error: lapin::Error) -> TopologyError {
    let name = name.to_owned();
    match reply::of(&error) {
        Some((ACCESS_REFUSED, _)) => TopologyError::Denied { what, name },
        Some((PRECONDITION_FAILED, text)) => TopologyError::Differs { what, name, detail: text.to_owned() },
        _ => TopologyError::Broker(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_without_streams_is_recognized_by_its_text() {
        let disabled = "INTERNAL_ERROR - Cannot declare a queue 'queue 'garenne.directives' in vhost '/'' of type \
                        'rabbit_stream_queue' on node 'rabbit@a': the corresponding feature flag is disabled";
        assert!(says_disabled(disabled));
        assert!(!says_disabled("INTERNAL_ERROR"));
        let error = TopologyError::NoStreams { name: "garenne.directives".into() };
        assert_eq!(error.exit(), Exit::Failed);
        assert_eq!(
            error.to_string(),
            "stream \"garenne.directives\" cannot be declared, because the broker has streams switched off; workers \
             need them for directives and crashes: enable the feature flag stream_queue, and set \
             queue_types.stream.enabled = true in rabbitmq.conf where it is off"
        );
    }
}
