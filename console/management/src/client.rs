//! The HTTP client.

use std::{error::Error, time::Duration};

use garenne_common::{
    config::SecretUrl,
    exit::{Exit, Failure},
    text::printable,
};
use reqwest::{Client, StatusCode, Url};
use serde::{Deserialize, de::DeserializeOwned};

/// Time limit of a request. Answers usually take milliseconds.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Characters of a broker's reason that an error repeats.
const MAX_REASON: usize = 200;

/// A client that reads from one broker's management API.
#[derive(Clone, derive_more::Debug)]
#[debug("ManagementClient({address})")]
pub struct ManagementClient {
    /// Includes user and password, which the HTTP client sends as a header.
    base: Url,
    /// The setting, if it came from a file.
    source: Option<SecretUrl>,
    address: String,
    http: Client,
}

impl ManagementClient {
    /// A client for the API at `url`, which includes user and password (default: `guest`). Nothing is sent yet. A URL that
    /// came from a file is read again for each request, so that a rotated password needs no restart.
    pub fn new(url: &SecretUrl) -> Result<Self, Failure> {
        let invalid = |detail: String| {
            Failure::new(Exit::Config, format_args!("invalid management_url {}: {detail}", url.masked()))
        };
        let base = with_user(url).map_err(invalid)?;
        let mut bare = base.clone();
        let _ = bare.set_username("").and_then(|()| bare.set_password(None));
        let address = bare.as_str().trim_end_matches('/').to_owned();
        // A kept connection belongs to the runtime that opened it, and a client may be used from several.
        let http = Client::builder().pool_max_idle_per_host(0).timeout(TIMEOUT).build();
        let http = http.map_err(|error| invalid(innermost(&error)))?;
        let source = url.file().is_some().then(|| url.clone());
        Ok(Self { base, source, address, http })
    }

    /// The address without user and password, which is also that of the management UI.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// `GET api/<path…>?<query>`. Each segment of the path is percent-encoded, so that the virtual host `/` works.
    pub async fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<T, Failure> {
        let (status, answer, base) = self.answer(path, query).await?;
        let failed = |detail: String| {
            let path = path.join("/");
            Failure::new(Exit::Failed, format_args!("GET {}/api/{path}: {detail}", self.address))
        };
        match status {
            _ if status.is_success() => {
                serde_json::from_slice(&answer).map_err(|error| failed(format!("unexpected answer: {error}")))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(self.denied(status, &base)),
            StatusCode::NOT_FOUND => Err(failed("not found".into())),
            _ => Err(failed(format!("{status}: {}", reason(&answer)))),
        }
    }

    /// What the broker lacks, while an alarm blocks publishers, such as `memory at rabbit@a`.
    pub async fn alarms(&self) -> Result<Option<String>, Failure> {
        const PATH: [&str; 3] = ["health", "checks", "alarms"];
        let (status, answer, base) = self.answer(&PATH, &[]).await?;
        match status {
            _ if status.is_success() => Ok(None),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(self.denied(status, &base)),
            StatusCode::SERVICE_UNAVAILABLE => Ok(Some(alarms(&answer))),
            _ => {
                let problem =
                    format!("GET {}/api/{}: {status}: {}", self.address, PATH.join("/"), reason(&answer));
                Err(Failure::new(Exit::Failed, problem))
            }
        }
    }

    /// The status and body of `GET api/<path…>?<query>`, and the URL that was used.
    async fn answer(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<(StatusCode, Vec<u8>, Url), Failure> {
        let base = self.current().await;
        let mut url = base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("api").extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let response = self.http.get(url).send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        let answer = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        Ok((status, answer.to_vec(), base))
    }

    /// The URL that its file has now, or the first one if that cannot be read.
    async fn current(&self) -> Url {
        let Some(source) = &self.source else { return self.base.clone() };
        match source.read_again().await.and_then(|url| with_user(&url)) {
            Ok(url) => url,
            Err(problem) => {
                let file = source.file().unwrap_or("".as_ref()).display();
                tracing::warn!(%file, problem, "cannot read management_url again, using the first one");
                self.base.clone()
            }
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let line = format!(
            "no management API at {}: {}; is the plugin rabbitmq_management enabled? (--management-url)",
            self.address,
            innermost(error)
        );
        Failure::new(Exit::BrokerUnavailable, line)
    }

    fn denied(&self, status: StatusCode, base: &Url) -> Failure {
        let line = format!(
            "the management API at {} denied access to user {:?} ({status}): the user needs the tag monitoring or \
             management and a permission on the virtual host",
            self.address,
            base.username()
        );
        Failure::new(Exit::Denied, line)
    }
}

/// The URL with its user, or `guest`.
fn with_user(url: &SecretUrl) -> Result<Url, String> {
    let mut base: Url = url.expose().parse().map_err(|error| format!("{error}"))?;
    if base.username().is_empty() {
        let guest = base.set_username("guest").and_then(|()| base.set_password(Some("guest")));
        guest.map_err(|()| "the host is missing".to_owned())?;
    }
    Ok(base)
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

/// The alarms of a failed health check, or its reason.
fn alarms(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Check {
        alarms: Vec<Alarm>,
    }
    #[derive(Deserialize)]
    struct Alarm {
        resource: String,
        node: String,
    }
    let Ok(Check { alarms }) = serde_json::from_slice::<Check>(body) else { return reason(body) };
    let alarms = alarms.iter().map(|Alarm { resource, node }| format!("{resource} at {node}"));
    printable(&alarms.collect::<Vec<_>>().join(", ")).into_owned()
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
        let error = client.get::<Value>(&["queues", "/"], &[]).await.unwrap_err();
        assert_eq!(error.exit, Exit::BrokerUnavailable);
        let text = error.to_string();
        assert!(text.starts_with(&format!("no management API at http://127.0.0.1:{port}: ")), "{text}");
        assert!(text.contains("--management-url") && !text.contains("secret"), "{text}");
        assert!(!format!("{client:?}").contains("secret"));
    }

    #[tokio::test]
    async fn path_segments_are_encoded_and_the_password_is_sent_as_a_header() {
        let (client, served) =
            answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n[]").await;
        let queues: Vec<Value> = client.get(&["queues", "/"], &[("columns", "name")]).await.unwrap();
        assert!(queues.is_empty());
        let head = served.await.unwrap();
        assert!(head.starts_with("GET /api/queues/%2F?columns=name HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("authorization: Basic Z3Vlc3Q6c2VjcmV0\r\n"), "{head}");
    }

    #[tokio::test]
    async fn a_url_from_a_file_is_read_again_for_each_request() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (first, served) = answering("HTTP/1.1 401 Unauthorized\r\nconnection: close\r\n\r\n").await;
        let port = first.address().rsplit_once(':').unwrap().1;
        let mut url: SecretUrl = format!("http://guest:old@127.0.0.1:{port}").parse().unwrap();
        url.read_from(file.path());
        let client = ManagementClient::new(&url).unwrap();
        std::fs::write(file.path(), format!("http://guest:secret@127.0.0.1:{port}\n")).unwrap();
        assert_eq!(client.get::<Value>(&["queues"], &[]).await.unwrap_err().exit, Exit::Denied);
        let head = served.await.unwrap();
        assert!(head.contains("authorization: Basic Z3Vlc3Q6c2VjcmV0\r\n"), "{head}");
        std::fs::write(file.path(), "").unwrap();
        assert_eq!(client.current().await.password(), Some("old"), "the first one while there is no URL");
    }

    #[tokio::test]
    async fn an_error_repeats_the_reason_of_the_broker() {
        let (client, _served) = answering(
            "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n\
             {\"error\":\"bad_request\",\"reason\":\"no\\u0007 good\"}",
        )
        .await;
        let error = client.get::<Value>(&["vhosts", "v"], &[]).await.unwrap_err();
        let address = client.address();
        assert_eq!(
            error.to_string(),
            format!("GET {address}/api/vhosts/v: 400 Bad Request: no\\u{{7}} good")
        );
    }

    #[tokio::test]
    async fn a_missing_object_is_not_found() {
        let (client, _served) =
            answering("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
        let error = client.get::<Value>(&["queues", "/", "q"], &[]).await.unwrap_err();
        assert_eq!(error.to_string(), format!("GET {}/api/queues///q: not found", client.address()));
    }
}
