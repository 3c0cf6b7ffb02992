//! `garenne status`: what waits, runs, retries and died, lane by lane.

mod snapshot;
mod view;

use garenne_common::exit::{Exit, Failure};

use crate::{cli::StatusArgs, operator::Operator};
pub use snapshot::{LaneStatus, QueueStatus, Snapshot, Source};

/// Prints the state of the fleet's queues.
///
/// # Errors
/// One line and an exit code.
pub async fn run(operator: &Operator, args: &StatusArgs) -> Result<Exit, Failure> {
    let snapshot = Snapshot::take(operator).await?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&snapshot).map_err(anyhow::Error::from)?);
    } else {
        print!("{}", view::table(&snapshot));
    }
    Ok(if snapshot.missing.is_empty() { Exit::Done } else { Exit::Failed })
}
