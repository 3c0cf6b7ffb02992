//! Messages that no Garenne program wrote, among good tasks: each is done or becomes a dead letter, and no good task
//! or worker is affected.
//!
//! The messages are written byte by byte and their dead letters are read as bytes, which lapin cannot do. A failure
//! names the messages that have no outcome, and the seed that generates the same messages again.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use garenne_protocol::task::DeadReason;
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
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

/// With at most this many waiting messages, the workers' outputs are checked.
const LAST: u64 = 20;

/// Messages that are published in one chunk.
const CHUNK: usize = 200;

/// Maximum growth of a worker's peak memory in bytes: a prefetch of the largest messages and their copies.
const MAX_MEMORY: u64 = 96 << 20;

/// A good task, or a hostile message by its index in the corpus.
enum Item {
    Good(Box<RawMessage>),
    Hostile(usize),
}

/// Publishes messages that the broker may refuse by closing the connection.
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

    /// Publishes one message and returns whether the broker stored it. If the broker cannot parse a message, it ends
    /// the connection, with or without a close method.
    async fn one(&mut self, message: &RawMessage) -> Result<bool> {
        match self.client.publish(message).await {
            Ok(Outcome::Confirmed) => Ok(true),
            Ok(Outcome::Refused) => Ok(false),
            Ok(Outcome::Closed(..)) | Err(_) => self.reconnect().await.map(|()| false),
        }
    }

    /// Publishes many messages. After a close the rest is published one by one, so a message may be stored twice.
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

    /// Publishes all items and returns the hostile ones that the broker stored. It must store every good one.
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

/// The number of the message that a text belongs to. The last mark counts, because an earlier one may be part of a
/// mutated task id.
fn number_in(text: &[u8]) -> Option<usize> {
    const PREFIX: &[u8] = b"corpus-";
    let after = |at: usize| text.get(at + PREFIX.len()..at + PREFIX.len() + messages::DIGITS);
    let number = |at: usize| std::str::from_utf8(after(at)?).ok()?.parse().ok();
    let marks = (0..text.len()).rev().filter(|&at| text[at..].starts_with(PREFIX));
    marks.filter_map(number).next()
}

/// The reason of a dead letter: the broker's if the message expired in a queue, else the worker's. Workers' copies do
/// not have the broker's header, while a message that the broker moved may have a forged header of a worker.
fn reason(letter: &Received) -> Option<&str> {
    letter.text("x-first-death-reason").or_else(|| letter.text("garenne-reason"))
}

async fn take_dead(reader: &mut RawClient, dead: &mut BTreeMap<usize, Received>) -> Result<()> {
    while let Some(letter) = reader.get("garenne.dead").await? {
        let number = number_in(&letter.body);
        let number =
            number.with_context(|| format!("a good task is a dead letter: {:?}", reason(&letter)))?;
        dead.insert(number, letter);
    }
    Ok(())
}

/// The number of ready and unacked messages in the queues of lanes, retries and quarantine.
async fn waiting(env: &TestEnv) -> Result<u64> {
    let queues = env.vhost().view().queues().await?;
    let prefixes = ["garenne.tasks.", "garenne.retry.", "garenne.quarantine"];
    let queues = queues.iter().filter(|queue| prefixes.iter().any(|name| queue.name.starts_with(name)));
    Ok(queues.map(|queue| queue.ready + queue.unacked).sum())
}

/// The ids of good tasks and the numbers of hostile messages that the workers executed.
fn executed(workers: &[Worker]) -> (BTreeSet<String>, BTreeSet<usize>) {
    let (mut good, mut hostile) = (BTreeSet::new(), BTreeSet::new());
    for line in workers.iter().flat_map(|worker| worker.process().stdout().lines()) {
        if let Some(number) = number_in(line.as_bytes()) {
            hostile.insert(number);
        } else if let Some((_, rest)) = line.split_once("\"task_id\":\"") {
            let id = rest.split_once('"').map(|(id, _)| id.to_owned());
            // Ids of valid records in hostile batches are not counted.
            good.extend(id.filter(|id| id.starts_with("good-")));
        }
    }
    (good, hostile)
}

#[tokio::test]
async fn hostile_messages_all_have_an_outcome_and_every_good_task_is_done() -> Result<()> {
    let (good, bad) = if suite::is_full() { FULL } else { SHORT };
    let mut random = StdRng::seed_from_u64(suite::seed(15)?);
    // A broker of its own: each message that crashes its channel is a report of megabytes in the broker's log, and while
    // the broker writes it, no other connection is accepted.
    let broker = Broker::start(BrokerOptions::default()).await?;
    let env = TestEnv::on(&broker).await?;
    let plan = |name: &str| -> Result<_> {
        let plan = env
            .worker(name)?
            .env("GARENNE_UNKNOWN_KIND_WAIT", "0s")
            .stdout()
            .lane("fast:prefetch=50,concurrency=2..4");
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
    eventually("every message has an outcome", async || {
        for worker in &mut workers {
            if let Err(ended) = worker.check_alive() {
                return Ok(Seen::Never(ended.to_string()));
            }
        }
        take_dead(&mut reader, &mut dead).await?;
        let left = waiting(&env).await?;
        // Reading the workers' whole output is expensive, so it starts when few messages are left.
        if left > LAST {
            return Ok(Seen::Other(format!("{left} wait, {} dead letters", dead.len())));
        }
        let (done, executed) = executed(&workers);
        let open = stored.iter().filter(|n| !dead.contains_key(n) && !executed.contains(n));
        let open: Vec<_> = open.map(|&n| format!("{n}: {}", corpus[n])).take(10).collect();
        Ok(Seen::when(
            left == 0 && done.len() == good && open.is_empty(),
            format_args!("{left} wait, {} of {good} good tasks done, no outcome: {open:#?}", done.len()),
        ))
    })
    .await?;

    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for (n, letter) in &dead {
        let what = &corpus[*n].what;
        let reason =
            reason(letter).with_context(|| format!("{n}, {what}: a dead letter without a reason"))?;
        let known = DeadReason::ALL.iter().any(|known| known.as_str() == reason);
        ensure!(
            known,
            "{n}, {what}: {reason:?} is not a known reason, {:?}",
            letter.properties().escape_ascii()
        );
        *reasons.entry(reason).or_default() += 1;
        let intact = letter.body == corpus[*n].message.body;
        ensure!(intact || corpus[*n].is_batch, "{n}, {what}: {reason}, but its body was changed");
    }
    println!("dead letters by reason: {reasons:?}");
    for ((worker, pid), before) in workers.iter().zip(pids).zip(before) {
        ensure!(worker.id() == pid, "{} was restarted", worker.name());
        let added = worker.process().peak_memory()?.saturating_sub(before);
        println!("{} needed {} MiB more than at its start", worker.name(), added >> 20);
        ensure!(added < MAX_MEMORY, "{} needed {added} bytes more", worker.name());
    }
    for worker in workers {
        let stopped = worker.stop().await?;
        ensure!(stopped.code == 0, "{:?}", stopped.receipt);
    }
    Ok(())
}
