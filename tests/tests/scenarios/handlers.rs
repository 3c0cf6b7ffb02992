//! Handlers in other languages: what their processes do wrong costs nobody but themselves.

use std::path::PathBuf;

use anyhow::{Context, Result};
use garenne_tests::harness::{
    client::{Taken, headers, with_id},
    handler::{KIND, odd_worker, output_of, publish},
    process::Signal,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::{Value, json};

/// The only dead letter.
async fn dead(env: &TestEnv) -> Result<Taken> {
    Ok(env.take_all("garenne.dead", 1).await?.remove(0))
}

fn pid(value: &Value) -> Result<PathBuf> {
    Ok(PathBuf::from(format!("/proc/{}", value.as_u64().context("a process id")?)))
}

/// Waits until processes have ended.
async fn until_gone(processes: &[PathBuf]) -> Result<()> {
    eventually("the end of the processes", async || {
        let left: Vec<_> = processes.iter().filter(|process| process.exists()).collect();
        Ok(Seen::when(left.is_empty(), format_args!("{left:?}")))
    })
    .await
}

#[tokio::test]
async fn what_a_handler_prints_is_its_log_and_never_an_answer() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = odd_worker(&env, "printing", "processes = 1")?.start().await?;
    assert_eq!(output_of(&env, &worker, "printed", json!({"do": "print"})).await?, "done");
    worker.until_logged("from a shell").await?;
    worker.until_logged("to stderr").await?;
    assert_eq!(output_of(&env, &worker, "long", json!({"do": "long-line"})).await?, "done");
    worker.until_metric("garenne_handler_cut_lines_total", &["handler=\"odd.task\""], 1.0).await?;
    assert_eq!(output_of(&env, &worker, "closed", json!({"do": "close-stderr"})).await?, "done");
    let echo = output_of(&env, &worker, "after", json!({"text": "ünï"})).await?;
    assert_eq!(echo["payload"]["text"], "ünï");
    assert_eq!((&echo["task"]["kind"], &echo["task"]["lane"]), (&json!(KIND), &json!("default")));
    assert_eq!(worker.metric("garenne_handler_restarts_total", &["handler=\"odd.task\""]).await?, 0.0);
    assert_eq!(worker.stop().await?.receipt.acked, 4);
    Ok(())
}

/// More than a pipe holds, in both directions, in all processes at once.
#[tokio::test]
async fn large_payloads_and_outputs_pass() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = odd_worker(&env, "large", "processes = 2")?.start().await?;
    for index in 0..4 {
        let body = json!({"do": "large", "bytes": 3_000_000, "pad": "x".repeat(3_000_000)});
        publish(&env, &format!("large-{index}"), body).await?;
    }
    for done in worker.until_done(4).await? {
        assert_eq!((done.output.as_str().map(str::len), done.attempt), (Some(3_000_000), 1));
    }
    // Larger than `max_payload`.
    publish(&env, "too-large", json!({"do": "large", "bytes": 5_000_000})).await?;
    worker.until_logged("bytes, 4194304 are allowed").await?;
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_process_that_ends_costs_its_own_task_an_attempt_and_no_other_task_anything() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = odd_worker(&env, "ending", "processes = 2\nmax_attempts = 1")?.start().await?;
    publish(&env, "neighbour", json!({"do": "sleep", "seconds": 4})).await?;
    worker.until_holds("default", 1, 0).await?;
    let cases = [
        (json!({"do": "exit", "code": 3}), "the handler's process exited with code 3: the last words"),
        (json!({"do": "exit", "code": 0}), "the handler's process exited with code 0: the last words"),
        (json!({"do": "signal", "signal": 11}), "the handler's process was ended by SIGSEGV"),
        (
            json!({"do": "violate"}),
            "the handler's process was ended: the head of a frame has 1282367844 bytes, 65536 are allowed",
        ),
    ];
    for (index, (body, error)) in cases.into_iter().enumerate() {
        publish(&env, &format!("ends-{index}"), body).await?;
        let dead = dead(&env).await?;
        assert_eq!(dead.text("garenne-reason"), "attempts-exhausted");
        assert_eq!(dead.text("garenne-error"), format!("{error} (attempt 1 of 1)"));
    }
    assert_eq!(worker.until_done_with("neighbour").await?.attempt, 1);
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead, receipt.requeued), (1, 4, 0), "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn each_answer_has_its_outcome() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = odd_worker(&env, "answering", "processes = 1")?.env("GARENNE_RETRY__DELAYS", "1s,3s");
    let worker = plan.start().await?;
    publish(&env, "retried", json!({"do": "retry", "error": "busy", "after_ms": 10})).await?;
    publish(&env, "snoozed", json!({"do": "snooze", "after_ms": 10, "attempts": 0})).await?;
    assert_eq!(worker.until_done_with("retried").await?.attempt, 2);
    assert_eq!(worker.until_done_with("snoozed").await?.attempt, 1);
    for (reason, wanted) in [("rejected", "rejected"), ("invalid-payload", "invalid-payload")] {
        publish(&env, reason, json!({"do": "reject", "error": "no", "reason": reason})).await?;
        let dead = dead(&env).await?;
        assert_eq!(dead.text("garenne-reason"), wanted);
        assert_eq!(dead.text("garenne-error"), "no");
    }
    // A second answer, and one for an attempt that does not exist, mean nothing.
    assert_eq!(output_of(&env, &worker, "twice", json!({"do": "twice"})).await?, 1);
    worker.until_metric("garenne_handler_ignored_answers_total", &["handler=\"odd.task\""], 2.0).await?;
    // Follow-ups are published once the task has succeeded.
    publish(&env, "failing", json!({"do": "follow", "count": 2, "fail": true})).await?;
    publish(&env, "parent", json!({"do": "follow", "count": 3})).await?;
    worker.until_done_with("parent").await?;
    eventually("three follow-ups", async || {
        let numbers = worker.done()?.iter().filter(|done| done.output["payload"]["number"].is_u64()).count();
        Ok(Seen::when(numbers == 3, numbers))
    })
    .await?;
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn nothing_that_a_handler_started_survives_it_or_the_worker() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = odd_worker(&env, "forking", "processes = 1\nrecycle_tasks = 1")?.start().await?;
    let forked = output_of(&env, &worker, "forked", json!({"do": "fork"})).await?;
    // Its process is replaced, and ends in order.
    until_gone(&[pid(&forked[0])?, pid(&forked[1])?]).await?;
    worker.stop().await?;

    let worker = odd_worker(&env, "killed", "processes = 1")?.start().await?;
    let forked = output_of(&env, &worker, "forked-again", json!({"do": "fork"})).await?;
    let own = output_of(&env, &worker, "own", json!({})).await?;
    let processes = [pid(&forked[0])?, pid(&forked[1])?, pid(&own["pid"])?];
    assert!(processes.iter().all(|process| process.exists()), "{processes:?}");
    worker.kill().await?;
    until_gone(&processes).await
}

/// A process that has left its child and exited before it is looked at must not hide the child.
#[tokio::test]
async fn a_chain_of_processes_that_live_for_a_moment_ends_with_its_handler() -> Result<()> {
    let env = TestEnv::new().await?;
    let mark = format!("chain-of-{}", env.vhost().name());
    let worker = odd_worker(&env, "chaining", "processes = 1")?.start().await?;
    output_of(&env, &worker, "chain", json!({"do": "chain", "mark": mark})).await?;
    eventually("the chain runs", async || Ok(Seen::when(is_running(&mark), "no process"))).await?;
    worker.kill().await?;
    eventually("the chain has ended", async || {
        // One look may miss it.
        let runs = (0..50).any(|_| is_running(&mark));
        Ok(Seen::when(!runs, "it runs"))
    })
    .await
}

/// Their parents have exited when the handler's process ends, so that its guardian inherits them at any moment.
#[tokio::test]
async fn processes_in_sessions_of_their_own_end_with_their_handler() -> Result<()> {
    let env = TestEnv::new().await?;
    let mark = format!("left-by-{}", env.vhost().name());
    let worker = odd_worker(&env, "leaving", "processes = 2\nmax_attempts = 1")?.start().await?;
    for index in 0..16 {
        publish(&env, &format!("leave-{index}"), json!({"do": "leave", "mark": mark})).await?;
    }
    worker.until_metric("garenne_settlements_total", &["settlement=\"dead\""], 16.0).await?;
    eventually("no process is left", async || Ok(Seen::when(!is_running(&mark), "one runs"))).await?;
    worker.stop().await?;
    Ok(())
}

/// Whether a process with this argument runs.
fn is_running(argument: &str) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let has_it = |line: Vec<u8>| line.split(|byte| *byte == 0).any(|it| it == argument.as_bytes());
    processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok()).any(has_it)
}

/// The process holds a task that it does not end: it ignores its cancellation and SIGTERM.
#[tokio::test]
async fn a_task_that_ignores_its_cancellation_ends_with_its_process() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = odd_worker(&env, "deaf", "processes = 1\nmax_attempts = 1")?.option("--hard-grace", "12s");
    let worker = plan.start().await?;
    let first = output_of(&env, &worker, "first", json!({})).await?;
    let late = with_id("late").with_headers(headers([("garenne-timeout-ms", 300.into())]));
    env.client().publish("garenne.tasks", KIND, late, br#"{"do":"deaf"}"#).await?;
    let dead_letter = dead(&env).await?;
    assert_eq!(dead_letter.text("garenne-error"), "the deadline passed (attempt 1 of 1)");
    let second = output_of(&env, &worker, "second", json!({})).await?;
    assert!(
        !pid(&first["pid"])?.exists() && first["pid"] != second["pid"],
        "the place is free when the process has ended"
    );

    publish(&env, "stopped", json!({"do": "deaf"})).await?;
    worker.until_holds("default", 1, 0).await?;
    env.garenne(&["task", "stop", "stopped"]).await?;
    assert_eq!(dead(&env).await?.text("garenne-reason"), "stopped");

    let third = output_of(&env, &worker, "third", json!({})).await?;
    publish(&env, "interrupted", json!({"do": "deaf"})).await?;
    worker.until_holds("default", 1, 0).await?;
    worker.signal(Signal::QUIT)?;
    let receipt = worker.stopped().await?.receipt;
    assert_eq!((receipt.requeued, receipt.abandoned), (1, 0), "{receipt:?}");
    until_gone(&[pid(&third["pid"])?]).await?;
    env.until_lane("default", 1, 0).await
}
