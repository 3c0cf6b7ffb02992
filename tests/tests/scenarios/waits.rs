//! `Enqueue::wait`: a publisher waits for the result of its task.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, bail, ensure};
use futures_util::future::{join_all, try_join_all};
use garenne::{Client, WaitError, json_payload};
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    fault_proxy::FaultProxy,
    test_env::TestEnv,
    users,
    vhost::Rights,
};
use serde_json::{Value, json};

/// Longer than any answer takes, also on a busy machine, and than the 180 s after which RabbitMQ repeats a dead-lettering.
pub(super) const WAIT: Duration = Duration::from_secs(200);

#[derive(serde::Serialize, serde::Deserialize)]
struct Factorial {
    n: u32,
}
json_payload!(Factorial, "bench.factorial");

#[derive(Debug, serde::Deserialize)]
struct Computed {
    factorial: f64,
}

/// The client of an application may only publish tasks.
async fn client(env: &TestEnv) -> Result<Client> {
    Ok(Client::connect(&users::user(env.vhost(), "gateway").await?).await?)
}

#[tokio::test]
async fn a_wait_returns_the_result_or_what_became_of_the_task() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("answering")?.option("--max-attempts", "2").start().await?;
    let client = client(&env).await?;
    let computed: Computed = client.enqueue(Factorial { n: 3 }).wait(WAIT).await?;
    ensure!((computed.factorial - 6.0).abs() < f64::EPSILON, "{computed:?}");
    // It is retried first.
    let _: Value = client.enqueue_kind("bench.fail", &json!({"times": 1})).wait(WAIT).await?;

    let exhausted =
        client.enqueue_kind("bench.fail", &json!({"times": 9})).id("fails").wait::<Value>(WAIT).await;
    let Err(WaitError::Dead { id, reason, error }) = exhausted else { bail!("{exhausted:?}") };
    ensure!(id.as_str() == "fails" && reason == "attempts-exhausted", "{id} {reason}");
    ensure!(error.ends_with("(attempt 2 of 2)"), "{error}");
    let invalid = client.enqueue(Factorial { n: 171 }).wait::<Computed>(WAIT).await;
    ensure!(
        matches!(&invalid, Err(WaitError::Dead { reason, .. }) if reason == "invalid-payload"),
        "{invalid:?}"
    );
    let rejected = client.enqueue_kind("alert.notify", &json!({"webhook": "none"})).wait::<Value>(WAIT).await;
    ensure!(matches!(&rejected, Err(WaitError::Rejected { .. })), "{rejected:?}");
    let other = client.enqueue(Factorial { n: 3 }).wait::<String>(WAIT).await;
    ensure!(matches!(&other, Err(WaitError::Output { .. })), "{other:?}");
    env.take_all("garenne.dead", 3).await?;
    worker.stop().await?;

    let late = client.enqueue(Factorial { n: 3 }).wait::<Computed>(Duration::from_secs(5)).await;
    let Err(error @ WaitError::TimedOut { .. }) = late else { bail!("{late:?}") };
    let text = error.to_string();
    ensure!(
        text.contains("within 5s: the broker has it, and it may still wait, run or be retried"),
        "{text}"
    );
    client.close().await;
    Ok(())
}

#[tokio::test]
async fn a_thousand_waits_at_once_get_their_own_answers() -> Result<()> {
    let env = TestEnv::new().await?;
    let (one, other) = (env.worker("one")?.start().await?, env.worker("other")?.start().await?);
    let client = client(&env).await?;
    let waits = (0..1000).map(|n| client.enqueue_kind("bench.echo", &json!({"n": n})).wait::<Value>(WAIT));
    let answers = try_join_all(waits).await?;
    let own = answers.iter().enumerate().all(|(n, answer)| *answer == json!({"n": n}));
    ensure!(own, "{answers:?}");
    let stopped = [one.stop().await?, other.stop().await?];
    let acked: u64 = stopped.iter().map(|stopped| stopped.receipt.acked).sum();
    ensure!(acked == 1000, "{acked}");
    client.close().await;
    Ok(())
}

/// Waits for tasks that nobody runs, until `disturb` ends the connections.
async fn waits_that_end(
    client: &Client,
    env: &TestEnv,
    disturb: impl AsyncFnOnce() -> Result<()>,
) -> Result<()> {
    let ids = ["a", "b"];
    let waits = ids.map(|id| client.enqueue(Factorial { n: 3 }).id(id).wait::<Computed>(WAIT));
    let waiting = join_all(waits);
    let disturbing = async {
        env.until_lane("fast", 2, 0).await?;
        disturb().await
    };
    let (ended, disturbed) = tokio::join!(waiting, disturbing);
    disturbed?;
    let mut lost = BTreeSet::new();
    for end in ended {
        match end {
            Err(WaitError::ConnectionLost { id }) => drop(lost.insert(id.to_string())),
            other => bail!("{other:?}"),
        }
    }
    ensure!(lost.iter().eq(["a", "b"].iter()), "{lost:?}");
    Ok(())
}

#[tokio::test]
async fn a_lost_connection_ends_waits_and_the_next_one_opens_it_again() -> Result<()> {
    let env = TestEnv::new().await?;
    // Declares the queues.
    env.worker("first")?.start().await?.stop().await?;
    let (proxy, url) = FaultProxy::for_url(&users::user(env.vhost(), "gateway").await?).await?;
    let client = Client::connect(&url).await?;
    waits_that_end(&client, &env, async || {
        proxy.drop_connections();
        Ok(())
    })
    .await?;
    until_answered(&client, &env).await
}

/// The next wait opens the connection again.
async fn until_answered(client: &Client, env: &TestEnv) -> Result<()> {
    let worker = env.worker("second")?.start().await?;
    let computed: Computed = client.enqueue(Factorial { n: 4 }).wait(WAIT).await?;
    ensure!((computed.factorial - 24.0).abs() < f64::EPSILON, "{computed:?}");
    worker.stop().await?;
    client.close().await;
    Ok(())
}

#[tokio::test]
async fn waits_end_when_the_broker_restarts() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    env.worker("first")?.start().await?.stop().await?;
    let client = client(&env).await?;
    waits_that_end(&client, &env, async || {
        broker.stop().await?;
        broker.restart().await?;
        // RabbitMQ 4.0 accepts clients a moment before it counts as running, and drops direct replies until then.
        broker.exec_ctl(&["await_startup"]).await.map(drop)
    })
    .await?;
    until_answered(&client, &env).await
}

#[tokio::test]
async fn a_worker_without_the_right_runs_and_acks_tasks_and_says_so_once() -> Result<()> {
    let env = TestEnv::new().await?;
    env.worker("declares")?.start().await?.stop().await?;
    let rights = |write: &'static str| Rights {
        configure: r"^garenne\.worker\..*",
        write,
        read: r"^garenne\.(tasks\..*|quarantine|directives|lifecycle|control|worker\..*)$",
    };
    // A worker that lacks the right does not start.
    let all = rights(r"^(amq\.default|garenne\.(dead|events|unroutable|worker\..*))$");
    let limited = env.vhost().user_url("limited", all).await?;
    let worker = env.worker_at("limited", &limited)?.start().await?;
    env.vhost().user_url("limited", rights(r"^garenne\.(events|worker\..*)$")).await?;
    let client = client(&env).await?;
    let wait = || client.enqueue(Factorial { n: 3 }).wait::<Computed>(Duration::from_secs(5));
    // The first one opens the connection, and is denied.
    let mut waited = vec![wait().await];
    worker.until_logged("replies are denied").await?;
    waited.extend(join_all((1..20).map(|_| wait())).await);
    ensure!(waited.iter().all(|it| matches!(it, Err(WaitError::TimedOut { .. }))), "{waited:?}");
    let denied = |log: &str| log.matches("replies are denied").count();
    worker.until_metric("garenne_published_total", &["result=\"unconfirmed\""], 1.0).await?;
    worker.until_metric("garenne_headers_ignored_total", &["header=\"reply_to\""], 19.0).await?;
    ensure!(worker.is_live().await? && worker.get("/readyz").await.is_ok(), "not ready");
    let log = worker.process().stderr().lines().join("\n");
    ensure!(denied(&log) == 1 && log.contains("lacks the right write on exchange"), "{log}");
    ensure!(worker.stop().await?.receipt.acked == 20);
    client.close().await;
    Ok(())
}
