//! The dead letters on the page: grouped by error, searched, and moved as the filter says.

use anyhow::Result;
use futures_util::{StreamExt, TryStreamExt, stream};
use garenne_tests::harness::{
    browser::{self, Browser},
    client::{headers, text, with_id},
    dashboard::{Dashboard, TOKEN},
    suite,
    test_env::{DELAYS, TestEnv},
};
use lapin::types::AMQPValue;
use reqwest::StatusCode;
use serde_json::{Value, json};

const DEAD: &str = "garenne.dead";

/// Ten thousand letters of two kinds: 3,003 with errors that differ in their values only, the others without an error.
async fn publish(env: &TestEnv) -> Result<()> {
    let letter = |n: usize| {
        let (kind, reason, error) = match n {
            0..3_003 => ("reading.process", "conflict", format!("value {n}.5 is stored, {n}.7 came")),
            _ => ("bench.noop", "rejected", "refused by <b>hall</b>".to_owned()),
        };
        let at = 1_700_000_000_000 + i64::try_from(n).unwrap_or(0);
        let letter = with_id(&format!("letter-{n}")).with_type(kind.into()).with_delivery_mode(2);
        letter.with_headers(headers([
            ("garenne-reason", text(reason)),
            ("garenne-error", text(&error)),
            ("garenne-group", text(["even", "odd"][n % 2])),
            ("garenne-died-at", AMQPValue::LongLongInt(at)),
        ]))
    };
    let published = stream::iter(0..10_000).map(|n| env.client().publish("", DEAD, letter(n), b"{}"));
    published.buffered(500).try_collect::<()>().await?;
    env.until_ready_in(DEAD, 10_000).await
}

async fn click(browser: &mut Browser, element: &str) -> Result<()> {
    browser.until(&format!("!!({element})?.checkVisibility() && !({element}).disabled")).await?;
    browser.value(&format!("({element}).click()")).await.map(drop)
}

async fn log_in(browser: &mut Browser) -> Result<()> {
    click(browser, "document.getElementById('account')").await?;
    browser.until("document.activeElement.id === 'token'").await?;
    browser.write(TOKEN).await?;
    browser.press("Enter").await?;
    browser.until("document.getElementById('account').textContent === 'Log out'").await
}

/// Replaces the text of a field.
async fn fill(browser: &mut Browser, field: &str, text: &str) -> Result<()> {
    browser
        .value(&format!(
            "document.getElementById('{field}').value = ''; document.getElementById('{field}').focus()"
        ))
        .await?;
    browser.write(text).await
}

/// The audit log's records of a command that has ended.
async fn ended(env: &TestEnv, command: &str) -> Result<Vec<Value>> {
    let listed = env.garenne(&["audit", "list", "--json", "--command", command]).await?;
    let records: Vec<Value> =
        listed.stdout.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>()?;
    Ok(records.into_iter().filter(|record| record["state"] != "started").collect())
}

fn note_begins(text: &str) -> String {
    format!("document.getElementById('dead-note').textContent.startsWith('{text}')")
}

#[tokio::test]
async fn one_filter_selects_among_ten_thousand_letters_what_is_listed_and_what_is_dropped() -> Result<()> {
    let Some(program) = browser::installed() else {
        suite::leave_out("no Chromium is installed (apt-get install chromium)");
        return Ok(());
    };
    let env = TestEnv::new().await?;
    env.worker("declares")?.start().await?.stop().await?;
    publish(&env).await?;
    let dashboard =
        Dashboard::start_with(&env, |program| program.env("GARENNE_RETRY__DELAYS", DELAYS)).await?;
    let mut browser = Browser::start(&program).await?;
    browser.resize(1280, 900).await?;
    browser.open(dashboard.url(), false).await?;
    // A row for each kind, reason and error, whatever the values in it.
    browser.until("document.querySelectorAll('#error-table tbody tr').length === 2").await?;
    let rows = "[...document.querySelectorAll('#error-table tbody tr')]
        .map((it) => [...it.children].slice(0, 4).map((cell) => cell.textContent).join(' ')).join('; ')";
    let wanted = "6,997 refused by <b>hall</b> bench.noop rejected; 3,003 value … is stored, … came reading.process conflict";
    assert_eq!(browser.value(rows).await?, wanted);
    log_in(&mut browser).await?;
    browser.until("document.getElementById('bulk-drop').disabled").await?;
    browser.value("document.getElementById('dead').scrollIntoView({behavior: 'instant'})").await?;
    browser.picture("dashboard-errors").await?;

    // Search by id, by group, by kind; the address keeps it.
    for (search, matched) in [("LETTER-7777", "1"), ("odd", "5,000"), ("process", "3,003"), ("2999.5", "1")] {
        fill(&mut browser, "dead-search", search).await?;
        browser.until(&note_begins(&format!("{matched} match, 10,000 in total"))).await?;
        assert_eq!(browser.value("new URLSearchParams(location.search).get('letter-text')").await?, search);
    }
    click(&mut browser, "document.getElementById('clear-filter')").await?;
    browser.until(&note_begins("10,000 in total")).await?;
    // The chips of a letter set the filter.
    click(&mut browser, "[...document.querySelectorAll('#dead-table .condition')].find((it) => it.textContent === 'group odd')").await?;
    browser.until(&note_begins("5,000 match")).await?;
    browser.until("document.getElementById('bulk-drop').textContent === 'Drop 5,000 letters'").await?;
    click(&mut browser, "document.querySelector('#dead-filter button')").await?;

    // The commands follow the filter, and the dialog states their count.
    click(&mut browser, "document.querySelectorAll('#error-table tbody tr')[1].querySelector('.condition')")
        .await?;
    browser.until(&note_begins("3,003 match")).await?;
    click(&mut browser, "document.getElementById('bulk-drop')").await?;
    browser.until("document.getElementById('confirm').open").await?;
    let yes = "document.getElementById('confirm-yes')";
    assert_eq!(
        browser.value(&format!("{yes}.textContent + ' ' + {yes}.className")).await?,
        "Drop 3,003 letters danger"
    );
    let says = browser.value("document.getElementById('confirm-text').textContent").await?;
    assert!(says.as_str().unwrap_or_default().contains("error value … is stored, … came"), "{says}");
    browser.picture("dashboard-confirm").await?;
    click(&mut browser, yes).await?;
    browser.until("document.getElementById('toast').textContent === '3003 dropped'").await?;
    env.until_ready_in(DEAD, 6_997).await?;
    browser.until("document.getElementById('no-dead').textContent === 'None matches the filter.'").await?;

    // At 400 pixels a letter is a card with its id, reason and time, until it is unfolded.
    click(&mut browser, "document.getElementById('clear-filter')").await?;
    browser.until(&note_begins("6,997 in total")).await?;
    browser.resize(400, 900).await?;
    let first = "document.querySelector('#dead-table tbody tr')";
    let cells = format!(
        "[...{first}.children].filter((it) => it.checkVisibility()).map((it) => it.dataset.name).filter(Boolean).join()"
    );
    assert_eq!(browser.value(&cells).await?, "task,reason,died");
    click(&mut browser, &format!("{first}.querySelector('.fold button')")).await?;
    assert_eq!(browser.value(&cells).await?, "task,kind,reason,error,attempts,worker,died");
    assert_eq!(browser.value("document.documentElement.scrollWidth <= 400").await?, true);
    assert_eq!(
        browser
            .value(
                "document.querySelectorAll('#dead b').length === document.querySelectorAll('#jobs b').length"
            )
            .await?,
        true
    );
    browser.value("document.getElementById('dead').scrollIntoView({behavior: 'instant'})").await?;
    browser.picture("dashboard-400-letters").await?;
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
    Ok(())
}

#[tokio::test]
async fn a_letter_is_replayed_with_an_edited_payload_and_a_test_task_says_where_it_went() -> Result<()> {
    let Some(program) = browser::installed() else {
        suite::leave_out("no Chromium is installed (apt-get install chromium)");
        return Ok(());
    };
    let env = TestEnv::new().await?;
    let worker = env.worker("w")?.stdout().start().await?;
    env.publish("bench.sleep", &json!({"ms": "many"}), "invalid", 2).await?;
    env.until_ready_in(DEAD, 2).await?;
    let dashboard =
        Dashboard::start_with(&env, |program| program.env("GARENNE_RETRY__DELAYS", DELAYS)).await?;
    for path in ["/api/dead/edit", "/api/tasks"] {
        let body = json!({"id": "invalid-0", "payload": "{}"});
        assert_eq!(dashboard.post(path, body).await?.0, StatusCode::UNAUTHORIZED, "{path}");
    }
    let mut browser = Browser::start(&program).await?;
    browser.resize(1280, 900).await?;
    browser.open(dashboard.url(), false).await?;
    browser.until("document.querySelectorAll('#dead-table tbody tr').length === 2").await?;
    assert_eq!(browser.value("document.getElementById('test-open').checkVisibility()").await?, false);
    log_in(&mut browser).await?;

    // A payload that is not JSON is refused with the place, and the letter stays.
    let payload = "[...document.querySelectorAll('#dead-table button')].find((it) => it.ariaLabel === 'Payload of invalid-0')";
    click(&mut browser, payload).await?;
    click(&mut browser, "document.getElementById('letter-edit')").await?;
    assert_eq!(browser.value("document.getElementById('letter-text').value").await?, r#"{"ms":"many"}"#);
    fill(&mut browser, "letter-text", "{\"ms\" 1}").await?;
    click(&mut browser, "document.getElementById('letter-replay')").await?;
    browser
        .until(
            "document.getElementById('edit-error').textContent.includes('expected `:` at line 1 column 7')",
        )
        .await?;
    browser.picture("dashboard-edit").await?;
    env.until_ready_in(DEAD, 2).await?;
    fill(&mut browser, "letter-text", "{\"ms\": 1}").await?;
    click(&mut browser, "document.getElementById('letter-replay')").await?;
    browser.until("!document.getElementById('letter').open").await?;
    let done = worker.until_done(1).await?;
    assert!(done[0].kind == "bench.sleep" && done[0].task_id != "invalid-0", "{done:?}");
    let told = format!("Replayed as {}, to lane fast", done[0].task_id);
    assert_eq!(browser.value("document.getElementById('toast').textContent").await?, told);
    env.until_ready_in(DEAD, 1).await?;
    browser.until("document.querySelectorAll('#dead-table tbody tr').length === 1").await?;

    // The same on the command line.
    let file = env.folder().join("corrected.json");
    std::fs::write(&file, "{\"ms\": 2}")?;
    let file = file.to_str().unwrap_or_default();
    let missing = env.try_garenne(&["dead", "edit", "none", "--payload", file]).await?;
    assert_eq!(missing.code, Some(1), "{:?}", missing.stderr);
    let edited = env.garenne(&["dead", "edit", "invalid-1", "--payload", file]).await?;
    let second = worker.until_done(2).await?;
    let told = format!("replayed invalid-1 with another payload as {}, to lane fast", second[1].task_id);
    assert_eq!(edited.stdout, [told]);
    env.until_ready_in(DEAD, 0).await?;
    let records = ended(&env, "dead.edit").await?;
    let of = |id: &str| {
        records
            .iter()
            .find(|it| it["arguments"]["id"] == id && it["state"] == "done")
            .cloned()
            .unwrap_or_default()
    };
    assert_eq!(
        (&of("invalid-0")["result"]["id"], &of("invalid-0")["actor"]["name"]),
        (&json!(done[0].task_id), &json!("admin-token"))
    );
    assert_eq!(of("invalid-1")["result"]["id"], json!(second[1].task_id));
    assert_eq!(records.iter().filter(|record| record["state"] == "failed").count(), 2, "{records:?}");

    click(&mut browser, "document.getElementById('test-open')").await?;
    fill(&mut browser, "test-kind", "a b").await?;
    click(&mut browser, "document.getElementById('test-publish')").await?;
    browser.until("document.getElementById('test-error').textContent.startsWith('kind: ')").await?;
    browser
        .until("[...document.getElementById('test-kinds').options].some((it) => it.value === 'bench.sleep')")
        .await?;
    fill(&mut browser, "test-kind", "bench.sleep").await?;
    fill(&mut browser, "test-payload", "{\"ms\": 3}").await?;
    click(&mut browser, "document.getElementById('test-publish')").await?;
    browser.until("document.getElementById('test-result').textContent.startsWith('Published bench.sleep to lane fast with the id ')").await?;
    browser.picture("dashboard-test-task").await?;
    let done = worker.until_done(3).await?;
    let says = browser.value("document.getElementById('test-result').textContent").await?;
    assert!(says.as_str().unwrap_or_default().contains(&done[2].task_id), "{says} {done:?}");
    assert_eq!(ended(&env, "task.publish").await?[0]["result"]["lane"], "fast");
    let unnamed = browser.unnamed().await?;
    assert!(unnamed.is_empty(), "{unnamed:?}");
    // The browser reports the two answers that refuse something.
    assert!(browser.errors.iter().all(|error| error.contains("400 (Bad Request)")), "{:?}", browser.errors);
    worker.stop().await?;
    Ok(())
}
