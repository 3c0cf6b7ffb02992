//! The simulated broker of `tests/simulation` against a real one: the same operations, awaited one by one, have the same
//! outcomes.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt;
use garenne_protocol::{
    task::header,
    topology::{Arg, BrokerVersion, Queue, Topology},
};
use garenne_simulation::{
    Answer, ChannelId, ConnectionId, ConsumeOptions, ConsumerId, Event, OwnerId, Publish, Random, Role,
    SimBroker, Timings,
};
use garenne_tests::harness::{client::with_id, suite, test_env::TestEnv, wait::WAIT_TIMEOUT};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicNackOptions,
        BasicQosOptions, BasicRejectOptions, QueueDeleteOptions,
    },
    types::{AMQPValue, FieldTable},
};
use tokio::{sync::mpsc, time::timeout};

use super::missing_queues::declare;

const CLIENTS: usize = 3;
const OPERATIONS: usize = 40;
const DELAY: i64 = 100;

/// What one of the clients does.
#[derive(Clone, Debug)]
enum Operation {
    Publish {
        queue: String,
        id: String,
    },
    Consume {
        queue: String,
    },
    Cancel,
    Get {
        queue: String,
    },
    Ack {
        tag: u64,
        multiple: bool,
    },
    Nack {
        tag: u64,
        multiple: bool,
        requeue: bool,
    },
    Reject {
        tag: u64,
        requeue: bool,
    },
    /// Closes the channel and opens another one.
    Reopen {
        prefetch: u16,
    },
    /// Closes the connection and opens another one.
    Reconnect {
        prefetch: u16,
    },
}

/// A queue of tasks, whose dead letters go to another one, and a queue that delays tasks.
struct Queues {
    work: String,
    dead: String,
    delay: String,
}

impl Queues {
    fn new(seed: u64) -> Self {
        let name = |queue| format!("{queue}-{seed}");
        Self { work: name("work"), dead: name("dead"), delay: name("delay") }
    }

    fn names(&self) -> [&String; 3] {
        [&self.work, &self.dead, &self.delay]
    }

    fn declarations(&self, limit: Option<i64>) -> Vec<Queue> {
        let text = |text: &str| Arg::Text(text.to_owned());
        let quorum = ("x-queue-type", text("quorum"));
        let dead_letters_to = |queue: &str| {
            [
                ("x-dead-letter-exchange", text("")),
                ("x-dead-letter-routing-key", text(queue)),
                ("x-dead-letter-strategy", text("at-least-once")),
                ("x-overflow", text("reject-publish")),
            ]
        };
        let mut work = BTreeMap::from(dead_letters_to(&self.dead));
        work.extend(limit.map(|limit| ("x-delivery-limit", Arg::Number(limit))));
        let mut delay = BTreeMap::from(dead_letters_to(&self.work));
        delay.insert("x-message-ttl", Arg::Number(DELAY));
        let named = |name: &str, mut arguments: BTreeMap<_, _>| {
            arguments.extend([quorum.clone()]);
            Queue { name: name.to_owned(), arguments }
        };
        vec![named(&self.work, work), named(&self.dead, BTreeMap::new()), named(&self.delay, delay)]
    }
}

/// A client of the simulated broker, and what it knows.
struct SimClient {
    connection: ConnectionId,
    channel: ChannelId,
    consumer: Option<ConsumerId>,
    unacked: Vec<u64>,
    /// How many consumers the channel has had, each `basic.get` included.
    consumers: usize,
}

impl SimClient {
    fn connect(broker: &mut SimBroker, owner: OwnerId, prefetch: u16) -> Self {
        let connection = broker.connect(owner).expect("the broker is up");
        let channel = broker.open_channel(connection, prefetch).expect("the connection is open");
        Self { connection, channel, consumer: None, unacked: Vec::new(), consumers: 0 }
    }
}

struct Simulated {
    broker: SimBroker,
    now: Duration,
    owner: OwnerId,
    publisher: ChannelId,
    clients: Vec<SimClient>,
}

impl Simulated {
    fn new(version: BrokerVersion, seed: u64, queues: Vec<Queue>) -> Self {
        // On an idle broker, dead letters keep their order.
        let transfer = Duration::from_millis(1);
        let timings = Timings { dead_letter: transfer..=transfer, ..Timings::default() };
        let mut broker = SimBroker::new(version, seed, timings);
        broker.declare(&Topology {
            exchanges: Vec::new(),
            queues,
            routes: Vec::new(),
            leftovers: Vec::new(),
            former_rungs: Vec::new(),
        });
        let publisher = broker.add_owner("publisher", Role::Publisher);
        let owner = broker.add_owner("clients", Role::Worker);
        let publisher = SimClient::connect(&mut broker, publisher, 0).channel;
        let clients = (0..CLIENTS).map(|_| SimClient::connect(&mut broker, owner, 2)).collect();
        Self { broker, now: Duration::ZERO, owner, publisher, clients }
    }

    /// An operation that makes sense in the present state.
    fn choose(&self, random: &mut Random, queues: &Queues, number: usize) -> (usize, Operation) {
        let client = random.below(CLIENTS as u64) as usize;
        let SimClient { consumer, unacked, consumers, .. } = &self.clients[client];
        // Brokers return what several consumers of a channel hold in no particular order.
        let is_ordered = *consumers <= 1 || unacked.len() <= 1;
        let prefetch = 1 + random.below(4) as u16;
        let tag = (!unacked.is_empty()).then(|| *random.choose(unacked));
        let (multiple, requeue) = (random.chance(250) && is_ordered, random.chance(700));
        let work_or_dead = if random.chance(800) { &queues.work } else { &queues.dead }.clone();
        let operation = match (random.below(100), tag) {
            (0..30, _) => {
                let queue = if random.chance(800) { &queues.work } else { &queues.delay }.clone();
                Operation::Publish { queue, id: format!("m{number}") }
            }
            (30..40, _) | (_, None) if consumer.is_none() => Operation::Consume { queue: work_or_dead },
            (30..37, _) | (_, None) => Operation::Get { queue: work_or_dead },
            (37..40, _) if consumer.is_some() => Operation::Cancel,
            (40..60, Some(tag)) => Operation::Ack { tag, multiple },
            (60..78, Some(tag)) => Operation::Nack { tag, multiple, requeue },
            (78..92, Some(tag)) => Operation::Reject { tag, requeue },
            (92..97, _) if is_ordered => Operation::Reopen { prefetch },
            (97.., _) if is_ordered => Operation::Reconnect { prefetch },
            (_, Some(tag)) => Operation::Ack { tag, multiple },
        };
        (client, operation)
    }

    /// Performs an operation. Returns what each client sees of it, in its order.
    fn perform(&mut self, client: usize, operation: &Operation) -> Vec<Vec<String>> {
        let (broker, own) = (self.broker.at(self.now), &mut self.clients[client]);
        match operation {
            Operation::Publish { queue, id } => {
                broker.publish(
                    self.publisher,
                    Publish::mandatory("", queue, with_id(id), b"x".as_slice().into()),
                );
            }
            Operation::Consume { queue } => {
                own.consumer = Some(broker.consume(own.channel, queue, ConsumeOptions::default()).0);
                own.consumers += 1;
            }
            Operation::Cancel => {
                let consumer = own.consumer.take().expect("chosen for a client that consumes");
                broker.cancel(own.channel, consumer);
            }
            Operation::Get { queue } => {
                broker.get(own.channel, queue);
                own.consumers += 1;
            }
            Operation::Ack { tag, multiple } => broker.ack(own.channel, *tag, *multiple),
            Operation::Nack { tag, multiple, requeue } => broker.nack(own.channel, *tag, *multiple, *requeue),
            Operation::Reject { tag, requeue } => broker.reject(own.channel, *tag, *requeue),
            Operation::Reopen { prefetch } => {
                broker.close_channel(own.channel);
                own.channel = broker.open_channel(own.connection, *prefetch).expect("it is open");
                (own.consumer, own.unacked, own.consumers) = (None, Vec::new(), 0);
            }
            Operation::Reconnect { prefetch } => {
                broker.close_connection(own.connection);
                *own = SimClient::connect(broker, self.owner, *prefetch);
            }
        }
        match operation {
            Operation::Ack { tag, multiple: true } | Operation::Nack { tag, multiple: true, .. } => {
                own.unacked.retain(|it| it > tag);
            }
            Operation::Ack { tag, .. } | Operation::Nack { tag, .. } | Operation::Reject { tag, .. } => {
                own.unacked.retain(|it| it != tag);
            }
            _ => {}
        }
        // Longer than everything but the consumer timeout takes.
        self.now += Duration::from_secs(10);
        let mut seen = vec![Vec::new(); CLIENTS];
        for event in self.broker.poll(self.now) {
            let (channel, delivery) = match event {
                Event::Delivery { channel, delivery } => (channel, Some(delivery)),
                Event::Answer { channel, answer: Answer::Got(got), .. } => (channel, got),
                _ => continue,
            };
            let Some(at) = self.clients.iter().position(|it| it.channel == channel) else { continue };
            seen[at].push(match delivery {
                Some(delivery) => {
                    self.clients[at].unacked.push(delivery.tag);
                    shown(delivery.tag, delivery.redelivered, &delivery.properties())
                }
                None => "empty".to_owned(),
            });
        }
        seen
    }
}

/// A client of the real broker.
struct RealClient {
    connection: Connection,
    channel: Channel,
    prefetch: u16,
    consumer: Option<String>,
}

impl RealClient {
    async fn connect(url: &str, prefetch: u16) -> Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = open(&connection, prefetch).await?;
        Ok(Self { connection, channel, prefetch, consumer: None })
    }
}

async fn open(connection: &Connection, prefetch: u16) -> Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
    Ok(channel)
}

struct Real<'a> {
    env: &'a TestEnv,
    clients: Vec<RealClient>,
    /// What clients see, each with the client's number.
    seen: mpsc::UnboundedReceiver<(usize, String)>,
    see: mpsc::UnboundedSender<(usize, String)>,
}

impl<'a> Real<'a> {
    async fn new(env: &'a TestEnv, queues: &[Queue]) -> Result<Self> {
        for queue in queues {
            declare(env, queue).await?;
        }
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(RealClient::connect(&env.vhost().amqp_url(), 2).await?);
        }
        let (see, seen) = mpsc::unbounded_channel();
        Ok(Self { env, clients, seen, see })
    }

    async fn perform(&mut self, at: usize, operation: &Operation) -> Result<()> {
        let own = &mut self.clients[at];
        match operation {
            Operation::Publish { queue, id } => {
                self.env.client().publish("", queue, with_id(id), b"x").await?;
            }
            Operation::Consume { queue } => {
                let options = BasicConsumeOptions::default();
                let queue = queue.as_str().into();
                let mut consumer =
                    own.channel.basic_consume(queue, "".into(), options, FieldTable::default()).await?;
                own.consumer = Some(consumer.tag().to_string());
                let see = self.see.clone();
                tokio::spawn(async move {
                    while let Some(Ok(it)) = consumer.next().await {
                        let _ = see.send((at, shown(it.delivery_tag, it.redelivered, &it.properties)));
                    }
                });
            }
            Operation::Cancel => {
                let tag = own.consumer.take().context("a consumer")?;
                own.channel.basic_cancel(tag.as_str().into(), BasicCancelOptions::default()).await?;
            }
            Operation::Get { queue } => {
                let got = own.channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await?;
                let text = got
                    .map_or("empty".to_owned(), |it| shown(it.delivery_tag, it.redelivered, &it.properties));
                self.see.send((at, text))?;
            }
            Operation::Ack { tag, multiple } => {
                own.channel.basic_ack(*tag, BasicAckOptions { multiple: *multiple }).await?;
            }
            Operation::Nack { tag, multiple, requeue } => {
                let options = BasicNackOptions { multiple: *multiple, requeue: *requeue };
                own.channel.basic_nack(*tag, options).await?;
            }
            Operation::Reject { tag, requeue } => {
                own.channel.basic_reject(*tag, BasicRejectOptions { requeue: *requeue }).await?;
            }
            Operation::Reopen { prefetch } => {
                own.channel.close(200, "done".into()).await?;
                own.channel = open(&own.connection, *prefetch).await?;
                (own.prefetch, own.consumer) = (*prefetch, None);
            }
            Operation::Reconnect { prefetch } => {
                own.connection.close(200, "done".into()).await?;
                *own = RealClient::connect(&self.env.vhost().amqp_url(), *prefetch).await?;
            }
        }
        // The channel has processed the operation when it answers this, which changes nothing.
        own.channel.basic_qos(own.prefetch, BasicQosOptions::default()).await?;
        Ok(())
    }

    /// What each client sees until there are as many as expected.
    async fn until_seen(&mut self, expected: &[Vec<String>]) -> Result<Vec<Vec<String>>> {
        let mut seen = vec![Vec::new(); CLIENTS];
        for _ in 0..expected.iter().map(Vec::len).sum() {
            let Ok(next) = timeout(WAIT_TIMEOUT, self.seen.recv()).await else { break };
            let (client, what) = next.context("this value has a sender")?;
            seen[client].push(what);
        }
        Ok(seen)
    }
}

/// A delivery as a client sees it, without times. For a message that was rejected or exceeded its delivery limit, real brokers
/// have counts that the simulated one does not, so that they are left out.
fn shown(tag: u64, redelivered: bool, properties: &BasicProperties) -> String {
    let id = properties.message_id().as_ref().map_or("", |id| id.as_str());
    let mut headers = properties.headers().clone().unwrap_or_default().inner().clone();
    let deaths = headers.get("x-death").map(plain).unwrap_or_default();
    let is_counted = !deaths.contains("reason=rejected") && !deaths.contains("reason=delivery_limit");
    headers.retain(|name, _| is_counted || !name.as_str().ends_with("-count"));
    let headers = plain(&AMQPValue::FieldTable(headers.into()));
    format!("{tag} {id} redelivered={} {headers}", is_counted && redelivered)
}

fn plain(value: &AMQPValue) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value {
        AMQPValue::FieldTable(table) => {
            let is_shown = |value: &AMQPValue| {
                !matches!(value, AMQPValue::Timestamp(_)) && header::integer(value) != Some(0)
            };
            let shown = table.inner().iter().filter(|(_, value)| is_shown(value));
            format!("{{{}}}", list(shown.map(|(name, value)| format!("{name}={}", plain(value))).collect()))
        }
        AMQPValue::FieldArray(items) => format!("[{}]", list(items.as_slice().iter().map(plain).collect())),
        other => header::integer(other)
            .map(|number| number.to_string())
            .or_else(|| header::text(other))
            .unwrap_or_else(|| format!("{other:?}")),
    }
}

/// Runs one trace. An error has everything that was done and seen.
async fn replay(env: &TestEnv, version: BrokerVersion, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let queues = Queues::new(seed);
    let declarations = queues.declarations(*random.choose(&[None, Some(2), Some(-1)]));
    let mut simulated = Simulated::new(version, seed, declarations.clone());
    let mut real = Real::new(env, &declarations).await?;
    let mut history = Vec::new();
    for number in 0..OPERATIONS {
        let (client, operation) = simulated.choose(&mut random, &queues, number);
        let expected = simulated.perform(client, &operation);
        history.push(format!("{client}: {operation:?} -> {expected:?}"));
        let told = || format!("seed {seed} on {version}:\n{}", history.join("\n"));
        real.perform(client, &operation).await.with_context(told)?;
        let seen = real.until_seen(&expected).await?;
        ensure!(seen == expected, "{}\nbut the broker: {seen:?}", told());
        for queue in queues.names() {
            let (ready, _) = simulated.broker.depth(queue).context("it exists")?;
            env.until_ready_in(queue, ready).await.with_context(told)?;
        }
        if let Ok(more) = real.seen.try_recv() {
            bail!("{}\nbut the broker also: {more:?}", told());
        }
    }
    for queue in queues.names() {
        let delete = QueueDeleteOptions::default();
        env.client().channel().queue_delete(queue.as_str().into(), delete).await?;
    }
    for client in real.clients {
        client.connection.close(200, "done".into()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn operations_have_the_same_outcomes_as_on_the_simulated_broker() -> Result<()> {
    let env = TestEnv::new().await?;
    let version: BrokerVersion = env.vhost().broker().version().to_string().parse()?;
    if version < (BrokerVersion { major: 4, minor: 0 }) {
        suite::leave_out("RabbitMQ before 4.0 serves the consumers of a queue in another order");
        return Ok(());
    }
    let first = suite::seed(0)?;
    let traces = if suite::is_full() { 200 } else { 20 };
    for seed in (0..traces).map(|number| first.wrapping_add(number)) {
        replay(&env, version, seed).await?;
    }
    Ok(())
}
