//! The verdict of the dashboard's page with every problem at once, in a real browser from 400 to 2,560 pixels, light and dark:
//! nothing is cut, and nothing overlaps.

use anyhow::{Context, Result, ensure};
use garenne_console::diagnose::Code;
use garenne_tests::harness::{
    browser::{self, Browser},
    dashboard::Dashboard,
    suite,
    test_env::TestEnv,
};
use serde_json::{Value, json};

/// One problem of each code. The texts are as long as texts of the broker are, with words that cannot be broken at a space.
fn problems() -> Value {
    let word = "greenhouse-".repeat(9);
    let problem = |(n, name): (usize, &&str)| {
        let severity = ["critical", "warning", "notice"][n * 3 / Code::NAMES.len()];
        json!({
            "problem": name, "severity": severity,
            "subject": if n % 3 == 0 { String::new() } else { format!("worker {n}-{word}") },
            "since": if n % 2 == 0 { json!(0) } else { Value::Null },
            "detail": format!("{name}: user \"{word}\" lacks the right write on exchange \"garenne.tasks\" in virtual host \"/{word}\""),
            "next": format!("`rabbitmqctl set_permissions -p '/{word}' '{word}' '^$' '^garenne\\.(tasks|events)$'` gives it all rights"),
        })
    };
    Code::NAMES.iter().enumerate().map(problem).collect()
}

/// Draws the problems and measures them in one step, so that no update of the fleet comes between.
const MEASURE: &str = r##"(async () => {
  const { drawVerdict } = await import("/verdict.js"), problems = PROBLEMS;
  const now = { at: 90000, has_looked: true, is_heard: true, problems, verdict: "9 critical problems, 9 warnings" };
  drawVerdict({ now });
  const all = document.getElementById("all-problems");
  if (all.textContent.includes("more")) all.click();
  const said = [], box = (it) => it.getBoundingClientRect(), verdict = document.getElementById("verdict");
  const overlap = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const bright = (rgb) => rgb.slice(0, 3).map((it) => it / 255).map((it) => it <= .04045 ? it / 12.92 : ((it + .055) / 1.055) ** 2.4)
    .reduce((sum, it, n) => sum + it * [.2126, .7152, .0722][n], 0);
  const colour = (text) => text.match(/[\d.]+/g).map(Number), solid = (rgb) => rgb.length < 4 || rgb[3] === 1;
  const behind = (it) => { const rgb = colour(getComputedStyle(it).backgroundColor); return solid(rgb) || !it.parentElement ? rgb : behind(it.parentElement); };
  const parts = [...verdict.querySelectorAll("h2, .pill, a, em")];
  for (const part of parts) {
    const style = getComputedStyle(part), name = part.textContent.slice(0, 60), at = box(part), frame = box(verdict);
    const [text, ground] = [bright(colour(style.color)), bright(behind(part))];
    if ((Math.max(text, ground) + .05) / (Math.min(text, ground) + .05) < 4.5) said.push(["faint", name, style.color]);
    if (at.width < 10 || at.height < 10) said.push(["hidden", name]);
    if (part.scrollWidth > part.clientWidth + 1 && part.clientWidth) said.push(["cut", name]);
    if (at.left < frame.left + 8 || at.right > frame.right) said.push(["outside of its frame", name]);
  }
  parts.forEach((one, n) => parts.slice(n + 1).filter((other) => overlap(box(one), box(other))).forEach((other) => said.push(["overlap", one.textContent.slice(0, 60), other.textContent.slice(0, 60)])));
  if (box(verdict).bottom > box(document.getElementById("tiles")).top) said.push(["the tiles overlap"]);
  if (document.documentElement.scrollWidth > document.documentElement.clientWidth) said.push(["the page is too wide"]);
  const rows = [...document.querySelectorAll("#problems li")].map((it) => [it.querySelector("a").textContent, it.querySelector("em").textContent]);
  return JSON.stringify({ said, rows });
})()"##;

async fn shows_all(browser: &mut Browser, problems: &Value) -> Result<()> {
    let measured = browser.value(&MEASURE.replace("PROBLEMS", &problems.to_string())).await?;
    let measured: Value = serde_json::from_str(measured.as_str().context("a text")?)?;
    ensure!(measured["said"] == json!([]), "{:#}", measured["said"]);
    let rows = measured["rows"].as_array().context("the rows")?;
    for (n, name) in Code::NAMES.iter().enumerate() {
        let row = &rows.get(n).with_context(|| format!("{name} is not shown"))?;
        let (text, next) = (row[0].as_str().unwrap_or_default(), row[1].as_str().unwrap_or_default());
        ensure!(text.contains(&format!("{name}: user")) && next.contains("rabbitmqctl"), "{name}: {row}");
    }
    ensure!(rows.len() == Code::NAMES.len(), "{} rows", rows.len());
    Ok(())
}

#[tokio::test]
async fn problems_are_whole_on_the_page_at_every_width_light_and_dark() -> Result<()> {
    let Some(program) = browser::installed() else {
        suite::leave_out("the page is not drawn: no Chromium is installed (apt-get install chromium)");
        return Ok(());
    };
    let env = TestEnv::new().await?;
    let dashboard = Dashboard::start(&env).await?;
    let mut browser = Browser::start(&program).await?;
    let problems = problems();
    for dark in [false, true] {
        browser.open(dashboard.url(), dark).await?;
        browser.until("document.getElementById('verdict-text')?.textContent !== 'Connecting'").await?;
        for width in [400, 1280, 2560] {
            browser.resize(width, 900).await?;
            shows_all(&mut browser, &problems).await.with_context(|| format!("{width} px, dark: {dark}"))?;
        }
    }
    Ok(())
}
