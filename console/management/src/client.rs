//! The HTTP client.

use std::{error::Error, fmt, time::Duration};

use garenne_common::{config::SecretUrl, text::printable};
use reqwest::{Client, Method, StatusCode, Url};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::error::ManagementError;

/// Default time limit of a request. Answers usually take milliseconds.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Characters of a broker's reason that an error repeats.
const MAX_REASON: usize = 200;

/// A client of one broker's management API.
#[derive(Clone)]
pub struct ManagementClient {
    /// Includes user and password, which the HTTP client sends as a header.
    base: Url,
    address: String,
    http: Client,
    timeout: Duration,
}

/// Leaves out the password.
impl fmt::Debug for ManagementClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagementClient").field("address", &self.address).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Overview {
    rabbitmq_version: String,
}

impl ManagementClient {
    /// A client for the API at `url`, which includes user and password (default: `guest`). Nothing is sent yet.
    ///
    /// # Errors
    /// [`ManagementError::Url`].
    pub fn new(url: &SecretUrl) -> Result<Self, ManagementError> {
        let invalid = |detail: String| ManagementError::Url { url: url.masked().to_owned(), detail };
        let mut base: Url = url.expose().parse().map_err(|error| invalid(format!("{error}")))?;
        if base.username().is_empty() {
            let guest = base.set_username("guest").and_then(|()| base.set_password(Some("guest")));
            guest.map_err(|()| invalid("the host is missing".into()))?;
        }
        let mut bare = base.clone();
        let _ = bare.set_username("").and_then(|()| bare.set_password(None));
        let address = bare.as_str().trim_end_matches('/').to_owned();
        // A kept connection belongs to the runtime that opened it, and a client may be used from several.
        let http = Client::builder().pool_max_idle_per_host(0).build();
        let http = http.map_err(|error| invalid(innermost(&error)))?;
        Ok(Self { base, address, http, timeout: TIMEOUT })
    }

    /// Sets the time limit of a request (default: 10 s).
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The address without user and password, which is also that of the management UI.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The broker's version, such as `4.0.5`.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub async fn version(&self) -> Result<String, ManagementError> {
        Ok(self.get::<Overview>(&["overview"]).await?.rabbitmq_version)
    }

    /// `GET api/<path…>`. Each segment is percent-encoded, so that the virtual host `/` works.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, ManagementError> {
        self.get_with(path, &[]).await
    }

    /// `GET api/<path…>?<query>`.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub async fn get_with<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<T, ManagementError> {
        let answer = self.send(Method::GET, path, query, None::<&()>).await?;
        serde_json::from_slice(&answer).map_err(|error| ManagementError::Answer {
            request: self.request(&Method::GET, path),
            detail: error.to_string(),
        })
    }

    /// `PUT api/<path…>` with a JSON body.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub async fn put(&self, path: &[&str], body: &impl Serialize) -> Result<(), ManagementError> {
        self.send(Method::PUT, path, &[], Some(body)).await.map(drop)
    }

    /// `DELETE api/<path…>`.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub async fn delete(&self, path: &[&str]) -> Result<(), ManagementError> {
        self.send(Method::DELETE, path, &[], None::<&()>).await.map(drop)
    }

    async fn send(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<&impl Serialize>,
    ) -> Result<Vec<u8>, ManagementError> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("api").extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.request(method.clone(), url).timeout(self.timeout);
        if let Some(body) = body {
            request = request.json(body);
        }
        let unreachable = |error: reqwest::Error| ManagementError::Unreachable {
            url: self.address.clone(),
            detail: innermost(&error),
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let answer = response.bytes().await.map_err(unreachable)?;
        match status {
            _ if status.is_success() => Ok(answer.to_vec()),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(ManagementError::Denied {
                url: self.address.clone(),
                user: self.base.username().to_owned(),
                status,
            }),
            StatusCode::NOT_FOUND => Err(ManagementError::NotFound { request: self.request(&method, path) }),
            _ => Err(ManagementError::Status {
                request: self.request(&method, path),
                status,
                reason: reason(&answer),
            }),
        }
    }

    /// Method and URL for an error.
    fn request(&self, method: &Method, path: &[&str]) -> String {
        format!("{method} {}/api/{}", self.address, path.join("/"))
    }
}

/// The broker's reason from the body of an error.
fn reason(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Problem {
        reason: String,
    }
    let text = match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => problem.reason,
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    printable(text.trim()).chars().take(MAX_REASON).collect()
}

/// The innermost cause: the HTTP client's own text does not include it.
fn innermost(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use garenne_common::exit::{Exit, HasExit};
    use serde_json::Value;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        task::JoinHandle,
    };

    use super::*;

    fn client(port: u16) -> ManagementClient {
        ManagementClient::new(&format!("http://guest:secret@127.0.0.1:{port}").parse().unwrap()).unwrap()
    }

    /// A server that answers one request, and the head of that request.
    async fn answering(response: &'static str) -> (ManagementClient, JoinHandle<String>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = client(listener.local_addr().unwrap().port());
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = String::new();
            while !head.contains("\r\n\r\n") {
                let mut chunk = [0; 1024];
                let read = stream.read(&mut chunk).await.unwrap();
                head += std::str::from_utf8(&chunk[..read]).unwrap();
            }
            stream.write_all(response.as_bytes()).await.unwrap();
            head
        });
        (client, served)
    }

    #[tokio::test]
    async fn an_unreachable_api_is_reported_without_the_password() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let client = client(port);
        let error = client.get::<Value>(&["queues", "/"]).await.unwrap_err();
        assert_eq!(error.exit(), Exit::BrokerUnavailable);
        let text = error.to_string();
        assert!(text.starts_with(&format!("no management API at http://127.0.0.1:{port}: ")), "{text}");
        assert!(text.contains("--management-url") && !text.contains("secret"), "{text}");
        assert!(!format!("{client:?}").contains("secret"));
    }

    #[tokio::test]
    async fn path_segments_are_encoded_and_the_password_is_sent_as_a_header() {
        let (client, served) =
            answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n[]").await;
        let queues: Vec<Value> = client.get_with(&["queues", "/"], &[("columns", "name")]).await.unwrap();
        assert!(queues.is_empty());
        let head = served.await.unwrap();
        assert!(head.starts_with("GET /api/queues/%2F?columns=name HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("authorization: Basic Z3Vlc3Q6c2VjcmV0\r\n"), "{head}");
    }

    #[tokio::test]
    async fn an_error_repeats_the_reason_of_the_broker() {
        let (client, _served) = answering(
            "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n\
             {\"error\":\"bad_request\",\"reason\":\"no\\u0007 good\"}",
        )
        .await;
        let error = client.put(&["vhosts", "v"], &Value::Null).await.unwrap_err();
        let address = client.address();
        assert_eq!(
            error.to_string(),
            format!("PUT {address}/api/vhosts/v: 400 Bad Request: no\\u{{7}} good")
        );
    }

    #[tokio::test]
    async fn a_missing_object_is_not_found() {
        let (client, _served) =
            answering("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
        let error = client.delete(&["queues", "/", "q"]).await.unwrap_err();
        assert!(matches!(error, ManagementError::NotFound { .. }), "{error}");
    }
}
