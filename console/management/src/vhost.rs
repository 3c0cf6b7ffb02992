//! The objects of one virtual host.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::{client::ManagementClient, error::ManagementError};

/// A queue. Numbers are absent from an answer until the broker has collected statistics, and so is every field
/// that a request's `columns` leave out: such a field has its default.
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
    /// Number of consumers.
    #[serde(default)]
    pub consumers: u64,
    /// Messages published to it since the broker counts; `None` before the first one.
    #[serde(default, rename = "message_stats", deserialize_with = "published")]
    pub published: Option<u64>,
    /// Arguments of its declaration.
    #[serde(default)]
    pub arguments: Value,
    /// `classic`, `quorum` or `stream`.
    #[serde(default, rename = "type")]
    pub kind: String,
}

/// Reads `publish` of an object. The broker sends an empty list for a queue without statistics.
fn published<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Value::deserialize(deserializer)?["publish"].as_u64())
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

    /// The name of its connection, for [`ManagementClient::close_connection`].
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
    /// `running`, `blocked`, `blocking` or `flow`.
    #[serde(default)]
    pub state: String,
    /// The name that the client gave itself.
    #[serde(default)]
    pub user_provided_name: Option<String>,
    vhost: Option<String>,
}

impl ManagementClient {
    /// The part of the API for one virtual host.
    #[must_use]
    pub fn vhost<'a>(&'a self, name: &'a str) -> VhostView<'a> {
        VhostView { client: self, name }
    }
}

/// The part of the API for one virtual host.
#[derive(Clone, Copy, Debug)]
pub struct VhostView<'a> {
    client: &'a ManagementClient,
    name: &'a str,
}

impl VhostView<'_> {
    /// One queue.
    ///
    /// # Errors
    /// [`ManagementError::NotFound`] for an unknown queue, or another [`ManagementError`].
    pub async fn queue(&self, queue: &str) -> Result<QueueStatus, ManagementError> {
        self.client.get(&["queues", self.name, queue]).await
    }

    /// All queues.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub async fn queues(&self) -> Result<Vec<QueueStatus>, ManagementError> {
        self.client.get(&["queues", self.name]).await
    }

    /// All queues with their numbers only: a small answer for regular polling.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub async fn queue_counts(&self) -> Result<Vec<QueueStatus>, ManagementError> {
        let columns = "name,messages_ready,messages_unacknowledged,consumers,message_stats.publish";
        self.client.get_with(&["queues", self.name], &[("columns", columns)]).await
    }

    /// All consumers with a known connection. The broker lists a new consumer without its connection at first,
    /// and keeps entries without one for a while after a queue is deleted.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub async fn consumers(&self) -> Result<Vec<ConsumerStatus>, ManagementError> {
        let mut all: Vec<ConsumerStatus> = self.client.get(&["consumers", self.name]).await?;
        all.retain(|consumer| !consumer.connection().is_empty());
        Ok(all)
    }

    /// All client connections.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub async fn connections(&self) -> Result<Vec<ConnectionStatus>, ManagementError> {
        let mut all: Vec<ConnectionStatus> = self.client.get(&["connections"]).await?;
        all.retain(|connection| connection.vhost.as_deref() == Some(self.name));
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_parsed_with_and_without_statistics() {
        let published = |stats: &str| {
            let json = format!(r#"{{"name":"q","messages_ready":3,"consumers":1{stats}}}"#);
            let queue: QueueStatus = serde_json::from_str(&json).unwrap();
            assert_eq!((queue.ready, queue.unacked, queue.consumers), (3, 0, 1));
            queue.published
        };
        assert_eq!(published(""), None);
        // A queue whose statistics have expired.
        assert_eq!(published(r#","message_stats":[]"#), None);
        assert_eq!(published(r#","message_stats":{"publish":7}"#), Some(7));
    }
}
