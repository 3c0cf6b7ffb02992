//! Reading stored readings back: the dashboard's API and pages, and the statements of the Grafana dashboard.

use std::path::Path;

use anyhow::{Context, Result};
use garenne_tests::harness::{
    browser::{self, Browser},
    client::with_id,
    dashboard::Dashboard,
    postgres::{Database, Postgres},
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use reqwest::StatusCode;
use serde_json::{Value, json};

/// Readings of two devices in three hours, one of them flagged.
const READINGS: [(&str, &str, &str, f64); 5] = [
    ("hall/rack-2", "temperature", "2026-09-01T10:00:00Z", 20.5),
    ("hall/rack-2", "temperature", "2026-09-01T10:30:00Z", 21.5),
    ("hall/rack-2", "temperature", "2026-09-01T11:00:00Z", 22.0),
    ("hall/rack-2", "temperature", "2026-09-01T12:00:00.25Z", -300.0),
    ("=cmd", "temperature", "2026-09-01T12:00:00Z", 5.0),
];

/// A database with these readings, and a dashboard that reads it.
async fn with_readings(env: &TestEnv) -> Result<(Database, Dashboard)> {
    let database = Postgres::shared().await?.database().await?;
    let plan = env.worker("storing")?.option("--sink", "postgres").option("--postgres-url", database.url());
    let worker = plan.start().await?;
    for (index, (device, metric, time, value)) in READINGS.iter().enumerate() {
        let body = json!({"device": device, "metric": metric, "value": value, "unit": "Cel", "time": time});
        let (id, body) = (with_id(&format!("r{index}")), body.to_string());
        env.client().publish("garenne.tasks", "reading.process", id, body.as_bytes()).await?;
    }
    env.until_settled(READINGS.len()).await?;
    worker.stop().await?;
    let client = database.connect().await?;
    client
        .batch_execute(
            "INSERT INTO garenne_alarms (id, device, metric, rule, since, upto, value) VALUES
             ('1', 'hall/rack-2', 'temperature', 'too-warm', '2026-09-01T11:00Z', '2026-09-01T11:00Z', 22)",
        )
        .await?;
    let dashboard = Dashboard::with_database(env, &database.url()).await?;
    Ok((database, dashboard))
}

/// A refused request: its status and detail.
async fn refused(dashboard: &Dashboard, path: &str) -> Result<(StatusCode, String)> {
    let answer = dashboard.get(path).await?;
    let status = answer.status();
    let problem: Value = answer.json().await?;
    Ok((status, problem["detail"].as_str().context("detail")?.to_owned()))
}

const SERIES: &str = "/v1/readings?device=hall%2Frack-2&metric=temperature";
const DAY: &str = "&from=2026-09-01T00:00:00Z&to=2026-09-02T00:00:00Z";

#[tokio::test]
async fn readings_and_devices_are_read_as_json_and_csv() -> Result<()> {
    let env = TestEnv::new().await?;
    let (_database, dashboard) = with_readings(&env).await?;
    let answer = dashboard.json(&format!("{SERIES}{DAY}")).await?;
    assert_eq!((&answer["device"], &answer["next"]), (&json!("hall/rack-2"), &Value::Null));
    assert_eq!(answer["readings"].as_array().map(Vec::len), Some(4), "{answer}");
    let flagged = json!({
        "time": "2026-09-01T12:00:00.25Z", "value": -300.0, "unit": "Cel", "raw": -300.0, "raw_unit": "Cel",
        "quality": ["impossible"], "calibration": "none",
    });
    assert_eq!(answer["readings"][3], flagged);

    // Pages follow each other without a gap, in both forms.
    let mut page = format!("{SERIES}{DAY}&limit=3");
    let answer = dashboard.json(&page).await?;
    assert_eq!(answer["readings"].as_array().map(Vec::len), Some(3), "{answer}");
    let next = answer["next"].as_str().context("next")?;
    assert_eq!(dashboard.json(next).await?["readings"], json!([flagged]));
    page += "&format=csv";
    let answer = dashboard.get(&page).await?.error_for_status()?;
    let link = answer.headers()["link"].to_str()?.to_owned();
    assert_eq!(answer.headers()["content-type"], "text/csv; charset=utf-8; header=present");
    let lines = answer.text().await?;
    assert_eq!(
        lines.lines().take(2).collect::<Vec<_>>(),
        ["time,value,unit,raw,raw_unit,quality,calibration", "2026-09-01T10:00:00Z,20.5,Cel,20.5,Cel,,none"]
    );
    assert_eq!(lines.lines().count(), 4);
    let next =
        link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\"")).context("link")?;
    let lines = dashboard.get(next).await?.error_for_status()?.text().await?;
    assert_eq!(lines.lines().nth(1), Some("2026-09-01T12:00:00.25Z,-300,Cel,-300,Cel,impossible,none"));

    for (step, count, wanted) in [
        (
            "30m",
            4,
            json!({"time": "2026-09-01T10:30:00Z", "unit": "Cel", "count": 1, "min": 21.5, "mean": 21.5, "max": 21.5, "flagged": 0, "consumption": null}),
        ),
        (
            "1h",
            3,
            json!({"time": "2026-09-01T11:00:00Z", "unit": "Cel", "count": 1, "min": 22.0, "mean": 22.0, "max": 22.0, "flagged": 0, "consumption": null}),
        ),
        (
            "2h",
            2,
            json!({"time": "2026-09-01T12:00:00Z", "unit": "Cel", "count": 0, "min": null, "mean": null, "max": null, "flagged": 1, "consumption": null}),
        ),
    ] {
        let answer = dashboard.json(&format!("{SERIES}{DAY}&step={step}")).await?;
        let buckets = answer["buckets"].as_array().context("buckets")?;
        assert_eq!((buckets.len(), &buckets[1]), (count, &wanted), "{step}");
    }
    let days = dashboard.get_as(&format!("{SERIES}{DAY}&step=1d"), "text/csv").await?.text().await?;
    let wanted = "time,unit,count,min,mean,max,flagged,consumption\n2026-09-01T00:00:00Z,Cel,3,20.5,21.333333333333332,22,1,\n";
    assert_eq!(days, wanted);

    // From the daily rollups, the hourly ones, and the readings.
    for (step, begin) in [
        ("1month", "2026-09-01T00:00:00Z"),
        ("1month&zone=Europe/Berlin", "2026-08-31T22:00:00Z"),
        ("1d&zone=Asia/Kolkata", "2026-08-31T18:30:00Z"),
    ] {
        let answer = dashboard.json(&format!("{SERIES}{DAY}&step={step}")).await?;
        let bucket = &answer["buckets"][0];
        assert_eq!((&answer["step_seconds"], &bucket["time"]), (&Value::Null, &json!(begin)), "{answer}");
        assert_eq!((&bucket["count"], &bucket["flagged"]), (&json!(3), &json!(1)), "{answer}");
    }

    let devices = dashboard.json("/v1/devices").await?;
    let names: Vec<_> =
        devices["devices"].as_array().context("devices")?.iter().map(|it| &it["device"]).collect();
    assert_eq!(names, ["=cmd", "hall/rack-2"]);
    assert_eq!(devices["next"], Value::Null);
    let first = dashboard.json("/v1/devices?limit=1").await?;
    assert_eq!(first["next"], "=cmd");
    let second = dashboard.json("/v1/devices?limit=1&after=%3Dcmd").await?;
    assert_eq!(second["devices"][0]["device"], "hall/rack-2");
    let one = dashboard.json("/v1/devices?device=hall%2Frack-2").await?;
    let metric = &one["devices"][0]["metrics"][0];
    assert_eq!((&metric["value"], &metric["quality"]), (&json!(-300.0), &json!(["impossible"])));
    assert_eq!((&one["alarms"][0]["rule"], &one["alarms"][0]["ended"]), (&json!("too-warm"), &Value::Null));
    let lines = dashboard.get_as("/v1/devices", "text/csv").await?.text().await?;
    assert!(
        lines.starts_with(
            "device,metric,time,value,unit,quality,stored_at\n\"'=cmd\",temperature,2026-09-01T12:00:00Z,5,Cel,,"
        ),
        "{lines}"
    );
    Ok(())
}

#[tokio::test]
async fn invalid_requests_are_refused_by_name() -> Result<()> {
    let env = TestEnv::new().await?;
    let (_database, dashboard) = with_readings(&env).await?;
    for (path, status, words) in [
        ("/v1/readings?device=a", StatusCode::BAD_REQUEST, "missing field `metric`"),
        ("/v1/readings?device=a&metric=%00", StatusCode::BAD_REQUEST, "metric: expected a name"),
        ("/v1/readings?device=a&metric=b&step=1s", StatusCode::BAD_REQUEST, "step: 1 s gives 8640"),
        (
            "/v1/readings?device=none&metric=b",
            StatusCode::NOT_FOUND,
            "no readings of device \"none\" are stored",
        ),
        ("/v1/devices?limit=0", StatusCode::BAD_REQUEST, "limit: 0; expected 1 to 1000"),
        ("/v1/devices?device=none", StatusCode::NOT_FOUND, "no readings of device \"none\" are stored"),
    ] {
        let (found, detail) = refused(&dashboard, path).await?;
        assert!(found == status && detail.contains(words), "{path}: {found} {detail}");
    }
    let answer = dashboard.get_as("/v1/devices", "image/png").await?;
    assert_eq!(answer.status(), StatusCode::NOT_ACCEPTABLE);
    let other = Dashboard::start(&env).await?;
    let (status, detail) = refused(&other, "/v1/devices").await?;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(detail, "this dashboard reads no database: start it with --postgres-url");
    Ok(())
}

/// An answer is bounded in rows, in readings that are looked at, and in time.
#[tokio::test]
async fn requests_beyond_a_limit_are_refused_before_they_are_loaded() -> Result<()> {
    let env = TestEnv::new().await?;
    let (database, dashboard) = with_readings(&env).await?;
    let client = database.connect().await?;
    client
        .batch_execute(
            "INSERT INTO garenne_readings (device, metric, time, value, quality, task_id, worker, calibration)
             SELECT 'fast', 'm', '2026-10-01Z'::timestamptz + n * interval '1 second', n, '{}', 't', 'w',
                    CASE WHEN n < 100000 THEN repeat('x', 250) END
             FROM generate_series(0, 1000000) AS n;
             INSERT INTO garenne_series SELECT 'fast', 'm', max(time), 0, NULL, '{}', now(),
                 '{[2026-10-01Z, 2026-10-13Z)}' FROM garenne_readings WHERE device = 'fast'",
        )
        .await?;
    let series = "/v1/readings?device=fast&metric=m&from=2026-10-01T00:00:00Z";
    let all = "&to=2026-10-13T00:00:00Z";
    let day = "&to=2026-10-02T03:46:40Z";
    let (status, detail) = refused(&dashboard, &format!("{series}{all}")).await?;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(
        detail,
        "more than 100000 readings of fast m from 2026-10-01T00:00:00Z to 2026-10-13T00:00:00Z are stored: give a step, a \
         shorter period, or a limit for pages"
    );
    let (status, detail) = refused(&dashboard, &format!("{series}{all}&step=30m")).await?;
    assert!(status == StatusCode::BAD_REQUEST && detail.contains("more than 1000000 readings"), "{detail}");
    let (status, detail) = refused(&dashboard, &format!("{series}{all}&step=1h")).await?;
    assert!(status == StatusCode::SERVICE_UNAVAILABLE && detail.contains("are being computed"), "{detail}");
    // Exactly as many as are allowed.
    let rows = dashboard.get(&format!("{series}{day}&format=csv")).await?.error_for_status()?.text().await?;
    assert_eq!(rows.lines().count(), 100_001);
    // With its rollups the longest period costs little.
    let policy = env.folder().join("retention.toml");
    std::fs::write(&policy, "")?;
    let policy = policy.display().to_string();
    env.garenne(&["database", "prune", &policy, "--postgres-url", &database.url()]).await?;
    let hours = dashboard.json(&format!("{series}{all}&step=1h")).await?;
    let counts = hours["buckets"].as_array().context("buckets")?.iter().filter_map(|it| it["count"].as_u64());
    assert_eq!(counts.sum::<u64>(), 1_000_001);

    // The connection to the database is lost while the client reads 35 MB, more than sockets hold: the answer does not
    // look complete.
    let mut answer = dashboard.get(&format!("{series}{day}")).await?.error_for_status()?;
    answer.chunk().await?.context("a first part")?;
    let terminate = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                     WHERE datname = current_database() AND query LIKE 'SELECT time, value%' AND state = 'active'";
    assert_eq!(client.query_one(terminate, &[]).await?.get::<_, i64>(0), 1);
    let rest = async {
        while answer.chunk().await?.is_some() {}
        anyhow::Ok(())
    };
    assert!(rest.await.is_err());

    // A database that does not answer is given up.
    let locking = database.connect().await?;
    locking.batch_execute("BEGIN; LOCK TABLE garenne_readings IN ACCESS EXCLUSIVE MODE").await?;
    let (status, detail) = refused(&dashboard, &format!("{series}{day}")).await?;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(detail, "Postgres: canceling statement due to statement timeout");
    locking.batch_execute("ROLLBACK").await?;
    let answer = dashboard.json(&format!("{series}{day}&limit=1")).await?;
    assert_eq!(answer["readings"][0]["value"], 0.0);
    Ok(())
}

/// In a real browser: the list, a device with the keyboard, and a narrow screen.
#[tokio::test]
async fn a_device_has_a_page_with_its_curve() -> Result<()> {
    let Some(program) = browser::installed() else {
        suite::leave_out("no Chromium is installed (apt-get install chromium)");
        return Ok(());
    };
    let env = TestEnv::new().await?;
    let (database, dashboard) = with_readings(&env).await?;
    let client = database.connect().await?;
    client
        .batch_execute(
            "INSERT INTO garenne_readings (device, metric, time, value, unit, quality, task_id, worker)
             SELECT 'hall/rack-2', 'temperature', now() - n * interval '5 minutes', 20 + n % 7, 'Cel', '{}', 't', 'w'
             FROM generate_series(1, 200) AS n;
             UPDATE garenne_series SET stale = tstzmultirange(tstzrange(
                 date_bin('1 hour', now() - interval '1 day', '2000-01-01Z'), date_bin('1 hour', now(), '2000-01-01Z') + interval '1 hour'))",
        )
        .await?;
    let mut browser = Browser::start(&program).await?;
    browser.resize(400, 800).await?;
    browser.open(&format!("{}/devices", dashboard.url()), false).await?;
    browser.until("document.querySelectorAll('#device-table tbody tr').length === 2").await?;
    assert_eq!(browser.value("document.querySelector('#device-table tbody a').textContent").await?, "=cmd");
    browser.press("/").await?;
    browser.write("rack").await?;
    browser.until("document.getElementById('list-note').textContent === '1 of 2'").await?;
    browser.value("document.querySelector('#device-table tbody tr:not([hidden]) a').focus()").await?;
    browser.press("Enter").await?;
    browser
        .until("document.querySelector('svg.curve polyline')?.getAttribute('points').split(' ').length > 150")
        .await?;
    let text = |selector: &str| format!("document.querySelector('{selector}').textContent");
    assert_eq!(browser.value(&text("#device-title")).await?, "hall/rack-2");
    assert_eq!(browser.value(&text(".flags")).await?, "impossible");
    assert_eq!(browser.value(&text("#alarm-table tbody .pill")).await?, "open");
    // How old the newest reading is, whatever the curve shows. Alarms are cards that unfold.
    browser
        .until("/^last data [0-9]+ (d|years) ago$/.test(document.getElementById('last-data').textContent)")
        .await?;
    assert_eq!(browser.value("document.getElementById('last-data').className").await?, "old");
    let card = browser.value(&text("#metric-cards .big .old")).await?;
    assert!(card.as_str().is_some_and(|text| text.starts_with("last reading ")), "{card}");
    let cells =
        "[...document.querySelector('#alarm-table tbody tr').children].filter((it) => it.checkVisibility())
        .map((it) => it.dataset.name).filter(Boolean).join()";
    assert_eq!(browser.value(cells).await?, "rule,since,until");
    browser.value("document.querySelector('#alarm-table .fold button').click()").await?;
    assert_eq!(browser.value(cells).await?, "rule,metric,since,until,value");
    assert_eq!(browser.value(&text("#alarm-table td[data-name=since]")).await?, "1 Sept 2026, 11:00");
    let wide = "document.documentElement.scrollWidth > innerWidth";
    assert_eq!(browser.value(wide).await?, false, "the page scrolls sideways at 400 px");

    // The curve tells its values to keyboards and screen readers.
    let spoken = "document.querySelector('svg.curve').getAttribute('aria-label')";
    let label = browser.value(spoken).await?;
    assert!(
        label
            .as_str()
            .is_some_and(|label| label.starts_with("temperature of the last 1 d: from 20 to 26 Cel")),
        "{label}"
    );
    eventually("the curve tells a value", async || {
        // A curve that is drawn anew, because its width has changed, tells none.
        browser.value("document.querySelector('svg.curve').focus()").await?;
        browser.press("ArrowLeft").await?;
        let told = format!("{spoken}.includes('\\n') && !document.getElementById('tip').hidden");
        let told = browser.value(&told).await?;
        Ok(Seen::when(told == true, told))
    })
    .await?;
    browser.value("document.querySelector('#periods input[value=\"7 d\"]').click()").await?;
    browser.until(&format!("{spoken}.startsWith('temperature of the last 7 d: from 20 to 26 Cel')")).await?;
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
    browser.screenshot("device").await?;

    // A range of dates, which the address keeps.
    browser.value("document.getElementById('range-from').value = '2026-09-01'; document.getElementById('range-to').value = '2026-09-01'").await?;
    browser.value("document.querySelector('#range button').click()").await?;
    browser.until(&format!("{spoken}.startsWith('temperature on 1 Sept 2026: from 20.5 to 22 Cel')")).await?;
    let address = browser.value("location.search").await?;
    assert!(address.as_str().is_some_and(|it| it.ends_with("from=2026-09-01&to=2026-09-01")), "{address}");
    browser
        .open(&format!("{}/devices{}", dashboard.url(), address.as_str().unwrap_or_default()), false)
        .await?;
    browser.until(&format!("{spoken}?.startsWith('temperature on 1 Sept')")).await?;
    browser.value("document.querySelector('#periods input[value=\"7 d\"]').click()").await?;
    browser.until(&format!("{spoken}.startsWith('temperature of the last 7 d')")).await?;
    browser.open(&format!("{}/devices", dashboard.url()), false).await?;
    browser.until("document.querySelectorAll('#device-table td.old').length === 2").await?;
    assert_eq!(browser.value("document.querySelectorAll('#device-table td.n.faded').length").await?, 2);
    Ok(())
}

/// Every statement of the Grafana dashboard is one that the tables understand.
#[tokio::test]
async fn the_statements_of_the_grafana_dashboard_run() -> Result<()> {
    let env = TestEnv::new().await?;
    let (database, _dashboard) = with_readings(&env).await?;
    let client = database.connect().await?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/grafana/dashboards/readings.json");
    let board: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let variables = list(&board["templating"]["list"]).into_iter().filter(|it| it["type"] == "query");
    let targets = list(&board["panels"]).into_iter().flat_map(|panel| list(&panel["targets"]));
    let queries: Vec<_> =
        variables.map(|it| it["query"].clone()).chain(targets.map(|it| it["rawSql"].clone())).collect();
    assert_eq!(queries.len(), 14);
    let (from, to) = ("'2026-09-01T00:00:00Z'", "'2026-09-02T00:00:00Z'");
    for query in queries {
        let query = query.as_str().context("a statement")?;
        let filled = query
            .replace("${device:sqlstring}", "'hall/rack-2'")
            .replace("${metric:sqlstring}", "'temperature'")
            .replace("$__timeFilter(time)", &format!("time BETWEEN {from} AND {to}"))
            .replace("$__timeFrom()", from)
            .replace("$__timeTo()", to);
        let rows = client.query(&filled, &[]).await.with_context(|| filled.clone())?;
        // A temperature has no consumption.
        assert!(!rows.is_empty() || query.contains("consumption IS NOT NULL"), "{filled}");
    }
    Ok(())
}
