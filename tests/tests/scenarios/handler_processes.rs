//! The processes of handlers in other languages: their start, their replacement, their limits, and what they inherit.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result};
use garenne_tests::harness::{
    client::{headers, text, with_id},
    handler::{KIND, odd_worker, output_of, publish, repository_file, worker_with},
    process::Program,
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::{Value, json};

/// A program that does not load: tasks wait in their queue, and no attempt is spent.
#[tokio::test]
async fn a_handler_that_does_not_start_makes_its_kind_not_ready() -> Result<()> {
    let env = TestEnv::new().await?;
    // A start that takes longer than a process must run to count as a good one is a failure too.
    for (mode, start_timeout, problem) in [
        ("exit", "3s", "it exited with code 3 before its hello: cannot load the model"),
        ("kill", "3s", "it was ended by SIGKILL before its hello"),
        ("hungry", "11s", "it was ended because it used "),
        ("leave", "3s", "it exited with code 4: no license: \\u{1b}[31mxxx"),
        ("hang", "11s", "it did not say hello within 11s"),
        ("bye", "3s", "it said bye before it had answered a task"),
        ("close", "11s", "it was ended: it closed its descriptor 4 and went on"),
        ("idle", "3s", "it was ended: it did not ask for a task, or end after its bye, within 3s"),
    ] {
        let flag = env.folder().join(mode);
        let environment = format!("environment = {{ ODD_UNTIL_FILE = {flag:?}, ODD_MODE = {mode:?} }}");
        let settings =
            format!("processes = 1\nmemory = \"100MiB\"\nstart_timeout = \"{start_timeout}\"\n{environment}");
        let plan = odd_worker(&env, mode, &settings)?.env("GARENNE_EVENTS__HEARTBEAT", "500ms");
        let mut worker = plan.begin().await?;
        let problem = format!("handler odd.task: {problem}");
        worker.until_not_ready_for(&format!("no handler of odd.task is ready: {problem}")).await?;
        eventually("the problem of the kind", async || {
            let status = env.try_garenne(&["status"]).await?.stdout.join("\n");
            Ok(Seen::when(status.contains(&problem), status))
        })
        .await?;
        let out_of_memory = worker.metric("garenne_handler_out_of_memory_total", &[]).await?;
        assert_eq!(out_of_memory > 0.0, mode == "hungry", "{out_of_memory}");
        publish(&env, mode, json!({})).await?;
        env.until_lane("default", 1, 0).await?;
        fs::write(&flag, "")?;
        worker.until_ready().await?;
        let done = worker.until_done_with(mode).await?;
        assert_eq!(done.attempt, 1);
        let receipt = worker.stop().await?.receipt;
        assert_eq!((receipt.acked, receipt.retried), (1, 0), "{receipt:?}");
    }
    Ok(())
}

#[tokio::test]
async fn processes_are_replaced_between_tasks() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = odd_worker(&env, "recycling", "processes = 2\nrecycle_tasks = 5")?.start().await?;
    // The successor is warm before a process leaves, so tasks run all the time.
    let (mut processes, mut count) = (BTreeSet::new(), 0);
    while processes.len() < 4 {
        let output = output_of(&env, &worker, &format!("task-{count}"), json!({})).await?;
        processes.insert(output["pid"].as_u64());
        count += 1;
        assert!(count < 20_000, "{processes:?}");
    }
    let done = worker.done()?;
    assert!(done.iter().all(|done| done.attempt == 1), "{done:?}");
    assert_eq!(worker.metric("garenne_handler_restarts_total", &["handler=\"odd.task\""]).await?, 0.0);
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.requeued), (count, 0), "{receipt:?}");
    Ok(())
}

/// The process that is replaced and its successor may both end in the middle of a task.
#[tokio::test]
async fn a_process_that_ends_while_it_is_replaced_is_started_again() -> Result<()> {
    let env = TestEnv::new().await?;
    let settings = "processes = 1\nrecycle_tasks = 1\nmax_attempts = 1";
    let worker = odd_worker(&env, "replaced", settings)?.start().await?;
    for round in 0..3 {
        // The first task makes the process due, and the second one is its last.
        publish(&env, &format!("first-{round}"), json!({})).await?;
        publish(&env, &format!("last-{round}"), json!({"do": "exit", "code": 3, "after": 1})).await?;
        publish(&env, &format!("next-{round}"), json!({"do": "exit", "code": 3, "after": 1})).await?;
        env.until_ready_in("garenne.dead", 2 * (round + 1)).await?;
    }
    output_of(&env, &worker, "after", json!({})).await?;
    // While the next process starts, which takes longer after each that ended, tasks may be handed back.
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (4, 6), "{receipt:?}");
    Ok(())
}

/// Which of several tasks ended their process is not known. Each runs again alone, and no other spends its attempt.
#[tokio::test]
async fn a_task_that_ends_a_process_spends_no_attempt_of_others() -> Result<()> {
    let env = TestEnv::new().await?;
    let program = repository_file("tests/clients/many_handler.py");
    let settings = format!("command = [\"python3\", {program:?}]\nprocesses = 1\nmax_attempts = 1");
    let plan = worker_with(&env, "many", &settings)?.option("--lane", "default:prefetch=8,concurrency=4..4");
    let worker = plan.start().await?;
    for round in 0..2 {
        for index in 0..3 {
            publish(&env, &format!("innocent-{round}-{index}"), json!({"seconds": 1})).await?;
        }
        publish(&env, &format!("guilty-{round}"), json!({"seconds": 0.3, "abort": true})).await?;
    }
    let done = worker.until_done(6).await?;
    assert!(done.iter().all(|done| done.attempt == 1 && done.task_id.starts_with("innocent")), "{done:?}");
    for dead in env.take_all("garenne.dead", 2).await? {
        let error = dead.text("garenne-error");
        assert!(dead.id().starts_with("guilty") && error.contains("was ended by SIGABRT"), "{dead:?}");
    }
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (6, 2), "{receipt:?}");
    Ok(())
}

/// A lane may run more tasks than its handler has processes. Those that wait for one are deferred before it is too late for them.
#[tokio::test]
async fn a_task_that_waits_for_a_process_spends_no_attempt() -> Result<()> {
    let env = TestEnv::new().await?;
    let settings = "processes = 1\ndeadline = \"8s\"\nmax_attempts = 1";
    let plan = odd_worker(&env, "waiting", settings)?.option("--lane", "default:prefetch=8,concurrency=4..4");
    let worker = plan.start().await?;
    for index in 0..4 {
        publish(&env, &format!("task-{index}"), json!({"do": "sleep", "seconds": 3})).await?;
    }
    let done = worker.until_done(4).await?;
    assert!(done.iter().all(|done| done.attempt == 1), "{done:?}");
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (4, 0), "{receipt:?}");
    Ok(())
}

/// A process that is busy is alive, also if it does not read what it has asked for.
#[tokio::test]
async fn a_busy_process_may_read_a_large_task_later() -> Result<()> {
    if !suite::is_full() {
        suite::leave_out("a process without another task is ended after 30 s: it needs `./dev test --full`");
        return Ok(());
    }
    let env = TestEnv::new().await?;
    let program = repository_file("tests/clients/many_handler.py");
    let settings = format!("command = [\"python3\", {program:?}]\nprocesses = 1\nmax_attempts = 1");
    let plan = worker_with(&env, "busy", &settings)?.option("--lane", "default:prefetch=8,concurrency=4..4");
    let worker = plan.start().await?;
    publish(&env, "blocking", json!({"block": 40})).await?;
    worker.until_holds("default", 1, 0).await?;
    publish(&env, "large", json!({"text": "x".repeat(400_000)})).await?;
    let done = worker.until_done(2).await?;
    assert!(done.iter().all(|done| done.attempt == 1), "{done:?}");
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_process_over_its_memory_limit_is_ended_and_counted() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker =
        odd_worker(&env, "hungry", "processes = 1\nmemory = \"100MiB\"\nmax_attempts = 1")?.start().await?;
    publish(&env, "hungry", json!({"do": "allocate", "mib": 300})).await?;
    let dead = env.take_all("garenne.dead", 1).await?.remove(0);
    let error = dead.text("garenne-error");
    assert!(error.starts_with("the handler's process was ended because it used "), "{error}");
    assert!(error.contains(" MiB of memory, more than its limit"), "{error}");
    assert_eq!(worker.metric("garenne_handler_out_of_memory_total", &["handler=\"odd.task\""]).await?, 1.0);
    output_of(&env, &worker, "after", json!({})).await?;
    worker.stop().await?;
    Ok(())
}

/// A grandchild holds the descriptors open, so that the end of the pipe does not come.
#[tokio::test]
async fn an_answer_just_before_the_exit_counts() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = odd_worker(&env, "racing", "processes = 2")?.start().await?;
    for index in 0..10 {
        publish(&env, &format!("last-{index}"), json!({"do": "exit-after-answer"})).await?;
    }
    let done = worker.until_done(10).await?;
    assert!(done.iter().all(|done| done.attempt == 1), "{done:?}");
    let receipt = worker.stop().await?.receipt;
    assert_eq!((receipt.acked, receipt.dead), (10, 0), "{receipt:?}");
    Ok(())
}

#[tokio::test]
async fn a_process_inherits_no_descriptor_and_no_secret_of_the_worker() -> Result<()> {
    let env = TestEnv::new().await?;
    let settings = "processes = 1\nenvironment = { OWN = \"1\" }";
    let worker = odd_worker(&env, "inheriting", settings)?.start().await?;
    let output = output_of(&env, &worker, "seen", json!({"do": "descriptors"})).await?;
    // The last one is that of the listing.
    assert_eq!(output["open"], json!(["0", "1", "2", "3", "4", "5"]), "{output}");
    let names = output["environment"].as_array().context("an array")?;
    let own: Vec<_> =
        names.iter().filter_map(Value::as_str).filter(|name| name.starts_with("GARENNE")).collect();
    let expected = ["IN", "MAX_BODY", "OUT", "PROTOCOL"].map(|name| format!("GARENNE_HANDLER_{name}"));
    assert_eq!(own, expected);
    assert!(names.contains(&json!("OWN")) && names.contains(&json!("PATH")), "{names:?}");
    worker.stop().await?;
    Ok(())
}

/// As with Rust handlers: what runs and what waits in the worker, in each mode.
#[tokio::test]
async fn a_program_s_tasks_end_as_each_shutdown_mode_says() -> Result<()> {
    let env = TestEnv::new().await?;
    for (mode, timeout, seconds, done, escalated) in [
        ("soft", "25s", 8, &["running"][..], false),
        ("light", "25s", 8, &["running", "waiting"], false),
        ("soft-timeout", "1s", 600, &[], true),
        ("hard", "25s", 600, &[], false),
    ] {
        let plan = odd_worker(&env, mode, "processes = 1")?.option("--shutdown-mode", mode);
        let plan = plan.env("GARENNE_HARD_GRACE", "8s");
        let plan = plan.option("--lane", "default:prefetch=2,concurrency=1..1");
        let worker = plan.option("--shutdown-timeout", timeout).start().await?;
        publish(&env, "running", json!({"do": "sleep", "seconds": seconds})).await?;
        worker.until_holds("default", 1, 0).await?;
        publish(&env, "waiting", json!({})).await?;
        worker.until_holds("default", 1, 1).await?;
        let stopped = worker.stop().await?;
        assert_eq!(stopped.ids(), done, "{mode}");
        let (receipt, left) = (&stopped.receipt, 2 - done.len());
        assert_eq!((receipt.mode.as_str(), receipt.escalated), (mode, escalated), "{receipt:?}");
        let counts = (receipt.acked as usize, receipt.requeued as usize, receipt.abandoned);
        assert_eq!(counts, (done.len(), left, 0), "{receipt:?}");
        // No attempt was spent.
        for taken in env.take_all("garenne.tasks.default", left).await? {
            assert!(!taken.has("garenne-attempt"), "{mode}: {taken:?}");
        }
    }
    env.is_empty("garenne.dead").await
}

/// One process a task.
#[tokio::test]
async fn a_program_for_each_task_says_by_its_exit_code_what_becomes_of_the_task() -> Result<()> {
    let env = TestEnv::new().await?;
    let script = r#"
read -r body; name=${body%\"*}; name=${name##*\"}
echo "why $name failed" >&2
case $name in
ok) echo "{\"id\":\"$GARENNE_TASK_ID\",\"attempt\":$GARENNE_TASK_ATTEMPT}"; exit 0 ;;
text) echo "three files"; exit 0 ;;
invalid) exit 65 ;;
busy) [ "$GARENNE_TASK_ATTEMPT" -gt 1 ] || exit 75 ;;
broken) exit 9 ;;
deaf) trap '' TERM; sleep 600; sleep 600 ;;
esac
"#;
    let file = env.folder().join("handler.sh");
    fs::write(&file, script)?;
    let settings = format!(
        "command = [\"bash\", {file:?}]\ntransport = \"exec\"\nmax_attempts = 2\nbackoff = \"1s\"\ndeadline = \"8s\""
    );
    let worker = worker_with(&env, "exec", &settings)?.env("GARENNE_RETRY__DELAYS", "1s").start().await?;
    let ok = output_of(&env, &worker, "ok", json!({"name": "ok"})).await?;
    assert_eq!(ok, json!({"id": "ok", "attempt": 1}));
    assert_eq!(output_of(&env, &worker, "text", json!({"name": "text"})).await?, "three files");
    publish(&env, "busy", json!({"name": "busy"})).await?;
    assert_eq!(worker.until_done_with("busy").await?.attempt, 2);
    for (name, reason, error) in [
        ("invalid", "rejected", "why invalid failed"),
        (
            "broken",
            "attempts-exhausted",
            "the handler's process exited with code 9: why broken failed (attempt 2 of 2)",
        ),
        ("deaf", "attempts-exhausted", "the deadline passed (attempt 2 of 2)"),
    ] {
        publish(&env, name, json!({ "name": name })).await?;
        let dead = env.take_all("garenne.dead", 1).await?.remove(0);
        assert_eq!(dead.text("garenne-reason"), reason);
        assert_eq!(dead.text("garenne-error"), error);
    }
    // Values that no program can be started with are the task's own fault.
    for header in ["garenne-key", "garenne-group"] {
        let properties = with_id(header).with_headers(headers([(header, text("a\0b"))]));
        env.client().publish("garenne.tasks", KIND, properties, b"{}").await?;
        let dead = env.take_all("garenne.dead", 1).await?.remove(0);
        assert_eq!(dead.text("garenne-reason"), "rejected");
        assert!(dead.text("garenne-error").ends_with(": it has a NUL byte"), "{dead:?}");
    }
    assert!(!worker.log_tail().contains("cannot start"));
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_missing_program_is_refused_at_the_start() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("missing")?.option("--handler", "odd.task=no-such-program --fast");
    let ended = plan.launch().await?.ended().await?;
    assert_eq!(ended.code, Some(78), "{ended:?}");
    let problem = "setting handlers.odd.task.command = \"no-such-program\" (flag --handler) is refused: no executable file in PATH has this name";
    assert!(ended.stderr.iter().any(|line| line.contains(problem)), "{ended:?}");
    // Gone while the worker runs: the kind is not ready, and its tasks wait.
    let program = env.folder().join("program");
    let write = || fs::copy("/bin/true", &program).map(drop);
    write()?;
    let settings = format!("command = [{program:?}]\ntransport = \"exec\"");
    let mut worker = worker_with(&env, "vanishing", &settings)?.start().await?;
    assert_eq!(output_of(&env, &worker, "before", json!({})).await?, Value::Null);
    fs::remove_file(&program)?;
    publish(&env, "during", json!({})).await?;
    worker.until_not_ready_for("no handler of odd.task is ready").await?;
    write()?;
    worker.until_ready().await?;
    assert_eq!(worker.until_done_with("during").await?.attempt, 1);
    eventually("the end of the deferred task", async || Ok(Seen::when(worker.done()?.len() == 2, "not yet")))
        .await?;
    worker.stop().await?;
    Ok(())
}

/// The program gets the kind of each task. A kind with a handler of its own does not go to the pattern's.
#[tokio::test]
async fn patterns_of_kinds_share_a_handler() -> Result<()> {
    let env = TestEnv::new().await?;
    let program = repository_file("tests/clients/odd_handler.py");
    let settings = format!(
        "kinds = [\"image.*\", \"mail.#\"]\ncommand = [\"python3\", {program:?}]\nprocesses = 1\nmax_attempts = 1\n\
         [handlers.\"image.own\"]\ncommand = \"echo own\"\ntransport = \"exec\""
    );
    let plan = worker_with(&env, "patterns", &settings)?;
    let plan = plan.env("GARENNE_LANES__IMAGES__BINDINGS", "image.#").env("GARENNE_UNKNOWN_KIND_WAIT", "0s");
    let worker = plan.start().await?;
    let run = async |kind: &str, body: Value| {
        env.client().publish("garenne.tasks", kind, with_id(kind), body.to_string().as_bytes()).await
    };
    for (kind, lane) in [("image.resize", "images"), ("mail", "default"), ("mail.sent.late", "default")] {
        run(kind, json!({})).await?;
        let task = worker.until_done_with(kind).await?.output["task"].clone();
        assert_eq!((&task["kind"], &task["lane"]), (&json!(kind), &json!(lane)));
    }
    run("image.own", json!({})).await?;
    assert_eq!(worker.until_done_with("image.own").await?.output, "own");
    for (kind, reason) in [("image.resize.all", "unknown-kind"), ("image.refused", "rejected")] {
        run(kind, json!({"do": "reject", "error": "no", "reason": "rejected"})).await?;
        assert_eq!(env.take_all("garenne.dead", 1).await?.remove(0).text("garenne-reason"), reason);
    }
    for (kind, tasks) in [("image.*", 2.0), ("mail.#", 2.0), ("image.own", 1.0)] {
        let counted = worker.metric("garenne_tasks_total", &[&format!("kind=\"{kind}\"")]).await?;
        assert_eq!(counted, tasks, "{kind}");
    }
    assert_eq!(worker.metric("garenne_dead_total", &["kind=\"image.*\""]).await?, 1.0);
    assert!(worker.metric("garenne_tasks_total", &["kind=\"image.resize\""]).await.is_err());
    worker.stop().await?;

    let plan = env.worker("overlapping")?.option("--handler", "image.*=true");
    let ended = plan.option("--handler", "#.resize=true").launch().await?.ended().await?;
    assert_eq!(ended.code, Some(78), "{ended:?}");
    let problem = "the patterns \"#.resize\" and \"image.*\" have a handler each, and some kinds match both";
    assert!(ended.stderr.iter().any(|line| line.contains(problem)), "{ended:?}");
    Ok(())
}

#[tokio::test]
async fn a_check_runs_a_program_through_the_protocol() -> Result<()> {
    let check = async |program: &[&str]| {
        Program::new("garenne").args(["handler", "check", "--"]).args(program).run().await
    };
    let file = |name: &str| repository_file(name).display().to_string();
    let ended = check(&["python3", &file("tests/clients/odd_handler.py")]).await?;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stdout.last().context("a summary")?, "31 cases, 0 failed");
    // It says no hello, or does not even start: one line says so.
    for (program, problem) in [
        (&["python3", file("tests/clients/publish.py").as_str()][..], "no hello: it closed descriptor 4"),
        (
            &["sh", "-c", "echo no model >&2; exit 3"],
            "no hello: it closed descriptor 4, and exited with code 3: no model",
        ),
        (&["no-such-program"], "\"no-such-program\" cannot be started: No such file or directory"),
    ] {
        let ended = check(program).await?;
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let failed = format!("FAILED  says hello within the time limit: {problem}");
        assert!(ended.stdout.len() == 2 && ended.stdout[0].starts_with(&failed), "{ended:?}");
        assert_eq!(ended.stdout[1], "31 cases, 1 failed, 30 not run: the program must load first");
    }
    // What is wrong with an answer is said as the protocol writes it.
    let confused = r#"
import json, os, struct
def send(**head):
    head = json.dumps(head).encode()
    os.write(4, struct.pack(">II", len(head), 0) + head)
send(type="hello", protocol=1)
send(type="progress", id="b", attempt=2, done=0.5)
send(type="next")
send(type="done", id="b", attempt=2)
os.read(3, 100)
"#;
    let ended = check(&["python3", "-c", confused]).await?;
    let said = [
        "FAILED  asks for a task after its hello: it does not ask for a task, it says {\"type\":\"progress\",\"id\":\"b\",\"attempt\":2,\"done\":0.5}",
        "FAILED  waits in silence without a task: it does not ask",
    ];
    for line in said {
        assert!(ended.stdout.iter().any(|it| it.starts_with(line)), "{ended:?}");
    }
    Ok(())
}

/// Programs of the SDK: a function, and coroutines of which a process runs ten at once.
#[tokio::test]
async fn a_program_of_the_python_sdk_runs_tasks() -> Result<()> {
    let env = TestEnv::new().await?;
    let program = env.folder().join("app.py");
    fs::write(
        &program,
        r#"
import asyncio
import garenne

async def run(cx, payload):
    if payload.get("hang"):
        try:
            await asyncio.sleep(600)
        finally:
            print("cleaned up after", cx.cancel_reason, flush=True)
    cx.progress(0.5)
    await asyncio.sleep(payload.get("seconds", 0))
    if payload.get("reject"):
        raise garenne.Reject("not this one")
    if payload.get("fail"):
        raise ValueError("no such \u00e9")
    return {"attempt": cx.attempt, "tenant": cx.headers.get("tenant")}

garenne.run(run, concurrency=10)
"#,
    )?;
    let path = repository_file("sdk/python/src");
    let settings = format!(
        "command = [\"python3\", {program:?}]\nprocesses = 1\nmax_attempts = 1\nenvironment = {{ PYTHONPATH = {path:?} }}"
    );
    let plan = worker_with(&env, "sdk", &settings)?
        .env("GARENNE_HARD_GRACE", "20s")
        .option("--lane", "default:prefetch=20,concurrency=10..10");
    let worker = plan.start().await?;
    // One after the other, they would take eight seconds.
    for index in 0..10 {
        publish(&env, &format!("slow-{index}"), json!({"seconds": 0.8})).await?;
    }
    let done = worker.until_done(10).await?;
    let started: BTreeSet<_> = done.iter().map(|done| &done.started_at[..17]).collect();
    assert!(started.len() <= 2, "they ran at once: {done:?}");
    for (id, body, reason, error) in [
        ("rejected", json!({"reject": true}), "rejected", "not this one"),
        ("failed", json!({"fail": true}), "attempts-exhausted", "ValueError: no such \u{e9}"),
    ] {
        publish(&env, id, body).await?;
        let dead = env.take_all("garenne.dead", 1).await?.remove(0);
        assert_eq!(dead.text("garenne-reason"), reason);
        assert!(dead.text("garenne-error").starts_with(error), "{dead:?}");
    }
    publish(&env, "hanging", json!({"hang": true})).await?;
    worker.until_holds("default", 1, 0).await?;
    env.garenne(&["task", "stop", "hanging"]).await?;
    worker.until_logged("cleaned up after stopped").await?;
    assert_eq!(env.take_all("garenne.dead", 1).await?.remove(0).text("garenne-reason"), "stopped");
    // Its process runs on.
    assert_eq!(worker.metric("garenne_handler_restarts_total", &["handler=\"odd.task\""]).await?, 0.0);
    assert_eq!(worker.stop().await?.receipt.acked, 10);
    Ok(())
}
