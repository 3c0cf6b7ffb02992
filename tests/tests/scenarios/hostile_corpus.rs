//! Messages that no program of ours wrote, among good tasks: each ends, and takes nothing else down.
//!
//! The messages are written byte by byte and their dead letters are read as bytes: lapin can do neither. A
//! failure names the messages without an end, and the seed that makes the same ones again.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use garenne_protocol::task::DeadReason;
use garenne_tests::harness::{
    raw_amqp::{Outcome, RawClient, RawMessage, Received},
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::Worker,
};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::json;

mod messages;

use messages::{Hostile, hostile};

/// Good tasks and hostile messages, in the full suite and otherwise.
const FULL: (usize, usize) = (20_000, 10_000);
const SHORT: (usize, usize) = (1_400, 700);

/// Messages that wait, from which on the end is near.
const LAST: u64 = 20;

/// Messages that are published at a time.
const CHUNK: usize = 200;

/// What the corpus may add to a worker's peak, bytes: a prefetch full of the largest messages, with their copies.
const MAX_MEMORY: u64 = 96 << 20;

/// What is published: a good task, or a hostile message by its place in the corpus.
enum Item {
    Good(Box<RawMessage>),
    Hostile(usize),
}

/// Publishes what the broker may refuse by closing the connection.
struct Publisher {
    url: String,
    client: RawClient,
    /// Connections that the broker closed.
    closed: usize,
}

impl Publisher {
    async fn connect(url: String) -> Result<Self> {
        Ok(Self { client: RawClient::connect(&url).await?, url, closed: 0 })
    }

    async fn reconnect(&mut self) -> Result<()> {
        self.client = RawClient::connect(&self.url).await?;
        self.closed += 1;
        Ok(())
    }

    /// Whether the broker stored it. What it cannot read ends the connection, with or without a close.
    async fn one(&mut self, message: &RawMessage) -> Result<bool> {
        match self.client.publish(message).await {
            Ok(Outcome::Confirmed) => Ok(true),
            Ok(Outcome::Refused) => Ok(false),
            Ok(Outcome::Closed(..)) | Err(_) => self.reconnect().await.map(|()| false),
        }
    }

    /// The same for many. After a close the rest is published one by one, so a message may be stored twice.
    async fn many(&mut self, messages: &[RawMessage]) -> Result<Vec<bool>> {
        let outcomes = self.client.publish_all(messages).await?;
        let mut stored: Vec<_> = outcomes
            .iter()
            .take_while(|outcome| !matches!(outcome, Outcome::Closed(..)))
            .map(|outcome| *outcome == Outcome::Confirmed)
            .collect();
        if stored.len() < messages.len() {
            self.reconnect().await?;
            for message in &messages[stored.len()..] {
                stored.push(self.one(message).await?);
            }
        }
        Ok(stored)
    }

    /// Publishes all and answers which hostile ones the broker stored. Good ones it must store.
    async fn all(&mut self, items: &[Item], corpus: &[Hostile]) -> Result<BTreeSet<usize>> {
        let mut stored = BTreeSet::new();
        for chunk in items.chunks(CHUNK) {
            let (mut safe, mut numbers) = (Vec::new(), Vec::new());
            for item in chunk {
                match item {
                    Item::Good(task) => {
                        safe.push(RawMessage::clone(task));
                        numbers.push(None);
                    }
                    Item::Hostile(n) if corpus[*n].may_close => {
                        if self.one(&corpus[*n].message).await? {
                            stored.insert(*n);
                        }
                    }
                    Item::Hostile(n) => {
                        safe.push(corpus[*n].message.clone());
                        numbers.push(Some(*n));
                    }
                }
            }
            for (number, kept) in numbers.into_iter().zip(self.many(&safe).await?) {
                match number {
                    None => ensure!(kept, "a good task was not stored"),
                    Some(n) if kept => drop(stored.insert(n)),
                    Some(_) => {}
                }
            }
        }
        Ok(stored)
    }
}

/// The message that a text belongs to, by the last mark in it: one before that may be a mutated task id.
fn number_in(text: &[u8]) -> Option<usize> {
    const BEFORE: &[u8] = b"corpus-";
    let after = |at: usize| text.get(at + BEFORE.len()..at + BEFORE.len() + messages::DIGITS);
    let number = |at: usize| std::str::from_utf8(after(at)?).ok()?.parse().ok();
    let marks = (0..text.len()).rev().filter(|&at| text[at..].starts_with(BEFORE));
    marks.filter_map(number).next()
}

/// Why a letter is dead: the broker's word where a message's time was up in a queue, else the worker's. Copies of
/// workers do not have the broker's, and what the broker moved may have a forged one of a worker.
fn reason(letter: &Received) -> Option<&str> {
    letter.text("x-first-death-reason").or_else(|| letter.text("garenne-reason"))
}

async fn take_dead(reader: &mut RawClient, dead: &mut BTreeMap<usize, Received>) -> Result<()> {
    while let Some(letter) = reader.get("garenne.dead").await? {
        let number = number_in(&letter.body);
        let number = number.with_context(|| format!("a good task is dead: {:?}", reason(&letter)))?;
        dead.insert(number, letter);
    }
    Ok(())
}

/// Messages that are ready or unacked in any queue in which a task waits for its turn.
async fn waiting(env: &TestEnv) -> Result<u64> {
    let queues = env.vhost().view().queues().await?;
    let before = ["garenne.tasks.", "garenne.retry.", "garenne.quarantine"];
    let queues = queues.iter().filter(|queue| before.iter().any(|name| queue.name.starts_with(name)));
    Ok(queues.map(|queue| queue.ready + queue.unacked).sum())
}

fn outcomes(workers: &[Worker]) -> (BTreeSet<String>, BTreeSet<usize>) {
    let (mut good, mut hostile) = (BTreeSet::new(), BTreeSet::new());
    for line in workers.iter().flat_map(|worker| worker.process().stdout().lines()) {
        if let Some(number) = number_in(line.as_bytes()) {
            hostile.insert(number);
        } else if let Some((_, rest)) = line.split_once("\"task_id\":\"") {
            let id = rest.split_once('"').map(|(id, _)| id.to_owned());
            // A record of a hostile batch may be fine.
            good.extend(id.filter(|id| id.starts_with("good-")));
        }
    }
    (good, hostile)
}

#[tokio::test]
async fn hostile_messages_end_and_all_good_tasks_are_done() -> Result<()> {
    let (good, bad) = if suite::is_full() { FULL } else { SHORT };
    let mut random = StdRng::seed_from_u64(suite::seed(15)?);
    let env = TestEnv::new().await?;
    let plan = |name: &str| -> Result<_> {
        let plan = env.worker(name)?.stdout().lane("fast:prefetch=50,concurrency=2..4");
        Ok(plan.option("--max-attempts", "2"))
    };
    let mut workers = Vec::new();
    for name in ["a", "b", "c"] {
        workers.push(plan(name)?.start().await?);
    }
    let pids: Vec<_> = workers.iter().map(Worker::id).collect();
    let before = workers.iter().map(|worker| worker.process().peak_memory()).collect::<Result<Vec<_>>>()?;

    let mut publisher = Publisher::connect(env.vhost().amqp_url()).await?;
    let frame_max = publisher.client.frame_max();
    let corpus: Vec<_> = (0..bad).map(|n| hostile(&mut random, n, frame_max)).collect();
    let tasks = (0..good).map(|n| {
        let body = json!({ "n": n }).to_string();
        Item::Good(Box::new(RawMessage::task("bench.echo", format!("good-{n}"), body)))
    });
    let mut items: Vec<_> = tasks.chain((0..bad).map(Item::Hostile)).collect();
    items.shuffle(&mut random);
    let stored = publisher.all(&items, &corpus).await?;
    println!("the broker stored {} of {bad} and closed {} connections", stored.len(), publisher.closed);
    // 3.10 refuses a fifth of them, later brokers less.
    ensure!(stored.len() * 10 > bad * 7, "only {} of {bad} were stored", stored.len());

    let mut reader = RawClient::connect(&env.vhost().amqp_url()).await?;
    let mut dead = BTreeMap::new();
    eventually("every message has an end", async || {
        for worker in &mut workers {
            if let Err(ended) = worker.check_alive() {
                return Ok(Seen::Never(ended.to_string()));
            }
        }
        take_dead(&mut reader, &mut dead).await?;
        let left = waiting(&env).await?;
        // What was done is read from all that the workers wrote: late, and then each time.
        if left > LAST {
            return Ok(Seen::Other(format!("{left} wait, {} are dead", dead.len())));
        }
        let (done, executed) = outcomes(&workers);
        let open = stored.iter().filter(|n| !dead.contains_key(n) && !executed.contains(n));
        let open: Vec<_> = open.map(|&n| format!("{n}: {}", corpus[n])).take(10).collect();
        Ok(Seen::when(
            left == 0 && done.len() == good && open.is_empty(),
            format_args!("{left} wait, {} of {good} good tasks done, without an end: {open:#?}", done.len()),
        ))
    })
    .await?;

    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for (n, letter) in &dead {
        let what = &corpus[*n].what;
        let reason =
            reason(letter).with_context(|| format!("{n}, {what}: a dead letter without a reason"))?;
        let known = DeadReason::ALL.iter().any(|known| known.as_str() == reason);
        ensure!(known, "{n}, {what}: {reason:?} is no reason, {:?}", letter.properties().escape_ascii());
        *reasons.entry(reason).or_default() += 1;
        let intact = letter.body == corpus[*n].message.body;
        ensure!(intact || corpus[*n].is_batch, "{n}, {what}: {reason}, and its body was changed");
    }
    println!("dead letters by reason: {reasons:?}");
    for ((worker, pid), before) in workers.iter().zip(pids).zip(before) {
        ensure!(worker.id() == pid, "{} is another process", worker.name());
        let added = worker.process().peak_memory()?.saturating_sub(before);
        println!("{} took {} MiB more than at its start", worker.name(), added >> 20);
        ensure!(added < MAX_MEMORY, "{} took {added} bytes more", worker.name());
    }
    for worker in workers {
        let stopped = worker.stop().await?;
        ensure!(stopped.code == 0, "{:?}", stopped.receipt);
    }
    Ok(())
}
