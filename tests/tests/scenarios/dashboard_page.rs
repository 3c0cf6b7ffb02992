//! The dashboard's page in a real browser: from 400 to 2,560 pixels, light and dark, with 200 workers and many letters,
//! by keyboard, and with the rules of screen readers. `GARENNE_TEST_SCREENSHOTS=docs/images` takes the pictures of
//! `docs/dashboard.md` again.

use anyhow::{Result, bail, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use garenne_tests::harness::{
    browser::{self, Browser},
    client::{headers, text, with_id},
    dashboard::{Dashboard, TOKEN},
    suite,
    test_env::{DELAYS, TestEnv},
    wait::{Seen, eventually},
};
use lapin::{
    options::QueueDeclareOptions,
    types::{AMQPValue, FieldTable},
};
use serde_json::{Value, json};

const DEAD: &str = "garenne.dead";
const WORKERS: usize = 200;
const LETTERS: usize = 305;
/// Control characters and HTML, as any publisher can send them.
const HOSTILE: &str = "<img src=x onerror=alert(1)>\u{7}\u{202e}";

/// The heartbeat of a worker. It stays the last one for the whole test.
fn heartbeat(n: usize, now: i64) -> Value {
    let busy = n % 9;
    let task = |slot: usize| {
        let (kind, seconds) =
            (["reading.process", "window.close", "alert.notify"][slot % 3], 0.4 + slot as f64);
        json!({"id": format!("task-{n}-{slot}"), "kind": kind, "lane": "fast", "seconds": seconds})
    };
    let first = |value: Value, none: Value| if n == 0 { value } else { none };
    json!({
        "groups": first(json!({"import-7": {"running": 2, "queued": 5}}), json!({})),
        "paused": first(json!(["import-8"]), json!([])), "paused_kinds": first(json!(["alert.notify", "window.close"]), json!([])),
        "program": "worker", "id": format!("greenhouse-{n:03}"), "incarnation": "1", "host": format!("node-{}", n % 20),
        "version": "0.1.0", "started_at": now - 3_600_000 - 1_000 * n as i64, "at": now, "every_ms": 3_600_000,
        "stance": if n % 40 == 7 { "quiet" } else { "open" }, "running": busy,
        "lanes": {"fast": {"slots": 8, "busy": busy.min(8), "queued": n % 5, "stuck": n / 199, "open": true, "capacity": 50}},
        "tasks": (0..busy).rev().map(task).collect::<Vec<_>>(),
        "connections": {"consume": {"up": true, "epoch": 0}},
    })
}

/// The heartbeats of two bridges: one that is subscribed, with a spool, and one that is not.
fn bridges(now: i64) -> [Value; 2] {
    let beat = |id: &str, bridge: Value| {
        json!({
            "program": "bridge", "id": id, "incarnation": "1", "host": "node-1", "version": "0.1.0",
            "started_at": now - 3_600_000, "at": now, "every_ms": 3_600_000, "stance": "open", "bridge": bridge,
        })
    };
    let subscribed = json!({
        "broker": "mqtt.example.org:8883", "connected": true, "subscriptions": ["zigbee2mqtt/#", HOSTILE],
        "in_flight": 7, "messages": {"mapped": 12, "unmapped": 3},
    });
    let mut spooling = beat("hall", subscribed);
    spooling["spool"] = json!({"records": 40, "bytes": 8_192, "oldest_at": now - 60_000, "set_aside": 2});
    [spooling, beat("yard", json!({"broker": "mqtt:1883"}))]
}

/// Milliseconds since 1970.
fn now() -> Result<i64> {
    Ok(i64::try_from(std::time::UNIX_EPOCH.elapsed()?.as_millis())?)
}

/// Publishes the heartbeats of the workers until the dashboard shows all of them. It shows only workers that have a
/// control queue, which an exclusive queue of this connection is.
async fn publish_workers(env: &TestEnv, dashboard: &Dashboard) -> Result<()> {
    let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
    for n in 0..WORKERS {
        let queue = format!("garenne.worker.greenhouse-{n:03}");
        env.client().channel().queue_declare(queue.into(), options, FieldTable::default()).await?;
    }
    eventually("the dashboard shows the workers", async || {
        let now = now()?;
        let beats = (0..WORKERS).map(|n| {
            let body = heartbeat(n, now).to_string();
            let key = format!("beat.worker.greenhouse-{n:03}");
            async move { env.client().publish("garenne.events", &key, with_id(&key), body.as_bytes()).await }
        });
        stream::iter(beats).buffered(100).try_collect::<()>().await?;
        let now = dashboard.json("/api/now").await?;
        let workers = now["workers"].as_array().into_iter().flatten();
        let shown = workers.filter(|it| it["state"] == "open" || it["state"] == "quiet").count();
        Ok(Seen::when(shown == WORKERS, shown))
    })
    .await
}

async fn publish(env: &TestEnv, dashboard: &Dashboard) -> Result<()> {
    publish_workers(env, dashboard).await?;
    let now = now()?;
    for bridge in bridges(now) {
        let (key, body) =
            (format!("beat.bridge.{}", bridge["id"].as_str().unwrap_or_default()), bridge.to_string());
        env.client().publish("garenne.events", &key, with_id(&key), body.as_bytes()).await?;
    }
    let letters = (0..LETTERS).map(|n| {
        let (kind, reason, error) = [
            ("reading.process", "conflict", "value 21.5 is stored for this time, 24.1 came"),
            ("alert.notify", "attempts-exhausted", "webhook https://hooks.example.org/alerts answered 503"),
            ("window.close", "invalid-payload", HOSTILE),
        ][n % 3];
        let letter = with_id(&format!("0198c5c2-7d1e-7000-8000-{n:012}")).with_type(kind.into());
        let letter = letter.with_delivery_mode(2).with_headers(headers([
            ("garenne-reason", text(reason)),
            ("garenne-error", text(error)),
            ("garenne-worker", text(&format!("greenhouse-{:03}", n % WORKERS))),
            ("garenne-attempt", AMQPValue::LongInt(5)),
            ("garenne-died-at", AMQPValue::LongLongInt(now - 1_000 * i64::try_from(n).unwrap_or(0))),
        ]));
        let body = json!({"device": format!("hall/rack-{n}"), "note": HOSTILE}).to_string();
        async move { env.client().publish("", DEAD, letter, body.as_bytes()).await }
    });
    stream::iter(letters).buffered(100).try_collect::<()>().await?;
    env.until_ready_in(DEAD, LETTERS).await
}

/// The page with all workers and the letters of a page.
async fn until_drawn(browser: &mut Browser, workers: usize, letters: usize) -> Result<()> {
    let rows = |table: &str, count: usize| {
        format!("document.querySelectorAll('#{table} tbody tr').length === {count}")
    };
    let drawn = format!("{} && {}", rows("worker-table", workers), rows("dead-table", letters));
    browser.until(&drawn).await
}

async fn fits(browser: &mut Browser, width: u32) -> Result<()> {
    let wide = browser
        .value(
            "JSON.stringify([document.documentElement, ...document.querySelectorAll('.scroll')]
                .filter((it) => it.scrollWidth > it.clientWidth + 1)
                .map((it) => [it.tagName, it.firstElementChild?.id, it.scrollWidth, it.clientWidth]))",
        )
        .await?;
    ensure!(wide == "[]", "wider than {width} px: {wide}");
    let nav = "[...document.querySelectorAll('.bar nav a')].every((it) => it.checkVisibility() && it.getBoundingClientRect().right <= innerWidth)";
    ensure!(browser.value(nav).await? == true, "the navigation is not shown at {width} px");
    Ok(())
}

async fn order_of(browser: &mut Browser) -> Result<Value> {
    let state = "[...document.querySelectorAll('#worker-table th[aria-sort]')]
        .filter((it) => it.ariaSort !== 'none').map((it) => it.textContent + ' ' + it.ariaSort).join()";
    browser.value(state).await
}

/// Presses Tab until the focus is back at the beginning. Each element that can have the focus must have had it, visibly.
async fn walk_by_tab(browser: &mut Browser) -> Result<()> {
    let open = "document.activeElement?.blur(); window.seen = new Set(); window.hidden = [];
        window.expected = [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex=\"0\"]')]
            .filter((it) => it.checkVisibility({visibilityProperty: true}) && !it.disabled && !it.closest('dialog')
                && !(it.type === 'radio' && !it.checked)); expected.length";
    let expected = browser.value(open).await?.as_u64().unwrap_or_default();
    ensure!(expected > 30, "only {expected} elements");
    let step = "(() => { const it = document.activeElement;
        if (it === document.body) return false;
        if (seen.has(it)) return true;
        seen.add(it);
        const shown = it.type === 'radio' ? it.parentElement : it, style = getComputedStyle(shown);
        if (style.outlineStyle === 'none' || parseFloat(style.outlineWidth) === 0) hidden.push(it.outerHTML.slice(0, 80));
        return false; })()";
    for _ in 0..2 * expected {
        browser.press("Tab").await?;
        if browser.value(step).await? == true {
            break;
        }
    }
    let missed = browser
        .value(
            "JSON.stringify(expected.filter((it) => !seen.has(it)).map((it) => it.outerHTML.slice(0, 80)))",
        )
        .await?;
    ensure!(missed == "[]", "not reached by Tab: {missed}");
    let hidden = browser.value("JSON.stringify(hidden)").await?;
    ensure!(hidden == "[]", "the focus is not visible: {hidden}");
    Ok(())
}

#[tokio::test]
async fn the_page_works_at_every_width_with_200_workers_and_many_letters() -> Result<()> {
    let Some(program) = browser::installed() else {
        suite::leave_out("no Chromium is installed (apt-get install chromium)");
        return Ok(());
    };
    let env = TestEnv::new().await?;
    env.worker("declares")?.start().await?.stop().await?;
    let dashboard =
        Dashboard::start_with(&env, |program| program.env("GARENNE_RETRY__DELAYS", DELAYS)).await?;
    dashboard.until_it_listens(&env).await?;
    publish(&env, &dashboard).await?;
    let mut browser = Browser::start(&program).await?;

    for width in [400, 1280, 2560] {
        for dark in [false, true] {
            browser.resize(width, 900).await?;
            let url = format!("{}/?sort-workers=-busy&filter=greenhouse&page=2", dashboard.url());
            browser.open(&url, dark).await?;
            until_drawn(&mut browser, WORKERS, 100).await?;
            fits(&mut browser, width).await?;
            assert_eq!(order_of(&mut browser).await?, "busy descending", "the order of the address");
            let background = browser.value("getComputedStyle(document.body).backgroundColor").await?;
            assert_eq!(background, if dark { "rgb(17, 18, 24)" } else { "rgb(245, 245, 248)" });
            let scheme = if dark { "dark" } else { "light" };
            browser.value("scrollTo({top: 0, behavior: 'instant'})").await?;
            browser.picture(&format!("dashboard-{width}-{scheme}")).await?;
        }
        let unnamed = browser.unnamed().await?;
        assert!(unnamed.is_empty(), "{width} px: {unnamed:?}");
    }
    browser.resize(1280, 900).await?;
    shows_what_matters_first(&mut browser).await?;
    shows_bridges(&mut browser).await?;
    by_keyboard(&mut browser, &dashboard).await?;
    as_an_operator(&mut browser, &dashboard).await?;
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
    is_loaded_again(&mut browser, &dashboard).await
}

/// A page that lacks a script is loaded again without anybody's help.
async fn is_loaded_again(browser: &mut Browser, dashboard: &Dashboard) -> Result<()> {
    browser.block(&["*/letters.js"]).await?;
    browser.open(dashboard.url(), false).await?;
    let state = "document.querySelector('#live span').textContent";
    ensure!(browser.value(state).await? == "connecting", "its scripts run");
    browser.block(&[]).await?;
    eventually("the page is live", async || {
        // It has no answer while the page is being replaced.
        let state = browser.value(state).await.unwrap_or_default();
        Ok(Seen::when(state == "live", state))
    })
    .await
}

/// The tiles in their order, a row for each idle lane, and chips for pauses and groups.
async fn shows_what_matters_first(browser: &mut Browser) -> Result<()> {
    let texts = |selector: &str| {
        format!("[...document.querySelectorAll('{selector}')].map((it) => it.textContent).join('; ')")
    };
    let tiles = browser.value(&texts("#tiles .tile span")).await?;
    let names = "busy slots of the fullest lane; new dead letters per minute; oldest waiting task; workers; backlog; \
                 arrivals per second; removals per second; unroutable messages; sensor connections";
    assert_eq!(tiles, names);
    // The letters came before the dashboard had two samples. A rate is unknown until then, and not 0.
    browser.until("/^[0-9.]+$/.test(document.querySelectorAll('#tiles .tile b')[1].textContent)").await?;
    browser.until("document.querySelectorAll('#tiles .tile em')[1].textContent === '305 in total'").await?;
    browser.until("document.querySelectorAll('#tiles .tile b')[2].textContent === 'none'").await?;
    assert_eq!(browser.value(&texts("#idle-lanes h3")).await?, "default; slow");
    assert_eq!(browser.value(&texts("#lane-cards h3")).await?, "fast", "a lane with busy slots is not idle");
    let chips = "[...document.querySelectorAll('#pause-chips .chip, #group-chips .chip')]
        .map((it) => [...it.children].filter((part) => part.checkVisibility()).map((part) => part.textContent).join(' ')).join('; ')";
    let wanted = "kind alert.notify paused; kind window.close paused; group import-8 paused ; group import-7 2 running, 5 waiting";
    assert_eq!(browser.value(chips).await?, wanted);
    // Many problems do not push the figures out of sight.
    browser.until("document.querySelectorAll('#problems li').length === 6").await?;
    browser.value("document.getElementById('all-problems').click()").await?;
    browser.until("document.querySelectorAll('#problems li').length > 6").await
}

/// The table of bridges, and the notice of the one that is not subscribed.
async fn shows_bridges(browser: &mut Browser) -> Result<()> {
    browser.until("document.querySelectorAll('#bridge-table tbody tr').length === 2").await?;
    let cells = "JSON.stringify([...document.querySelectorAll('#bridge-table tbody tr')]
        .map((it) => [...it.children].map((cell) => cell.textContent)).sort())";
    let cells = browser.value(cells).await?;
    let rows: Vec<Vec<String>> = serde_json::from_str(cells.as_str().unwrap_or_default())?;
    let [hall, yard] = &rows[..] else { bail!("{rows:?}") };
    assert_eq!(hall[..3], ["hall", "open", "mqtt.example.org:8883"]);
    assert!(hall[3].starts_with("zigbee2mqtt/#, <img src=x onerror=alert(1)>"), "{hall:?}");
    assert_eq!(hall[4..6], ["7", "mapped: 12, unmapped: 3"]);
    assert!(
        hall[6].starts_with("40 tasks, oldest ") && hall[6].ends_with("; 2 segments set aside"),
        "{hall:?}"
    );
    assert_eq!(yard[..8], ["yard", "open", "mqtt:1883 (not subscribed)", "", "0", "none", "none", "0.1.0"]);
    assert_eq!(browser.value("document.querySelectorAll('#bridge-table img').length").await?, 0);
    browser
        .until("document.body.textContent.includes('bridge yard: it is not subscribed to the MQTT broker')")
        .await
}

/// Sorting, filtering and turning pages by keyboard. The address keeps all of it.
async fn by_keyboard(browser: &mut Browser, dashboard: &Dashboard) -> Result<()> {
    let sort = |column: &str| {
        format!(
            "[...document.querySelectorAll('#worker-table .sort')].find((it) => it.textContent === '{column}').focus()"
        )
    };
    let first = "document.querySelector('#worker-table tbody a').textContent";
    browser.value(&sort("busy")).await?;
    browser.press("Enter").await?;
    assert_eq!(order_of(browser).await?, "busy ascending");
    browser.press("Enter").await?;
    assert_eq!(order_of(browser).await?, "", "the third press ends the order");
    browser.value(&sort("stuck")).await?;
    browser.press("Enter").await?;
    assert_eq!(browser.value(first).await?, "greenhouse-199");
    assert_eq!(browser.value("location.search").await?, "?filter=greenhouse&page=2&sort-workers=-stuck");

    // A link of the table leads to the worker's card, and Back to the table.
    browser.value("document.querySelector('#worker-table tbody a').focus()").await?;
    browser.press("Enter").await?;
    browser.until("document.querySelector('.worker h3')?.textContent === 'greenhouse-199'").await?;
    browser.value("history.back()").await?;
    until_drawn(browser, WORKERS, 100).await?;
    let time = "document.querySelector('#dead-table tbody time')";
    let absolute =
        browser.value(&format!("{time}.title.length > 10 && !isNaN(Date.parse({time}.dateTime))")).await?;
    assert_eq!(absolute, true, "letters have absolute times");

    // Few rows, so that Tab comes round. Live regions say nothing while nothing happens.
    browser.open(&format!("{}/?filter=greenhouse-01&page=4", dashboard.url()), false).await?;
    until_drawn(browser, 10, LETTERS - 300).await?;
    browser
        .value(
            "window.said = []; window.updates = 0;
             const watch = new MutationObserver((all) => said.push(...all.map((it) => it.target.textContent)));
             for (const it of document.querySelectorAll('[role=status], [role=alert], [aria-live]'))
                 watch.observe(it, {childList: true, characterData: true, subtree: true});
             new EventSource('/api/events').addEventListener('now', () => { updates++; }); null",
        )
        .await?;
    browser.press("Tab").await?;
    assert_eq!(browser.value("document.activeElement.className").await?, "skip");
    browser.press("Enter").await?;
    browser.until("document.activeElement.id === 'main'").await?;
    walk_by_tab(browser).await?;
    browser.until("updates > 2").await?;
    assert_eq!(browser.value("JSON.stringify(said)").await?, "[]", "live regions change without a reason");
    browser.value("document.activeElement.blur()").await?;
    browser.press("w").await?;
    browser.until("document.activeElement.id === 'workers'").await?;
    Ok(())
}

/// After a login: payloads, a selection, and the job that drops it.
async fn as_an_operator(browser: &mut Browser, dashboard: &Dashboard) -> Result<()> {
    assert_eq!(
        browser.value("document.querySelector('#dead-table [type=checkbox]').checkVisibility()").await?,
        false
    );
    browser.value("document.getElementById('account').focus()").await?;
    browser.press("Enter").await?;
    browser.until("document.activeElement.id === 'token'").await?;
    browser.write(TOKEN).await?;
    browser.press("Enter").await?;
    browser.until("document.querySelector('#dead-table [type=checkbox]').checkVisibility()").await?;
    let unnamed = browser.unnamed().await?;
    assert!(unnamed.is_empty(), "{unnamed:?}");
    fits(browser, 1280).await?;

    let hostile = "[...document.querySelectorAll('#dead-table tbody tr')].find((it) => it.textContent.includes('window.close'))";
    browser
        .value(&format!(
            "[...{hostile}.querySelectorAll('button')].find((it) => it.textContent === 'Payload').focus()"
        ))
        .await?;
    browser.press("Enter").await?;
    browser.until("document.getElementById('letter').open").await?;
    let payload = browser.value("document.getElementById('letter-payload').textContent").await?;
    let shown = payload.as_str().unwrap_or_default();
    assert!(shown.contains("<img src=x onerror=alert(1)>") && shown.contains(r"\u"), "{payload}");
    assert!(!shown.contains('\u{7}') && !shown.contains('\u{202e}'), "{payload}");
    assert_eq!(browser.value("document.querySelectorAll('#letter img, #dead-table img').length").await?, 0);
    browser.picture("dashboard-payload").await?;
    browser.press("Enter").await?;
    browser.until("!document.getElementById('letter').open").await?;

    browser.value("document.querySelector('#dead-table th [type=checkbox]').focus()").await?;
    browser.press(" ").await?;
    browser.until("document.getElementById('bulk-drop').textContent === 'Drop 5 selected letters'").await?;
    browser.value("document.querySelector('#dead-table tbody [type=checkbox]').focus()").await?;
    browser.press(" ").await?;
    browser.until("document.getElementById('bulk-note').textContent === '4 selected'").await?;
    browser.value("document.getElementById('bulk-drop').focus()").await?;
    browser.press("Enter").await?;
    browser.until("document.getElementById('confirm').open").await?;
    browser.press("Enter").await?;
    browser.until("document.getElementById('toast').textContent === '4 dropped'").await?;
    until_drawn(browser, 10, LETTERS - 304).await?;

    // After a reload the page finds the job again.
    browser.resize(400, 900).await?;
    browser.open(&format!("{}/?filter=greenhouse-01&page=4#dead", dashboard.url()), false).await?;
    browser.until("document.querySelector('#jobs li')?.textContent.includes('4 dropped')").await?;
    browser.until("document.querySelector('#dead-table tbody [type=checkbox]')?.checkVisibility()").await?;
    fits(browser, 400).await
}
