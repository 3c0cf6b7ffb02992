//! Replies beside addresses that a publisher has made up.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::StreamExt;
use garenne_tests::harness::{client::with_id, test_env::TestEnv};
use lapin::{options::BasicConsumeOptions, types::FieldTable};
use tokio::time::timeout;

const DIRECT: &str = "amq.rabbitmq.reply-to";
/// Of each kind of message.
const TASKS: usize = 100;

/// An address as the broker writes it, of a node that does not exist. RabbitMQ 3.10 closes the connection that publishes to it.
fn forged() -> String {
    let process = [b"\x83Xv\0\x07reply@5", &[0, 0, 2, 235, 0, 0, 0, 0, 107, 11, 18, 134][..]].concat();
    format!("{}.{}", STANDARD.encode(process), STANDARD.encode([7; 16]))
}

/// Publishes healthy requests, tasks with these addresses, and tasks that become dead letters. Returns the ids of the replies
/// to the healthy requests; waits for all if `every`.
async fn replies_beside(addresses: &[String], every: bool) -> Result<usize> {
    let env = TestEnv::new().await?;
    let worker = env.worker("answering")?.stdout();
    let worker = worker.option("--max-attempts", "1").start().await?;
    let (client, channel) = (env.client(), env.client().channel());
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let mut replies = channel.basic_consume(DIRECT.into(), "".into(), options, FieldTable::default()).await?;
    for n in 0..TASKS {
        let address = format!("{DIRECT}.{}", addresses[n % addresses.len()]);
        let bad = with_id(&format!("bad-{n}")).with_reply_to(address.into());
        client.publish("garenne.tasks", "bench.noop", bad, b"{}").await?;
        let dead = with_id(&format!("dead-{n}"));
        client.publish("garenne.tasks", "bench.sleep", dead, br#"{"ms":"many"}"#).await?;
        let healthy = with_id(&format!("healthy-{n}")).with_reply_to(DIRECT.into());
        client.publish("garenne.tasks", "bench.noop", healthy, b"{}").await?;
    }
    env.until_lane("fast", 0, 0).await?;
    let mut answered = BTreeSet::new();
    while every && answered.len() < TASKS {
        let next = timeout(Duration::from_secs(20), replies.next()).await;
        let reply = next.with_context(|| format!("{} replies", answered.len()))?.context("no consumer")??;
        answered.insert(reply.properties.correlation_id().clone());
    }
    let letters = env.take_all("garenne.dead", TASKS).await?;
    let ids: BTreeSet<_> = letters.iter().map(|letter| letter.id().to_owned()).collect();
    assert_eq!(ids.len(), TASKS, "each letter once");
    env.is_empty("garenne.dead").await?;
    let reconnects = worker.metric("garenne_reconnects_total", &["role=\"publish\""]).await?;
    assert!(reconnects.abs() < f64::EPSILON, "{reconnects} connections of copies and dead letters ended");
    let ignored = worker.find_metric("garenne_headers_ignored_total", &["header=\"reply_to\""]).await?;
    worker.stop().await?;
    Ok(ignored.unwrap_or_default() as usize)
}

#[tokio::test]
async fn addresses_that_the_broker_cannot_decode_are_ignored() -> Result<()> {
    let key = STANDARD.encode([7; 16]);
    let addresses = ["x.y".to_owned(), "g1h3AA==.abc".to_owned(), format!("g1h3AA==.{key}"), String::new()];
    assert_eq!(replies_beside(&addresses, true).await?, TASKS, "all are counted");
    Ok(())
}

/// A worker cannot know which nodes exist. Replies have a connection of their own.
#[tokio::test]
async fn an_address_of_an_unknown_node_ends_no_connection_of_copies() -> Result<()> {
    // RabbitMQ 3.10 ends the connection of replies again and again, so that some requests get none.
    assert_eq!(replies_beside(&[forged()], false).await?, 0);
    Ok(())
}
