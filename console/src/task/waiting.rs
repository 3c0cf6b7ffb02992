//! `garenne task waiting`: the tasks in the retry queues.

use clap::Args;
use garenne_common::exit::{Exit, Failure};
use garenne_operator::{
    operator::Operator,
    output,
    queues::{QueuedTask, Snapshot, look},
    table::{grouped, lay_out},
};

use crate::queue::{ListArgs, print_json, row};

/// `garenne task waiting`.
#[derive(Args, Clone, Debug)]
pub struct WaitingArgs {
    /// Only tasks of this lane
    #[arg(long, value_name = "NAME")]
    lane: Option<String>,
    /// How the tasks are listed.
    #[command(flatten)]
    list: ListArgs,
}

/// A retry queue: its name, its lane and its delay as text.
struct RetryQueue {
    name: String,
    delay: String,
}

/// The retry queues that hold tasks, shortest delay first.
fn retry_queues(
    operator: &Operator,
    snapshot: &Snapshot,
    lane: Option<&str>,
) -> Result<Vec<RetryQueue>, Failure> {
    let names = &operator.names;
    let lanes: Vec<_> = operator.settings.lanes.defined().map(|(name, _)| name.to_owned()).collect();
    if let Some(lane) = lane.filter(|lane| !lanes.iter().any(|it| it == lane)) {
        let problem = format!("unknown lane {lane:?}, the lanes are {}", lanes.join(", "));
        return Err(Failure::new(Exit::Usage, problem));
    }
    let wanted = |name: &&String| lane.is_none_or(|lane| *name == lane);
    let mut queues = Vec::new();
    for &delay in operator.ladder.rungs() {
        for lane in lanes.iter().filter(wanted) {
            let both = [names.retry(lane, delay), names.retry_shards(lane, delay)];
            let held =
                both.into_iter().filter(|name| snapshot.queues.get(name).is_some_and(|it| it.ready > 0));
            queues.extend(held.map(|name| RetryQueue { name, delay: delay.to_string() }));
        }
    }
    Ok(queues)
}

pub(super) async fn run(operator: &Operator, args: &WaitingArgs) -> Result<Exit, Failure> {
    let snapshot = Snapshot::take(operator).await?;
    let connection = operator.connect().await?;
    let mut found: Vec<(QueuedTask, String)> = Vec::new();
    for RetryQueue { name, delay } in retry_queues(operator, &snapshot, args.lane.as_deref())? {
        look(&connection, &name, args.list.limits, |seen| found.push((seen.task, delay.clone()))).await?;
    }
    Operator::leave(connection).await;
    // Tasks without a due time come back when their queue's delay ends; those of short delays are read first.
    found.sort_by_key(|(task, _)| task.due_at);
    let total = found.len();
    found.truncate(args.list.limit());
    if args.list.json {
        return print_json(&found.into_iter().map(|(task, _)| task).collect::<Vec<_>>());
    }
    let rows = found.iter().map(|(task, delay)| {
        let [id, kind, group, attempts, published, due, _] = row(task);
        let due = if task.due_at.is_some() { due } else { format!("within {delay}") };
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
