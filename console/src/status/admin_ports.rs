//! Running tasks of single workers, read from their admin ports.

use std::time::Duration;

use garenne_operator::table::{duration, lay_out};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Time limit of a request to an admin port.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The URL of an admin port.
pub(super) fn admin_url(text: &str) -> Result<String, String> {
    let is_url = reqwest::Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
    let problem = || "expected the URL of a worker's admin port, such as http://10.0.0.7:9464".to_owned();
    is_url.then(|| text.trim_end_matches('/').to_owned()).ok_or_else(problem)
}

/// The answer of a worker.
#[derive(Debug, serde::Serialize)]
pub(super) struct Worker {
    pub(super) url: String,
    /// The lanes of `/pool`; `None` without an answer.
    pub(super) lanes: Option<Map<String, Value>>,
    /// Why there is no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
}

#[derive(Deserialize)]
struct Pool {
    lanes: Map<String, Value>,
}

/// Asks each worker's admin port.
pub(super) async fn ask(urls: &[String]) -> anyhow::Result<Vec<Worker>> {
    let http = reqwest::Client::builder().timeout(TIMEOUT).build()?;
    let mut workers = Vec::new();
    for url in urls {
        let asked = async {
            let answer = http.get(format!("{url}/pool")).send().await?.error_for_status()?;
            answer.json::<Pool>().await
        };
        let (lanes, problem) = match asked.await {
            Ok(pool) => (Some(pool.lanes), None),
            Err(error) => (None, Some(format!("{:#}", anyhow::Error::from(error.without_url())))),
        };
        workers.push(Worker { url: url.clone(), lanes, problem });
    }
    Ok(workers)
}

/// The running tasks as a table, with the progress of those that report it.
pub(super) fn table(workers: &[Worker]) -> String {
    let columns = ["worker", "lane", "running task", "group", ">running for", ">progress"];
    let mut rows = Vec::new();
    let mut silent = String::new();
    for worker in workers {
        if let Some(problem) = &worker.problem {
            silent += &format!("{}: {problem}\n", worker.url);
        }
        for (lane, pool) in worker.lanes.iter().flatten() {
            for task in pool["tasks"].as_array().into_iter().flatten() {
                let since = task["running_seconds"].as_f64().map(|seconds| duration((seconds * 1e3) as u64));
                let done = task["progress"].as_f64().map(|done| format!("{:.0} %", done * 100.0));
                let id = task["id"].as_str().unwrap_or_default().to_owned();
                let group = task["group"].as_str().map(str::to_owned);
                let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
                let (url, lane) = (worker.url.clone(), lane.clone());
                rows.push(vec![url, lane, id, or_dash(group), or_dash(since), or_dash(done)]);
            }
        }
    }
    format!("\n{}{silent}", lay_out(&columns, rows))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn running_tasks_are_shown_with_their_progress() {
        let task = |id: &str, progress: Value| json!({"id": id, "group": "import-7", "running_seconds": 4.2, "progress": progress});
        let slow = json!({"tasks": [task("a", json!(0.256)), task("b", Value::Null)]});
        let lanes = Some([("slow".to_owned(), slow)].into_iter().collect());
        let workers = [
            Worker { url: "http://w".into(), lanes, problem: None },
            Worker { url: "http://x".into(), lanes: None, problem: Some("no answer".into()) },
        ];
        assert_eq!(
            table(&workers),
            "\nworker    lane  running task  group     running for  progress\n\
             http://w  slow  a             import-7         4.2s      26 %\n\
             http://w  slow  b             import-7         4.2s         -\n\
             http://x: no answer\n"
        );
    }
}
