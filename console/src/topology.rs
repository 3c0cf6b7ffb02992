//! `garenne topology`: create it, compare it with the broker's, print it.

use clap::{Subcommand, ValueEnum};
use garenne_amqp::declare::TopologyError;
use garenne_common::{
    exit::{Exit, Failure, HasExit},
    text::printable,
};
use garenne_management::{ManagementClient, ManagementError};
use garenne_protocol::topology::{BrokerVersion, Difference, Leftover, Topology, compare, definitions};
use lapin::Connection;
use serde_json::{Value, json};

use crate::{
    operator::Operator,
    output,
    queues::{LookError, Looker},
};

/// `garenne topology …`.
#[derive(Clone, Debug, Subcommand)]
pub enum TopologyVerb {
    /// Create what is missing (needs the configure permission)
    #[command(after_help = "Example:\n  garenne topology apply --amqp-url amqp://admin:…@broker:5672/%2f")]
    Apply,
    /// Compare the broker's exchanges, queues and bindings with what the settings want; 1 if they differ
    #[command(
        after_help = "Example:\n  garenne topology check --management-url http://guest:guest@127.0.0.1:15672"
    )]
    Check,
    /// Print it for a boot import (load_definitions)
    #[command(
        after_help = "Example:\n  garenne topology export --format definitions --broker-version 4.0 > definitions.json"
    )]
    Export {
        /// What it is printed as
        #[arg(long, value_enum, default_value_t = ExportFormat::Definitions)]
        format: ExportFormat,
        /// The broker's version, such as 3.13 or 4.0; asked of the broker when absent
        #[arg(long, value_name = "VERSION")]
        broker_version: Option<BrokerVersion>,
    },
}

/// What the topology is printed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// RabbitMQ's definitions file, JSON.
    Definitions,
}

/// Runs a verb.
///
/// # Errors
/// One line and an exit code.
pub async fn run(operator: &Operator, verb: TopologyVerb) -> Result<Exit, Failure> {
    match verb {
        TopologyVerb::Apply => apply(operator).await,
        TopologyVerb::Check => check(operator).await,
        TopologyVerb::Export { format: ExportFormat::Definitions, broker_version } => {
            let version = match broker_version {
                Some(version) => version,
                None => operator.broker.version().await.map_err(|error| {
                    Failure::new(
                        error.exit(),
                        format_args!("{error}; or name the version: --broker-version 4.0"),
                    )
                })?,
            };
            let wanted = definitions(&operator.topology(version), &operator.broker.vhost());
            println!("{wanted:#}");
            Ok(Exit::Done)
        }
    }
}

async fn apply(operator: &Operator) -> Result<Exit, Failure> {
    let connection = operator.connect().await?;
    let version = operator.broker.version().await?;
    let wanted = operator.topology(version);
    let applied = garenne_amqp::declare::apply(&connection, &wanted).await;
    Operator::leave(connection).await;
    match applied {
        Ok(()) => {
            println!(
                "RabbitMQ {version} at {}: {} exchanges, {} queues and {} bindings are there",
                operator.broker.address(),
                wanted.exchanges.len(),
                wanted.queues.len(),
                wanted.bindings().count()
            );
            Ok(Exit::Done)
        }
        // The broker names the first that differs; the management API knows all of them.
        Err(error @ TopologyError::Differs { .. }) => {
            if let Some(management) = &operator.management {
                print_differences(&differences(management, &wanted, &operator.broker.vhost()).await?, false);
            }
            Err(error.into())
        }
        Err(error) => Err(error.into()),
    }
}

async fn check(operator: &Operator) -> Result<Exit, Failure> {
    let version = operator.broker.version().await?;
    let wanted = operator.topology(version);
    let (found, how) = match &operator.management {
        Some(management) => {
            (differences(management, &wanted, &operator.broker.vhost()).await?, "arguments compared")
        }
        None => {
            let connection = operator.connect().await?;
            let found = missing(&connection, &wanted).await?;
            Operator::leave(connection).await;
            (found, "existence only: with --management-url the arguments are compared")
        }
    };
    print_differences(&found, true);
    let summary = match found.len() {
        0 => "the topology is as it should be".to_owned(),
        1 => "1 difference".to_owned(),
        n => format!("{n} differences"),
    };
    println!("RabbitMQ {version} at {}: {summary} ({how})", operator.broker.address());
    Ok(if found.is_empty() { Exit::Done } else { Exit::Failed })
}

fn print_differences(found: &[Difference], on_stdout: bool) {
    for Difference { what, name, detail } in found {
        // The management API quotes what is on the broker.
        let line = format!("{what} {name}: {detail}");
        if on_stdout {
            println!("{}", printable(&line));
        } else {
            output::note(line);
        }
    }
}

/// Compares what is wanted with what the management API tells of a virtual host.
///
/// # Errors
/// [`ManagementError`].
pub async fn differences(
    management: &ManagementClient,
    wanted: &Topology,
    vhost: &str,
) -> Result<Vec<Difference>, ManagementError> {
    // Without statistics the answer is small and does not wait for the broker's collectors.
    let bare = [("disable_stats", "true")];
    let exchanges: Value = management.get_with(&["exchanges", vhost], &bare).await?;
    let queues: Value = management.get_with(&["queues", vhost], &bare).await?;
    let bindings: Value = management.get(&["bindings", vhost]).await?;
    let actual = json!({"exchanges": exchanges, "queues": queues, "bindings": bindings});
    let mut found = compare(wanted, &actual);
    let there =
        |it: &&Leftover| queues.as_array().is_some_and(|all| all.iter().any(|q| q["name"] == it.queue));
    for leftover in wanted.leftovers.iter().filter(there) {
        let columns = [("columns", "messages,consumers")];
        let queue: Value = management.get_with(&["queues", vhost, &leftover.queue], &columns).await?;
        found.extend(left(leftover, queue["messages"].as_u64().unwrap_or(0)));
    }
    Ok(found)
}

/// What is wrong with a queue beyond its lane's shards: nobody consumes what it holds.
fn left(Leftover { queue, lane, shards }: &Leftover, messages: u64) -> Option<Difference> {
    let detail = format!(
        "holds {messages} messages and is beyond lanes.{lane}.shards = {shards}: run a worker with as many \
         shards as it had until it is empty"
    );
    (messages > 0).then(|| Difference { what: "queue", name: queue.clone(), detail })
}

/// What AMQP alone can tell: which exchanges and queues are not there, and which hold what nobody consumes.
async fn missing(connection: &Connection, wanted: &Topology) -> Result<Vec<Difference>, LookError> {
    let mut looker = Looker::new(connection);
    let mut found = Vec::new();
    let mut note = |what, looked: Result<(), LookError>| match looked {
        Ok(()) => Ok(()),
        Err(LookError::Missing(name)) => {
            found.push(Difference { what, name, detail: "missing".into() });
            Ok(())
        }
        Err(error) => Err(error),
    };
    for exchange in &wanted.exchanges {
        note("exchange", looker.exchange(&exchange.name).await)?;
    }
    for queue in &wanted.queues {
        note("queue", looker.depth(&queue.name).await.map(drop))?;
    }
    for leftover in &wanted.leftovers {
        match looker.depth(&leftover.queue).await {
            Ok(depth) => found.extend(left(leftover, depth.ready)),
            Err(LookError::Missing(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
