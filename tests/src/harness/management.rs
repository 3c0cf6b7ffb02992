//! The broker's management API, as an administrator uses it: virtual hosts, users, permissions and connections.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use reqwest::{Client, Method, Url};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Limit of a request. It takes longer only if the broker is down or frozen.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of what the broker writes to its disk, such as a new virtual host. That takes seconds on a slow disk that others use
/// too.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// A client of the management API of one broker.
#[derive(Clone, Debug)]
pub struct Management {
    /// Includes user and password.
    base: Url,
    http: Client,
}

impl Management {
    pub(super) fn new(url: &str) -> Result<Self> {
        // A kept connection belongs to the runtime that opened it, and every test has its own.
        let http = Client::builder().pool_max_idle_per_host(0).build()?;
        Ok(Self { base: url.parse()?, http })
    }

    async fn send(&self, method: Method, path: &[&str], body: Option<&Value>) -> Result<Vec<u8>> {
        self.send_within(TIMEOUT, method, path, body).await
    }

    async fn send_within(
        &self,
        timeout: Duration,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
    ) -> Result<Vec<u8>> {
        let request = format!("{method} api/{}", path.join("/"));
        let mut url = self.base.clone();
        url.path_segments_mut().ok().context("the URL has no path")?.pop_if_empty().push("api").extend(path);
        let mut builder = self.http.request(method, url).timeout(timeout);
        if let Some(body) = body {
            builder = builder.json(body);
        }
        let response = builder.send().await.with_context(|| request.clone())?;
        let status = response.status();
        let answer = response.bytes().await.with_context(|| request.clone())?;
        if !status.is_success() {
            bail!("{request}: {status}: {}", String::from_utf8_lossy(&answer));
        }
        Ok(answer.to_vec())
    }

    /// `GET api/<path…>`. Each segment is percent-encoded.
    ///
    /// # Errors
    /// If the broker refuses or does not answer; the same for all other requests.
    pub async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T> {
        let answer = self.send(Method::GET, path, None).await?;
        serde_json::from_slice(&answer)
            .with_context(|| format!("unexpected answer of api/{}", path.join("/")))
    }

    /// `PUT api/<path…>` with a JSON body.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn put(&self, path: &[&str], body: &Value) -> Result<()> {
        self.send_within(WRITE_TIMEOUT, Method::PUT, path, Some(body)).await.map(drop)
    }

    /// `POST api/<path…>` with a JSON body.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn post<T: DeserializeOwned>(&self, path: &[&str], body: &Value) -> Result<T> {
        let answer = self.send(Method::POST, path, Some(body)).await?;
        serde_json::from_slice(&answer)
            .with_context(|| format!("unexpected answer of api/{}", path.join("/")))
    }

    /// `DELETE api/<path…>`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn delete(&self, path: &[&str]) -> Result<()> {
        self.send(Method::DELETE, path, None).await.map(drop)
    }

    /// The broker's version, such as `4.0.5`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn version(&self) -> Result<String> {
        let overview: Value = self.get(&["overview"]).await?;
        Ok(overview["rabbitmq_version"].as_str().context("the broker has no version")?.to_owned())
    }

    /// Creates a virtual host on which `user` has all permissions.
    pub(super) async fn create_vhost(&self, vhost: &str, user: &str) -> Result<()> {
        self.put(&["vhosts", vhost], &json!({})).await?;
        let permissions = json!({ "configure": ".*", "write": ".*", "read": ".*" });
        self.put(&["permissions", vhost, user], &permissions).await
    }

    /// Creates a user without tags and permissions, or changes the password of an existing one.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn create_user(&self, user: &str, password: &str) -> Result<()> {
        self.put(&["users", user], &json!({ "password": password, "tags": "" })).await
    }

    /// Closes a client's connection from the broker's side.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn close_connection(&self, name: &str) -> Result<()> {
        self.delete(&["connections", name]).await
    }

    /// The part of the API for one virtual host.
    #[must_use]
    pub fn vhost<'a>(&'a self, name: &'a str) -> VhostView<'a> {
        VhostView { client: self, name }
    }
}

/// The part of the API for one virtual host.
#[derive(Clone, Copy, Debug)]
pub struct VhostView<'a> {
    client: &'a Management,
    name: &'a str,
}

impl VhostView<'_> {
    /// One queue.
    ///
    /// # Errors
    /// If it does not exist, or the broker does not answer.
    pub async fn queue(&self, queue: &str) -> Result<QueueStatus> {
        self.client.get(&["queues", self.name, queue]).await
    }

    /// All queues.
    ///
    /// # Errors
    /// As [`Management::get`].
    pub async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.client.get(&["queues", self.name]).await
    }

    /// All consumers with a known connection. The broker lists a new consumer without its connection at first,
    /// and keeps entries without one for a while after a queue is deleted.
    ///
    /// # Errors
    /// As [`Management::get`].
    pub async fn consumers(&self) -> Result<Vec<ConsumerStatus>> {
        let mut all: Vec<ConsumerStatus> = self.client.get(&["consumers", self.name]).await?;
        all.retain(|consumer| !consumer.connection().is_empty());
        Ok(all)
    }

    /// All client connections.
    ///
    /// # Errors
    /// As [`Management::get`].
    pub async fn connections(&self) -> Result<Vec<ConnectionStatus>> {
        let mut all: Vec<ConnectionStatus> = self.client.get(&["connections"]).await?;
        all.retain(|connection| connection.vhost.as_deref() == Some(self.name));
        Ok(all)
    }
}

/// A queue. Numbers are absent from an answer until the broker has collected statistics, and are 0 then.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct QueueStatus {
    /// The queue's name.
    pub name: String,
    /// Messages ready for delivery.
    #[serde(default, rename = "messages_ready")]
    pub ready: u64,
    /// Messages delivered and not settled.
    #[serde(default, rename = "messages_unacknowledged")]
    pub unacked: u64,
    /// Arguments of its declaration.
    #[serde(default)]
    pub arguments: Value,
    /// `classic`, `quorum` or `stream`.
    #[serde(default, rename = "type")]
    pub kind: String,
}

/// A consumer.
#[derive(Clone, Debug, Deserialize)]
pub struct ConsumerStatus {
    /// Consumer tag.
    #[serde(rename = "consumer_tag")]
    pub tag: String,
    /// Prefetch limit; 0 is no limit.
    #[serde(rename = "prefetch_count")]
    pub prefetch: u64,
    queue: QueueName,
    channel_details: ChannelDetails,
}

impl ConsumerStatus {
    /// The queue that it consumes.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.queue.name
    }

    /// The name of its connection, for [`Management::close_connection`].
    #[must_use]
    pub fn connection(&self) -> &str {
        &self.channel_details.connection_name
    }
}

#[derive(Clone, Debug, Deserialize)]
struct QueueName {
    name: String,
}

#[derive(Clone, Debug, Deserialize)]
struct ChannelDetails {
    #[serde(default)]
    connection_name: String,
}

/// A client connection.
#[derive(Clone, Debug, Deserialize)]
pub struct ConnectionStatus {
    /// The broker's name of it: the addresses of both ends.
    pub name: String,
    /// The name that the client gave itself.
    #[serde(default)]
    pub user_provided_name: Option<String>,
    vhost: Option<String>,
}
