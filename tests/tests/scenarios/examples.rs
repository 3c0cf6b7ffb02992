//! The applications of `examples/apps` keep their promises: each is killed, stopped and loses its broker in the middle of its work.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::Ordering,
};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use garenne_common::shutdown::Receipt;
use garenne_tests::harness::{
    broker::{Broker, BrokerOptions},
    postgres::Postgres,
    process::{Process, Program, Signal},
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::{Stopped, Worker, WorkerPlan},
};
use serde_json::json;
use tokio::sync::{Barrier, Semaphore};

mod provider;

use provider::{Provider, lock};

/// The applications that share a broker.
const APPLICATIONS: usize = 6;

/// A broker that is restarted once, when every application has asked for it.
struct Shared {
    broker: Broker,
    asked: Barrier,
    restarted: Barrier,
}

impl Shared {
    async fn start() -> Result<Self> {
        let broker = Broker::start(BrokerOptions::default()).await?;
        Ok(Self { broker, asked: Barrier::new(APPLICATIONS), restarted: Barrier::new(APPLICATIONS) })
    }

    /// Restarts the broker under the applications.
    async fn restart(&self, env: &mut TestEnv) -> Result<()> {
        if self.asked.wait().await.is_leader() {
            self.broker.sync_declarations().await?;
            self.broker.stop().await?;
            self.broker.restart().await?;
        }
        self.restarted.wait().await;
        env.reconnect().await
    }
}

/// Runs an application until `done` counts `all`: the first worker is killed, the second loses the broker and is stopped with
/// SIGTERM, the third ends the work. Returns what the last two did.
async fn interrupted(
    shared: &Shared,
    env: &mut TestEnv,
    plan: impl Fn(&TestEnv, &str) -> Result<WorkerPlan>,
    all: usize,
    done: impl AsyncFn() -> Result<usize>,
) -> Result<[Stopped; 2]> {
    let until = async |count: usize| {
        eventually(format!("{count} of {all} are done"), async || {
            let done = done().await?;
            Ok(Seen::when(done >= count, done))
        })
        .await
    };
    let first = plan(env, "first")?.start().await?;
    until(all / 10).await?;
    first.kill().await?;
    let second = plan(env, "second")?.start().await?;
    until_redelivered(&second, async || Ok(done().await? >= all)).await?;
    until(all / 5).await?;
    shared.restart(env).await?;
    until(all / 3).await?;
    let second = second.stop().await?;
    let third = plan(env, "third")?.start().await?;
    until(all).await?;
    env.until_lane("default", 0, 0).await?;
    let third = third.stop().await?;
    ensure!((second.code, third.code) == (0, 0), "{second:?} {third:?}");
    Ok([second, third])
}

/// Waits until a worker has received what a killed one held, which is nothing if all was done before the kill.
async fn until_redelivered(worker: &Worker, is_all_done: impl AsyncFn() -> Result<bool>) -> Result<()> {
    eventually("the killed worker held tasks", async || {
        let redelivered = worker.find_metric("garenne_redeliveries_total", &[]).await?.unwrap_or_default();
        Ok(Seen::when(redelivered > 0.0 || is_all_done().await?, redelivered))
    })
    .await
}

fn folder(env: &TestEnv, name: &str) -> Result<PathBuf> {
    let folder = env.folder().join(name);
    fs::create_dir(&folder)?;
    Ok(folder)
}

/// The finished files of a folder. A killed process leaves temporary ones.
fn files(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for file in fs::read_dir(folder)? {
        let file = file?;
        let name = file.file_name().to_string_lossy().into_owned();
        if !name.starts_with(".tmp") && file.file_type()?.is_file() {
            files.insert(name, fs::read(file.path())?);
        }
    }
    Ok(files)
}

/// The number of [`files`].
fn finished(folder: &Path) -> Result<usize> {
    Ok(fs::read_dir(folder)?
        .filter(|it| it.as_ref().is_ok_and(|it| !it.file_name().to_string_lossy().starts_with(".tmp")))
        .count())
}

async fn resizer(shared: &Shared) -> Result<()> {
    const TASKS: usize = 120;
    let mut env = TestEnv::on(&shared.broker).await?;
    let images = folder(&env, "images")?;
    fs::write(images.join("1.ppm"), [b"P6 2 2 255\n".as_slice(), &[9; 12]].concat())?;
    fs::write(images.join("2.ppm"), "no image")?;
    let plan = |env: &TestEnv, name: &str| {
        Ok(env.application("resizer", name)?.stdout().env("IMAGES", images.display().to_string()))
    };
    plan(&env, "declares")?.start().await?.stop().await?;
    for width in 500..500 + TASKS {
        env.publish("image.resize", &json!({"image": 1, "width": width}), &width.to_string(), 1).await?;
    }
    env.publish("image.resize", &json!({"image": 2, "width": 80}), "broken", 1).await?;
    interrupted(shared, &mut env, plan, TASKS + 2, async || finished(&images)).await?;
    let made = files(&images)?;
    ensure!(made.len() == TASKS + 2, "{:?}", made.keys());
    for width in 500..500 + TASKS {
        let image = made.get(&format!("1-{width}.ppm")).with_context(|| width.to_string())?;
        let expected = [format!("P6 {width} {width} 255\n").as_bytes(), &vec![9; 3 * width * width]].concat();
        ensure!(*image == expected, "{width} has {} bytes", image.len());
    }
    let letter = env.take_all("garenne.dead", 1).await?.remove(0);
    let (reason, error) = (letter.text("garenne-reason"), letter.text("garenne-error"));
    ensure!(
        (letter.id(), reason.as_str(), error.as_str()) == ("broken-0", "rejected", "no binary PPM image")
    );
    Ok(())
}

async fn mailer(shared: &Shared) -> Result<()> {
    const MAILS: usize = 300;
    let mut env = TestEnv::on(&shared.broker).await?;
    let (provider, url) = Provider::start().await?;
    let plan = |env: &TestEnv, name: &str| {
        let plan = env.application("mailer", name)?.stdout().env("MAIL_URL", &url);
        Ok(plan.env("GARENNE_LANES__DEFAULT__MAX_PER_KEY", "1"))
    };
    plan(&env, "declares")?.start().await?.stop().await?;
    for n in 0..MAILS {
        let user = ["somebody", "busy", "broken"][n % 3];
        let mail = json!({"to": format!("{user}@{}.example", n % 2), "text": "hello"});
        env.publish("email.send", &mail, &n.to_string(), 1).await?;
    }
    // Nothing is answered yet. Each of the two domains has one of the four slots and its share of the prefetch.
    let held = plan(&env, "held")?.option("--lane", "default:prefetch=20,concurrency=4..4").start().await?;
    held.until_holds("default", 2, 18).await?;
    eventually("mail to both domains", async || {
        let early = lock(&provider.early).clone();
        Ok(Seen::when(early.len() == 2, format_args!("{early:?}")))
    })
    .await?;
    held.kill().await?;
    provider.gate.add_permits(Semaphore::MAX_PERMITS);
    let sent = async || Ok(provider.sent.load(Ordering::Relaxed));
    let stopped = interrupted(shared, &mut env, plan, MAILS, sent).await?;
    let answers = std::mem::take(&mut *lock(&provider.answers));
    ensure!(answers.len() == MAILS, "{answers:?}");
    for n in 0..MAILS {
        let answers = answers.get(&format!("{n}-0")).with_context(|| n.to_string())?;
        let first = [202, 429, 503][n % 3];
        ensure!(answers.first() == Some(&first) && answers.last() == Some(&202), "{n}: {answers:?}");
    }
    for done in stopped.iter().flat_map(|stopped| &stopped.done) {
        // A busy provider costs no attempt, a broken one does. An early request may have reached its timeout.
        let n: usize = done.task_id.trim_end_matches("-0").parse()?;
        let is_early = lock(&provider.early).values().flatten().any(|key| *key == done.task_id);
        ensure!(done.attempt == 1 || n % 3 == 2 || is_early, "{done:?}");
    }
    let last = plan(&env, "last")?.start().await?;
    let mail = json!({"to": "nobody@0.example", "text": "hello"});
    env.publish("email.send", &mail, "refused", 1).await?;
    let letter = env.take_all("garenne.dead", 1).await?.remove(0);
    let (reason, error) = (letter.text("garenne-reason"), letter.text("garenne-error"));
    ensure!((reason.as_str(), error.as_str()) == ("rejected", "the provider refuses it: no such user"));
    let receipt = last.stop().await?.receipt;
    ensure!((receipt.delivered, receipt.dead) == (1, 1), "{receipt:?}");
    Ok(())
}

async fn report(shared: &Shared) -> Result<()> {
    let mut env = TestEnv::on(&shared.broker).await?;
    let sales = folder(&env, "sales")?;
    let hour = |day: &str, hour: usize| sales.join(day).join(format!("{hour}.csv"));
    for day in ["20261128", "20261129"] {
        fs::create_dir(sales.join(day))?;
        (0..24).try_for_each(|n| fs::write(hour(day, n), format!("{n}\n100\n")))?;
    }
    // The report waits for these two hours until the test writes them.
    for n in [8, 16] {
        fs::remove_file(hour("20261128", n))?;
        ensure!(Command::new("mkfifo").arg(hour("20261128", n)).status()?.success(), "mkfifo");
    }
    let plan = |name: &str| {
        let plan = env.application("report", name)?.stdout().option("--shutdown-timeout", "100ms");
        anyhow::Ok(plan.env("SALES", sales.display().to_string()))
    };
    let until_saved = async |hours: usize| {
        eventually(format!("{hours} hours are saved"), async || {
            let saved = fs::read_to_string(sales.join("20261128/sums")).unwrap_or_default();
            Ok(Seen::when(saved.lines().count() == hours, saved))
        })
        .await
    };
    let first = plan("first")?.start().await?;
    env.publish("report.nightly", &json!({"day": 20_261_128}), "night", 1).await?;
    until_saved(8).await?;
    first.kill().await?;
    // What is saved is not read again.
    (0..8).try_for_each(|n| fs::write(hour("20261128", n), "not a number"))?;
    let second = plan("second")?.start().await?;
    tokio::fs::write(hour("20261128", 8), "8\n100\n").await?;
    until_saved(16).await?;
    let receipt = second.stop().await?.receipt;
    ensure!((receipt.requeued, receipt.acked, receipt.abandoned) == (1, 0, 0), "{receipt:?}");
    let mut third = plan("third")?.start().await?;
    tokio::fs::write(hour("20261128", 16), "16\n100\n").await?;
    let done = third.until_done_with("night-0").await?;
    // Neither the crash nor the stop was an attempt.
    ensure!((done.attempt, &done.output) == (1, &json!(276 + 2400)), "{done:?}");
    shared.restart(&mut env).await?;
    third.until_ready().await?;
    env.publish("report.nightly", &json!({"day": 20_261_129}), "next", 1).await?;
    ensure!(third.until_done_with("next-0").await?.output == json!(276 + 2400));
    env.until_lane("default", 0, 0).await?;
    env.is_empty("garenne.dead").await?;
    let receipt = third.stop().await?.receipt;
    ensure!(receipt.acked + receipt.lost_settlements == receipt.delivered, "{receipt:?}");
    Ok(())
}

async fn importer(shared: &Shared) -> Result<()> {
    const ROWS: usize = 1_000;
    let mut env = TestEnv::on(&shared.broker).await?;
    let imports = folder(&env, "imports")?;
    let mut rows: Vec<_> = (0..ROWS).map(|n| format!("sku-{n},{n}")).collect();
    rows[7] = "sku-7".into();
    fs::write(imports.join("1.csv"), rows.join("\n"))?;
    let plan = |env: &TestEnv, name: &str| {
        Ok(env.application("importer", name)?.stdout().env("IMPORTS", imports.display().to_string()))
    };
    plan(&env, "declares")?.start().await?.stop().await?;
    env.publish("import.start", &json!({"number": 1}), "import", 1).await?;
    // The summary is the last of them.
    let done = async || {
        let rows = finished(&imports.join("1")).unwrap_or(0);
        Ok(rows + usize::from(imports.join("1.summary").exists()))
    };
    interrupted(shared, &mut env, plan, ROWS + 1, done).await?;
    let expected = format!("the prices add up to {}, 1 rows are refused", ROWS * (ROWS - 1) / 2 - 7);
    ensure!(fs::read_to_string(imports.join("1.summary"))? == expected);
    for (n, stored) in files(&imports.join("1"))? {
        let expected = if n == "7" { "refused".to_owned() } else { n.clone() };
        ensure!(stored == expected.as_bytes(), "{n}");
    }
    env.is_empty("garenne.dead").await
}

async fn archive(shared: &Shared) -> Result<()> {
    const TASKS: usize = 3_000;
    let mut env = TestEnv::on(&shared.broker).await?;
    let database = Postgres::shared().await?.database().await?;
    let plan = |env: &TestEnv, name: &str| {
        let plan = env.application("archive", name)?.option("--sink", "archive");
        Ok(plan.env("DATABASE_URL", database.url()))
    };
    plan(&env, "declares")?.start().await?.stop().await?;
    env.publish("words.count", &json!({"text": "one two three"}), "words", TASKS).await?;
    let connection = database.connect().await?;
    let stored = async || {
        let row = connection.query_one("select count(*) from archive", &[]).await?;
        Ok(usize::try_from(row.get::<_, i64>(0))?)
    };
    interrupted(shared, &mut env, plan, TASKS, stored).await?;
    let right = "select count(*)::text from archive where kind = 'words.count' and output = '3' and task_id ~ '^words-[0-9]+$'";
    ensure!(database.text(right).await? == TASKS.to_string());
    env.is_empty("garenne.dead").await
}

/// Starts the web application and waits until it listens.
async fn start_web(env: &TestEnv, port: u16, orders: &Path) -> Result<Process> {
    let program = Program::new("web").env("AMQP_URL", env.vhost().amqp_url());
    let program = program.env("ORDERS", orders.display().to_string());
    let process = program.env("LISTEN", format!("127.0.0.1:{port}")).start().await?;
    let listens = |lines: &[String]| lines.iter().any(|line| line.starts_with("listening")).then_some(());
    process.stdout().until("the application listens", listens).await?;
    Ok(process)
}

/// Places an order until it is answered, as a client of the application must.
async fn put_order(http: &reqwest::Client, port: u16, order: usize) -> Result<(u16, String)> {
    eventually(format!("order {order} is answered"), async || {
        let request = http.put(format!("http://127.0.0.1:{port}/orders/{order}"));
        let answer = request.json(&json!({"pieces": order})).send().await?;
        match answer.status().as_u16() {
            status @ (200 | 422) => Ok(Seen::Wanted((status, answer.text().await?))),
            status => Ok(Seen::Other(format!("{status}: {}", answer.text().await?))),
        }
    })
    .await
}

async fn web(shared: &Shared) -> Result<()> {
    const ORDERS: usize = 400;
    let mut env = TestEnv::on(&shared.broker).await?;
    let (orders, port, http) =
        (folder(&env, "orders")?, garenne_tests::harness::port::free_port()?, reqwest::Client::new());
    let first = start_web(&env, port, &orders).await?;
    let (until, stop) = (
        async |count: usize| {
            eventually(format!("{count} orders are placed"), async || {
                let placed = finished(&orders)?;
                Ok(Seen::when(placed >= count, placed))
            })
            .await
        },
        async |process: Process| {
            process.signal(Signal::TERM)?;
            let ended = process.ended().await?;
            let receipt: Receipt = serde_json::from_str(ended.stderr.last().context("no receipt")?)?;
            ensure!(ended.code == Some(0) && receipt.balances(), "{ended:?}");
            anyhow::Ok(())
        },
    );
    let answered = stream::iter(0..ORDERS)
        .map(async |order| put_order(&http, port, order).await)
        .buffered(8)
        .try_collect::<Vec<_>>();
    let faults = async {
        until(ORDERS / 10).await?;
        first.kill().await?;
        let second = start_web(&env, port, &orders).await?;
        until(ORDERS / 5).await?;
        shared.restart(&mut env).await?;
        until(ORDERS / 3).await?;
        stop(second).await?;
        start_web(&env, port, &orders).await
    };
    let (answers, third) = tokio::try_join!(answered, faults)?;
    for (order, answer) in answers.into_iter().enumerate() {
        let expected = match order {
            0 => (422, "an order has 1 piece or more".to_owned()),
            _ => (200, format!("{order} pieces ordered")),
        };
        ensure!(answer == expected, "{order}: {answer:?}");
    }
    let placed = files(&orders)?;
    ensure!(placed.len() == ORDERS - 1, "{:?}", placed.keys());
    for order in 1..ORDERS {
        let pieces = placed.get(&format!("order-{order}")).with_context(|| order.to_string())?;
        ensure!(*pieces == order.to_string().into_bytes(), "{order}");
    }
    stop(third).await
}

/// Two services with different kinds in the lane that both consume.
#[tokio::test]
async fn two_applications_share_a_fleet_without_settings() -> Result<()> {
    const TASKS: usize = 50;
    let env = TestEnv::new().await?;
    let (provider, url) = Provider::start().await?;
    provider.gate.add_permits(Semaphore::MAX_PERMITS);
    let images = folder(&env, "images")?;
    fs::write(images.join("1.ppm"), b"P6 1 1 255\nabc")?;
    let resizer = env.application("resizer", "resizer")?.stdout();
    let resizer = resizer.env("IMAGES", images.display().to_string()).start().await?;
    let mailer = env.application("mailer", "mailer")?.stdout().env("MAIL_URL", &url).start().await?;
    for width in 1..=TASKS {
        let image = json!({"image": 1, "width": width});
        env.publish("image.resize", &image, &format!("image-{width}"), 1).await?;
        let mail = json!({"to": "somebody@example.org", "text": "hello"});
        env.publish("email.send", &mail, &format!("mail-{width}"), 1).await?;
    }
    resizer.until_done(TASKS).await?;
    mailer.until_done(TASKS).await?;
    env.until_lane("default", 0, 0).await?;
    for worker in [resizer, mailer] {
        let receipt = worker.stop().await?.receipt;
        // What came to the wrong one was passed on, which its receipt counts as retried.
        ensure!((receipt.acked, receipt.dead) == (TASKS as u64, 0), "{receipt:?}");
    }
    ensure!(provider.sent.load(Ordering::Relaxed) == TASKS && finished(&images)? == TASKS + 1);
    env.is_empty("garenne.dead").await
}

#[tokio::test]
async fn the_applications_lose_nothing_to_kills_stops_and_a_broker_restart() -> Result<()> {
    let shared = Shared::start().await?;
    tokio::try_join!(
        async { resizer(&shared).await.context("resizer") },
        async { mailer(&shared).await.context("mailer") },
        async { report(&shared).await.context("report") },
        async { importer(&shared).await.context("importer") },
        async { archive(&shared).await.context("archive") },
        async { web(&shared).await.context("web") },
    )?;
    Ok(())
}
