//! Curves of lanes that workers store in Postgres: they survive restarts, and no task is counted twice.

use anyhow::{Context, Result};
use garenne_tests::harness::{
    browser::{self, Browser},
    dashboard::Dashboard,
    fault_proxy::FaultProxy,
    postgres::{Database, Postgres},
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
    worker::Worker,
};
use reqwest::StatusCode;
use serde_json::{Value, json};

const HISTORY: &str = "/v1/lanes/history?range=hour";

/// A fleet whose workers store a step each second.
struct Fleet {
    env: TestEnv,
    database: Database,
}

impl Fleet {
    async fn new() -> Result<Self> {
        Ok(Self { env: TestEnv::new().await?, database: Postgres::shared().await?.database().await? })
    }

    async fn worker(&self, name: &str) -> Result<Worker> {
        self.worker_at(name, &self.database.url()).await
    }

    async fn worker_at(&self, name: &str, postgres_url: &str) -> Result<Worker> {
        let plan = self.env.worker(name)?.option("--sink", "postgres");
        let plan = plan.option("--postgres-url", postgres_url).lane("fast:prefetch=20,concurrency=4");
        plan.env("GARENNE_POSTGRES_LANE_HISTORY", "5s").start().await
    }

    /// Publishes tasks and waits until the workers, which have settled `before`, have settled them too.
    async fn run(&self, workers: &[&Worker], before: usize, count: usize) -> Result<()> {
        let ids = format!("{}-{before}", workers[0].name());
        self.env.publish("bench.sleep", &json!({"ms": 20}), &ids, count).await?;
        let wanted = before + count;
        eventually(format!("{wanted} tasks are settled"), async || {
            let mut sum = 0;
            for worker in workers {
                sum += settled(worker).await?;
            }
            Ok(Seen::when(sum == wanted, sum))
        })
        .await
    }

    /// The settled tasks that are stored.
    async fn stored(&self) -> Result<usize> {
        let sum = "SELECT coalesce(sum(settled), 0) FROM garenne_lane_history";
        Ok(self.database.text(sum).await?.parse()?)
    }

    async fn until_stored(&self, wanted: usize) -> Result<()> {
        eventually(format!("{wanted} settled tasks are stored"), async || {
            let stored = self.stored().await?;
            Ok(match stored > wanted {
                true => Seen::Never(format!("{stored} are stored")),
                false => Seen::when(stored == wanted, stored),
            })
        })
        .await
    }

    /// Waits until this many seconds have passed on the database's clock.
    async fn until_seconds_passed(&self, seconds: u32) -> Result<()> {
        let end = self.database.text(&format!("SELECT now() + interval '{seconds} s'")).await?;
        let passed = format!("SELECT now() > '{end}'");
        eventually(format!("{seconds} s have passed"), async || {
            let passed = self.database.text(&passed).await?;
            Ok(Seen::when(passed == "true", passed))
        })
        .await
    }

    /// The sum of settled tasks that the dashboard shows.
    async fn shown(&self, dashboard: &Dashboard) -> Result<usize> {
        let answer = dashboard.json(HISTORY).await?;
        let settled = answer["lanes"]["fast"]["settled"].as_array().with_context(|| answer.to_string())?;
        Ok(settled.iter().filter_map(Value::as_u64).sum::<u64>() as usize)
    }
}

/// The tasks that a worker has settled.
async fn settled(worker: &Worker) -> Result<usize> {
    let settled = worker.metric("garenne_settlements_total", &["lane=\"fast\"", "\"acked\""]).await?;
    Ok(settled as usize)
}

async fn refused(dashboard: &Dashboard, path: &str) -> Result<(StatusCode, String)> {
    let answer = dashboard.get(path).await?;
    let status = answer.status();
    let problem: Value = answer.json().await?;
    Ok((status, problem["detail"].as_str().context("detail")?.to_owned()))
}

#[tokio::test]
async fn curves_have_the_tasks_of_all_workers_after_restarts_and_outages() -> Result<()> {
    let fleet = Fleet::new().await?;
    let (first, second) = (fleet.worker("first").await?, fleet.worker("second").await?);
    fleet.run(&[&first, &second], 0, 60).await?;
    fleet.until_stored(60).await?;
    let dashboard = Dashboard::with_database(&fleet.env, &fleet.database.url()).await?;
    assert_eq!(fleet.shown(&dashboard).await?, 60);
    dashboard.stop().await?;

    // What a worker has not stored yet, it stores at its end.
    fleet.run(&[&first, &second], 60, 40).await?;
    second.stop().await?;
    fleet.until_stored(100).await?;
    let dashboard = Dashboard::with_database(&fleet.env, &fleet.database.url()).await?;
    assert_eq!(fleet.shown(&dashboard).await?, 100);
    let answer = dashboard.json(HISTORY).await?;
    let fast = &answer["lanes"]["fast"];
    assert_eq!((&answer["step_seconds"], fast["ready"].as_array().map(Vec::len)), (&json!(60), Some(60)));
    for figure in ["ready", "unacked", "busy", "slots", "settled"] {
        assert_eq!(fast[figure][0], Value::Null, "nothing ran an hour ago: {figure}");
    }
    let slots =
        fast["slots"].as_array().context("slots")?.iter().filter_map(Value::as_f64).fold(0.0, f64::max);
    assert!((4.0..=8.01).contains(&slots), "two workers with four slots: {slots}");
    for (range, steps) in [("day", 288), ("week", 336)] {
        let answer = dashboard.json(&format!("/v1/lanes/history?range={range}")).await?;
        assert_eq!(answer["lanes"]["fast"]["busy"].as_array().map(Vec::len), Some(steps), "{range}");
    }

    // A worker that is killed loses what it has not stored.
    fleet.run(&[&first], settled(&first).await?, 20).await?;
    first.kill().await?;
    let stored = fleet.stored().await?;
    assert!((100..=120).contains(&stored), "{stored}");

    // What cannot be stored is a gap, and is not sent later. The worker stays ready.
    let (proxy, url) = FaultProxy::for_url(&fleet.database.url()).await?;
    let began = fleet.database.text("SELECT now()").await?;
    let third = fleet.worker_at("third", &url).await?;
    fleet.run(&[&third], 0, 10).await?;
    fleet.until_stored(stored + 10).await?;
    let client = fleet.database.connect().await?;
    client.batch_execute("ALTER TABLE garenne_lane_history RENAME TO away").await?;
    third.until_logged("history of lanes not stored").await?;
    fleet.run(&[&third], 10, 20).await?;
    // Longer than a step with its jitter, and than a worker that stalls meanwhile.
    fleet.until_seconds_passed(15).await?;
    third.get("/readyz").await?;
    client.batch_execute("ALTER TABLE away RENAME TO garenne_lane_history").await?;
    third.until_logged("history of lanes stored again").await?;
    fleet.run(&[&third], 30, 10).await?;
    fleet.until_stored(stored + 20).await?;
    let gap = format!(
        "SELECT bool_or(next - upto > interval '2 s') FROM (
             SELECT upto, lead(since) OVER (ORDER BY time) AS next FROM garenne_lane_history
             WHERE lane = 'fast' AND since > '{began}') AS rows"
    );
    assert_eq!(fleet.database.text(&gap).await?, "true");

    // The server gets what was on the way when it comes back, once.
    proxy.stall();
    fleet.env.publish("bench.sleep", &json!({"ms": 20}), "stalled", 10).await?;
    fleet.until_seconds_passed(2).await?;
    proxy.heal();
    fleet.run(&[&third], 50, 0).await?;
    third.stop().await?;
    let (stored, after) = (stored + 20, fleet.stored().await?);
    assert!((stored..=stored + 10).contains(&after), "{after}, {stored} before");
    assert_eq!(fleet.shown(&dashboard).await?, after);

    let (status, detail) = refused(&dashboard, "/v1/lanes/history?range=year").await?;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(detail.contains("range") && detail.contains("`week`"), "{detail}");
    let away = Dashboard::with_database(&fleet.env, "postgres://garenne@127.0.0.1:1/garenne").await?;
    assert_eq!(refused(&away, HISTORY).await?.0, StatusCode::SERVICE_UNAVAILABLE);
    let dashboard = Dashboard::start(&fleet.env).await?;
    let detail = "this dashboard reads no database: start it with --postgres-url".to_owned();
    assert_eq!(refused(&dashboard, HISTORY).await?, (StatusCode::NOT_FOUND, detail));
    Ok(())
}

#[tokio::test]
async fn rows_older_than_14_days_are_removed_and_longer_steps_are_shown_as_they_are() -> Result<()> {
    let fleet = Fleet::new().await?;
    let worker = fleet.worker("first").await?;
    worker.stop().await?;
    let rows = "INSERT INTO garenne_lane_history
                SELECT time, 'old', 600, time, time + interval '10 min', 7, 600, 300, 1200, 0, 0
                FROM unnest(ARRAY[date_bin('10 min', now() - interval '20 min', '1970-01-01Z'),
                                  now() - interval '13 days', now() - interval '15 days']) AS time";
    fleet.database.connect().await?.batch_execute(rows).await?;
    let dashboard = Dashboard::with_database(&fleet.env, &fleet.database.url()).await?;
    let answer = dashboard.json(HISTORY).await?;
    let old = &answer["lanes"]["old"];
    // One place earlier if a step has begun since.
    let at = if old["settled"][3].is_null() { 2 } else { 3 };
    let mut settled = json!([null, null, null, null, null, null]);
    settled[at] = json!(7);
    assert_eq!((&answer["step_seconds"], &old["settled"]), (&json!(600), &settled));
    assert_eq!(
        (&old["busy"][at], &old["unacked"][at], &old["ready"][at]),
        (&json!(0.5), &json!(2.0), &Value::Null)
    );
    let worker = fleet.worker("second").await?;
    eventually("the row of 15 days ago is removed", async || {
        let count =
            fleet.database.text("SELECT count(*) FROM garenne_lane_history WHERE lane = 'old'").await?;
        Ok(Seen::when(count == "2", count))
    })
    .await?;
    worker.stop().await?;
    Ok(())
}

/// A week of a lane with a day without figures in it.
const WEEK: &str = "INSERT INTO garenne_lane_history
    SELECT time, 'fast', 600, time, time + interval '10 min', 600, 4800, 2400, 600 * (3 + 2 * sin(n / 40.0)),
           600 * greatest(0, 20 * sin(n / 90.0)), 600
    FROM generate_series(1, 1000) AS n,
         LATERAL (SELECT date_bin('10 min', now() - n * interval '10 min', '1970-01-01Z') AS time) AS step
    WHERE n NOT BETWEEN 400 AND 544";

async fn choose(browser: &mut Browser, minutes: u32) -> Result<()> {
    browser
        .value(&format!("document.querySelector('input[name=span][value=\"{minutes}\"]').click()"))
        .await?;
    Ok(())
}

async fn open(browser: &mut Browser, dashboard: &Dashboard, dark: bool) -> Result<()> {
    browser.set_width(400).await?;
    browser.open(dashboard.url(), dark).await?;
    browser.until("document.querySelectorAll('#lane-cards article, #idle-lanes li').length > 0").await
}

#[tokio::test]
async fn the_page_draws_a_day_and_a_week_or_says_what_they_need() -> Result<()> {
    let Some(program) = browser::installed() else {
        suite::leave_out("no Chromium is installed (apt-get install chromium)");
        return Ok(());
    };
    let fleet = Fleet::new().await?;
    let worker = fleet.worker("first").await?;
    fleet.database.connect().await?.batch_execute(WEEK).await?;
    let mut browser = Browser::start(&program).await?;
    let dashboard = Dashboard::start(&fleet.env).await?;
    open(&mut browser, &dashboard, false).await?;
    let note = "document.getElementById('stored-note').textContent";
    assert_eq!(browser.value(note).await?, "");
    choose(&mut browser, 1440).await?;
    browser.until(&format!("{note}.startsWith('Curves of a day and a week need Postgres')")).await?;
    assert_eq!(browser.value("document.documentElement.scrollWidth <= 400").await?, true);
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
    // It loses its connection to this dashboard.
    browser.open("about:blank", false).await?;
    dashboard.stop().await?;

    let dashboard = Dashboard::with_database(&fleet.env, &fleet.database.url()).await?;
    open(&mut browser, &dashboard, true).await?;
    // The lane is idle, and was not.
    assert_eq!(browser.value("document.querySelectorAll('#lane-cards article').length").await?, 0);
    choose(&mut browser, 10080).await?;
    let areas = "[...document.querySelectorAll('#lane-cards article')].find((it) => it.querySelector('h3').textContent === 'fast')";
    browser.until(&format!("{areas}?.querySelectorAll('polygon').length === 4")).await?;
    assert_eq!(
        (browser.value(note).await?, browser.value("location.search").await?),
        ("".into(), "?range=10080".into())
    );
    assert_eq!(browser.value("document.documentElement.scrollWidth <= 400").await?, true);
    fleet.env.publish("bench.sleep", &json!({"ms": 600_000}), "long", 1).await?;
    browser.value("document.getElementById('lanes').scrollIntoView({behavior: 'instant'})").await?;
    browser.picture("dashboard-400-week").await?;
    browser.value(&format!("{areas}.querySelector('svg').focus()")).await?;
    browser.press("ArrowLeft").await?;
    browser.press("ArrowLeft").await?;
    let label = format!("{areas}.querySelector('svg').getAttribute('aria-label')");
    browser.until(&format!("/ready .*unacked /s.test({label})")).await?;
    choose(&mut browser, 1440).await?;
    browser.until(&format!("{areas}?.querySelectorAll('polygon').length === 2")).await?;
    browser.resize(1280, 800).await?;
    browser.value("document.getElementById('lanes').scrollIntoView({behavior: 'instant'})").await?;
    browser.until("document.querySelector('#lane-cards svg').viewBox.baseVal.width > 1000").await?;
    browser.picture("dashboard-1280-day").await?;
    // Points in memory follow the stored ones without a gap. The oldest of them is of the dashboard's start.
    choose(&mut browser, 60).await?;
    let begin =
        format!("Math.min(...[...{areas}?.querySelector('polygon')?.points ?? []].map((it) => it.x))");
    browser.until(&format!("{begin} < 400 && {areas}.querySelectorAll('polygon').length === 2")).await?;
    dashboard.until("the task runs", |now| now["point"]["lanes"]["fast"]["unacked"] == 1).await?;
    browser.until(&format!("{areas}.querySelector('dt.held + dd').textContent === '1'")).await?;
    assert_eq!(browser.unnamed().await?, Vec::<String>::new());
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
    worker.kill().await?;
    Ok(())
}
