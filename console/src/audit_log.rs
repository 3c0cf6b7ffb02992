//! Records of operators' commands: written around each command, and listed by `garenne audit list`.

mod cli;
mod os_user;
mod pauses;
mod reader;
mod view;

use std::time::{Duration, SystemTime};

use garenne_amqp::{Message, PublishError, Publisher, PublisherConfig, Target};
use garenne_common::{
    config::host_name,
    exit::{Exit, Failure},
    stdout,
};
use garenne_operator::{operator::Operator, output, waits};
use garenne_protocol::{
    audit::{AuditActor, AuditRecord, AuditState},
    task::{TaskId, epoch_ms, span_ms},
};
use lapin::BasicProperties;
use serde_json::Value;
use tokio::{select, time::sleep};

pub use cli::AuditVerb;
pub use pauses::{PauseRecords, PausedBy, read_pauses};

/// Time limit for writing a record.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The same while an alarm blocks the publisher: it seldom ends within seconds, and the command has waited before.
const BLOCKED_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two looks at whether it does.
const BLOCKED_CHECK: Duration = Duration::from_millis(100);

/// What a command waits for whose first record is not confirmed, and after it.
const BEFORE: &str = "the audit record; the command is not executed";
const AFTERWARDS: &str = "the last audit record; the command is executed";

/// How commands of this command line are given, in their records.
const COMMAND_LINE: &str = "command-line";

/// The person who gives the commands of this command line: the operating system's user.
pub fn command_line() -> AuditActor {
    let name = os_user::current().unwrap_or_else(|| "unknown".to_owned());
    AuditActor { name, via: COMMAND_LINE.to_owned(), ..AuditActor::default() }
}

/// The log of commands of this command line, unless a variable says otherwise: only their records.
pub const COMMAND_LINE_LOG: &str = "off,garenne_console::audit=info";

/// Runs a command and leaves its two records: one before it begins, one with what `result` makes of its result. Both are
/// also in the log, for a command of this command line only the second one. A command whose first record cannot be
/// stored does not begin. If the last record cannot be stored, the result is still the command's own.
pub async fn audited<T>(
    operator: &Operator,
    actor: AuditActor,
    command: &str,
    arguments: Value,
    run: impl Future<Output = Result<T, Failure>>,
    result: impl FnOnce(&T) -> Value,
) -> Result<T, Failure> {
    let log = AuditLog::new(operator);
    let actor = AuditActor { amqp_user: operator.broker.user(), host: host_name(), ..actor };
    let mut record = AuditRecord {
        id: TaskId::random().as_str().to_owned(),
        at: epoch_ms(SystemTime::now()),
        command: command.to_owned(),
        state: AuditState::Started,
        actor,
        arguments,
        result: Value::Null,
        error: None,
    };
    log.write(&record).await.inspect_err(|failure| {
        tracing::error!(id = record.id, %failure, "audit record not stored, the command is not executed");
    })?;
    let outcome = run.await;
    record.at = epoch_ms(SystemTime::now());
    match &outcome {
        Ok(done) => (record.state, record.result) = (AuditState::Done, result(done)),
        Err(failure) => (record.state, record.error) = (AuditState::Failed, Some(failure.to_string())),
    }
    if let Err(failure) = log.write(&record).await {
        tracing::error!(id = record.id, %failure, "audit record not stored");
        if record.actor.via == COMMAND_LINE {
            output::note(format_args!("the result is not in the audit log: {failure}"));
        }
    }
    log.publisher.close().await;
    outcome
}

/// Publishes records.
struct AuditLog<'a> {
    operator: &'a Operator,
    publisher: Publisher,
}

impl<'a> AuditLog<'a> {
    fn new(operator: &'a Operator) -> Self {
        let publisher = Publisher::new(operator.broker.clone(), PublisherConfig::default());
        Self { operator, publisher }
    }

    /// Logs a record, and publishes it until the broker has confirmed it.
    async fn write(&self, record: &AuditRecord) -> Result<(), Failure> {
        let AuditRecord { id, command, state, actor, arguments, result, error, .. } = record;
        if *state != AuditState::Started || actor.via != COMMAND_LINE {
            tracing::info!(
                target: "garenne_console::audit",
                id, command, ?state, actor = actor.name, via = actor.via, address = actor.address,
                %arguments, %result, error, "audit"
            );
        }
        waits::begin_confirm(
            &self.publisher,
            if *state == AuditState::Started { BEFORE } else { AFTERWARDS },
        );
        let published = select! {
            published = self.publisher.publish(self.message(record)) => Ok(published),
            () = sleep(TIMEOUT) => Err(TIMEOUT),
            () = self.stays_blocked() => Err(BLOCKED_TIMEOUT),
        };
        match published {
            Ok(Ok(())) => Ok(()),
            Ok(Err(PublishError::Unroutable { .. })) => {
                let problem = "the stream of audit records is missing: run `garenne topology apply`";
                Err(Failure::new(Exit::Failed, problem))
            }
            Ok(Err(error)) => Err(error.into()),
            Err(time) => {
                let why = match self.publisher.is_blocked() {
                    true => ": an alarm blocks publishers (memory or disk)",
                    false => "",
                };
                let problem = format!("the broker has not confirmed the audit record within {time:?}{why}");
                Err(Failure::new(Exit::BrokerUnavailable, problem))
            }
        }
    }

    /// Ends if an alarm blocks the publisher, and does not end soon.
    async fn stays_blocked(&self) {
        sleep(BLOCKED_TIMEOUT).await;
        while !self.publisher.is_blocked() {
            sleep(BLOCKED_CHECK).await;
        }
    }

    fn message(&self, record: &AuditRecord) -> Message {
        let mut properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_content_type("application/json".into())
            .with_type("audit".into())
            .with_message_id(TaskId::random().as_str().into());
        // The broker refuses a name that is not the connection's user.
        if let Some(user) = &record.actor.amqp_user {
            properties = properties.with_user_id(user.as_str().into());
        }
        let target = Target::exchange(self.operator.names.events(), record.routing_key());
        let body = serde_json::to_vec(record).expect("text and numbers");
        Message { target, properties, body: body.into() }
    }
}

/// Runs `garenne audit …`.
pub async fn run(operator: &Operator, verb: AuditVerb) -> Result<Exit, Failure> {
    let AuditVerb::List { since, command, by, json } = verb;
    let after = epoch_ms(SystemTime::now()).saturating_sub(span_ms(since));
    let (mut records, refused) = reader::read(operator, after).await?;
    records.retain(|record| {
        let wanted = command.as_deref().is_none_or(|command| record.command.starts_with(command));
        wanted && by.as_deref().is_none_or(|by| record.actor.name == by)
    });
    if refused > 0 {
        output::note(format_args!(
            "{refused} messages are ignored: they did not come from the exchange {}, or their user is not the record's",
            operator.names.events()
        ));
    }
    if json {
        output::json_lines(&records)?;
        return Ok(Exit::Done);
    }
    if records.is_empty() {
        stdout::print_line("no commands")?;
        return Ok(Exit::Done);
    }
    output::lines(&view::table(&records))?;
    Ok(Exit::Done)
}
