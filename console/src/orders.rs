//! Orders to the fleet over RabbitMQ: stop a task wherever it is, drain or quiet a worker.

use std::time::{Duration, SystemTime};

use garenne_amqp::{Message, PublishError, Publisher, PublisherConfig, Target};
use garenne_common::{
    exit::{Exit, Failure},
    shutdown::Mode,
};
use garenne_protocol::task::{StandingOrder, TaskId, epoch_ms};
use lapin::BasicProperties;
use serde::Serialize;

use crate::{
    cli::{StopArgs, WhichArgs},
    operator::Operator,
};

/// The routing key that every worker listens to.
pub const EVERYBODY: &str = "workers";

/// What a worker can be told; it reads the same JSON.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Command {
    /// Stop in this mode; the worker's default without one.
    Shutdown {
        /// The mode.
        #[serde(skip_serializing_if = "Option::is_none")]
        mode: Option<Mode>,
    },
    /// Take no more work, stay.
    Quiet,
    /// Go on.
    Resume,
    /// Say now what the next heartbeat would.
    Beat,
}

/// `garenne task stop`: the order is kept, so that a task is stopped also when no worker runs now.
///
/// # Errors
/// One line and an exit code.
pub async fn stop(operator: &Operator, args: &StopArgs) -> Result<Exit, Failure> {
    let orders = stop_orders(operator, &args.ids, &args.group).await?;
    println!(
        "{} ordered to stop: running ones are interrupted, waiting ones become dead letters with reason stopped when a worker meets them",
        if orders == 1 { "1 task or group".to_owned() } else { format!("{orders} tasks or groups") }
    );
    Ok(Exit::Done)
}

/// `garenne group pause` and `group resume`.
///
/// # Errors
/// One line and an exit code.
pub async fn pause(operator: &Operator, group: &str, pause: bool) -> Result<Exit, Failure> {
    pause_order(operator, group, pause).await?;
    match pause {
        true => println!("{group} is paused: what runs goes on, the rest is put off until it is resumed"),
        false => println!("{group} is resumed: what was put off comes back in its time"),
    }
    Ok(Exit::Done)
}

/// Pauses or resumes a group, for workers that start later too.
///
/// # Errors
/// One line and an exit code.
pub async fn pause_order(operator: &Operator, group: &str, pause: bool) -> Result<(), Failure> {
    let (group, at) = (group.to_owned(), epoch_ms(SystemTime::now()));
    let order = match pause {
        true => StandingOrder::Pause { pause: group, at },
        false => StandingOrder::Resume { resume: group, at },
    };
    give(operator, &order).await
}

/// Orders tasks and groups to stop; answers how many orders that were. A group's stop returns in the next
/// second: foreign publishers say only the second in which they published, and the order covers all of its
/// own. So it covers what was published before the call, and nothing that is published after it.
///
/// # Errors
/// One line and an exit code; a bad id is refused before anything is ordered.
pub async fn stop_orders(operator: &Operator, ids: &[String], groups: &[String]) -> Result<usize, Failure> {
    let at = epoch_ms(SystemTime::now());
    for id in ids {
        TaskId::parse(id).map_err(|error| Failure::new(Exit::Usage, format_args!("task {id:?}: {error}")))?;
    }
    let tasks = ids.iter().map(|task| StandingOrder::Task { task: task.clone(), at });
    let of_groups = groups.iter().map(|group| StandingOrder::Group { group: group.clone(), at });
    let orders: Vec<_> = tasks.chain(of_groups).collect();
    for order in &orders {
        give(operator, order).await?;
    }
    if !groups.is_empty() {
        tokio::time::sleep(rest_of_second(at, epoch_ms(SystemTime::now()))).await;
    }
    Ok(orders.len())
}

/// How long the second of an order still lasts. Both times are milliseconds since 1970.
fn rest_of_second(at: i64, now: i64) -> Duration {
    let next = (at.div_euclid(1000) + 1) * 1000;
    // A clock that was set back must not keep the operator.
    Duration::from_millis((next - now).clamp(0, 1000).unsigned_abs())
}

/// Gives an order that holds until another one overrules it.
async fn give(operator: &Operator, order: &StandingOrder) -> Result<(), Failure> {
    let given = send(operator, StandingOrder::ROUTING_KEY, order).await;
    given.map_err(|error| undelivered(error, "no stream takes orders: run `garenne topology apply`"))
}

/// `garenne drain`, `quiet` and `resume`.
///
/// # Errors
/// One line and an exit code; a worker that is not there is named.
pub async fn command(operator: &Operator, which: &WhichArgs, command: Command) -> Result<Exit, Failure> {
    tell(operator, which.worker.as_deref(), &command).await?;
    println!("told {}", which.worker.as_deref().unwrap_or("every worker"));
    Ok(Exit::Done)
}

/// Commands one worker, or all of them.
///
/// # Errors
/// One line and an exit code; a worker that is not there is named.
pub async fn tell(operator: &Operator, worker: Option<&str>, command: &Command) -> Result<(), Failure> {
    let (key, nobody) = match worker {
        Some(worker) => (
            format!("worker.{worker}"),
            format!("no worker is called {worker:?} (its id is in its logs and receipts)"),
        ),
        None => (EVERYBODY.to_owned(), "no worker is there".to_owned()),
    };
    send(operator, &key, command).await.map_err(|error| undelivered(error, &nobody))
}

async fn send(operator: &Operator, key: &str, body: &impl Serialize) -> Result<(), PublishError> {
    let publisher = Publisher::new(operator.broker.clone(), PublisherConfig::default());
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_content_type("application/json".into())
        .with_message_id(TaskId::random().as_str().into());
    let body = serde_json::to_vec(body).expect("text and numbers");
    let target = Target::exchange(operator.names.control(), key.to_owned());
    let sent = publisher.publish(Message { target, properties, body: body.into() }).await;
    publisher.close().await;
    sent
}

fn undelivered(error: PublishError, nobody: &str) -> Failure {
    match error {
        PublishError::Unroutable { .. } => Failure::new(Exit::Failed, nobody),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_groups_stop_returns_in_the_next_second() {
        let rest = |at, now| rest_of_second(at, now).as_millis();
        assert_eq!(rest(5000, 5000), 1000);
        assert_eq!(rest(5250, 5300), 700);
        assert_eq!(rest(5999, 5999), 1);
        assert_eq!(rest(5999, 6000), 0);
        assert_eq!(rest(5250, 9000), 0);
        assert_eq!(rest(5250, 1), 1000, "the clock was set back");
    }

    #[test]
    fn commands_are_the_ones_workers_read() {
        let json = |command| serde_json::to_string(&command).unwrap();
        assert_eq!(
            json(Command::Shutdown { mode: Some(Mode::Soft) }),
            r#"{"command":"shutdown","mode":"soft"}"#
        );
        assert_eq!(json(Command::Shutdown { mode: None }), r#"{"command":"shutdown"}"#);
        assert_eq!(json(Command::Quiet), r#"{"command":"quiet"}"#);
        assert_eq!(json(Command::Beat), r#"{"command":"beat"}"#);
    }
}
