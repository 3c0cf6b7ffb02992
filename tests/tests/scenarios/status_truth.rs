//! The figures of `garenne status`: each has its source and age, and the exact one is shown. What cannot be read is an
//! error with one line and an exit code.

use anyhow::{Context, Result, ensure};
use garenne_tests::harness::{
    client::{headers, text, with_id},
    dashboard::Dashboard,
    process::{Program, Signal},
    test_env::TestEnv,
    vhost::Rights,
    wait::{Seen, eventually},
    worker::WorkerPlan,
};
use serde_json::{Value, json};

async fn topology(env: &TestEnv) -> Result<()> {
    env.garenne(&["topology", "apply"]).await?;
    Ok(())
}

fn small(env: &TestEnv) -> Result<WorkerPlan> {
    let plan = env.worker("w")?.stdout().lane("fast:prefetch=10,concurrency=2..2");
    Ok(plan.env("GARENNE_EVENTS__HEARTBEAT", "500ms"))
}

/// Publishes tasks of a group that sleep for ten minutes.
async fn publish_hanging(env: &TestEnv, count: usize) -> Result<()> {
    for n in 0..count {
        let group = headers([("garenne-group", text("import-7"))]);
        let properties = with_id(&format!("hanging-{n}")).with_headers(group);
        env.client().publish("garenne.tasks", "bench.sleep", properties, br#"{"ms":600000}"#).await?;
    }
    Ok(())
}

/// The lane `fast` of `garenne status --json`.
async fn fast(env: &TestEnv, arguments: &[&str]) -> Result<Value> {
    let ended = env.try_garenne(&[&["status", "--json"], arguments].concat()).await?;
    let status: Value = serde_json::from_str(&ended.stdout.join("\n"))?;
    assert_eq!(status["source"]["source"], "amqp");
    let age = status["source"]["age_ms"].as_u64();
    ensure!(age.is_some_and(|age| age < 2_000), "{status}");
    let lanes = status["lanes"].as_array().context("lanes")?;
    lanes.iter().find(|lane| lane["name"] == "fast").cloned().context("the lane")
}

#[tokio::test]
async fn status_shows_exact_figures_with_their_source_and_age() -> Result<()> {
    let env = TestEnv::new().await?;
    topology(&env).await?;
    let management = ["--management-url", &env.vhost().management_url()];
    let worker = small(&env)?.start().await?;
    publish_hanging(&env, 30).await?;
    worker.until_holds("fast", 2, 8).await?;
    // At once, while the broker's statistics are still those of before.
    for arguments in [&management[..], &[]] {
        // A worker has a second to answer.
        eventually("exact figures", async || {
            let lane = fast(&env, arguments).await?;
            let is_exact =
                (&lane["ready"], &lane["unacked"], &lane["consumers"]) == (&json!(20), &json!(10), &json!(1));
            let from = &lane["unacked_from"];
            let is_fresh = from["age_ms"].as_u64().is_some_and(|age| age < 2_000);
            Ok(Seen::when(is_exact && from["source"] == "heartbeats" && is_fresh, lane))
        })
        .await?;
    }
    // The tasks hang, so the lane may be late by now.
    eventually("the group's row", async || {
        let text = env.try_garenne(&["status"]).await?.stdout.join("\n");
        let has_source = text.contains("ready, consumers and retrying: counted by the broker ");
        let group = text.lines().find(|line| line.starts_with("import-7 ")).unwrap_or_default();
        let is_right = group.split_whitespace().eq(["import-7", "2", "8", "-"]);
        Ok(Seen::when(has_source && is_right && text.contains(" (group import-7)"), text))
    })
    .await?;

    // A worker that does not answer: only the broker knows what it holds.
    worker.signal(Signal::STOP)?;
    eventually("the broker's count", async || {
        let lane = fast(&env, &management).await?;
        let counted = lane["unacked"] == 10 && lane["unacked_from"]["source"] == "management";
        Ok(Seen::when(counted, lane))
    })
    .await?;
    let alone = env.try_garenne(&["status"]).await?.stdout.join("\n");
    assert!(alone.contains("is what workers reported last: a worker is silent"), "{alone}");
    worker.signal(Signal::CONT)?;
    worker.kill().await?;
    Ok(())
}

#[tokio::test]
async fn tasks_that_hang_make_the_backlog_as_long_as_they_run() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = small(&env)?.start().await?;
    let dashboard = Dashboard::start(&env).await?;
    env.publish("bench.sleep", &json!({"ms": 1}), "quick", 100).await?;
    worker.until_done(100).await?;
    publish_hanging(&env, 10).await?;
    worker.until_holds("fast", 2, 8).await?;
    let lane = |now: &Value| now["point"]["lanes"]["fast"].clone();
    let hanging = |now: &Value| {
        lane(now)["backlog_seconds"].as_f64() > Some(3.0) && lane(now)["service_seconds"].as_f64() < Some(1.0)
    };
    dashboard.until("a backlog of seconds in a lane of milliseconds", hanging).await?;
    eventually("another worker", async || {
        let answer = dashboard.json("/scale/fast?objective=2s&window=0s").await?;
        let wait = answer["backlog_seconds"] == answer["load"]["backlog_seconds"];
        Ok(Seen::when(wait && answer["needed_now"] == 2, answer))
    })
    .await?;
    worker.kill().await?;
    Ok(())
}

#[tokio::test]
async fn names_that_no_worker_knows_are_remarked() -> Result<()> {
    let env = TestEnv::new().await?;
    topology(&env).await?;
    let worker = small(&env)?.start().await?;
    publish_hanging(&env, 10).await?;
    worker.until_holds("fast", 2, 8).await?;
    // A worker that does not answer within a second is not heard.
    let is_said = async |arguments: &[&str], remark: &str| -> Result<Seen<()>> {
        let remarks = env.garenne(arguments).await?.stderr.join("\n");
        let is_right = remarks.starts_with(remark) && remarks.is_empty() == remark.is_empty();
        Ok(Seen::when(is_right, remarks))
    };
    for (arguments, remark) in [
        (&["group", "pause", "import-7"][..], ""),
        (
            &["group", "pause", "inport-7"],
            "none of the 1 workers that are heard holds a task of group \"inport-7\"",
        ),
        (&["group", "resume", "import-7"], ""),
        (
            &["task", "stop", "no-such-task"],
            "no task \"no-such-task\" is running on the 1 workers that are heard",
        ),
        (
            &["task", "stop", "--group", "none"],
            "none of the 1 workers that are heard holds a task of group \"none\"",
        ),
    ] {
        eventually(format!("{arguments:?} says {remark:?}"), async || is_said(arguments, remark).await)
            .await?;
    }
    // Each stop ends its task, so that the next one needs another.
    let mut running = (0..10).map(|n| format!("hanging-{n}"));
    eventually("the stop of a running task says nothing", async || {
        is_said(&["task", "stop", &running.next().context("a running task")?], "").await
    })
    .await?;
    let refused = env.try_garenne(&["group", "pause", &"x".repeat(256)]).await?;
    assert_eq!(refused.code, Some(2));
    assert_eq!(refused.stderr, ["garenne: the name of the group has 256 bytes, expected 1 to 255"]);
    worker.kill().await?;
    Ok(())
}

#[tokio::test]
async fn a_refusal_is_one_line_and_an_exit_code() -> Result<()> {
    let env = TestEnv::new().await?;
    topology(&env).await?;
    let (url, management) = (env.vhost().amqp_url(), env.vhost().management_url());
    let wrong = |url: &str| {
        let (user, rest) = url.split_once('@').unwrap_or_default();
        format!("{}:wrong@{rest}", user.rsplit_once(':').unwrap_or_default().0)
    };
    let nowhere = format!("{}/no-such-vhost", url.rsplit_once('/').context("a virtual host")?.0);
    for (amqp, arguments) in [
        (&wrong(&url), &["status"][..]),
        (&wrong(&url), &["status", "--json", "--management-url", &management]),
        (&wrong(&url), &["dead", "list"]),
        (&url, &["status", "--management-url", &wrong(&management)]),
        (&nowhere, &["status"]),
        (&nowhere, &["status", "--management-url", &management]),
        (&nowhere, &["unroutable", "list"]),
    ] {
        let ended = Program::garenne(amqp, arguments).run().await?;
        assert!(matches!(ended.code, Some(69 | 77)), "{arguments:?}: {ended:?}");
        assert_eq!(ended.stderr.len(), 1, "{arguments:?}: {ended:?}");
        // The verdict comes first, also if it is the only thing that is known.
        let says = ended.stdout.join("\n").contains("the queues cannot be read: ");
        assert_eq!(says, arguments[0] == "status", "{arguments:?}: {ended:?}");
        assert!(says || ended.stdout.is_empty(), "{arguments:?}: {ended:?}");
    }
    // Queues can be read and workers cannot be asked: both is said.
    let rights = Rights { configure: "^$", write: ".*", read: ".*" };
    let limited = env.vhost().user_url("limited", rights).await?;
    let limited = Program::garenne(&limited, &["status"]).run().await?;
    assert_eq!(limited.code, Some(77), "{limited:?}");
    let text = limited.stdout.join("\n");
    assert!(text.contains("lane fast") && text.contains("workers cannot be shown: "), "{text}");
    // A worker's admin port that does not answer.
    let asked = Program::garenne(&url, &["status", "--worker", "http://127.0.0.1:1"]).run().await?;
    assert_eq!(asked.code, Some(1), "{asked:?}");
    Ok(())
}

/// Nothing connects: the values are refused before.
#[tokio::test]
async fn a_bad_value_ends_with_the_same_code_from_every_source() -> Result<()> {
    let env = TestEnv::new().await?;
    for (flag, variable, file, value, command) in [
        ("--amqp-url", "GARENNE_AMQP_URL", "amqp_url", "http://x", &["status"][..]),
        ("--management-url", "GARENNE_MANAGEMENT_URL", "management_url", "x", &["status"]),
        ("--prefix", "GARENNE_PREFIX", "prefix", "amq.x", &["dead", "list"]),
        ("--log-format", "GARENNE_LOG_FORMAT", "log_format", "xml", &["top"]),
        ("--admin", "GARENNE_ADMIN", "admin", "x", &["dashboard"]),
        ("--postgres-url", "GARENNE_POSTGRES_URL", "postgres_url", "x", &["alarms", "list"]),
        ("--listen", "GARENNE_DASHBOARD__LISTEN", "dashboard.listen", "x", &["dashboard"]),
    ] {
        let path = env.folder().join("bad.toml");
        std::fs::write(&path, format!("{file} = {value:?}\n"))?;
        let command = Program::new("garenne").args(command);
        let sources = [
            command.clone().option(flag, value),
            command.clone().env(variable, value),
            command.clone().option("--config", &path),
        ];
        for (n, program) in sources.into_iter().enumerate() {
            let ended = program.run().await?;
            assert_eq!((ended.code, ended.stderr.len()), (Some(78), 1), "{flag}, source {n}: {ended:?}");
        }
    }
    Ok(())
}
