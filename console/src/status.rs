//! `garenne status`: queues by lane, workers and gateways.

mod fleet;
mod view;
mod workers;

use std::time::Duration;

use clap::Args;
use garenne_common::exit::{Exit, Failure};
use garenne_protocol::heartbeat::Program;
use serde_json::json;

use crate::{args::duration, fleet::poll_fleet, operator::Operator, output, queues::Snapshot};

/// `garenne status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// Also ask the admin port of a worker whose heartbeats do not arrive; repeatable
    #[arg(long = "worker", value_name = "URL")]
    pub workers: Vec<String>,
    /// Listen for heartbeats this long; needed to see gateways, which send one every 2s [default: until every worker has answered, at most 1s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<Duration>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
}

/// Prints the queues, the workers and the gateways.
///
/// # Errors
/// One line and an exit code. If the workers cannot be polled, the queues are shown with a remark.
pub async fn run(operator: &Operator, args: &StatusArgs) -> Result<Exit, Failure> {
    let (snapshot, poll) = tokio::join!(Snapshot::take(operator), poll_fleet(operator, args.wait));
    let (snapshot, asked) = (snapshot?, workers::ask(&args.workers).await?);
    if args.json {
        let mut all = serde_json::to_value(&snapshot).map_err(anyhow::Error::from)?;
        match &poll {
            Ok((roster, at)) => {
                all["workers"] = json!(roster.members(Program::Worker, *at));
                all["gateways"] = json!(roster.members(Program::Gateway, *at));
            }
            Err(failure) => all["fleet_problem"] = json!(failure.to_string()),
        }
        if !asked.is_empty() {
            all["asked"] = json!(asked);
        }
        output::json(&format!("{all:#}\n"))?;
    } else {
        let mut text = view::table(&snapshot);
        text += &match &poll {
            Ok((roster, at)) => format!("\n{}", fleet::tables(roster, *at)),
            Err(failure) => format!("\nworkers cannot be shown: {failure}\n"),
        };
        if !asked.is_empty() {
            text += &workers::table(&asked);
        }
        output::lines(&text)?;
    }
    Ok(if snapshot.missing.is_empty() { Exit::Done } else { Exit::Failed })
}
