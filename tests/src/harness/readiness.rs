//! What a process answers at `/readyz`.

use anyhow::Result;
use reqwest::Client;
use serde_json::Value;

use super::{
    process::Process,
    wait::{Seen, eventually},
};

/// Waits until the process answers that it is ready, or that it is not.
///
/// # Errors
/// It ends, or that does not happen in time. The error has its last answer.
pub(super) async fn until_ready(
    process: &mut Process,
    (http, admin): (&Client, &str),
    name: &str,
    ready: bool,
) -> Result<()> {
    let url = format!("{admin}/readyz");
    eventually(format!("{name} is ready: {ready}"), async || {
        if let Err(ended) = process.check_alive() {
            return Ok(Seen::Never(ended.to_string()));
        }
        let answer = http.get(&url).send().await?;
        Ok(Seen::when(answer.status().is_success() == ready, answer.text().await?))
    })
    .await
}

/// Waits until the process answers that it is not ready, with a reason that contains `reason`.
///
/// # Errors
/// That does not happen in time. The error has its last answer.
pub(super) async fn until_not_ready_for(
    (http, admin): (&Client, &str),
    name: &str,
    reason: &str,
) -> Result<()> {
    let url = format!("{admin}/readyz");
    eventually(format!("{name} is not ready: {reason}"), async || {
        let answer: Value = http.get(&url).send().await?.json().await?;
        // Compared as texts: in JSON their quotation marks are escaped.
        let mut reasons = answer["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let is_reason = answer["ready"] == false && reasons.any(|it| it.contains(reason));
        Ok(Seen::when(is_reason, answer))
    })
    .await
}
