//! Sends mail through a provider's HTTP API, a few at a time to each domain.
//!
//! The provider gets the task's id as its idempotency key, so that a mail whose worker crashed is not sent twice. A worker sends at
//! most five mails at once to a domain.

use std::{env, time::Duration};

use garenne::{Data, Exit, RetryPolicy, TaskContext, TaskError, TaskOptions, cli, json_payload};
use reqwest::{StatusCode, header::RETRY_AFTER};

#[derive(serde::Deserialize, serde::Serialize)]
struct Mail {
    to: String,
    text: String,
}
json_payload!(Mail, "email.send");

struct Provider {
    http: reqwest::Client,
    url: String,
}

#[derive(Debug, thiserror::Error)]
enum MailError {
    #[error("the provider is busy")]
    Busy(Duration),
    #[error("the provider refuses it: {0}")]
    Refused(String),
    #[error(transparent)]
    Http(#[from] reqwest::Error),
}

/// What becomes of the task.
impl From<MailError> for TaskError {
    fn from(error: MailError) -> Self {
        match error {
            MailError::Busy(wait) => Self::snooze(wait),  // spends no attempt
            MailError::Refused(_) => Self::reject(error), // a dead letter
            MailError::Http(_) => Self::retry(error),
        }
    }
}

async fn send(cx: TaskContext, provider: Data<Provider>, mail: Mail) -> Result<(), MailError> {
    let request = provider.http.post(&provider.url).header("idempotency-key", cx.id().as_str());
    let answer = request.json(&mail).send().await?;
    match answer.status() {
        StatusCode::TOO_MANY_REQUESTS => {
            let seconds = answer.headers().get(RETRY_AFTER).and_then(|it| it.to_str().ok()?.parse().ok());
            Err(MailError::Busy(Duration::from_secs(seconds.unwrap_or(60))))
        }
        status if status.is_client_error() => Err(MailError::Refused(answer.text().await?)),
        _ => Ok(answer.error_for_status().map(drop)?),
    }
}

impl Mail {
    fn domain(&self) -> &str {
        self.to.rsplit('@').next().unwrap_or_default()
    }
}

fn main() -> Exit {
    cli::run("mailer", |worker| {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(10)).build()?;
        let provider = Provider { http, url: env::var("MAIL_URL")? };
        let options = TaskOptions::short()
            .limit_per_key(5, |mail: &Mail| mail.domain().to_owned())
            .retry(RetryPolicy::default().attempts(8));
        Ok(worker.data(provider).handle_with(send, options))
    })
}
