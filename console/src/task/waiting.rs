//! `garenne task waiting`: the tasks in the retry queues.

use clap::Args;
use garenne_common::exit::{Exit, Failure};
use garenne_operator::{
    operator::Operator,
    output,
    table::{grouped, lay_out},
};

use super::listing::{TaskState, WaitingTask, list};
use crate::queue::{ListArgs, print_json, row};

/// `garenne task waiting`.
#[derive(Args, Clone, Debug)]
pub struct WaitingArgs {
    /// Only tasks of this lane
    #[arg(long, value_name = "NAME")]
    lane: Option<String>,
    /// Only retries, or only tasks that have not begun: scheduled and deferred ones
    #[arg(long, value_enum)]
    state: Option<Later>,
    /// How the tasks are listed.
    #[command(flatten)]
    list: ListArgs,
}

/// Why a task is in a retry queue.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Later {
    Retrying,
    Scheduled,
}

pub(super) async fn run(operator: &Operator, args: &WaitingArgs) -> Result<Exit, Failure> {
    let state = match args.state {
        None => TaskState::Later,
        Some(Later::Retrying) => TaskState::Retrying,
        Some(Later::Scheduled) => TaskState::Scheduled,
    };
    let (total, found) =
        list(operator, args.lane.as_deref(), state, args.list.limits, args.list.limit()).await?;
    if args.list.json {
        return print_json(&found.into_iter().map(|it| it.task).collect::<Vec<_>>());
    }
    let rows = found.iter().map(|WaitingTask { task, within }| {
        let [id, kind, group, attempts, published, due, _] = row(task);
        let due = match within {
            Some(delay) if task.due_at.is_none() => format!("within {delay}"),
            _ => due,
        };
        [id, kind, group, attempts, published, due, task.queue.clone()]
    });
    let mut text = String::new();
    if total > 0 {
        text = lay_out(&["id", "kind", "group", ">attempts", ">published", ">due", "queue"], rows) + "\n";
    }
    text += &match found.len() {
        shown if shown < total => {
            format!("{} tasks wait, showing {shown} (--limit)\n", grouped(total as u64))
        }
        _ => format!("{} tasks wait\n", grouped(total as u64)),
    };
    output::lines(&text)?;
    Ok(Exit::Done)
}
