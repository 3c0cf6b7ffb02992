//! Directives to the fleet over RabbitMQ: stop tasks, drain or quiet workers.

use std::time::{Duration, SystemTime};

use clap::Args;
use garenne_amqp::{Message, PublishError, Publisher, PublisherConfig, Target};
use garenne_common::{
    exit::{Exit, Failure},
    shutdown::Mode,
    stdout,
};
use garenne_operator::{operator::Operator, output, waits};
use garenne_protocol::{
    heartbeat::Program,
    task::{Directive, Envelope, TaskId, epoch_ms},
};
use lapin::BasicProperties;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    audit_log::{audited, command_line},
    confirm::{confirm, is_interactive},
    fleet::{MemberView, poll_workers, unseen_group, unseen_task},
    worker_command::{ALL_WORKERS, WorkerCommand, worker_key},
};

/// Refuses a name that no group, lane or kind can have.
pub(crate) fn check_name(noun: &str, name: &str) -> Result<(), Failure> {
    let (bytes, max) = (name.len(), Envelope::MAX_TEXT);
    if (1..=max).contains(&bytes) {
        return Ok(());
    }
    let problem = format!("the name of the {noun} has {bytes} bytes, expected 1 to {max}");
    Err(Failure::new(Exit::Usage, problem))
}

/// Stops tasks and groups, and returns the number of directives published.
///
/// A directive for a group covers what was published up to the end of its second, because some publishers date
/// their messages in whole seconds. The call returns in the next second, so that nothing published after it is
/// covered. Nothing is published if one of the ids is invalid.
pub async fn stop_tasks(operator: &Operator, ids: &[String], groups: &[String]) -> Result<usize, Failure> {
    let at = epoch_ms(SystemTime::now());
    for id in ids {
        TaskId::parse(id).map_err(|error| Failure::new(Exit::Usage, format_args!("task {id:?}: {error}")))?;
    }
    groups.iter().try_for_each(|group| check_name("group", group))?;
    let tasks = ids.iter().map(|task| Directive::StopTask { task: task.clone(), at });
    let of_groups = groups.iter().map(|group| Directive::StopGroup { group: group.clone(), at });
    let directives: Vec<_> = tasks.chain(of_groups).collect();
    for directive in &directives {
        publish_directive(operator, directive).await?;
    }
    if !groups.is_empty() {
        tokio::time::sleep(rest_of_second(at, epoch_ms(SystemTime::now()))).await;
    }
    Ok(directives.len())
}

/// Time from `now` to the end of the second of `at`. Both are milliseconds since 1970.
fn rest_of_second(at: i64, now: i64) -> Duration {
    let next = (at.div_euclid(1000) + 1) * 1000;
    // One second at most, even if the clock was set back.
    Duration::from_millis((next - now).clamp(0, 1000).unsigned_abs())
}

/// Publishes a directive to the stream, which keeps it for workers that start later.
pub(crate) async fn publish_directive(operator: &Operator, directive: &Directive) -> Result<(), Failure> {
    let unroutable = "the stream of directives is missing: run `garenne topology apply`";
    publish(operator, Directive::ROUTING_KEY, directive, unroutable).await
}

/// Sends a command to one worker, or to every worker. Fails if the worker is unknown.
pub async fn send_command(
    operator: &Operator,
    worker: Option<&str>,
    command: &WorkerCommand,
) -> Result<(), Failure> {
    let (key, unroutable) = match worker {
        Some(worker) => (
            worker_key(worker),
            format!("no worker is called {worker:?} (its id is in its logs and receipts)"),
        ),
        None => (ALL_WORKERS.to_owned(), "no worker is running".to_owned()),
    };
    publish(operator, &key, command, &unroutable).await
}

/// Publishes to the control exchange. If no queue receives the message, the failure is `unroutable`.
async fn publish(
    operator: &Operator,
    key: &str,
    body: &impl Serialize,
    unroutable: &str,
) -> Result<(), Failure> {
    let publisher = Publisher::new(operator.broker.clone(), PublisherConfig::default());
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_content_type("application/json".into())
        .with_message_id(TaskId::random().as_str().into());
    let body = serde_json::to_vec(body).expect("text and numbers");
    let target = Target::exchange(operator.names.control(), key.to_owned());
    waits::begin_confirm(&publisher, "the command; it may still take effect");
    let sent = publisher.offer(Message { target, properties, body: body.into() }).await;
    publisher.close().await;
    match sent {
        Err(PublishError::Unroutable { .. }) => Err(Failure::new(Exit::Failed, unroutable)),
        sent => Ok(sent?),
    }
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

/// The workers of the fleet. A user who may send directives but not poll workers gets a remark.
pub(crate) async fn known_workers(operator: &Operator) -> Option<Vec<MemberView>> {
    match poll_workers(operator).await {
        Ok(roster) => Some(roster.members(Program::Worker, epoch_ms(SystemTime::now()))),
        Err(failure) => {
            output::note(format_args!("whether a worker knows the name cannot be told: {failure}"));
            None
        }
    }
}

/// `garenne task stop`. The directive is stored, so that it also stops tasks while no worker runs.
pub async fn stop(operator: &Operator, args: &StopArgs) -> Result<Exit, Failure> {
    // Before the directive, because it may end what is searched for.
    let fleet = known_workers(operator).await;
    let arguments = json!({ "ids": args.ids, "groups": args.group });
    let stopping = stop_tasks(operator, &args.ids, &args.group);
    let result = |count: &usize| json!({ "directives": count });
    let count = audited(operator, command_line(), "task.stop", arguments, stopping, result).await?;
    if let Some(workers) = &fleet {
        args.ids.iter().filter_map(|id| unseen_task(workers, id)).for_each(output::note);
        args.group.iter().filter_map(|group| unseen_group(workers, group)).for_each(output::note);
    }
    stdout::print_line(format_args!(
        "stopping {}: running tasks are interrupted, waiting tasks become dead letters with reason stopped when a worker receives them",
        if count == 1 { "1 task or group".to_owned() } else { format!("{count} tasks or groups") }
    ))?;
    Ok(Exit::Done)
}

/// `garenne drain`. With `--all` it asks first, because no command starts the workers again.
pub async fn drain(
    operator: &Operator,
    args: &WorkerArgs,
    mode: Option<Mode>,
    yes: bool,
) -> Result<Exit, Failure> {
    if args.all && !yes {
        let workers = match is_interactive() {
            true => running(operator).await,
            false => "every worker".to_owned(),
        };
        let consequence = format!("drain --all shuts {workers} down, and no command starts them again");
        confirm(&consequence, "repeat with --yes", yes)?;
    }
    send(operator, args, WorkerCommand::Shutdown { mode }).await
}

/// How many workers run.
async fn running(operator: &Operator) -> String {
    match poll_workers(operator).await {
        Ok(roster) => {
            let workers = roster.members(Program::Worker, epoch_ms(SystemTime::now()));
            match workers.iter().filter(|worker| worker.state.runs()).count() {
                1 => "the one worker that runs".to_owned(),
                n => format!("all {n} workers that run"),
            }
        }
        Err(failure) => format!("every worker (how many is unknown: {failure})"),
    }
}

/// `garenne drain`, `garenne quiet` and `garenne resume`.
pub async fn send(operator: &Operator, args: &WorkerArgs, command: WorkerCommand) -> Result<Exit, Failure> {
    let (name, mode) = match &command {
        WorkerCommand::Shutdown { mode } => ("worker.drain", *mode),
        WorkerCommand::Quiet => ("worker.quiet", None),
        WorkerCommand::Resume => ("worker.resume", None),
        WorkerCommand::Beat => ("worker.beat", None),
    };
    let arguments = json!({ "worker": args.worker, "all": args.all, "mode": mode });
    let sending = send_command(operator, args.worker.as_deref(), &command);
    audited(operator, command_line(), name, arguments, sending, |()| Value::Null).await?;
    let worker = args.worker.as_deref().unwrap_or("every worker");
    stdout::print_line(format_args!("command sent to {worker}"))?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopping_a_group_returns_in_the_next_second() {
        let rest = |at, now| rest_of_second(at, now).as_millis();
        assert_eq!(rest(5000, 5000), 1000);
        assert_eq!(rest(5250, 5300), 700);
        assert_eq!(rest(5999, 5999), 1);
        assert_eq!(rest(5999, 6000), 0);
        assert_eq!(rest(5250, 9000), 0);
        assert_eq!(rest(5250, 1), 1000, "the clock was set back");
    }
}
