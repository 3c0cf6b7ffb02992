//! Foreign ids, kinds, headers and payloads cannot control the operator's terminal.

use anyhow::{Context, Result};
use garenne_tests::harness::{
    client::{headers, text, with_id},
    process::Ended,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::{Value, json};

/// Sets the window's title, clears the screen, clears it with an 8-bit control, and reverses the text direction.
const HOSTILE: &str = "\x1b]0;owned\x07\x1b[2J\u{9b}2J\u{202e}";
/// The same text as it must be displayed.
const SHOWN: &str = r"\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}2J\u{202e}";

/// Whether the lines contain no control or hidden characters.
fn is_escaped(lines: &[String]) -> bool {
    let bad = |it: char| {
        it.is_control()
            || matches!(it, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    !lines.iter().any(|line| line.contains(bad))
}

/// Runs the console and checks that its output is escaped.
async fn escaped(env: &TestEnv, arguments: &[&str]) -> Result<Ended> {
    let ended = env.try_garenne(arguments).await?;
    assert!(is_escaped(&ended.stdout) && is_escaped(&ended.stderr), "{arguments:?}: {ended:?}");
    Ok(ended)
}

#[tokio::test]
async fn hostile_ids_kinds_and_headers_are_shown_escaped() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("w")?.stdout().start().await?;
    let publish = async |properties, body: Value| {
        env.client().publish("garenne.tasks", "bench.sleep", properties, body.to_string().as_bytes()).await
    };
    let id = format!("id{HOSTILE}");
    let marked = headers([("x-note\u{9b}", text(HOSTILE)), ("garenne-group", text(HOSTILE))]);
    publish(with_id(&id).with_headers(marked.clone()), json!({"ms": HOSTILE})).await?;
    publish(with_id("kind").with_type(format!("bench.{HOSTILE}").into()), json!({"ms": 1})).await?;
    publish(with_id("payload").with_headers(marked), json!({"ms": HOSTILE})).await?;
    // An id with a hidden character that is no control character is valid.
    publish(with_id("turned\u{202e}exe.gnp"), json!({"ms": 600_000})).await?;
    env.until_ready_in("garenne.dead", 3).await?;
    worker.until_holds("fast", 1, 0).await?;

    let listed = escaped(&env, &["dead", "list"]).await?.stdout.join("\n");
    for part in [format!("id{SHOWN}"), format!("bench.{SHOWN}")] {
        assert!(listed.contains(&part), "{part} in {listed}");
    }
    // The id is accepted as it is and as it is displayed.
    for given in [&id, &format!("id{SHOWN}")] {
        let shown = escaped(&env, &["dead", "show", given]).await?;
        assert_eq!(shown.code, Some(0), "{shown:?}");
        let shown = shown.stdout.join("\n");
        assert!(shown.contains(&format!("id           id{SHOWN}\n")), "{shown}");
        assert!(shown.contains(r"x-note\u{9b} = "), "{shown}");
    }
    assert_eq!(escaped(&env, &["dead", "show", HOSTILE]).await?.code, Some(1));
    escaped(&env, &["dead", "show", "payload", "kind"]).await?;
    // JSON contains the exact text.
    let exact = escaped(&env, &["dead", "show", &id, "--json"]).await?;
    let exact: Value = serde_json::from_str(&exact.stdout[0])?;
    assert_eq!((&exact["id"], &exact["headers"]["x-note\u{9b}"]), (&json!(id), &json!(HOSTILE)));
    assert_eq!(exact["body"]["ms"], HOSTILE);
    for line in escaped(&env, &["dead", "list", "--json"]).await?.stdout {
        serde_json::from_str::<Value>(&line).context(line)?;
    }

    // A worker that is asked for its tasks has a second to answer.
    eventually("status shows the task", async || {
        let status = escaped(&env, &["status"]).await?.stdout.join("\n");
        Ok(Seen::when(status.contains(r"turned\u{202e}exe.gnp"), status))
    })
    .await?;
    eventually("status has the task's exact id", async || {
        let status = escaped(&env, &["status", "--json"]).await?.stdout.join("\n");
        let status: Value = serde_json::from_str(&status)?;
        Ok(Seen::when(status["workers"][0]["tasks"][0]["id"] == "turned\u{202e}exe.gnp", status))
    })
    .await?;

    let dropped = escaped(&env, &["dead", "drop", "--id", &format!("id{SHOWN}"), "--yes"]).await?;
    assert_eq!(dropped.stdout, ["dropped 1 of 3 dead letters"]);
    let log = worker.process().stderr().lines();
    assert!(is_escaped(&log), "{log:?}");
    assert!(log.iter().any(|line| line.contains(r"\u{1b}")), "{log:?}");
    worker.kill().await?;
    Ok(())
}
