//! A lane with maps on an exchange of other programs: their messages become readings, whatever their properties say.

use std::collections::BTreeSet;

use anyhow::Result;
use garenne_tests::harness::{
    client::{headers, text},
    process::Program,
    test_env::{DELAYS, TestEnv},
};
use lapin::{
    BasicProperties, ExchangeKind,
    options::ExchangeDeclareOptions,
    types::{AMQPValue, FieldTable},
};

const LANE: [(&str, &str); 2] =
    [("GARENNE_LANES__PLANT__EXCHANGE", "plant"), ("GARENNE_LANES__PLANT__BINDINGS", "plant.#")];

#[tokio::test]
async fn messages_of_another_exchange_are_mapped_without_believing_their_properties() -> Result<()> {
    let env = TestEnv::new().await?;
    let map = env.folder().join("plant.toml");
    std::fs::write(
        &map,
        "[[map]]\nrouting_key = \"plant.+.+\"\ndevice = \"{1}\"\nmetric = \"{2}\"\nvalue = \"{/v}\"\ntime = \"{/t}\"\n",
    )?;
    let maps = map.display().to_string();
    let settings = || LANE.into_iter().chain([("GARENNE_LANES__PLANT__MAPS", maps.as_str())]);

    // The exchange belongs to someone else.
    let apply = Program::garenne(&env.vhost().amqp_url(), &["topology", "apply"]);
    let apply = settings().fold(apply, |program, (name, value)| program.env(name, value));
    let missing = apply.run().await?;
    assert_eq!(missing.code, Some(1));
    let expected = "exchange \"plant\", which lanes.*.exchange names, does not exist";
    assert!(missing.stderr.iter().any(|line| line.contains(expected)), "{:?}", missing.stderr);
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let channel = env.client().channel();
    channel.exchange_declare("plant".into(), ExchangeKind::Topic, options, FieldTable::default()).await?;
    apply.env("GARENNE_RETRY__DELAYS", DELAYS).succeed().await?;

    let plan = env.worker_at("mapping", env.worker_url())?.stdout();
    let worker = settings().fold(plan, |plan, (name, value)| plan.env(name, value)).start().await?;
    let forged = BasicProperties::default()
        .with_message_id("not-an-id-of-garenne".into())
        .with_type("bench.abort".into())
        .with_content_type("application/vnd.garenne.batch+json".into())
        .with_priority(255)
        .with_reply_to("garenne.tasks.fast".into())
        .with_timestamp(u64::MAX)
        .with_headers(headers([
            ("garenne-attempt", AMQPValue::LongUInt(4)),
            ("garenne-timeout-ms", text("soon")),
            ("garenne-group", text("")),
            ("garenne-source", text("topic:forged")),
        ]));
    let body = br#"{"v":1.5,"t":1790000000}"#;
    env.client().publish("plant", "plant.tank.level", forged.clone(), body).await?;
    // A repetition is the same reading.
    env.client().publish("plant", "plant.tank.level", BasicProperties::default(), body).await?;
    let done = worker.until_done(4).await?;
    let readings: Vec<_> = done.iter().filter(|done| done.kind == "reading.process").collect();
    assert_eq!(readings[0].output["readings"][0]["device"], "tank");
    let ids: BTreeSet<_> = readings.iter().map(|done| &done.task_id).collect();
    assert_eq!((readings.len(), ids.len()), (2, 1));

    let refused = [
        ("plant.tank", BasicProperties::default(), "unmapped", "no rule matches"),
        (
            "plant.zip.level",
            BasicProperties::default().with_content_encoding("gzip".into()),
            "unmapped",
            "\"gzip\"",
        ),
        ("plant.x.level", forged, "unmapped", "not UTF-8"),
    ];
    for (key, properties, ..) in &refused {
        env.client().publish("plant", key, properties.clone(), b"{\xff").await?;
    }
    // As a task it has no source, and runs nothing.
    let as_task = BasicProperties::default().with_type("message.map".into()).with_message_id("t".into());
    env.client().publish("garenne.tasks", "message.map", as_task, b"1").await?;
    let letters = env.take_all("garenne.dead", 4).await?;
    for (key, _, reason, error) in refused {
        let source = format!("routing-key:{key}");
        let letter = letters.iter().find(|letter| letter.text("garenne-source") == source);
        let letter = letter.unwrap_or_else(|| panic!("no letter from {source}"));
        assert_eq!(
            (letter.text("garenne-reason"), letter.text("garenne-lane")),
            (reason.into(), "plant".into())
        );
        assert!(letter.text("garenne-error").contains(error), "{}", letter.text("garenne-error"));
        assert!(!letter.has("garenne-group") && letter.body == b"{\xff");
    }
    let task = letters.iter().find(|letter| letter.id() == "t");
    assert_eq!(task.map(|letter| letter.text("garenne-reason")).as_deref(), Some("invalid-payload"));
    assert_eq!(worker.stop().await?.receipt.dead, 4);
    Ok(())
}
