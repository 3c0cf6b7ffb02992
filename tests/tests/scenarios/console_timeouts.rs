//! Every command of the console ends soon and says what it waited for, while the broker or the database does not answer.

use std::time::Duration;

use anyhow::{Result, ensure};
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    client::with_id,
    postgres::Postgres,
    process::{Ended, Program},
    test_env::TestEnv,
    vhost::Rights,
};
use tokio::time::Instant;

/// Commands that need the broker.
const COMMANDS: [&[&str]; 17] = [
    &["status"],
    &["topology", "apply"],
    &["topology", "check"],
    &["dead", "list"],
    &["dead", "replay", "--all"],
    &["dead", "drop", "--all", "--yes"],
    &["unroutable", "list"],
    &["task", "stop", "some"],
    &["task", "find", "some"],
    &["task", "waiting"],
    &["queue", "list"],
    &["drain", "w"],
    &["quiet", "--all"],
    &["group", "pause", "g"],
    &["lane", "pause", "fast"],
    &["kind", "resume", "k"],
    &["audit", "list"],
];

/// How much longer than its limit a command may take on a busy machine.
const SLACK: Duration = Duration::from_secs(8);

/// Runs a command. It must end, with or without success.
async fn ends(url: &str, limit: u64, command: &[&str]) -> Result<Ended> {
    let program = Program::new("garenne").option("--amqp-url", url).option("--timeout", format!("{limit}s"));
    let began = Instant::now();
    let program = command.iter().fold(program, |program, argument| program.arg(argument));
    let ended = program.env("GARENNE_LOG", "off").run().await?;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(limit) + SLACK, "{command:?} took {took:?}: {ended:?}");
    Ok(ended)
}

fn said(ended: &Ended) -> String {
    [ended.stdout.join("\n"), ended.stderr.join("\n")].join("\n")
}

#[tokio::test]
async fn console_commands_end_while_an_alarm_blocks_publishers() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    let worker = env.worker("w")?.start().await?;
    env.client().publish("garenne.dead", "any.kind", with_id("letter"), b"{}").await?;
    broker.set_memory_alarm(true).await?;
    for command in COMMANDS {
        let ended = ends(env.operator_url(), 2, command).await?;
        let text = said(&ended);
        let publishes = !matches!(
            command,
            ["topology" | "unroutable" | "queue" | "audit", ..]
                | ["dead", "list"]
                | ["task", "find" | "waiting", ..]
        );
        if publishes {
            ensure!(ended.code == Some(69), "{command:?}: {ended:?}");
            ensure!(text.contains("alarm") && text.contains("blocks publishers"), "{command:?}: {text}");
        }
    }
    broker.set_memory_alarm(false).await?;
    worker.kill().await?;
    Ok(())
}

#[tokio::test]
async fn console_commands_end_while_the_broker_is_frozen() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    env.garenne(&["topology", "apply"]).await?;
    broker.pause().await?;
    for command in COMMANDS {
        let ended = ends(env.operator_url(), 1, command).await?;
        let text = said(&ended);
        ensure!(ended.code == Some(69), "{command:?}: {ended:?}");
        ensure!(text.contains("the broker"), "{command:?}: {text}");
    }
    broker.unpause().await
}

#[tokio::test]
async fn console_commands_end_while_the_database_is_frozen() -> Result<()> {
    let env = TestEnv::new().await?;
    let postgres = Postgres::start().await?;
    let database = postgres.database().await?;
    let url = database.url();
    env.garenne(&["database", "migrate", "--postgres-url", &url]).await?;
    postgres.pause().await?;
    for command in [
        &["alarms", "list"][..],
        &["database", "check"],
        &["readings", "corrections"],
        &["readings", "latest"],
    ] {
        let command = [command, &["--postgres-url", &url]].concat();
        let ended = ends(env.operator_url(), 1, &command).await?;
        let text = said(&ended);
        ensure!(ended.code != Some(0) && text.contains("127.0.0.1"), "{command:?}: {ended:?}");
    }
    postgres.unpause().await
}

#[tokio::test]
async fn console_commands_without_rights_end_at_once_and_name_the_right() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    env.client().publish("garenne.dead", "any.kind", with_id("letter"), b"{}").await?;
    let rights = Rights { configure: "^$", write: "^$", read: "^$" };
    let url = env.vhost().user_url("nobody", rights).await?;
    for command in COMMANDS {
        let ended = ends(&url, 10, command).await?;
        // Before RabbitMQ 4.3.1, a queue's counts need no right, and of an empty queue they are all there is to show.
        let counts =
            matches!(command, ["topology", "check"] | ["queue" | "unroutable", "list"] | ["task", "waiting"]);
        // It says what it could not search.
        let searched = command.starts_with(&["task", "find"]) && said(&ended).contains("ACCESS_REFUSED");
        let allowed = ended.code == Some(77) || counts && ended.code == Some(0) || searched;
        ensure!(allowed, "{command:?}: {ended:?}");
    }
    Ok(())
}
