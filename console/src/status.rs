//! `garenne status`: what waits, runs, retries and died, lane by lane.

mod snapshot;
mod view;
mod workers;

use garenne_common::exit::{Exit, Failure};

use crate::{cli::StatusArgs, operator::Operator};
pub use snapshot::{LaneStatus, QueueStatus, Snapshot, Source};

/// Prints the state of the fleet's queues.
///
/// # Errors
/// One line and an exit code.
pub async fn run(operator: &Operator, args: &StatusArgs) -> Result<Exit, Failure> {
    let snapshot = Snapshot::take(operator).await?;
    let workers = workers::ask(&args.workers).await?;
    if args.json {
        let mut all = serde_json::to_value(&snapshot).map_err(anyhow::Error::from)?;
        if !workers.is_empty() {
            all["workers"] = serde_json::to_value(&workers).map_err(anyhow::Error::from)?;
        }
        println!("{}", serde_json::to_string_pretty(&all).map_err(anyhow::Error::from)?);
    } else {
        print!("{}", view::table(&snapshot));
        if !workers.is_empty() {
            print!("{}", workers::table(&workers));
        }
    }
    Ok(if snapshot.missing.is_empty() { Exit::Done } else { Exit::Failed })
}
