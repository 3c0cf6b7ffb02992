//! The steps of `docs/guides/operate.md` in a real browser: find and stop a task that hangs, fix the cause of failed
//! tasks, and replay them. `GARENNE_TEST_SCREENSHOTS=docs/img` takes the guide's screenshots again; `operate-1280-light`
//! belongs to `docs/images`.

use anyhow::Result;
use garenne_tests::harness::{
    browser::{self, Browser},
    dashboard::{Dashboard, TOKEN},
    suite,
    test_env::{DELAYS, TestEnv},
    worker::WorkerPlan,
};
use serde_json::json;

fn plan(env: &TestEnv, name: &str) -> Result<WorkerPlan> {
    Ok(env
        .worker(name)?
        .stdout()
        .lane("fast:prefetch=50,concurrency=4..4")
        .env("GARENNE_EVENTS__HEARTBEAT", "500ms"))
}

/// Clicks the element of an expression once it exists and is visible.
async fn click(browser: &mut Browser, element: &str) -> Result<()> {
    browser.until(&format!("!!({element}) && !({element}).hidden")).await?;
    browser.value(&format!("({element}).click()")).await.map(drop)
}

#[tokio::test]
async fn operator_stops_a_stuck_task_and_replays_dead_letters() -> Result<()> {
    let Some(program) = browser::installed() else {
        suite::leave_out("no Chromium is installed (apt-get install chromium)");
        return Ok(());
    };
    let env = TestEnv::new().await?;
    let first = plan(&env, "greenhouse-1")?.option("--max-attempts", "1").start().await?;
    let dashboard =
        Dashboard::start_with(&env, |program| program.env("GARENNE_RETRY__DELAYS", DELAYS)).await?;
    env.publish("bench.sleep", &json!({"ms": 600_000}), "import", 1).await?;
    first.until_holds("fast", 1, 0).await?;
    env.publish("bench.fail", &json!({"times": 1}), "order", 3).await?;
    env.publish("bench.sleep", &json!({"ms": 1}), "reading", 200).await?;
    first.until_done(200).await?;
    env.until_ready_in("garenne.dead", 3).await?;

    let mut browser = Browser::start(&program).await?;
    browser.open(dashboard.url(), false).await?;
    // Look: the task that runs longest is the one that hangs.
    browser.until("document.querySelector('.task .id')?.textContent === 'import-0'").await?;
    click(&mut browser, "document.getElementById('account')").await?;
    browser.until("document.getElementById('login').open").await?;
    browser.write(TOKEN).await?;
    browser.press("Enter").await?;
    browser.until("document.getElementById('account').textContent === 'Log out'").await?;

    browser.until("document.querySelectorAll('#error-table tbody tr').length === 1").await?;
    if std::env::var_os("GARENNE_TEST_SCREENSHOTS").is_some() {
        // The second sample of the queues, which knows the worker.
        browser.until("document.querySelectorAll('#kind-table tbody tr').length > 0").await?;
    }
    // As wide as the pictures, so that what is scrolled to stays in sight.
    browser.resize(1280, 800).await?;
    browser.value("scrollTo({top: 0, behavior: 'instant'})").await?;
    browser.screenshot("operate-1280-light").await?;
    let card = "document.querySelector('.worker').scrollIntoView({block: 'center', behavior: 'instant'})";
    browser.value(card).await?;
    browser.screenshot("operate-1-look").await?;
    // Stop it.
    click(&mut browser, "document.querySelector('.task button')").await?;
    browser.until("document.getElementById('confirm').open").await?;
    let yes = "document.getElementById('confirm-yes')";
    assert_eq!(
        browser.value(&format!("{yes}.textContent + ' ' + {yes}.className")).await?,
        "Stop bench.sleep danger"
    );
    browser.screenshot("operate-2-stop").await?;
    browser.press("Enter").await?;
    first.until_holds("fast", 0, 0).await?;
    // Why did tasks fail? The dead letters are grouped by error.
    let row = "[...document.querySelectorAll('#error-table tbody tr')].find((it) => it.textContent.includes('bench.fail'))";
    browser.until(&format!("({row})?.querySelector('.count').textContent === '3'")).await?;
    browser
        .value("document.getElementById('dead-table').scrollIntoView({block: 'end', behavior: 'instant'})")
        .await?;
    browser.screenshot("operate-3-why").await?;
    // Fix the cause: the worker with too few attempts is replaced by another one.
    let drain = "[...document.querySelectorAll('.worker button')].find((it) => it.textContent === 'Drain')";
    click(&mut browser, drain).await?;
    browser.until("document.getElementById('confirm').open").await?;
    browser.press("Enter").await?;
    assert_eq!(first.stopped().await?.receipt.dead, 4);
    let second = plan(&env, "greenhouse-2")?.start().await?;
    // Replay.
    click(&mut browser, &format!("({row}).querySelector('button')")).await?;
    browser.until("document.getElementById('bulk-replay').textContent === 'Replay 3 letters'").await?;
    click(&mut browser, "document.getElementById('bulk-replay')").await?;
    browser.until("document.getElementById('confirm').open").await?;
    assert_eq!(
        browser.value(&format!("{yes}.textContent + ' ' + {yes}.className")).await?,
        "Replay 3 letters primary"
    );
    browser.press("Enter").await?;
    browser.until("document.getElementById('toast').textContent === '3 replayed'").await?;
    let done = second.until_done(3).await?;
    assert!(done.iter().all(|done| done.kind == "bench.fail" && done.attempt == 2), "{done:?}");
    // Did it help? Only the task that the operator stopped is left.
    click(&mut browser, "document.getElementById('clear-filter')").await?;
    browser
        .until(&format!("!({row}) && document.querySelectorAll('#error-table tbody tr').length === 1"))
        .await?;
    browser.screenshot("operate-4-done").await?;
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
    second.stop().await?;
    Ok(())
}
