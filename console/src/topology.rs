//! `garenne topology`: creates, compares and exports exchanges, queues and bindings.

use std::time::Duration;

use clap::Subcommand;
use garenne_amqp::{declare::TopologyError, retry_while_unavailable};
use garenne_common::{
    exit::{Exit, Failure, HasExit},
    stdout,
    text::printable,
};
use garenne_management::ManagementClient;
use garenne_operator::{operator::Operator, output, queues::QueueInspector};
use garenne_protocol::topology::{BrokerVersion, Difference, Leftover, Topology, compare, definitions};
use lapin::Connection;
use serde_json::{Value, json};

/// How long a broker that fails while the topology is declared is tried again.
const DECLARE_TIMEOUT: Duration = Duration::from_secs(30);

/// `garenne topology …`.
#[derive(Clone, Debug, Subcommand)]
pub enum TopologyVerb {
    /// Create missing exchanges, queues and bindings (needs the configure permission)
    #[command(after_help = "Example:\n  garenne topology apply --amqp-url amqp://admin:…@broker:5672/%2f")]
    Apply,
    /// Compare the broker's exchanges, queues and bindings with the settings; exits with 1 if they differ
    #[command(
        after_help = "Example:\n  garenne topology check --management-url http://guest:guest@127.0.0.1:15672"
    )]
    Check,
    /// Print the topology for an import by the broker (load_definitions)
    #[command(
        after_help = "Example:\n  garenne topology export --format definitions --broker-version 4.0 > definitions.json"
    )]
    Export {
        /// Output format
        #[arg(long, value_parser = ["definitions"], default_value = "definitions")]
        format: String,
        /// Version of the broker, such as 3.13 or 4.0 [default: ask the broker]
        #[arg(long, value_name = "VERSION")]
        broker_version: Option<BrokerVersion>,
    },
}

/// Runs `garenne topology …`.
pub async fn run(operator: &Operator, verb: TopologyVerb) -> Result<Exit, Failure> {
    match verb {
        TopologyVerb::Apply => apply(operator).await,
        TopologyVerb::Check => check(operator).await,
        TopologyVerb::Export { broker_version, .. } => {
            let version = match broker_version {
                Some(version) => version,
                None => operator.broker.version().await.map_err(|error| {
                    let advice = "or set the version: --broker-version 4.0";
                    Failure::new(error.exit(), format_args!("{error}; {advice}"))
                })?,
            };
            let wanted = definitions(&operator.topology(version), &operator.broker.vhost());
            stdout::print_line(format_args!("{wanted:#}"))?;
            Ok(Exit::Done)
        }
    }
}

async fn apply(operator: &Operator) -> Result<Exit, Failure> {
    let version = operator.broker.version().await?;
    let wanted = operator.topology(version);
    match declare(operator, &wanted).await? {
        Ok(()) => {
            stdout::print_line(format_args!(
                "RabbitMQ {version} at {}: {} exchanges, {} queues and {} bindings exist",
                operator.broker.address(),
                wanted.exchanges.len(),
                wanted.queues.len(),
                wanted.bindings().count()
            ))?;
            Ok(Exit::Done)
        }
        // The broker reports the first difference only, the management API all of them.
        Err(error @ TopologyError::Differs { .. }) => {
            if let Some(management) = &operator.management {
                let found = differences(management, &wanted, &operator.broker.vhost()).await?;
                found.iter().map(line).for_each(output::note);
            }
            Err(error.into())
        }
        // Whether it exists is not known: declaring it needs the right in any case.
        Err(TopologyError::Denied { what, name }) => {
            let remedy = "run `garenne topology apply` as a user with the configure permission";
            Err(Failure::new(
                Exit::Denied,
                format_args!("this user lacks the right configure on {what} {name:?}: {remedy}"),
            ))
        }
        Err(error) => Err(error.into()),
    }
}

/// Declares the topology. A broker that answered at first and then fails, such as one under load that answers
/// `INTERNAL_ERROR`, is tried again until [`DECLARE_TIMEOUT`]. The outer error says that the broker is not available,
/// the inner one that it refused the topology.
async fn declare(operator: &Operator, wanted: &Topology) -> Result<Result<(), TopologyError>, Failure> {
    let attempt = || async {
        let connection = operator.connect().await?;
        let applied = garenne_amqp::declare::apply(&connection, wanted).await;
        Operator::leave(connection).await;
        match applied {
            Err(error @ TopologyError::Broker(_)) => Err(error.into()),
            applied => Ok(applied),
        }
    };
    retry_while_unavailable(DECLARE_TIMEOUT, |failure: &Failure| failure.exit, attempt).await
}

/// The differences between the broker and the settings. Without the management API only missing exchanges and queues, and
/// queues of former shards.
pub async fn find_differences(operator: &Operator) -> Result<Vec<Difference>, Failure> {
    let wanted = operator.topology(operator.broker.version().await?);
    if let Some(management) = &operator.management {
        return differences(management, &wanted, &operator.broker.vhost()).await;
    }
    let connection = operator.connect().await?;
    let found = missing(&connection, &wanted).await;
    Operator::leave(connection).await;
    found
}

async fn check(operator: &Operator) -> Result<Exit, Failure> {
    let version = operator.broker.version().await?;
    let found = find_differences(operator).await?;
    let how = match &operator.management {
        Some(_) => "arguments compared",
        None => "existence only; --management-url compares the arguments too",
    };
    for difference in &found {
        stdout::print_line(printable(&line(difference)))?;
    }
    let summary = match found.len() {
        0 => "the topology matches the settings".to_owned(),
        1 => "1 difference".to_owned(),
        n => format!("{n} differences"),
    };
    stdout::print_line(format_args!(
        "RabbitMQ {version} at {}: {summary} ({how})",
        operator.broker.address()
    ))?;
    Ok(if found.is_empty() { Exit::Done } else { Exit::Failed })
}

fn line(Difference { what, name, detail }: &Difference) -> String {
    format!("{what} {name}: {detail}")
}

/// Compares the wanted topology with the one that the management API reports.
pub async fn differences(
    management: &ManagementClient,
    wanted: &Topology,
    vhost: &str,
) -> Result<Vec<Difference>, Failure> {
    // Without statistics the answers are small and fast.
    let bare = [("disable_stats", "true")];
    let exchanges: Value = management.get(&["exchanges", vhost], &bare).await?;
    let queues: Value = management.get(&["queues", vhost], &bare).await?;
    let bindings: Value = management.get(&["bindings", vhost], &[]).await?;
    let actual = json!({"exchanges": exchanges, "queues": queues, "bindings": bindings});
    let mut found = compare(wanted, &actual);
    let exists =
        |it: &&Leftover| queues.as_array().is_some_and(|all| all.iter().any(|q| q["name"] == it.queue));
    for leftover in wanted.leftovers.iter().filter(exists) {
        let columns = [("columns", "messages,consumers")];
        let queue: Value = management.get(&["queues", vhost, &leftover.queue], &columns).await?;
        found.extend(leftover_difference(leftover, queue["messages"].as_u64().unwrap_or(0)));
    }
    Ok(found)
}

/// The difference for a queue of a former shard that holds messages: no worker consumes it.
fn leftover_difference(Leftover { queue, lane, shards }: &Leftover, messages: u64) -> Option<Difference> {
    let detail = format!(
        "has {messages} messages and is beyond lanes.{lane}.shards = {shards}: run a worker with the former \
         number of shards until it is empty"
    );
    (messages > 0).then(|| Difference { what: "queue", name: queue.clone(), detail })
}

/// The differences that AMQP alone can report: missing exchanges and queues, and queues of former shards with messages.
async fn missing(connection: &Connection, wanted: &Topology) -> Result<Vec<Difference>, Failure> {
    let mut inspector = QueueInspector::new(connection);
    let mut found = Vec::new();
    for exchange in &wanted.exchanges {
        if !inspector.has_exchange(&exchange.name).await? {
            found.push(Difference::missing("exchange", exchange.name.clone()));
        }
    }
    for queue in &wanted.queues {
        if inspector.find(&queue.name).await?.is_none() {
            found.push(Difference::missing("queue", queue.name.clone()));
        }
    }
    for leftover in &wanted.leftovers {
        let queue = inspector.find(&leftover.queue).await?;
        found.extend(queue.and_then(|queue| leftover_difference(leftover, queue.ready)));
    }
    Ok(found)
}
