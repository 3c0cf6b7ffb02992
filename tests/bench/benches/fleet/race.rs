//! Measures one contestant that empties a full queue.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use garenne_bench::{Rows, Usage};
use lapin::BasicProperties;

use crate::{
    broker::{
        Broker, LANE, SHARDS_EXCHANGE, body, celery_task, dramatiq_task, keyed_task, lane_queues, task,
    },
    garenne::{Build, Garenne, python_handler, with_handler, with_lane},
    rival::Rival,
};

/// Poll intervals of the queue until the first delivery, and until the last one.
const FIRST: Duration = Duration::from_millis(1);
const LAST: Duration = Duration::from_millis(5);
/// Time for the broker to apply the last acks.
pub(crate) const APPLIED: Duration = Duration::from_millis(300);

/// The kind with a handler in another program.
const FOREIGN_KIND: &str = "foreign.noop";
/// The processes of a handler in Python: as many as Celery has.
const PYTHON_PROCESSES: u16 = 2;

/// The program of a contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Garenne's worker, with this sink.
    Garenne { build: Build, sink: Option<&'static str>, shards: u16 },
    /// Garenne's worker, with calls of Celery in its lane.
    CeleryOnGarenne,
    /// Garenne's worker, with a handler in Python.
    PythonOnGarenne,
    /// Garenne's worker, with a handler that is a service.
    HttpOnGarenne,
    /// A client that posts to the same service, without a broker.
    BareHttp,
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
    /// Celery's format, in Garenne's queue.
    CeleryOnGarenne,
    /// Garenne's format and queue, with a kind that has a handler in another program.
    Foreign,
    /// Dramatiq's format.
    Dramatiq,
}

impl Tasks {
    pub(crate) fn queue(self) -> &'static str {
        match self {
            Self::Garenne | Self::Sharded | Self::CeleryOnGarenne | Self::Foreign => LANE,
            Self::Celery => "celery-rival",
            Self::Dramatiq => "dramatiq-rival",
        }
    }

    /// A task with a body of 200 B.
    pub(crate) fn one(self) -> (BasicProperties, Vec<u8>) {
        match self {
            Self::Garenne => task("bench.noop", body(200)),
            Self::Foreign => task(FOREIGN_KIND, body(200)),
            Self::Sharded => keyed_task("bench.noop", body(200)),
            Self::Celery | Self::CeleryOnGarenne => celery_task(200),
            Self::Dramatiq => dramatiq_task(200, self.queue()),
        }
    }
}

impl Who {
    pub(crate) fn tasks(self) -> Tasks {
        match self {
            Self::Garenne { shards: 1, .. } => Tasks::Garenne,
            Self::Garenne { .. } => Tasks::Sharded,
            Self::CeleryOnGarenne => Tasks::CeleryOnGarenne,
            Self::PythonOnGarenne | Self::HttpOnGarenne | Self::BareHttp => Tasks::Foreign,
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
    /// Without the processes that it started.
    own_cpu_us: f64,
    rss_mb: f64,
    pss_mb: f64,
}

impl Measured {
    pub(crate) fn add_to(self, rows: &mut Rows, name: &str) {
        rows.add(format!("{name}/tasks_per_s"), "tasks/s", self.tasks_per_s);
        rows.add(format!("{name}/cpu_us"), "us/task", self.cpu_us);
        rows.add(format!("{name}/own_cpu_us"), "us/task", self.own_cpu_us);
        rows.add(format!("{name}/rss_mb"), "MB", self.rss_mb);
        rows.add(format!("{name}/pss_mb"), "MB", self.pss_mb);
    }
}

/// A measurement between the first delivery and the last ack.
struct Measurement {
    pid: u32,
    begun: Instant,
    before: (Usage, Usage),
    tasks: u32,
}

impl Measurement {
    /// Waits for the first delivery.
    async fn begin(broker: &Broker, queues: &[String], count: u32, pid: u32) -> Result<Self> {
        let ready = broker.until(queues, FIRST, |ready| ready < count).await?;
        let before = (Usage::of(pid), Usage::alone(pid));
        Ok(Self { pid, begun: Instant::now(), before, tasks: ready })
    }

    fn end(self) -> Measured {
        let (took, tasks) = (self.begun.elapsed().as_secs_f64(), f64::from(self.tasks));
        let (all, own) = (Usage::of(self.pid), Usage::alone(self.pid));
        let a_task =
            |now: Usage, before: Usage| now.cpu.saturating_sub(before.cpu).as_secs_f64() * 1e6 / tasks;
        Measured {
            tasks_per_s: tasks / took,
            cpu_us: a_task(all, self.before.0),
            own_cpu_us: a_task(own, self.before.1),
            rss_mb: all.rss_mb,
            pss_mb: all.pss_mb,
        }
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
    if who == Who::BareHttp {
        return post(count, slots(prefetch)).await;
    }
    let queues = match who {
        Who::Garenne { shards, .. } => lane_queues(shards),
        _ => vec![queue.to_owned()],
    };
    match who.tasks() {
        Tasks::Sharded => broker.publish(SHARDS_EXCHANGE, queue, messages).await?,
        _ => broker.fill(queue, messages).await?,
    }
    broker.until(&queues, LAST, |ready| ready == count).await?;
    let seen = match who {
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
                measurement = Measurement::begin(broker, &queues, count, pid) => measurement?,
                ended = rival.ended() => bail!("the rival ended at its start: {}", ended?),
            };
            rival.done(count).await?;
            let seen = measurement.end();
            tokio::time::sleep(APPLIED).await;
            rival.kill().await?;
            seen
        }
        _ => {
            let (build, sink, shards) = match who {
                Who::Garenne { build, sink, shards } => (build, sink, shards),
                _ => (Build::Now, None, 1),
            };
            let slots = if who == Who::PythonOnGarenne { PYTHON_PROCESSES } else { slots(prefetch) };
            let service = if who == Who::HttpOnGarenne { Some(serve().await?) } else { None };
            let handler = match &service {
                Some((_, url)) => Some(format!("url = \"{url}\"")),
                None => (who == Who::PythonOnGarenne).then(|| python_handler(PYTHON_PROCESSES)),
            };
            let mut arguments =
                vec!["--lane".to_owned(), format!("fast:prefetch={prefetch},concurrency=1..{slots}")];
            arguments.extend(match &handler {
                Some(handler) => with_handler(FOREIGN_KIND, handler)?,
                None => with_lane(shards, who == Who::CeleryOnGarenne)?,
            });
            arguments.extend(sink.into_iter().flat_map(|sink| ["--sink".to_owned(), sink.to_owned()]));
            let worker = if who == Who::PythonOnGarenne {
                // Its processes load first.
                let worker = Garenne::start_quiet(broker.amqp_url(), &arguments).await?;
                worker.until_handlers(PYTHON_PROCESSES.into()).await?;
                worker.resume()?;
                worker
            } else {
                Garenne::start(build, broker.amqp_url(), &arguments).await?
            };
            let measurement = Measurement::begin(broker, &queues, count, worker.pid()).await?;
            broker.until(&queues, LAST, |ready| ready == 0).await?;
            worker.until_settled(count.into(), FIRST).await?;
            let seen = measurement.end();
            worker.stop().await?;
            seen
        }
    };
    tokio::time::sleep(APPLIED).await;
    let left = broker.ready_in(&queues).await?;
    ensure!(left == 0, "{left} tasks were not acked");
    Ok(seen)
}

/// The tasks that a worker runs at once.
fn slots(prefetch: u16) -> u16 {
    prefetch.min(16)
}

/// Starts the service, and returns it with its URL.
async fn serve() -> Result<(Rival, String)> {
    let mut service = Rival::bare_http(&["--serve"])?;
    let url = format!("http://{}/", service.line().await?);
    Ok((service, url))
}

/// Measures the bare client, from its start.
async fn post(count: u32, in_flight: u16) -> Result<Measured> {
    let (_service, url) = serve().await?;
    let begun = Instant::now();
    let (in_flight, tasks) = (in_flight.to_string(), count.to_string());
    let mut client = Rival::bare_http(&["--post", &url, "--in-flight", &in_flight, "--count", &tasks])?;
    client.done(count).await?;
    Ok(Measurement { pid: client.pid(), begun, before: Default::default(), tasks: count }.end())
}
