//! Measures one contestant that empties a full queue.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use garenne_bench::{Rows, Usage};
use lapin::BasicProperties;

use crate::{
    broker::{
        Broker, LANE, SHARDS_EXCHANGE, body, celery_task, dramatiq_task, keyed_task, lane_queues, task,
    },
    garenne::{Build, Garenne, with_shards},
    rival::Rival,
};

/// Poll intervals of the queue until the first delivery, and until the last one.
const FIRST: Duration = Duration::from_millis(1);
const LAST: Duration = Duration::from_millis(5);
/// Time for the broker to apply the last acks.
pub(crate) const APPLIED: Duration = Duration::from_millis(300);

/// The program of a contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Garenne's worker, with this sink.
    Garenne { build: Build, sink: Option<&'static str>, shards: u16 },
    /// The worker of another library, with its own task format.
    Rival { program: &'static str, arguments: &'static [&'static str], tasks: Tasks },
}

/// The format and the queue of a worker's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tasks {
    /// Garenne's format and queue.
    Garenne,
    /// Garenne's format, through the exchange that distributes tasks among shards.
    Sharded,
    /// Celery's format.
    Celery,
    /// Dramatiq's format.
    Dramatiq,
}

impl Tasks {
    pub(crate) fn queue(self) -> &'static str {
        match self {
            Self::Garenne | Self::Sharded => LANE,
            Self::Celery => "celery-rival",
            Self::Dramatiq => "dramatiq-rival",
        }
    }

    /// A task with a body of 200 B.
    pub(crate) fn one(self) -> (BasicProperties, Vec<u8>) {
        match self {
            Self::Garenne => task("bench.noop", body(200)),
            Self::Sharded => keyed_task("bench.noop", body(200)),
            Self::Celery => celery_task(200),
            Self::Dramatiq => dramatiq_task(200, self.queue()),
        }
    }
}

impl Who {
    pub(crate) fn tasks(self) -> Tasks {
        match self {
            Self::Garenne { shards: 1, .. } => Tasks::Garenne,
            Self::Garenne { .. } => Tasks::Sharded,
            Self::Rival { tasks, .. } => tasks,
        }
    }
}

/// A contestant and its name in the rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) who: Who,
}

/// The measured values of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    tasks_per_s: f64,
    cpu_us: f64,
    rss_mb: f64,
}

impl Measured {
    pub(crate) fn add_to(self, rows: &mut Rows, name: &str) {
        rows.add(format!("{name}/tasks_per_s"), "tasks/s", self.tasks_per_s);
        rows.add(format!("{name}/cpu_us"), "us/task", self.cpu_us);
        rows.add(format!("{name}/rss_mb"), "MB", self.rss_mb);
    }
}

/// A measurement between the first delivery and the last ack.
struct Measurement {
    begun: Instant,
    before: Usage,
    tasks: u32,
}

impl Measurement {
    /// Waits for the first delivery.
    async fn begin(
        broker: &Broker,
        queues: &[String],
        count: u32,
        usage: impl Fn() -> Usage,
    ) -> Result<Self> {
        let ready = broker.until(queues, FIRST, |ready| ready < count).await?;
        Ok(Self { begun: Instant::now(), before: usage(), tasks: ready })
    }

    fn end(self, usage: Usage) -> Measured {
        let (took, tasks) = (self.begun.elapsed().as_secs_f64(), f64::from(self.tasks));
        let cpu = usage.cpu.saturating_sub(self.before.cpu).as_secs_f64();
        Measured { tasks_per_s: tasks / took, cpu_us: cpu * 1e6 / tasks, rss_mb: usage.rss_mb }
    }
}

/// Fills the queue and lets a contestant empty it. The time is measured from its first delivery to its last ack; tasks
/// that were delivered before the measurement began are not counted. After the process has ended, the broker's queue
/// must be empty: every task was acked.
pub(crate) async fn race(
    broker: &Broker,
    who: Who,
    prefetch: u16,
    messages: impl ExactSizeIterator<Item = (BasicProperties, Vec<u8>)>,
) -> Result<Measured> {
    let (queue, count) = (who.tasks().queue(), u32::try_from(messages.len())?);
    let queues = match who {
        Who::Garenne { shards, .. } => lane_queues(shards),
        Who::Rival { .. } => vec![queue.to_owned()],
    };
    match who.tasks() {
        Tasks::Sharded => broker.publish(SHARDS_EXCHANGE, queue, messages).await?,
        _ => broker.fill(queue, messages).await?,
    }
    broker.until(&queues, LAST, |ready| ready == count).await?;
    let seen = match who {
        Who::Garenne { build, sink, shards } => {
            let mut arguments = vec![
                "--lane".to_owned(),
                format!("fast:prefetch={prefetch},concurrency=1..{}", prefetch.min(16)),
            ];
            arguments.extend(with_shards(shards)?);
            arguments.extend(sink.into_iter().flat_map(|sink| ["--sink".to_owned(), sink.to_owned()]));
            let worker = Garenne::start(build, broker.amqp_url(), &arguments).await?;
            let measurement = Measurement::begin(broker, &queues, count, || worker.usage()).await?;
            broker.until(&queues, LAST, |ready| ready == 0).await?;
            worker.until_settled(count.into(), FIRST).await?;
            let seen = measurement.end(worker.usage());
            worker.stop().await?;
            seen
        }
        Who::Rival { program, arguments, .. } => {
            let mut words: Vec<_> = arguments.iter().map(|&word| word.to_owned()).collect();
            let (prefetch, tasks, kind) =
                (prefetch.to_string(), count.to_string(), broker.kind().to_string());
            for (option, value) in [
                ("--amqp-url", broker.amqp_url()),
                ("--queue", queue),
                ("--prefetch", &prefetch),
                ("--count", &tasks),
                ("--type", &kind),
            ] {
                words.extend([option.to_owned(), value.to_owned()]);
            }
            let mut rival = Rival::start(program, &words)?;
            let pid = rival.pid();
            let measurement = tokio::select! {
                measurement = Measurement::begin(broker, &queues, count, || Usage::of(pid)) => measurement?,
                ended = rival.ended() => bail!("the rival ended at its start: {}", ended?),
            };
            rival.done(count).await?;
            let seen = measurement.end(rival.usage());
            tokio::time::sleep(APPLIED).await;
            rival.kill().await?;
            seen
        }
    };
    tokio::time::sleep(APPLIED).await;
    let left = broker.ready_in(&queues).await?;
    ensure!(left == 0, "{left} tasks were not acked");
    Ok(seen)
}
