//! `garenne unroutable`: the messages that no lane's bindings matched are listed, replayed once a lane takes them, or
//! dropped. None is removed that was not copied or chosen.

use anyhow::Result;
use garenne_tests::harness::{
    client::{headers, text, with_id},
    test_env::TestEnv,
};
use serde_json::{Value, json};

const UNROUTABLE: &str = "garenne.unroutable";
/// A fleet without a catch-all lane.
const STRICT: &str = "[lanes.default]\ncatch_all = false\n";
/// The same with a lane for the kinds that were unroutable.
const WITH_LANE: &str = "[lanes.default]\ncatch_all = false\n\n[lanes.imports]\nbindings = [\"import.#\"]\n";

/// Writes settings and applies their topology. Returns the file's path.
async fn apply(env: &TestEnv, name: &str, settings: &str) -> Result<String> {
    let path = env.folder().join(name);
    std::fs::write(&path, settings)?;
    let path = path.display().to_string();
    env.garenne(&["topology", "apply", "--config", &path]).await?;
    Ok(path)
}

/// Publishes messages `prefix-0` to `prefix-<count - 1>` of a kind.
async fn publish(env: &TestEnv, kind: &str, prefix: &str, count: usize) -> Result<()> {
    for n in 0..count {
        let group = headers([("garenne-group", text("import-7"))]);
        let properties = with_id(&format!("{prefix}-{n}")).with_headers(group);
        env.client().publish("garenne.tasks", kind, properties, b"{\"n\":1}").await?;
    }
    Ok(())
}

#[tokio::test]
async fn unroutable_messages_are_listed_and_replayed_once_a_lane_takes_them() -> Result<()> {
    let env = TestEnv::new().await?;
    let strict = apply(&env, "strict.toml", STRICT).await?;
    publish(&env, "import.csv", "csv", 30).await?;
    publish(&env, "other.kind", "other", 5).await?;
    env.until_ready_in(UNROUTABLE, 35).await?;

    let listed = env.garenne(&["unroutable", "list", "--json", "--kind", "import.#"]).await?;
    assert_eq!((listed.code, listed.stdout.len()), (Some(0), 30), "{:?}", listed.stderr);
    let first: Value = serde_json::from_str(&listed.stdout[0])?;
    let expected = json!({"id": "csv-0", "kind": "import.csv", "group": "import-7", "routing_key": "import.csv",
               "published_at": null, "bytes": 7});
    assert_eq!(first, expected);
    let text = env.garenne(&["unroutable", "list", "--limit", "2"]).await?.stdout.join("\n");
    assert!(text.contains("35 of 35 unroutable messages, showing the newest 2"), "{text}");
    assert!(text.contains("30 import.csv, 5 other.kind"), "{text}");

    // No lane of the fleet takes them: they would return.
    let replay = ["unroutable", "replay", "--kind", "import.#", "--config"];
    let refused = env.try_garenne(&[&replay[..], &[&strict]].concat()).await?;
    assert_eq!(refused.stdout, ["replayed 0 of 35 unroutable messages"]);
    let reason =
        "30 not replayed: no lane of the settings (--config) takes the routing key \"import.csv\": csv-";
    assert!(refused.code == Some(1) && refused.stderr[0].starts_with(reason), "{refused:?}");
    env.until_ready_in(UNROUTABLE, 35).await?;

    let with_lane = apply(&env, "with_lane.toml", WITH_LANE).await?;
    let dry = env.garenne(&[&replay[..], &[&with_lane, "--dry-run"]].concat()).await?;
    assert_eq!(dry.stderr, ["dry run: 30 would be replayed"]);
    let replayed = env.garenne(&[&replay[..], &[&with_lane]].concat()).await?;
    assert_eq!(
        (replayed.code, replayed.stdout.len(), replayed.stderr.len()),
        (Some(0), 1, 0),
        "{replayed:?}"
    );
    assert_eq!(replayed.stdout, ["replayed 30 of 35 unroutable messages"]);
    let mut tasks = env.take_all("garenne.tasks.imports", 30).await?;
    tasks.sort_by_key(|task| task.id().trim_start_matches("csv-").parse().unwrap_or(usize::MAX));
    for (n, task) in tasks.iter().enumerate() {
        assert_eq!((task.id(), task.exchange.as_str()), (format!("csv-{n}").as_str(), "garenne.tasks"));
        assert_eq!(
            (task.text("garenne-group").as_str(), task.body.as_slice()),
            ("import-7", &b"{\"n\":1}"[..])
        );
    }
    env.until_ready_in(UNROUTABLE, 5).await
}

#[tokio::test]
async fn unroutable_messages_are_dropped_only_by_an_explicit_selection() -> Result<()> {
    let env = TestEnv::new().await?;
    apply(&env, "strict.toml", STRICT).await?;
    publish(&env, "import.csv", "csv", 8).await?;
    // A publisher chooses kinds: this one looks like a pattern.
    publish(&env, "import.#", "pattern", 2).await?;
    env.until_ready_in(UNROUTABLE, 10).await?;
    let nothing = "garenne: no unroutable messages are selected: set --kind, --exact-kind, --group, --older-than, \
                   --newer-than, --id or --all";
    for (arguments, error) in [
        (&["drop", "--yes"][..], nothing),
        (&["replay"], nothing),
        (
            &["drop", "--all"],
            "garenne: drop removes unroutable messages permanently: check with --dry-run, then repeat with --yes",
        ),
    ] {
        let ended = env.try_garenne(&[&["unroutable"], arguments].concat()).await?;
        assert_eq!((ended.code, ended.stderr), (Some(2), vec![error.to_owned()]), "{arguments:?}");
    }
    let drop = async |selection: &[&str]| -> Result<String> {
        let ended = env.garenne(&[&["unroutable", "drop", "--yes"], selection].concat()).await?;
        Ok(ended.stdout.join("\n"))
    };
    assert_eq!(drop(&["--exact-kind", "import.#"]).await?, "dropped 2 of 10 unroutable messages");
    assert_eq!(drop(&["--id", "csv-3"]).await?, "dropped 1 of 8 unroutable messages");
    assert_eq!(drop(&["--group", "import-8"]).await?, "dropped 0 of 7 unroutable messages");
    assert_eq!(drop(&["--all"]).await?, "dropped 7 of 7 unroutable messages");
    env.is_empty(UNROUTABLE).await
}
