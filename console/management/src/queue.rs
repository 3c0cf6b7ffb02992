//! The numbers of queues.

use std::time::Duration;

use garenne_common::exit::Failure;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::client::ManagementClient;

/// How often the broker updates the numbers of queues by default.
pub const STATISTICS_INTERVAL: Duration = Duration::from_secs(5);

/// The numbers of a queue. A number that the broker has not collected yet is 0.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct QueueCounts {
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
}

/// Reads `publish` of an object. The broker sends an empty list for a queue without statistics.
fn published<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Value::deserialize(deserializer)?["publish"].as_u64())
}

impl ManagementClient {
    /// All queues of a virtual host. The answer has only the numbers, so that it is small enough for regular polling.
    pub async fn queue_counts(&self, vhost: &str) -> Result<Vec<QueueCounts>, Failure> {
        let columns = "name,messages_ready,messages_unacknowledged,consumers,message_stats.publish";
        self.get(&["queues", vhost], &[("columns", columns)]).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_parsed_with_and_without_statistics() {
        let published = |stats: &str| {
            let json = format!(r#"{{"name":"q","messages_ready":3,"consumers":1{stats}}}"#);
            let queue: QueueCounts = serde_json::from_str(&json).unwrap();
            assert_eq!((queue.ready, queue.unacked, queue.consumers), (3, 0, 1));
            queue.published
        };
        assert_eq!(published(""), None);
        // A queue whose statistics have expired.
        assert_eq!(published(r#","message_stats":[]"#), None);
        assert_eq!(published(r#","message_stats":{"publish":7}"#), Some(7));
    }
}
