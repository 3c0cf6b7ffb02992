//! `garenne queue`: lists the fleet's queues and their messages, and purges a queue.

use clap::{Args, Subcommand};
use garenne_common::{
    exit::{Exit, Failure},
    stdout,
};
use garenne_operator::{
    operator::Operator,
    output,
    queues::{LookLimits, QueueStatus, QueuedTask, Snapshot, distance, failure},
    table::{duration, grouped, lay_out},
};
use lapin::options::QueuePurgeOptions;
use serde_json::{Value, json};

use crate::{
    audit_log::{audited, command_line},
    confirm::confirm,
    look::look_at,
};

/// Rows of a list.
const DEFAULT_LIMIT: usize = 50;

/// How the messages of queues are listed.
#[derive(Clone, Copy, Debug, Args)]
pub struct ListArgs {
    /// Which queues are looked at.
    #[command(flatten)]
    pub(crate) limits: LookLimits,
    /// List the first N only [default: 50; all with --json]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

impl ListArgs {
    /// How many are listed at most.
    pub(crate) fn limit(&self) -> usize {
        self.limit.unwrap_or(if self.json { usize::MAX } else { DEFAULT_LIMIT })
    }
}

/// `garenne queue …`.
#[derive(Clone, Debug, Subcommand)]
pub enum QueueVerb {
    /// List the fleet's queues, or the messages of one that no worker consumes
    ///
    /// The messages of a queue are taken and returned, in their order. Before RabbitMQ 4.3 the broker counts each return
    /// in x-delivery-count.
    #[command(after_help = "Examples:\n  garenne queue list\n  garenne queue list garenne.retry.fast.5m\n  \
                            garenne lane pause fast && garenne queue list garenne.tasks.fast --json")]
    List {
        /// The queue [default: list the queues]
        name: Option<String>,
        /// How its messages are listed.
        #[command(flatten)]
        list: ListArgs,
    },
    /// Remove all ready messages of a queue permanently, without dead letters
    #[command(after_help = "Example:\n  garenne queue purge garenne.tasks.slow --yes")]
    Purge {
        /// The queue
        name: String,
        /// Confirm that the messages are removed permanently [default: ask]
        #[arg(long)]
        yes: bool,
    },
}

/// Runs `garenne queue …`.
pub async fn run(operator: &Operator, verb: QueueVerb) -> Result<Exit, Failure> {
    let snapshot = Snapshot::take(operator).await?;
    match verb {
        QueueVerb::List { name: None, list } => list_queues(&snapshot, list.json),
        QueueVerb::List { name: Some(name), list } => {
            known(&snapshot, &name)?;
            list_messages(operator, &name, list).await
        }
        QueueVerb::Purge { name, yes } => {
            let status = known(&snapshot, &name)?;
            purge(operator, &name, yes, status).await
        }
    }
}

/// The state of a queue of the fleet.
fn known<'s>(snapshot: &'s Snapshot, name: &str) -> Result<&'s QueueStatus, Failure> {
    snapshot.queues.get(name).ok_or_else(|| {
        let problem = format!("{name:?} is no queue of this fleet: `garenne queue list` shows them");
        Failure::new(Exit::Usage, problem)
    })
}

fn list_queues(snapshot: &Snapshot, json: bool) -> Result<Exit, Failure> {
    if json {
        let row = |(name, queue): (&String, &QueueStatus)| json!({ "queue": name, "ready": queue.ready, "consumers": queue.consumers });
        output::json_lines(snapshot.queues.iter().map(row))?;
    } else {
        let rows = snapshot
            .queues
            .iter()
            .map(|(name, queue)| [name.clone(), grouped(queue.ready), grouped(queue.consumers)]);
        output::lines(&lay_out(&["queue", ">ready", ">consumers"], rows))?;
    }
    Ok(Exit::Done)
}

async fn list_messages(operator: &Operator, name: &str, list: ListArgs) -> Result<Exit, Failure> {
    let (mut tasks, mut count) = (Vec::new(), 0);
    let connection = operator.connect().await?;
    look_at(operator, &connection, name, list.limits, |seen| {
        count += 1;
        if tasks.len() < list.limit() {
            tasks.push(seen.task);
        }
    })
    .await?;
    Operator::leave(connection).await;
    if list.json {
        return print_json(&tasks);
    }
    let mut text = if tasks.is_empty() { String::new() } else { table(&tasks) + "\n" };
    text += &match tasks.len() {
        shown if shown < count => {
            format!("{} messages, showing the first {shown} (--limit)\n", grouped(count as u64))
        }
        _ => format!("{} messages\n", grouped(count as u64)),
    };
    output::lines(&text)?;
    Ok(Exit::Done)
}

/// Prints one JSON object per task.
pub(crate) fn print_json(tasks: &[QueuedTask]) -> Result<Exit, Failure> {
    output::json_lines(tasks.iter().map(|task| json!(task)))?;
    Ok(Exit::Done)
}

/// The tasks as a table, without their queue.
fn table(tasks: &[QueuedTask]) -> String {
    lay_out(&["id", "kind", "group", ">attempts", ">published", ">due", ">bytes"], tasks.iter().map(row))
}

/// The cells of a task: id, kind, group, attempts, publication, due time and size.
pub(crate) fn row(task: &QueuedTask) -> [String; 7] {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let kind = match task.batch_of {
        Some(count) => format!("{} (batch of {count})", task.kind),
        None => task.kind.clone(),
    };
    let published =
        task.published_at.map(|at| format!("{} ago", duration(distance(at).min(0).unsigned_abs())));
    let due = task.due_at.map(|at| match distance(at) {
        left if left > 0 => format!("in {}", duration(left.unsigned_abs())),
        _ => "now".to_owned(),
    });
    [
        or_dash(&task.id),
        kind,
        or_dash(&task.group),
        task.attempts.to_string(),
        or_dash(&published),
        or_dash(&due),
        grouped(task.bytes as u64),
    ]
}

async fn purge(operator: &Operator, name: &str, yes: bool, status: &QueueStatus) -> Result<Exit, Failure> {
    let ready = grouped(status.ready);
    let consequence = format!("purge removes the {ready} ready messages of {name:?} permanently");
    confirm(&consequence, "repeat with --yes", yes)?;
    let connection = operator.connect().await?;
    let purging = async {
        let error = |error| failure(name, &error);
        let channel = connection.create_channel().await.map_err(error)?;
        channel.queue_purge(name.into(), QueuePurgeOptions::default()).await.map_err(error)
    };
    let removed = |count: &u32| json!({ "removed": count });
    let arguments: Value = json!({ "queue": name });
    let count = audited(operator, command_line(), "queue.purge", arguments, purging, removed).await?;
    Operator::leave(connection).await;
    if status.consumers > 0 {
        output::note("tasks that workers hold are not removed: the queue has consumers");
    }
    stdout::print_line(format_args!("removed {} messages of {name}", grouped(count.into())))?;
    Ok(Exit::Done)
}
