//! The command lines of `garenne task`, `garenne group`, `garenne drain`, `garenne quiet` and `garenne resume`.

use clap::{Args, Subcommand};
use garenne_common::exit::{Exit, Failure};

use super::send::{WorkerCommand, send_command, set_group_paused, stop_tasks};
use crate::operator::Operator;

/// `garenne task …`.
#[derive(Clone, Debug, Subcommand)]
pub enum TaskVerb {
    /// Stop tasks that are queued, running, or waiting for a retry
    #[command(after_help = "Examples:\n  garenne task stop 0198c5c2-…\n  garenne task stop --group import-7")]
    Stop(StopArgs),
}

/// `garenne group …`.
#[derive(Clone, Debug, Subcommand)]
pub enum GroupVerb {
    /// Start no more tasks of a group, on any worker, until it is resumed; running tasks go on
    #[command(after_help = "Example:\n  garenne group pause import-7")]
    Pause {
        /// The group
        group: String,
    },
    /// Resume a paused group
    #[command(after_help = "Example:\n  garenne group resume import-7")]
    Resume {
        /// The group
        group: String,
    },
}

/// `garenne task stop`.
#[derive(Args, Clone, Debug, Default)]
pub struct StopArgs {
    /// Task ids
    #[arg(value_name = "ID", required_unless_present = "group")]
    pub ids: Vec<String>,
    /// Every task of this group that was published before now; repeatable
    #[arg(long, value_name = "NAME")]
    pub group: Vec<String>,
}

/// One worker or all of them.
#[derive(Args, Clone, Debug, Default)]
#[group(required = true, multiple = false)]
pub struct WorkerArgs {
    /// The worker's id
    #[arg(value_name = "WORKER")]
    pub worker: Option<String>,
    /// Every worker of the fleet
    #[arg(long)]
    pub all: bool,
}

/// `garenne task stop`. The directive is stored, so that it also stops tasks while no worker runs.
///
/// # Errors
/// One line and an exit code.
pub async fn stop(operator: &Operator, args: &StopArgs) -> Result<Exit, Failure> {
    let count = stop_tasks(operator, &args.ids, &args.group).await?;
    println!(
        "stopping {}: running tasks are interrupted, waiting tasks become dead letters with reason stopped when a worker receives them",
        if count == 1 { "1 task or group".to_owned() } else { format!("{count} tasks or groups") }
    );
    Ok(Exit::Done)
}

/// `garenne group pause` and `garenne group resume`.
///
/// # Errors
/// One line and an exit code.
pub async fn pause(operator: &Operator, group: &str, paused: bool) -> Result<Exit, Failure> {
    set_group_paused(operator, group, paused).await?;
    match paused {
        true => println!(
            "group {group} is paused: running tasks go on, other tasks are deferred until it is resumed"
        ),
        false => println!("group {group} is resumed: deferred tasks return when their delay ends"),
    }
    Ok(Exit::Done)
}

/// `garenne drain`, `garenne quiet` and `garenne resume`.
///
/// # Errors
/// One line and an exit code. An unknown worker is named.
pub async fn send(operator: &Operator, args: &WorkerArgs, command: WorkerCommand) -> Result<Exit, Failure> {
    send_command(operator, args.worker.as_deref(), &command).await?;
    println!("command sent to {}", args.worker.as_deref().unwrap_or("every worker"));
    Ok(Exit::Done)
}
