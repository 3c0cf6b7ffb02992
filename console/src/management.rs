//! The broker's management API: what AMQP cannot tell (unacknowledged messages, arguments).

use std::time::Duration;

use garenne_common::{
    config::SecretUrl,
    exit::{Exit, HasExit},
};
use reqwest::{StatusCode, Url};
use serde::de::DeserializeOwned;
use thiserror::Error;

/// An answer takes milliseconds; a console that hangs is worse than one that says so.
const PATIENCE: Duration = Duration::from_secs(10);

/// A client of one broker's management API.
#[derive(Clone)]
pub struct Management {
    /// With user and password: the HTTP client turns them into a header.
    base: Url,
    address: String,
    http: reqwest::Client,
}

/// Shown without the password.
impl std::fmt::Debug for Management {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Management").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The management API did not answer as hoped.
#[derive(Debug, Error)]
pub enum ManagementError {
    /// The setting cannot be used.
    #[error("management_url {url} cannot be used: {detail}")]
    Url {
        /// Without its password.
        url: String,
        /// What is wrong.
        detail: String,
    },
    /// Nobody answered.
    #[error("no management API at {url}: {detail}; is the plugin rabbitmq_management on? (--management-url)")]
    Unreachable {
        /// Without user and password.
        url: String,
        /// What the network said.
        detail: String,
    },
    /// User, password or tag is wrong.
    #[error(
        "the management API at {url} refused user {user:?} ({status}): it needs the tag monitoring or management and a right on the virtual host"
    )]
    Denied {
        /// Without user and password.
        url: String,
        /// The user.
        user: String,
        /// The HTTP status.
        status: StatusCode,
    },
    /// Another answer than expected.
    #[error("the management API at {url} answered {detail}")]
    Answer {
        /// The address asked.
        url: String,
        /// Status or what could not be read.
        detail: String,
    },
}

impl HasExit for ManagementError {
    fn exit(&self) -> Exit {
        match self {
            Self::Url { .. } => Exit::Config,
            Self::Unreachable { .. } => Exit::BrokerUnavailable,
            Self::Denied { .. } => Exit::Denied,
            Self::Answer { .. } => Exit::Failed,
        }
    }
}

impl Management {
    /// A client for the API at `url`, which carries user and password (`guest` without).
    ///
    /// # Errors
    /// [`ManagementError::Url`].
    pub fn new(url: &SecretUrl) -> Result<Self, ManagementError> {
        let refused = |detail: String| ManagementError::Url { url: url.masked().to_owned(), detail };
        let mut base: Url = url.expose().parse().map_err(|error| refused(format!("{error}")))?;
        if base.username().is_empty() {
            let guest = base.set_username("guest").and_then(|()| base.set_password(Some("guest")));
            guest.map_err(|()| refused("it has no host".into()))?;
        }
        let mut bare = base.clone();
        let _ = bare.set_username("").and_then(|()| bare.set_password(None));
        let address = bare.as_str().trim_end_matches('/').to_owned();
        let http =
            reqwest::Client::builder().timeout(PATIENCE).build().map_err(|error| refused(chain(&error)))?;
        Ok(Self { base, address, http })
    }

    /// The address people open in a browser, without user and password.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Asks for `api/<segments…>`; each segment is escaped, a virtual host called `/` included.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub async fn get<T: DeserializeOwned>(
        &self,
        segments: &[&str],
        query: &[(&str, &str)],
    ) -> Result<T, ManagementError> {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().push("api").extend(segments);
        }
        url.query_pairs_mut().extend_pairs(query);
        let shown = || self.address.clone();
        let answer = self
            .http
            .get(url)
            .send()
            .await
            .map_err(|error| ManagementError::Unreachable { url: shown(), detail: chain(&error) })?;
        match answer.status() {
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                Err(ManagementError::Denied { url: shown(), user: self.base.username().to_owned(), status })
            }
            status if !status.is_success() => Err(ManagementError::Answer {
                url: format!("{}/api/{}", shown(), segments.join("/")),
                detail: status.to_string(),
            }),
            _ => answer.json().await.map_err(|error| ManagementError::Answer {
                url: format!("{}/api/{}", shown(), segments.join("/")),
                detail: chain(&error),
            }),
        }
    }
}

/// The HTTP client's own text leaves out why.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = String::new();
    let mut next = error.source();
    while let Some(cause) = next {
        text = cause.to_string();
        next = cause.source();
    }
    if text.is_empty() { error.to_string() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_there_is_one_line_without_the_password() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let url = format!("http://guest:secret@127.0.0.1:{port}").parse().unwrap();
        let management = Management::new(&url).unwrap();
        let error = management.get::<serde_json::Value>(&["queues", "/"], &[]).await.unwrap_err();
        assert_eq!(error.exit(), Exit::BrokerUnavailable);
        let text = error.to_string();
        assert!(text.starts_with(&format!("no management API at http://127.0.0.1:{port}: ")), "{text}");
        assert!(text.contains("--management-url") && !text.contains("secret"), "{text}");
        assert!(!format!("{management:?}").contains("secret"));
    }
}
