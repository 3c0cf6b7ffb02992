//! The dashboard: its page and figures are right, its commands take effect, and only authorized requests are obeyed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use garenne_common::supervise;
use garenne_tests::harness::{
    browser::{self, Browser},
    dashboard::{Dashboard, TOKEN},
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::watch,
};

fn worker<'n>(now: &'n Value, id: &str) -> &'n Value {
    let workers = now["workers"].as_array().map_or(&[][..], Vec::as_slice);
    workers.iter().find(|worker| worker["id"] == id).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn dashboard_shows_the_fleet_and_executes_commands() -> Result<()> {
    let env = TestEnv::new().await?;
    let plan = env.worker("w")?.stdout().option("--max-attempts", "1");
    let running = plan.lane("fast:prefetch=4,concurrency=2..2").start().await?;
    let mut dashboard = Dashboard::start(&env).await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "stuck", 1).await?;
    env.publish("bench.fail", &json!({"times": 1}), "failing", 1).await?;
    let shown = |now: &Value| worker(now, "w")["tasks"][0]["id"] == "stuck-0" && now["point"]["dead"] == 1;
    let now = dashboard.until("the stuck task and the dead letter", shown).await?;
    assert_eq!(worker(&now, "w")["state"], "open");
    assert_eq!(worker(&now, "w")["lanes"]["fast"]["slots"], 2);
    assert_eq!(worker(&now, "w")["tasks"][0]["kind"], "bench.sleep");
    assert_eq!((&now["queue_problem"], &now["fleet_problem"]), (&Value::Null, &Value::Null));

    // Refused: requests without a login, and requests with the cookie but without the CSRF token, as another site's.
    let stop = json!({"id": "stuck-0"});
    let (status, _) = dashboard.post("/api/tasks/stop", stop.clone()).await?;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(dashboard.login("guess").await.is_err());
    dashboard.login(TOKEN).await?;
    for csrf in [None, Some("x")] {
        let (status, problem) = dashboard.post_with("/api/tasks/stop", stop.clone(), csrf).await?;
        assert_eq!(status, StatusCode::FORBIDDEN, "{problem}");
    }
    running.until_holds("fast", 1, 0).await?;

    let (status, answer) = dashboard.post("/api/tasks/stop", stop).await?;
    assert_eq!(status, StatusCode::OK, "{answer}");
    running.until_holds("fast", 0, 0).await?;
    dashboard.until("two dead letters", |now| now["point"]["dead"] == 2).await?;
    let letters = eventually("both letters are listed", async || {
        let letters = dashboard.json("/api/dead").await?;
        let listed = letters["letters"].as_array().map_or(0, Vec::len);
        Ok(if listed == 2 { Seen::Wanted(letters) } else { Seen::Other(letters.to_string()) })
    });
    let letters = letters.await?;
    let reasons: Vec<_> =
        letters["errors"].as_array().context("groups")?.iter().map(|it| &it["reason"]).collect();
    assert_eq!(reasons, ["attempts-exhausted", "stopped"]);

    let (status, job) = dashboard.post("/api/dead/replay", json!({"ids": ["failing-0"]})).await?;
    assert_eq!((status, &job["action"]), (StatusCode::ACCEPTED, &json!("replay")), "{job}");
    let job = dashboard.until_job_ended(&job).await?;
    assert_eq!((&job["state"], &job["report"]["moved"]), (&json!("done"), &json!(1)), "{job}");
    running.until_metric("garenne_deliveries_total", &["lane=\"fast\""], 3.0).await?;
    let (status, _) = dashboard.post("/api/dead/replay", json!({})).await?;
    assert_eq!(status, StatusCode::BAD_REQUEST);

    let (status, _) = dashboard.post("/api/groups/import-7/pause", json!({})).await?;
    assert_eq!(status, StatusCode::OK);
    let paused = |now: &Value| worker(now, "w")["paused"] == json!(["import-7"]);
    dashboard.until("the paused group", paused).await?;
    let (status, answer) = dashboard.post("/api/lanes/fast/pause", json!({})).await?;
    assert_eq!((status, &answer["remark"]), (StatusCode::OK, &Value::Null), "{answer}");
    let lane_is_paused = |now: &Value| now["point"]["lanes"]["fast"]["paused"] == true;
    dashboard.until("the paused lane", lane_is_paused).await?;
    let (status, answer) = dashboard.post("/api/kinds/bench.unknown/pause", json!({})).await?;
    assert_eq!(status, StatusCode::OK);
    assert!(answer["remark"].as_str().is_some_and(|it| it.contains("\"bench.unknown\"")), "{answer}");
    let kind_is_paused = |now: &Value| worker(now, "w")["paused_kinds"] == json!(["bench.unknown"]);
    dashboard.until("the paused kind", kind_is_paused).await?;
    let (status, _) = dashboard.post("/api/lanes/fast/stop", json!({})).await?;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (status, _) = dashboard.post("/api/lanes/fast/resume", json!({})).await?;
    assert_eq!(status, StatusCode::OK);
    dashboard.until("the resumed lane", |now| !lane_is_paused(now)).await?;
    let (status, _) = dashboard.post("/api/workers/w/quiet", json!({})).await?;
    assert_eq!(status, StatusCode::OK);
    dashboard.until("a quiet worker", |now| worker(now, "w")["state"] == "quiet").await?;
    let (status, problem) = dashboard.post("/api/workers/missing/quiet", json!({})).await?;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(
        problem["detail"].as_str().is_some_and(|it| it.contains("no worker is called \"missing\"")),
        "{problem}"
    );
    let (status, _) = dashboard.post("/api/workers/w/drain", json!({})).await?;
    assert_eq!(status, StatusCode::OK);
    running.stopped().await?;
    dashboard.until("the stopped worker", |now| worker(now, "w")["state"] == "stopped").await?;
    let ended = dashboard.stop().await?;
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    Ok(())
}

#[tokio::test]
async fn dashboard_exports_the_queues_and_says_how_many_workers_a_lane_needs() -> Result<()> {
    let env = TestEnv::new().await?;
    let running = env.worker("w")?.lane("fast:prefetch=4,concurrency=2..2");
    // Without a catch-all lane, a task of an unbound kind stays in the queue of unroutable tasks.
    let running = running.env("GARENNE_LANES__DEFAULT__CATCH_ALL", "false").start().await?;
    let dashboard = Dashboard::start(&env).await?;
    dashboard.until("the worker", |now| worker(now, "w")["state"] == "open").await?;
    env.publish("bench.sleep", &json!({"ms": 1000}), "task", 300).await?;
    env.client().publish("garenne.tasks", "unbound.kind", Default::default(), b"{}").await?;
    let path = "/scale/fast?objective=10s&max=9&window=0s";
    let answer = eventually("more workers are needed", async || {
        let answer = dashboard.json(path).await?;
        let known =
            answer["load"]["service_seconds"].is_number() && answer["load"]["backlog"].as_u64() > Some(20);
        Ok(if known { Seen::Wanted(answer) } else { Seen::Other(answer.to_string()) })
    });
    let answer = answer.await?;
    let load = &answer["load"];
    let service = load["service_seconds"].as_f64().context("seconds")?;
    assert!((0.9..15.0).contains(&service), "{answer}");
    assert_eq!((&load["slots_per_replica"], &load["replicas"]), (&json!(2.0), &json!(1)));
    // More than 20 tasks of one second each need more than two slots to be done within ten seconds.
    assert!((2..=9).contains(&answer["replicas"].as_u64().context("replicas")?), "{answer}");
    let metrics = dashboard.get("/metrics").await?.text().await?;
    let value = |series: &str| -> Option<f64> {
        metrics.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    };
    assert!(
        value("garenne_queue_messages{queue=\"garenne.tasks.fast\",state=\"ready\"}").is_some(),
        "{metrics}"
    );
    assert!(value("garenne_backlog_seconds{lane=\"fast\"}") > Some(5.0), "{metrics}");
    assert_eq!(value("garenne_backlog_seconds{lane=\"slow\"}"), Some(0.0));
    // The broker updates these figures every few seconds.
    for series in ["garenne_unroutable_total 1", "garenne_queue_consumers{queue=\"garenne.tasks.fast\"} 1"] {
        eventually(series, async || {
            let metrics = dashboard.get("/metrics").await?.text().await?;
            Ok(Seen::when(metrics.lines().any(|line| line == series), metrics))
        })
        .await?;
    }
    for (path, status, words) in [
        ("/scale/none", StatusCode::NOT_FOUND, "unknown lane \"none\", the lanes are default, fast, slow"),
        (
            "/scale/fast?min=9&max=2",
            StatusCode::BAD_REQUEST,
            "scale.min = 9 is refused: expected at most scale.max = 2",
        ),
        ("/scale/fast?objektive=1s", StatusCode::BAD_REQUEST, "unknown field `objektive`"),
        ("/nothing", StatusCode::NOT_FOUND, "no route /nothing"),
    ] {
        let answer = dashboard.get(path).await?;
        assert_eq!(answer.status(), status, "{path}");
        let text = answer.text().await?;
        assert!(text.replace("\\\"", "\"").contains(words), "{path}: {text}");
    }
    running.signal(garenne_tests::harness::process::Signal::QUIT)?;
    running.stopped().await?;
    Ok(())
}

#[tokio::test]
async fn dashboard_page_loads_no_external_resources() -> Result<()> {
    let env = TestEnv::new().await?;
    let dashboard = Dashboard::start(&env).await?;
    for (path, kind) in [
        ("/", "text/html"),
        ("/style.css", "text/css"),
        ("/app.js", "text/javascript"),
        ("/charts.js", "text/javascript"),
        ("/letters.js", "text/javascript"),
        ("/workers.js", "text/javascript"),
        ("/devices", "text/html"),
        ("/devices.js", "text/javascript"),
        ("/curve.js", "text/javascript"),
        ("/dom.js", "text/javascript"),
    ] {
        let answer = dashboard.get(path).await?.error_for_status()?;
        let header = |name: &str| {
            answer.headers().get(name).and_then(|it| it.to_str().ok()).unwrap_or_default().to_owned()
        };
        assert!(header("content-type").starts_with(kind), "{path}");
        let policy = header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self';") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(
            (header("x-frame-options"), header("x-content-type-options")),
            ("DENY".into(), "nosniff".into())
        );
        let text = answer.text().await?.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !text.contains("http://") && !text.contains("https://") && !text.contains("style="),
            "{path}"
        );
    }
    Ok(())
}

/// In a real browser, with the keyboard only: log in, stop a task that hangs, replay it.
#[tokio::test]
async fn dashboard_works_in_a_browser_by_keyboard() -> Result<()> {
    let Some(program) = browser::installed() else {
        suite::leave_out("no Chromium is installed (apt-get install chromium)");
        return Ok(());
    };
    let env = TestEnv::new().await?;
    let running = env.worker("w")?.lane("fast:prefetch=4,concurrency=2..2").start().await?;
    let dashboard = Dashboard::start(&env).await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "stuck", 1).await?;
    running.until_holds("fast", 1, 0).await?;
    let mut browser = Browser::start(&program).await?;
    browser.open(dashboard.url(), true).await?;
    browser.until("document.querySelector('.task .id')?.textContent === 'stuck-0'").await?;
    let dark = "getComputedStyle(document.body).backgroundColor";
    assert_eq!(browser.value(dark).await?, "rgb(17, 18, 24)", "the dark colour scheme");
    // The buttons are hidden before the login.
    assert_eq!(browser.value("document.querySelector('.task button').hidden").await?, true);

    browser.value("document.getElementById('account').focus()").await?;
    browser.press("Enter").await?;
    browser.until("document.getElementById('login').open && document.activeElement.id === 'token'").await?;
    browser.write("guess").await?;
    browser.press("Enter").await?;
    browser.until("document.getElementById('login-error').textContent === 'wrong admin token'").await?;
    browser.value("document.getElementById('token').focus()").await?;
    browser.write(TOKEN).await?;
    browser.press("Enter").await?;
    browser.until("document.getElementById('account').textContent === 'Log out'").await?;
    assert_eq!(browser.value("document.cookie").await?, "", "scripts cannot read the cookie");

    browser.value("document.querySelector('.task button').focus()").await?;
    browser.press("Enter").await?;
    browser.until("document.getElementById('confirm').open").await?;
    browser.press("Enter").await?;
    running.until_holds("fast", 0, 0).await?;
    browser.until("document.querySelector('#dead-table td.id')?.textContent === 'stuck-0'").await?;
    browser
        .value("document.querySelector('#dead-table [aria-label=\"Payload of stuck-0\"]').focus()")
        .await?;
    browser.press("Enter").await?;
    browser.until("document.getElementById('letter').open").await?;
    let payload = browser.value("document.getElementById('letter-payload').textContent.trim()").await?;
    assert!(payload.as_str().is_some_and(|text| text.contains("\"ms\": 600000")), "{payload}");
    browser.press("Enter").await?;
    browser.until("!document.getElementById('letter').open").await?;
    browser.value("document.querySelector('#dead-table [aria-label=\"Replay stuck-0\"]').focus()").await?;
    browser.press("Enter").await?;
    browser.until("document.getElementById('confirm').open").await?;
    browser.press("Enter").await?;
    browser.until("document.getElementById('toast').textContent === '1 replayed'").await?;
    // The replay overrules the earlier stop directive, which is still in the stream.
    running.until_holds("fast", 1, 0).await?;
    browser.press("/").await?;
    browser.until("document.activeElement.id === 'filter'").await?;
    // The wrong token was intended; nothing else may have failed.
    browser.errors.retain(|error| !error.contains("401"));
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
    running.stop().await?;
    Ok(())
}

/// Strangers that hold connections and requests keep out neither probes nor people who are logged in.
#[tokio::test]
async fn dashboard_answers_probes_and_people_beside_two_hundred_strangers() -> Result<()> {
    let env = TestEnv::new().await?;
    let mut dashboard = Dashboard::start(&env).await?;
    dashboard.login(TOKEN).await?;
    let address = dashboard.url().trim_start_matches("http://").to_owned();
    let mut strangers = Vec::new();
    for _ in 0..64 {
        for request in [
            "GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n",
            "POST /api/login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
            "GET /livez HTTP/1.1\r\nhost: ",
        ] {
            let mut stream = TcpStream::connect(&address).await?;
            stream.write_all(request.as_bytes()).await?;
            strangers.push(stream);
        }
    }
    for path in ["/livez", "/metrics", "/scale/fast", "/api/now"] {
        let began = Instant::now();
        let status = dashboard.get(path).await?.status();
        let took = began.elapsed();
        println!("{path}: {status} in {took:?}");
        // Before the first sample of the queues, the number of workers is not known.
        assert!(status.is_success() || (path == "/scale/fast" && status == 503), "{path}: {status}");
        assert!(took < Duration::from_secs(5), "{path}: {took:?}");
    }
    let anonymous = reqwest::get(format!("{}/api/now", dashboard.url())).await?;
    assert_eq!(anonymous.status(), StatusCode::TOO_MANY_REQUESTS);
    Ok(())
}

/// A reverse proxy in front of a dashboard. While that is away, its connections are closed and every request gets a 502,
/// which is counted.
async fn proxy(listener: TcpListener, to: String, away: watch::Receiver<bool>, refused: watch::Sender<u32>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let (to, mut away, refused) = (to.clone(), away.clone(), refused.clone());
        let connection = async move {
            if *away.borrow_and_update() {
                let _ = client.read(&mut [0; 4096]).await;
                let answer = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = client.write_all(answer).await;
                refused.send_modify(|refused| *refused += 1);
            } else if let Ok(mut dashboard) = TcpStream::connect(to).await {
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut dashboard) => {}
                    _ = away.wait_for(|away| *away) => {}
                }
            }
        };
        supervise::isolated("connection of the proxy", connection).spawn().detach();
    }
}

/// A browser gives up a stream of events whose request gets an error.
#[tokio::test]
async fn the_page_is_live_again_after_a_proxy_has_answered_for_a_dashboard_that_restarts() -> Result<()> {
    let Some(program) = browser::installed() else {
        suite::leave_out("no Chromium is installed (apt-get install chromium)");
        return Ok(());
    };
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let dashboard = Dashboard::start(&env).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let (away, is_away) = watch::channel(false);
    let (counted, mut refused) = watch::channel(0);
    let to = dashboard.url().trim_start_matches("http://").to_owned();
    let _proxy = supervise::isolated("proxy", proxy(listener, to, is_away, counted)).spawn();
    let mut browser = Browser::start(&program).await?;
    browser.open(&url, false).await?;
    let is_live = "document.getElementById('live').classList.contains('on')";
    browser.until(is_live).await?;
    away.send_replace(true);
    browser.until(&format!("!{is_live}")).await?;
    refused.wait_for(|refused| *refused > 3).await?;
    away.send_replace(false);
    browser.until(is_live).await
}
