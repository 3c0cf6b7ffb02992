//! A user's password changes at the broker while programs are connected. They retry until their password is right
//! again. A program that reads its URL from a file only needs the file to be changed.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, ensure};
use garenne_tests::harness::{
    gateway::GatewayPlan,
    postgres::Postgres,
    process::Program,
    test_env::TestEnv,
    vhost::Rights,
    wait::{Seen, eventually},
    worker::Worker,
};
use serde_json::json;

const PREFETCH: u64 = 20;
const CONSUMING: &[&str] = &["role=\"consume\""];
const PUBLISHING: &[&str] = &["role=\"publish\""];

/// A user whose password the test changes.
struct User<'a> {
    env: &'a TestEnv,
    name: String,
    /// With the first password, which equals the name.
    url: String,
}

impl<'a> User<'a> {
    async fn new(env: &'a TestEnv) -> Result<Self> {
        let everything = Rights { configure: ".*", write: ".*", read: ".*" };
        let url = env.vhost().user_url("rotated", everything).await?;
        let name = url.strip_prefix("amqp://").and_then(|it| it.split(':').next()).context("a user")?;
        Ok(Self { env, name: name.to_owned(), url })
    }

    fn url_with(&self, password: &str) -> String {
        self.url.replacen(&format!(":{}@", self.name), &format!(":{password}@"), 1)
    }

    /// Changes the password at the broker; existing connections stay open.
    async fn change(&self, password: &str) -> Result<()> {
        self.env.vhost().broker().management().create_user(&self.name, password).await
    }

    /// Waits until the program has `count` connections and closes them, so that it has to log in again.
    async fn close_connections(&self, program: &str, count: usize) -> Result<()> {
        let connections = eventually(format!("{count} connections of {program}"), async || {
            let listed = self.env.vhost().view().connections().await?;
            let own = listed
                .into_iter()
                .filter(|it| it.user_provided_name.as_ref().is_some_and(|name| name.contains(program)));
            let own: Vec<_> = own.map(|it| it.name).collect();
            Ok(if own.len() == count { Seen::Wanted(own) } else { Seen::Other(format!("{own:?}")) })
        })
        .await?;
        for connection in connections {
            self.env.vhost().broker().management().close_connection(&connection).await?;
        }
        Ok(())
    }
}

async fn until_all_done(worker: &Worker, ids: &[String]) -> Result<()> {
    eventually("every task is done", async || {
        let done = worker.done()?;
        let found: BTreeSet<_> = done.iter().map(|done| done.task_id.as_str()).collect();
        let missing = ids.iter().filter(|id| !found.contains(id.as_str())).count();
        Ok(Seen::when(missing == 0, format_args!("{missing} missing")))
    })
    .await
}

async fn until_prefetch_is_restored(env: &TestEnv) -> Result<()> {
    eventually("one consumer with its prefetch", async || {
        let consumers = env.vhost().view().consumers().await?;
        let lane = consumers.iter().filter(|it| it.queue() == "garenne.tasks.fast");
        let lane = lane.filter(|it| !it.connection().is_empty());
        let prefetch: Vec<_> = lane.map(|it| it.prefetch).collect();
        Ok(Seen::when(prefetch == [PREFETCH], format_args!("{prefetch:?}")))
    })
    .await
}

/// Checks both connections: a task that fails once needs the publishing one for its copy.
async fn check_both_connections(
    env: &TestEnv,
    worker: &mut Worker,
    mut ids: Vec<String>,
    name: &str,
) -> Result<()> {
    worker.until_ready().await?;
    ids.extend(env.publish("bench.fail", &json!({"times": 1}), name, 5).await?);
    until_all_done(worker, &ids).await?;
    worker.until_metric("garenne_connection_up", CONSUMING, 1.0).await?;
    worker.until_metric("garenne_connection_up", PUBLISHING, 1.0).await?;
    until_prefetch_is_restored(env).await
}

/// During a rotation, the broker may have the new password before the worker.
#[tokio::test]
async fn changed_password_is_retried_until_it_is_right() -> Result<()> {
    let env = TestEnv::new().await?;
    let user = User::new(&env).await?;
    let plan = env.worker_at("rotated", &user.url)?.stdout();
    let mut worker = plan.lane("fast:prefetch=20,concurrency=4..4").start().await?;
    let pid = worker.id();
    user.change("another").await?;
    user.close_connections("worker rotated", 2).await?;
    worker.until_not_ready_for("refused user").await?;
    worker.until_metric("garenne_connection_up", CONSUMING, 0.0).await?;
    worker.until_metric("garenne_connection_up", PUBLISHING, 0.0).await?;
    let ids = env.publish("bench.noop", &json!({}), "meanwhile", 10).await?;
    user.change(&user.name).await?;
    check_both_connections(&env, &mut worker, ids, "after").await?;
    assert_eq!(worker.id(), pid);
    let stopped = worker.stop().await?;
    let receipt = stopped.receipt;
    assert_eq!((stopped.code, receipt.acked, receipt.retried), (0, 15, 5), "{receipt:?}");
    Ok(())
}

/// The file changes after the broker, as it does with an orchestrator's secrets, and later before it. A file that
/// has no valid URL for a moment does no harm.
#[tokio::test]
async fn changed_password_is_read_again_from_its_file() -> Result<()> {
    let env = TestEnv::new().await?;
    let user = User::new(&env).await?;
    let file = env.folder().join("amqp-url");
    fs::write(&file, &user.url)?;
    let plan = env.worker_reading("rotated", &file)?.stdout();
    let mut worker = plan.lane("fast:prefetch=20,concurrency=4..4").start().await?;
    let pid = worker.id();

    user.change("second").await?;
    user.close_connections("worker rotated", 2).await?;
    worker.until_not_ready_for("refused user").await?;
    let ids = env.publish("bench.noop", &json!({}), "meanwhile", 10).await?;
    fs::write(&file, "")?;
    worker.until_logged("cannot read amqp_url again").await?;
    fs::write(&file, user.url_with("second") + "\n")?;
    check_both_connections(&env, &mut worker, ids, "after").await?;

    fs::write(&file, user.url_with("third"))?;
    user.change("third").await?;
    user.close_connections("worker rotated", 2).await?;
    let reconnected = async || worker.metric("garenne_reconnects_total", CONSUMING).await;
    eventually("a second reconnect", async || {
        let reconnects = reconnected().await?;
        Ok(Seen::when(reconnects >= 2.0, reconnects))
    })
    .await?;
    check_both_connections(&env, &mut worker, Vec::new(), "after-all").await?;
    assert_eq!(worker.id(), pid);
    let log = worker.process().stderr().lines();
    ensure!(!log.iter().any(|line| line.contains("third")), "the log contains a password: {log:?}");
    let stopped = worker.stop().await?;
    let receipt = stopped.receipt;
    assert_eq!((stopped.code, receipt.acked, receipt.retried, receipt.dead), (0, 20, 10, 0), "{receipt:?}");
    Ok(())
}

/// A start is no exception: a worker that starts between the change at the broker and that of the file waits for it.
#[tokio::test]
async fn changed_password_is_awaited_by_a_worker_that_starts() -> Result<()> {
    let env = TestEnv::new().await?;
    let user = User::new(&env).await?;
    let file = env.folder().join("amqp-url");
    fs::write(&file, &user.url)?;
    user.change("second").await?;
    let plan = env.worker_reading("rotated", &file)?.stdout();
    let mut worker = plan.lane("fast:prefetch=20,concurrency=4..4").begin().await?;
    worker.until_logged("cannot connect to the broker, retrying").await?;
    fs::write(&file, user.url_with("second"))?;
    worker.until_ready().await?;
    let stopped = worker.stop().await?;
    assert_eq!(stopped.code, 0, "{:?}", stopped.receipt);
    Ok(())
}

#[tokio::test]
async fn changed_password_is_read_again_by_the_gateway() -> Result<()> {
    let env = TestEnv::new().await?;
    let user = User::new(&env).await?;
    let file = env.folder().join("amqp-url");
    fs::write(&file, &user.url)?;
    let mut gateway = GatewayPlan::reading(&file)?.start().await?;
    gateway.until_ready(true).await?;
    user.change("second").await?;
    user.close_connections("garenne-producer", 1).await?;
    gateway.until_ready(false).await?;
    fs::write(&file, user.url_with("second"))?;
    gateway.until_ready(true).await?;
    let reading = json!({"device": "a", "metric": "m", "value": 1}).to_string();
    let answer = gateway.post("/v1/readings", "application/json", reading).await?;
    ensure!(answer.status == 202, "{answer:?}");
    gateway.stop().await?;
    Ok(())
}

/// Of the console: one that compares, one that leaves an audit record first, and those of the database.
#[tokio::test]
async fn changed_password_is_awaited_by_commands() -> Result<()> {
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let (user, postgres) = (User::new(&env).await?, Postgres::shared().await?);
    let (broker_file, database_file) = (env.folder().join("amqp-url"), env.folder().join("postgres-url"));
    let database = postgres.database().await?;
    let url = database.url();
    let (before, after) = url.split_once('@').context("a password")?;
    user.change("second").await?;
    let begin = async |command: &str| {
        let program = Program::new("garenne").env("GARENNE_LOG", "info");
        let program = program.env("GARENNE_AMQP_URL_FILE", broker_file.display().to_string());
        let program = program.env("GARENNE_POSTGRES_URL_FILE", database_file.display().to_string());
        let command = program.args(command.split(' ')).start().await?;
        let refused = ["cannot connect to the broker, retrying", "password authentication failed"];
        let is_refused = |lines: &[String]| {
            lines.iter().any(|line| refused.iter().any(|it| line.contains(it))).then_some(())
        };
        command.stderr().until("the first refused login", is_refused).await?;
        anyhow::Ok(command)
    };
    let commands = [
        "topology check",
        "dead drop --all --yes",
        "task run-now some",
        "database check",
        "database migrate",
    ];
    // One after the other, because each gives up a few seconds after it was refused.
    for (command, codes) in commands.into_iter().zip([&[0][..], &[0], &[1], &[0, 1], &[0]]) {
        fs::write(&broker_file, &user.url)?;
        fs::write(&database_file, format!("{before}-wrong@{after}"))?;
        let command = begin(command).await?;
        fs::write(&broker_file, user.url_with("second"))?;
        fs::write(&database_file, &url)?;
        let ended = command.ended().await?;
        let is_expected = ended.code.is_some_and(|code| codes.contains(&code));
        ensure!(
            is_expected && !ended.stderr.iter().any(|line| line.contains("garenne: cannot use")),
            "{ended:?}"
        );
    }
    Ok(())
}
