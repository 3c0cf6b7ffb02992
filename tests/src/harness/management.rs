//! A client of RabbitMQ's management API: what the broker itself thinks is going on.
//!
//! Its numbers are up to half a second old on the harness's brokers, so a test waits for a number and
//! does not read it once.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use reqwest::{Client, Method, StatusCode, Url};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// An answer that takes longer comes from a broker that is down or frozen.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A client of the management API.
#[derive(Clone, Debug)]
pub struct Management {
    base: Url,
    user: String,
    password: String,
    client: Client,
}

/// A queue, as the broker counts it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct QueueStatus {
    /// The queue's name.
    pub name: String,
    /// Messages that wait for a consumer.
    #[serde(default, rename = "messages_ready")]
    pub ready: u64,
    /// Messages delivered and not yet settled.
    #[serde(default, rename = "messages_unacknowledged")]
    pub unacked: u64,
    /// Consumers.
    #[serde(default)]
    pub consumers: u64,
    /// Declaration arguments.
    #[serde(default)]
    pub arguments: Value,
    /// `classic`, `quorum` or `stream`.
    #[serde(default, rename = "type")]
    pub kind: String,
}

/// A consumer, as the broker knows it.
#[derive(Clone, Debug, Deserialize)]
pub struct ConsumerStatus {
    /// Consumer tag.
    #[serde(rename = "consumer_tag")]
    pub tag: String,
    /// What it may hold unacknowledged; 0 is no limit.
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

    /// The connection that it is on, by the name that [`Management::close_connection`] takes.
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
    /// The broker's name of it: both ends' addresses.
    pub name: String,
    /// `running`, `blocked`, `blocking`, `flow`.
    #[serde(default)]
    pub state: String,
    /// The name that the client gave itself.
    #[serde(default)]
    pub user_provided_name: Option<String>,
    vhost: Option<String>,
}

#[derive(Deserialize)]
struct Overview {
    rabbitmq_version: String,
}

impl Management {
    /// A client for an address such as `http://127.0.0.1:15672`. Nothing is sent yet.
    ///
    /// # Errors
    /// When the address is no URL.
    pub fn new(base: impl AsRef<str>, user: &str, password: &str) -> Result<Self> {
        let client = Client::builder()
            .timeout(TIMEOUT)
            // A kept connection would belong to the runtime of the test that opened it.
            .pool_max_idle_per_host(0)
            .build()?;
        let base = Url::parse(base.as_ref()).context("management URL")?;
        Ok(Self { base, user: user.to_owned(), password: password.to_owned(), client })
    }

    pub(crate) fn url_with_password(&self) -> String {
        let authority = self.base.as_str().trim_start_matches("http://").trim_end_matches('/');
        format!("http://{}:{}@{authority}", self.user, self.password)
    }

    /// The broker's version, such as `4.0.5`.
    ///
    /// # Errors
    /// When the broker does not answer.
    pub async fn version(&self) -> Result<String> {
        Ok(self.get::<Overview>(&["overview"]).await?.rabbitmq_version)
    }

    /// One virtual host's part of the API.
    #[must_use]
    pub fn vhost<'a>(&'a self, name: &'a str) -> VhostView<'a> {
        VhostView { management: self, name }
    }

    /// Makes a virtual host on which `user` may do everything.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn create_vhost(&self, vhost: &str, user: &str) -> Result<()> {
        self.put(&["vhosts", vhost], &json!({})).await?;
        self.grant(vhost, user, ".*", ".*", ".*").await
    }

    /// Deletes a virtual host and everything in it.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn delete_vhost(&self, vhost: &str) -> Result<()> {
        self.delete(&["vhosts", vhost]).await
    }

    /// Makes a user without any rights.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn create_user(&self, user: &str, password: &str) -> Result<()> {
        self.put(&["users", user], &json!({ "password": password, "tags": "" })).await
    }

    /// Deletes a user.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn delete_user(&self, user: &str) -> Result<()> {
        self.delete(&["users", user]).await
    }

    /// Sets a user's rights on a virtual host: three regular expressions over names.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn grant(
        &self,
        vhost: &str,
        user: &str,
        configure: &str,
        write: &str,
        read: &str,
    ) -> Result<()> {
        let rights = json!({ "configure": configure, "write": write, "read": read });
        self.put(&["permissions", vhost, user], &rights).await
    }

    /// Closes a client's connection from the broker's side.
    ///
    /// # Errors
    /// When there is none of that name.
    pub async fn close_connection(&self, name: &str) -> Result<()> {
        self.delete(&["connections", name]).await
    }

    /// `GET /api/…`; each part of the path is escaped.
    ///
    /// # Errors
    /// When the broker does not answer, with another status than success, or with something else.
    pub async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T> {
        let answer = self.send(Method::GET, path, None).await?;
        serde_json::from_slice(&answer).with_context(|| format!("answer of GET /api/{}", path.join("/")))
    }

    /// `PUT /api/…`.
    ///
    /// # Errors
    /// When the broker does not answer, or with another status than success.
    pub async fn put(&self, path: &[&str], body: &Value) -> Result<()> {
        self.send(Method::PUT, path, Some(body)).await.map(drop)
    }

    /// `DELETE /api/…`.
    ///
    /// # Errors
    /// When the broker does not answer, or with another status than success.
    pub async fn delete(&self, path: &[&str]) -> Result<()> {
        self.send(Method::DELETE, path, None).await.map(drop)
    }

    async fn send(&self, method: Method, path: &[&str], body: Option<&Value>) -> Result<Vec<u8>> {
        let mut url = self.base.clone();
        url.path_segments_mut().ok().context("management URL")?.clear().push("api").extend(path);
        let what = format!("{method} {}", url.path());
        let mut request = self.client.request(method, url).basic_auth(&self.user, Some(&self.password));
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.with_context(|| what.clone())?;
        let status = response.status();
        let bytes = response.bytes().await?;
        if !status.is_success() {
            let found = if status == StatusCode::NOT_FOUND { "nothing there" } else { "refused" };
            bail!("{what}: {found} ({status}): {}", String::from_utf8_lossy(&bytes));
        }
        Ok(bytes.to_vec())
    }
}

/// The management API's view of one virtual host.
#[derive(Clone, Copy, Debug)]
pub struct VhostView<'a> {
    management: &'a Management,
    name: &'a str,
}

impl VhostView<'_> {
    /// One queue.
    ///
    /// # Errors
    /// When there is none of that name.
    pub async fn queue(&self, queue: &str) -> Result<QueueStatus> {
        self.management.get(&["queues", self.name, queue]).await
    }

    /// All queues.
    ///
    /// # Errors
    /// When the broker does not answer.
    pub async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.management.get(&["queues", self.name]).await
    }

    /// All consumers whose connection the broker tells. It does so late: a new consumer is missing here until
    /// then, and so are the entries that the management plugin keeps of a deleted queue's consumers.
    ///
    /// # Errors
    /// When the broker does not answer.
    pub async fn consumers(&self) -> Result<Vec<ConsumerStatus>> {
        let mut all: Vec<ConsumerStatus> = self.management.get(&["consumers", self.name]).await?;
        all.retain(|consumer| !consumer.connection().is_empty());
        Ok(all)
    }

    /// All client connections.
    ///
    /// # Errors
    /// When the broker does not answer.
    pub async fn connections(&self) -> Result<Vec<ConnectionStatus>> {
        let mut all: Vec<ConnectionStatus> = self.management.get(&["connections"]).await?;
        all.retain(|connection| connection.vhost.as_deref() == Some(self.name));
        Ok(all)
    }

    /// Closes all client connections from the broker's side and returns how many there were.
    ///
    /// # Errors
    /// When the broker does not answer.
    pub async fn close_connections(&self) -> Result<usize> {
        let connections = self.connections().await?;
        for connection in &connections {
            self.management.close_connection(&connection.name).await?;
        }
        Ok(connections.len())
    }
}
