//! `docker-compose.yml` as users run it: images built from `deploy/Dockerfile`, each program with its own broker user,
//! a recording that is replayed while a worker is killed, and the audit at the end.
//!
//! This is a separate test binary, so that building images does not slow other tests down.

use std::{env, time::Duration};

use anyhow::{Context, Result, ensure};
use garenne_common::shutdown::Receipt;
use garenne_tests::harness::{
    stack::{Container, Stack},
    suite,
    wait::{Seen, eventually},
};
use serde_json::Value;

const RECORDING: &str = include_str!("../../deploy/demo/recording.csv");
const RULES: &str = include_str!("../../deploy/prometheus/rules.yml");

/// Timeout of a replay that takes less than a minute, and of stops within their grace period.
const LONG: Duration = Duration::from_secs(300);
/// Number of stored results after which a worker is killed, in the middle of the replay.
const UNDER_WAY: usize = 500;
/// The database URL inside the container.
const DATABASE: &str = "postgres://garenne:garenne@127.0.0.1/garenne";
/// Counts the readings of the recording, without derived ones.
const MEASURED: &str = "SELECT count(*) FROM garenne_readings WHERE raw IS NOT NULL";
const HEALTHY: &str = "health_status: healthy";
/// The services that run a Garenne program.
const PROGRAMS: [&str; 3] = ["gateway", "worker", "dashboard"];

#[tokio::test]
async fn compose_replays_a_recording_and_a_killed_worker_loses_no_reading() -> Result<()> {
    let Some(compose) = env::var("GARENNE_TEST_COMPOSE").ok().filter(|compose| !compose.is_empty()) else {
        suite::leave_out("GARENNE_TEST_COMPOSE is not set; `./dev test` sets it if a Docker engine runs");
        return Ok(());
    };
    let stack = Stack::build(&compose).await?;
    // Ends with the replay, because the audit service waits for it.
    let up = stack.start(&["up", "-d", "--build", "--scale", "worker=3"]).await?;
    let begun = async {
        for (service, count) in [("rabbitmq", 1), ("postgres", 1), ("worker", 3), ("gateway", 1)] {
            stack.until(service, HEALTHY, count).await?;
        }
        stack.until("replay", "start", 1).await
    };
    begun.await.with_context(|| format!("output of up: {}", up.stderr().tail()))?;
    let database = one(&stack, "postgres").await?;
    eventually("the replay is under way", async || {
        let stored = count(&database, "SELECT count(*) FROM garenne_results").await?;
        Ok(Seen::when(stored >= UNDER_WAY, stored))
    })
    .await?;
    let workers = stack.containers("worker").await?;
    let (killed, others) = workers.split_first().context("no worker")?;
    killed.kill().await?;
    assert_eq!(stack.until("worker", "die", 1).await?["exitCode"], "137");

    for service in PROGRAMS {
        stack.until(service, HEALTHY, 1).await?;
    }
    for container in [&others[0], &one(&stack, "gateway").await?, &one(&stack, "dashboard").await?] {
        has_no_privileges(container).await?;
    }

    let up = up.ended_within(LONG).await?;
    assert_eq!(up.code, Some(0), "{}", up.stderr.join("\n"));
    assert_eq!(stack.until("replay", "die", 1).await?["exitCode"], "0");
    let audit = stack.until("audit", "die", 1).await?;
    assert_eq!(audit["exitCode"], "0", "{:?}", one(&stack, "audit").await?.log().await?);
    // A row has readings of several metrics; empty fields are no readings.
    let values = RECORDING.lines().skip(1).flat_map(|row| row.split(',').skip(2));
    let recorded = values.filter(|value| !value.is_empty()).count();
    assert_eq!(count(&database, MEASURED).await?, recorded);

    let command = ["run", "--rm", "-T", "console", "status", "--json"];
    let ended = stack.start(&command).await?.ended_within(LONG).await?;
    // The worker that was killed is silent, which needs attention.
    assert_eq!(ended.code, Some(1), "{}", ended.stderr.join("\n"));
    let status: Value = serde_json::from_str(&ended.stdout.join("\n"))?;
    assert_eq!(open(&status["workers"]), 2, "{status:#}");
    the_dashboard_shows_the_fleet(&stack).await?;
    prometheus_scrapes_and_evaluates_rules(&stack).await?;

    stack.finish(&["stop", "worker"], LONG).await?;
    for worker in others {
        let state = &worker.inspect().await?["State"];
        let log = worker.log().await?.stderr;
        assert_eq!(state["ExitCode"], 0, "{log:#?}");
        let receipt: Receipt = serde_json::from_str(log.last().context("no line")?)?;
        assert!(receipt.acked > 0 && receipt.abandoned == 0, "{receipt:?}");
    }
    broker_and_database_keep_their_data(&stack, recorded).await
}

/// Removes the containers and starts new ones for the broker and the database only: nothing declares queues or stores
/// readings again.
async fn broker_and_database_keep_their_data(stack: &Stack, recorded: usize) -> Result<()> {
    stack.finish(&["down"], LONG).await?;
    stack.finish(&["up", "-d", "rabbitmq", "postgres"], LONG).await?;
    for service in ["rabbitmq", "postgres"] {
        stack.until(service, HEALTHY, 2).await?;
    }
    assert_eq!(count(&one(stack, "postgres").await?, MEASURED).await?, recorded);
    let queue = stack.url("RABBITMQ_UI_PORT", "/api/queues/%2F/garenne.tasks.fast");
    eventually("the management API lists the queue", async || {
        let answer = reqwest::Client::new().get(&queue).basic_auth("admin", Some("admin")).send().await?;
        Ok(Seen::when(answer.status().is_success(), answer.status()))
    })
    .await
}

/// The only container of a service.
async fn one(stack: &Stack, service: &str) -> Result<Container> {
    let mut all = stack.containers(service).await?;
    ensure!(all.len() == 1, "{service}: {all:?}");
    all.pop().context("none")
}

async fn count(database: &Container, query: &str) -> Result<usize> {
    let answer = database.exec(&["psql", DATABASE, "-tAc", query]).await?;
    answer.first().with_context(|| format!("no answer to {query}"))?.parse().context("no number")
}

/// Checks the process's ids and capabilities, and that its root file system is read-only.
async fn has_no_privileges(container: &Container) -> Result<()> {
    let status = container.exec(&["cat", "/proc/1/status"]).await?;
    let field = |name: &str| {
        let line = status.iter().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        (field("Uid:").as_str(), field("Gid:").as_str()),
        ("10001 10001 10001 10001", "10001 10001 10001 10001")
    );
    for capabilities in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(field(capabilities), "0000000000000000", "{capabilities}");
    }
    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(container.inspect().await?["HostConfig"]["ReadonlyRootfs"], true);
    Ok(())
}

/// The number of processes in state `open`.
fn open(members: &Value) -> usize {
    members.as_array().into_iter().flatten().filter(|member| member["state"] == "open").count()
}

async fn get(url: &str) -> Result<String> {
    Ok(reqwest::get(url).await?.error_for_status()?.text().await?)
}

async fn the_dashboard_shows_the_fleet(stack: &Stack) -> Result<()> {
    let page = get(&stack.url("DASHBOARD_PORT", "/")).await?;
    assert!(page.contains("<html"), "{page}");
    eventually("the dashboard shows every process", async || {
        let now: Value = serde_json::from_str(&get(&stack.url("DASHBOARD_PORT", "/api/now")).await?)?;
        let seen = (open(&now["workers"]), open(&now["gateways"]));
        Ok(Seen::when(seen == (2, 1), format_args!("{seen:?}")))
    })
    .await?;
    let devices: Value = serde_json::from_str(&get(&stack.url("DASHBOARD_PORT", "/v1/devices")).await?)?;
    ensure!(devices["devices"].as_array().is_some_and(|devices| !devices.is_empty()), "{devices}");
    let alarms: Value = serde_json::from_str(&get(&stack.url("DASHBOARD_PORT", "/api/alarms")).await?)?;
    assert_eq!(alarms["configured"], true, "{alarms}");
    Ok(())
}

async fn prometheus_scrapes_and_evaluates_rules(stack: &Stack) -> Result<()> {
    stack.until("prometheus", HEALTHY, 1).await?;
    let ask = async |path: &str| -> Result<Value> {
        Ok(serde_json::from_str(&get(&stack.url("PROMETHEUS_PORT", path)).await?)?)
    };
    eventually("Prometheus has scraped every running process", async || {
        let targets = ask("/api/v1/targets?state=active").await?;
        let targets = targets["data"]["activeTargets"].as_array().cloned().unwrap_or_default();
        let up = |job: &str| {
            targets.iter().filter(|it| it["labels"]["job"] == job && it["health"] == "up").count()
        };
        let seen = ["garenne-worker", "garenne-gateway", "garenne-console", "rabbitmq"].map(up);
        Ok(Seen::when(seen == [2, 1, 1, 1], format_args!("{seen:?}")))
    })
    .await?;
    let acks = ask("/api/v1/query?query=sum(garenne_settlements_total)").await?;
    let acks: f64 = acks["data"]["result"][0]["value"][1].as_str().context("no settlements")?.parse()?;
    assert!(acks > 0.0);
    let groups = ask("/api/v1/rules").await?;
    let groups = groups["data"]["groups"].as_array().context("no groups")?;
    let rules: Vec<_> =
        groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect();
    let written = RULES.lines().filter(|line| line.contains("alert:") || line.contains("record:")).count();
    assert_eq!(rules.len(), written);
    Ok(())
}
