//! Everything that shows an operator what is wrong: `garenne status`, `garenne top`, the dashboard's page, its addresses
//! `/api/now` and `/v1/problems`, and its metric. One fleet is shown by all of them at once.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    browser::{self, Browser},
    dashboard::Dashboard,
    process::{FullScreen, Program},
    suite,
    test_env::TestEnv,
    wait::{Seen, eventually},
};

/// A problem of a fleet that is watched. A command that looks once cannot know it.
const ONLY_WATCHED: &str = "alarms-unseen";

/// Problems whose text ends with what the last attempt got as an answer: that of each tool, or that of the worker, which may
/// change while tools are asked.
const OF_THE_TOOL: [&str; 4] = ["broker-unavailable", "database-unavailable", "no-heartbeats", "sink-down"];

/// The tools, as they show one fleet.
#[derive(Debug)]
pub struct Tools {
    dashboard: Dashboard,
    top: FullScreen,
    /// [`None`] if no browser is installed.
    browser: Option<Browser>,
    status: Program,
}

/// The problem with this name and subject in a list of problems.
#[must_use]
pub fn find<'v>(problems: &'v Value, name: &str, subject: &str) -> Option<&'v Value> {
    problems.as_array()?.iter().find(|it| it["problem"] == name && it["subject"] == subject)
}

/// A text without what changes from one second to the next: numbers, times and durations.
fn shape(text: &str) -> String {
    let is_number = |word: &str| word.starts_with(|it: char| it.is_ascii_digit());
    let words = text.split_whitespace().map(|word| if is_number(word) { "#" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

fn set(program: Program, settings: &[(&str, &str)]) -> Program {
    settings.iter().fold(program, |program, (name, value)| program.env(name, *value))
}

impl Tools {
    /// Starts all that keep running, with the same settings (environment variables) for each.
    pub async fn start(env: &TestEnv, settings: &[(&str, &str)]) -> Result<Self> {
        let dashboard = Dashboard::start_with(env, |program| set(program, settings)).await?;
        Self::beside(dashboard, env, settings).await
    }

    /// As [`start`](Self::start), beside a dashboard that runs already.
    pub async fn beside(dashboard: Dashboard, env: &TestEnv, settings: &[(&str, &str)]) -> Result<Self> {
        // With the management API, bindings are compared too.
        let console = || {
            let program = set(Program::new("garenne"), settings).option("--amqp-url", env.operator_url());
            let program = program.option("--management-url", env.vhost().management_url());
            // `status` listens for as long as the heartbeats of the tests' gateways need.
            let program = program.env("GARENNE_EVENTS__HEARTBEAT", "500ms");
            program.option("--timeout", "5s").env("GARENNE_LOG", "off")
        };
        let top = console().arg("top").start_on_full_screen().await?;
        let browser = match browser::installed() {
            None => {
                suite::leave_out(
                    "the page is not compared: no Chromium is installed (apt-get install chromium)",
                );
                None
            }
            Some(program) => {
                let mut browser = Browser::start(&program).await?;
                browser.resize(1280, 900).await?;
                browser.open(dashboard.url(), false).await?;
                Some(browser)
            }
        };
        Ok(Self { dashboard, top, browser, status: console().arg("status") })
    }

    /// The dashboard.
    #[must_use]
    pub fn dashboard(&self) -> &Dashboard {
        &self.dashboard
    }

    /// The dashboard, to ask for its readiness.
    pub fn dashboard_mut(&mut self) -> &mut Dashboard {
        &mut self.dashboard
    }

    /// Ends `top` as a person does, and returns its exit code.
    pub async fn end(self) -> Result<Option<i32>> {
        Ok(self.top.end_by(b'q').await?.code)
    }

    /// Waits until the dashboard sees a problem, and requires the same of every other tool. `code` is the exit code of
    /// `status`. Returns the problem as `/v1/problems` has it.
    pub async fn until_seen(&mut self, name: &str, subject: &str, code: i32) -> Result<Value> {
        let seen = self.until(name, |problems| {
            // Who paused something is looked up after it is seen.
            find(problems, name, subject).filter(|it| it["since"].is_i64()).cloned()
        });
        let seen = seen.await?;
        ensure!(seen["detail"] != "" && seen["next"] != "", "no sentence or no next step: {seen}");
        let now = self.dashboard.json("/api/now").await?;
        let of_page = find(&now["problems"], name, subject);
        of_page.with_context(|| format!("the page's state: {}", now["problems"]))?;
        let (severity, detail) = (seen["severity"].as_str(), seen["detail"].as_str());
        let (severity, detail) = (severity.context("a severity")?, detail.context("a detail")?);
        let labels = format!("problem=\"{name}\",severity=\"{severity}\",subject=\"{subject}\"");
        let metric = format!("garenne_problems{{{labels}}} 1");
        let metrics = self.dashboard.get("/metrics").await?.text().await?;
        ensure!(metrics.contains(&metric), "{metric} in {metrics}");
        let detail = match OF_THE_TOOL.contains(&name) {
            true => detail.split(": ").next().unwrap_or_default(),
            false => detail,
        };
        let of_subject = if subject.is_empty() { String::new() } else { format!("{subject}: ") };
        let (line, detail) = (shape(&format!("{severity} {of_subject}{detail}")), shape(detail));
        tokio::try_join!(
            says_status(&self.status, name, &line, code),
            says_top(&self.top, name, &line),
            says_page(self.browser.as_mut(), (severity, &of_subject, &detail)),
        )?;
        Ok(seen)
    }

    /// Waits for something in the dashboard's list of problems.
    pub async fn until<T>(&self, what: &str, wanted: impl Fn(&Value) -> Option<T>) -> Result<T> {
        eventually(what, async || {
            let answer = self.dashboard.json("/v1/problems").await?;
            Ok(wanted(&answer["problems"]).map_or_else(|| Seen::Other(answer.to_string()), Seen::Wanted))
        })
        .await
    }

    /// Waits until the dashboard sees no problem but notices.
    pub async fn until_none(&self) -> Result<()> {
        eventually("no problems", async || {
            let answer = self.dashboard.json("/v1/problems").await?;
            Ok(Seen::when(answer["verdict"] == "no problems", answer))
        })
        .await
    }
}

/// `status` looks once, and says it before its table. On a busy machine, a heartbeat may be late when it looks.
async fn says_status(status: &Program, name: &str, line: &str, code: i32) -> Result<()> {
    eventually(format!("status says {line:?} and ends with {code}"), async || {
        let ended = status.run().await?;
        let text = ended.stdout.join("\n");
        let before_the_table = text.split("RabbitMQ ").next().unwrap_or_default();
        let says = before_the_table.lines().any(|it| shape(it).starts_with(line));
        let is_said = ended.code == Some(code) && (says || name == ONLY_WATCHED);
        Ok(Seen::when(is_said, format!("{:?}: {text}", ended.code)))
    })
    .await
}

/// `top` shows it, in its first lines. It publishes, so that alarms reach it.
async fn says_top(top: &FullScreen, name: &str, line: &str) -> Result<()> {
    if name == ONLY_WATCHED {
        return Ok(());
    }
    eventually(format!("top says {line:?}"), async || {
        let lines = top.lines();
        Ok(Seen::when(lines.iter().any(|it| shape(it).starts_with(line)), lines.join("\n")))
    })
    .await
}

/// The page shows it, with its severity and a link.
async fn says_page(browser: Option<&mut Browser>, problem: (&str, &str, &str)) -> Result<()> {
    let Some(browser) = browser else { return Ok(()) };
    let (severity, subject, detail) = problem;
    let shown = "if (document.getElementById('all-problems')?.textContent.includes('more')) document.getElementById('all-problems').click();
        JSON.stringify([...document.querySelectorAll('#problems li')].filter((it) => it.querySelector('a').href.includes('#'))
            .map((it) => [it.querySelector('.pill').textContent, it.querySelector('b').textContent, it.querySelector('a span').textContent]))";
    eventually(format!("the page shows {problem:?}"), async || {
        let listed = browser.value(shown).await?;
        let rows: Vec<[String; 3]> = serde_json::from_str(listed.as_str().unwrap_or_default())?;
        let is_shown = rows
            .iter()
            .any(|[pill, of, text]| pill == severity && of == subject && shape(text).starts_with(detail));
        let state = browser.value("document.getElementById('live')?.textContent").await?;
        Ok(Seen::when(is_shown, json!([rows, state, browser.errors])))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_do_not_count() {
        let text =
            "warning lane fast: 1,200 tasks wait, one that arrives now waits for 45s; the objective is 30s";
        let shaped = "warning lane fast: # tasks wait, one that arrives now waits for # the objective is #";
        assert_eq!(shape(text), shaped);
        assert_eq!(shape("  critical  lane   x (for 3s)"), "critical lane x (for #");
    }
}
