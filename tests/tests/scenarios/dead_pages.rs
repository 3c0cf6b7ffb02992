//! Lists of dead letters: the newest first, page by page, whatever their number.

use anyhow::{Context, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use garenne_tests::harness::{
    client::{headers, text, with_id},
    dashboard::Dashboard,
    test_env::TestEnv,
};
use lapin::types::AMQPValue;
use reqwest::StatusCode;
use serde_json::{Value, json};

const DEAD: &str = "garenne.dead";

/// Publishes dead letters `letter-0` to `letter-<count - 1>`, the last one the newest. Every second one is of a group.
async fn publish(env: &TestEnv, count: usize) -> Result<()> {
    let letter = |n: usize| {
        let group = if n.is_multiple_of(2) { "even" } else { "odd" };
        with_id(&format!("letter-{n}")).with_type("bench.noop".into()).with_delivery_mode(2).with_headers(
            headers([
                ("garenne-reason", text("rejected")),
                ("garenne-group", text(group)),
                (
                    "garenne-died-at",
                    AMQPValue::LongLongInt(1_700_000_000_000 + i64::try_from(n).unwrap_or(0)),
                ),
            ]),
        )
    };
    stream::iter(0..count)
        .map(|n| env.client().publish("", DEAD, letter(n), b"{}"))
        .buffered(500)
        .try_collect()
        .await
}

fn ids(page: &Value) -> Vec<&str> {
    page["letters"].as_array().into_iter().flatten().filter_map(|letter| letter["id"].as_str()).collect()
}

#[tokio::test]
async fn the_page_shows_the_newest_of_ten_thousand_letters_first() -> Result<()> {
    let env = TestEnv::new().await?;
    env.worker("declares")?.start().await?.stop().await?;
    publish(&env, 10_000).await?;
    env.until_ready_in(DEAD, 10_000).await?;
    let dashboard = Dashboard::start(&env).await?;
    for (number, newest, oldest) in [(1, 9_999, 9_900), (2, 9_899, 9_800), (100, 99, 0)] {
        let page = dashboard.json(&format!("/api/dead?page={number}")).await?;
        let listed = ids(&page);
        assert_eq!((&page["read"], &page["pages"]), (&json!(10_000), &json!(100)));
        assert_eq!(listed.first().context("no letter")?, &format!("letter-{newest}"), "page {number}");
        assert_eq!(listed.last().context("no letter")?, &format!("letter-{oldest}"), "page {number}");
        let error = &page["errors"][0];
        assert_eq!((&error["kind"], &error["reason"]), (&json!("bench.noop"), &json!("rejected")));
        assert_eq!(
            (&error["error"], &error["count"], &page["matched"]),
            (&json!(""), &json!(10_000), &json!(10_000))
        );
        assert!(error["oldest"].as_str() < error["newest"].as_str(), "{error}");
    }
    for refused in ["0", "101", "x"] {
        let answer = dashboard.get(&format!("/api/dead?page={refused}")).await?;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{refused}");
    }
    let odd = dashboard.json("/api/dead?group=odd&text=LETTER-99&page=1").await?;
    assert_eq!((&odd["matched"], &odd["read"]), (&json!(56), &json!(10_000)));
    assert_eq!(ids(&odd)[..2], ["letter-9999", "letter-9997"]);
    for refused in ["reason=none", "errors=x"] {
        let answer = dashboard.get(&format!("/api/dead?{refused}")).await?;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{refused}");
    }
    dashboard.stop().await?;

    let list = async |arguments: &[&str]| -> Result<Vec<String>> {
        let ended = env.garenne(&[&["dead", "list"], arguments].concat()).await?;
        Ok(ended.stdout)
    };
    // The newest last: a terminal shows the end.
    let text = list(&["--limit", "2", "--page", "2"]).await?;
    assert!(text[1].starts_with("letter-9996 ") && text[2].starts_with("letter-9997 "), "{text:?}");
    assert!(text[4].starts_with("10,000 of 10,000 dead letters, page 2 of 5,000: "), "{text:?}");
    assert_eq!(list(&["--json"]).await?.len(), 10_000);
    let odd = list(&["--group", "odd", "--limit", "1", "--json"]).await?;
    assert!(odd.len() == 1 && odd[0].contains("\"letter-9999\""), "{odd:?}");
    // All of that removed nothing.
    env.until_ready_in(DEAD, 10_000).await
}

#[tokio::test]
async fn looking_at_a_letter_does_not_change_what_is_shown() -> Result<()> {
    let env = TestEnv::new().await?;
    let worker = env.worker("w")?.option("--max-attempts", "2").start().await?;
    env.publish("bench.fail", &json!({"times": 9}), "failing", 1).await?;
    env.publish("bench.sleep", &json!({"ms": "many"}), "invalid", 1).await?;
    env.until_ready_in(DEAD, 2).await?;
    let show = async |id: &str| -> Result<Value> {
        let ended = env.garenne(&["dead", "show", id, "--json"]).await?;
        Ok(serde_json::from_str(&ended.stdout.join("\n"))?)
    };
    let first = show("failing-0").await?;
    assert_eq!(first["attempts"], 2);
    assert!(first["first_seen"].as_str() < first["died_at"].as_str(), "{first}");
    let invalid = show("invalid-0").await?;
    assert_eq!(invalid["attempts"], 1, "an attempt that is rejected counts");
    for _ in 0..3 {
        assert_eq!(env.garenne(&["dead", "list"]).await?.code, Some(0));
    }
    let again = show("failing-0").await?;
    assert_eq!(again, first);
    for count in ["x-delivery-count", "x-acquired-count"] {
        assert!(again["headers"].get(count).is_none(), "{again}");
    }
    worker.stop().await?;
    Ok(())
}
