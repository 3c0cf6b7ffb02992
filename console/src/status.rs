//! `garenne status`: what waits, runs, retries and died, lane by lane, and who works on it.

mod fleet;
mod snapshot;
mod view;
mod workers;

use garenne_common::exit::{Exit, Failure};
use garenne_protocol::heartbeat::Program;
use serde_json::json;

use crate::{cli::StatusArgs, fleet::muster, operator::Operator, output};
pub use snapshot::{LaneStatus, QueueStatus, Snapshot, Source};

/// Prints the state of the fleet: its queues, its workers, its gateways.
///
/// # Errors
/// One line and an exit code. A fleet that cannot be heard is a remark: the queues are shown all the same.
pub async fn run(operator: &Operator, args: &StatusArgs) -> Result<Exit, Failure> {
    let (snapshot, muster) = tokio::join!(Snapshot::take(operator), muster(operator, args.wait));
    let (snapshot, asked) = (snapshot?, workers::ask(&args.workers).await?);
    if args.json {
        let mut all = serde_json::to_value(&snapshot).map_err(anyhow::Error::from)?;
        match &muster {
            Ok(muster) => {
                let members = |program| muster.roster.members(program, muster.at).collect::<Vec<_>>();
                all["workers"] = json!(members(Program::Worker));
                all["gateways"] = json!(members(Program::Gateway));
            }
            Err(failure) => all["fleet_problem"] = json!(failure.to_string()),
        }
        if !asked.is_empty() {
            all["asked"] = json!(asked);
        }
        output::json(&format!("{all:#}\n"))?;
    } else {
        let mut text = view::table(&snapshot);
        text += &match &muster {
            Ok(muster) => format!("\n{}", fleet::tables(&muster.roster, muster.at)),
            Err(failure) => format!("\nworkers are not shown: {failure}\n"),
        };
        if !asked.is_empty() {
            text += &workers::table(&asked);
        }
        output::lines(&text)?;
    }
    Ok(if snapshot.missing.is_empty() { Exit::Done } else { Exit::Failed })
}
