//! Open alarms in the dashboard: everybody sees them, and operators who are logged in change them.

use anyhow::Result;
use garenne_tests::harness::{
    browser::{self, Browser},
    dashboard::{Dashboard, TOKEN},
    suite,
};
use reqwest::StatusCode;
use serde_json::json;

use super::alarm_lifecycle::Site;

#[tokio::test]
async fn the_dashboard_lists_open_alarms_and_changes_them_after_a_login() -> Result<()> {
    let site = Site::new().await?;
    let workers = site.workers("above = 30\nseverity = \"critical\"").await?;
    site.reading("d", 1, 31.5).await?;
    site.hook.until_alerts(1).await?;
    let url = site.database.url();
    let mut dashboard =
        Dashboard::start_with(&site.env, |program| program.env("GARENNE_POSTGRES_URL", url.clone())).await?;
    let list = dashboard.json("/api/alarms").await?;
    let alarm = &list["alarms"][0];
    assert_eq!(
        (&alarm["severity"], &alarm["device"], &alarm["value"]),
        (&json!("critical"), &json!("d"), &json!(31.5))
    );
    let path = |word: &str| format!("/api/alarms/{}/{word}", alarm["id"].as_str().unwrap_or_default());
    let (status, _) = dashboard.post(&path("ack"), json!({})).await?;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    dashboard.login(TOKEN).await?;
    let (status, _) = dashboard.post_with(&path("ack"), json!({}), None).await?;
    assert_eq!(status, StatusCode::FORBIDDEN);
    for (word, body, wanted) in [
        ("ack", json!({}), StatusCode::OK),
        ("snooze", json!({"for": "1h"}), StatusCode::OK),
        ("snooze", json!({}), StatusCode::BAD_REQUEST),
        ("snooze", json!({"for": "31days"}), StatusCode::BAD_REQUEST),
        ("close", json!({}), StatusCode::NOT_FOUND),
    ] {
        let (status, answer) = dashboard.post(&path(word), body).await?;
        assert_eq!(status, wanted, "{word}: {answer}");
    }
    let (status, answer) = dashboard.post("/api/alarms/none/ack", json!({})).await?;
    assert_eq!(status, StatusCode::CONFLICT, "{answer}");
    let list = dashboard.json("/api/alarms").await?;
    let alarm = &list["alarms"][0];
    assert_eq!((&alarm["acked_by"], &alarm["snoozed_by"]), (&json!("admin-token"), &json!("admin-token")));
    assert!(alarm["snoozed_until"].is_string());
    assert_eq!(dashboard.stop().await?.code, Some(0));
    // Without a database the page has no such section.
    let dashboard = Dashboard::start(&site.env).await?;
    assert_eq!(dashboard.json("/api/alarms").await?["configured"], false);
    site.end(workers).await
}

#[tokio::test]
async fn the_list_of_alarms_works_by_keyboard_and_at_400_pixels() -> Result<()> {
    let Some(program) = browser::installed() else {
        suite::leave_out("no Chromium is installed (apt-get install chromium)");
        return Ok(());
    };
    let site = Site::new().await?;
    let workers = site.workers("above = 30\nseverity = \"critical\"").await?;
    site.reading("d", 1, 31.5).await?;
    site.hook.until_alerts(1).await?;
    let url = site.database.url();
    let dashboard =
        Dashboard::start_with(&site.env, |program| program.env("GARENNE_POSTGRES_URL", url.clone())).await?;
    let mut browser = Browser::start(&program).await?;
    browser.set_width(400).await?;
    browser.open(dashboard.url(), false).await?;
    browser.until("document.querySelector('#alarm-table .pill')?.textContent === 'critical'").await?;
    assert_eq!(browser.value("document.documentElement.scrollWidth <= 400").await?, true);
    assert_eq!(browser.value("document.querySelector('#alarm-table .acts').hidden").await?, true);
    browser.value("document.getElementById('account').focus()").await?;
    browser.press("Enter").await?;
    browser.until("document.activeElement.id === 'token'").await?;
    browser.write(TOKEN).await?;
    browser.press("Enter").await?;
    browser.until("!document.querySelector('#alarm-table .acts').hidden").await?;
    // The key of the section leads to its first button.
    browser.value("document.activeElement.blur()").await?;
    browser.press("a").await?;
    browser.until("document.activeElement.textContent === 'Acknowledge'").await?;
    browser.press("Enter").await?;
    let acknowledged =
        "document.querySelector('#alarm-table tbody').textContent.includes('acknowledged by admin-token')";
    browser.until(acknowledged).await?;
    browser.until("document.activeElement.textContent === 'Snooze'").await?;
    browser.press("Enter").await?;
    browser.until("document.getElementById('snooze').open").await?;
    browser.press("Tab").await?;
    browser.press("Tab").await?;
    browser.press("Enter").await?;
    browser
        .until("document.querySelector('#alarm-table tbody').textContent.includes('snoozed until')")
        .await?;
    assert_eq!(browser.value("document.documentElement.scrollWidth <= 400").await?, true);
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
    site.end(workers).await
}
