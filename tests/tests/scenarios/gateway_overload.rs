//! Senders offer more than the lane's queue accepts. Each refused reading gets an error, each reading with a receipt
//! is stored, and the gateway's memory stays bounded.

use std::{collections::BTreeSet, fs, time::Duration};

use anyhow::{Context, Result, ensure};
use garenne_tests::harness::{
    gateway::{Gateway, GatewayPlan},
    test_env::TestEnv,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    sync::watch,
    time::timeout,
};

/// Connections that send lines without waiting for answers, and lines per connection.
const LINES: (usize, usize) = (8, 2_000);
/// Connections that post one request after the other, and requests per connection.
const POSTS: (usize, usize) = (4, 100);
/// Maximum length of the queue.
const MAX_LENGTH: u64 = 5;
/// Maximum growth of the gateway's resident memory, MB. A debug build that buffered everything would need several
/// times that.
const MAX_GROWTH_MB: u64 = 64;

#[derive(Debug, Default)]
struct Answers {
    receipts: BTreeSet<String>,
    refused: usize,
}

fn reading(sender: usize, n: usize) -> String {
    let time = 1_790_000_000 + n;
    json!({"device": format!("d{sender}"), "metric": "m", "value": n, "time": time}).to_string()
}

/// Sends lines as fast as the gateway reads them, and reads the answers meanwhile: one per line.
async fn send_lines(gateway: &Gateway, sender: usize) -> Result<Answers> {
    let (reader, mut writer) = TcpStream::connect(gateway.address()).await?.into_split();
    let sending = async {
        for n in 0..LINES.1 {
            writer.write_all(format!("{}\n", reading(sender, n)).as_bytes()).await?;
        }
        writer.shutdown().await?;
        anyhow::Ok(())
    };
    let listening = async {
        let mut answers = Answers::default();
        let mut lines = BufReader::new(reader).lines();
        while let Some(line) = lines.next_line().await? {
            match line.strip_prefix("ok ") {
                Some(id) => drop(answers.receipts.insert(id.to_owned())),
                None => {
                    ensure!(line.starts_with("error busy "), "{line}");
                    answers.refused += 1;
                }
            }
        }
        Ok(answers)
    };
    let ((), answers) = tokio::try_join!(sending, listening)?;
    ensure!(answers.receipts.len() + answers.refused == LINES.1, "a line has no answer");
    Ok(answers)
}

async fn send_requests(gateway: &Gateway, sender: usize) -> Result<Answers> {
    let mut answers = Answers::default();
    for n in 0..POSTS.1 {
        let answer = gateway.post("/v1/readings", "application/json", reading(100 + sender, n)).await?;
        match answer.status {
            202 => answers.receipts.extend(answer.ids()?),
            _ => {
                ensure!((answer.status, answer.retry_after) == (503, Some(1)), "{answer:?}");
                answers.refused += 1;
            }
        }
    }
    Ok(answers)
}

/// Takes messages from the queue, slower than readings are sent, until all senders are done and the queue is empty.
async fn take_slowly(env: &TestEnv, mut over: watch::Receiver<bool>) -> Result<BTreeSet<String>> {
    let mut kept = BTreeSet::new();
    loop {
        let last = *over.borrow();
        match env.client().take("garenne.tasks.fast").await? {
            Some(taken) if taken.properties.kind().is_some() && taken.body.starts_with(b"[") => {
                let records: Vec<Value> = serde_json::from_slice(&taken.body)?;
                kept.extend(records.iter().filter_map(|record| record["id"].as_str().map(str::to_owned)));
            }
            Some(taken) => drop(kept.insert(taken.id().to_owned())),
            None if last => return Ok(kept),
            None => {}
        }
        // This pause sets the consumer's rate; it does not wait for an event.
        let _ = timeout(Duration::from_millis(200), over.wait_for(|over| *over)).await;
    }
}

fn resident_mb(pid: u32) -> Result<u64> {
    let pages = fs::read_to_string(format!("/proc/{pid}/statm"))?;
    let pages: u64 = pages.split(' ').nth(1).context("a number of pages")?.parse()?;
    Ok((pages * 4096) >> 20)
}

#[tokio::test]
async fn gateway_overload_is_refused_with_errors_and_every_receipt_is_kept() -> Result<()> {
    let env = TestEnv::new().await?;
    let gateway = GatewayPlan::new(&env)?.start().await?;
    let policy = ["policies", env.vhost().name(), "small"];
    let small = json!({
        "pattern": "^garenne[.]tasks[.]fast$", "apply-to": "queues", "definition": { "max-length": MAX_LENGTH },
    });
    env.vhost().broker().management().put(&policy, &small).await?;
    let before = resident_mb(gateway.process().id())?;
    let (over, is_over) = watch::channel(false);
    let sending = async {
        let lines = futures_util::future::try_join_all((0..LINES.0).map(|n| send_lines(&gateway, n)));
        let posts = futures_util::future::try_join_all((0..POSTS.0).map(|n| send_requests(&gateway, n)));
        let answers = tokio::try_join!(lines, posts);
        // After an error too, otherwise the consumer would never end.
        over.send_replace(true);
        answers
    };
    let (answers, kept) = tokio::join!(sending, take_slowly(&env, is_over));
    let ((lines, posts), kept) = (answers?, kept?);
    let grown = resident_mb(gateway.process().id())?.saturating_sub(before);
    let count = |all: &[Answers]| {
        let (receipts, refused) = (all.iter().map(|it| it.receipts.len()), all.iter().map(|it| it.refused));
        (receipts.sum::<usize>(), refused.sum::<usize>())
    };
    println!("lines {:?}, requests {:?} (receipts, refused); {grown} MB more", count(&lines), count(&posts));
    let receipted: BTreeSet<_> = lines.iter().chain(&posts).flat_map(|it| it.receipts.iter()).collect();
    ensure!(
        count(&lines).0 > 0 && count(&lines).1 > 0,
        "nothing was refused, or nothing accepted: {:?}",
        count(&lines)
    );
    let missing = receipted.iter().filter(|id| !kept.contains(**id)).count();
    assert_eq!(missing, 0, "readings with a receipt are not stored");
    ensure!(grown < MAX_GROWTH_MB, "{grown} MB more than before");
    gateway.stop().await?;
    Ok(())
}
