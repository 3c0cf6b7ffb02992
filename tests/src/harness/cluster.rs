//! A cluster of brokers, for tests in which a queue loses its leader.
//!
//! Its nodes find each other by name on their own network, so they must be containers.

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use super::{
    broker::{Broker, BrokerOptions},
    engine::{self, Mode},
    node::ClusterMember,
    runtime::on_harness,
    suite,
    wait::{Seen, eventually},
};

/// The running nodes of a cluster. Each is a [`Broker`], which can be killed and restarted. Virtual hosts, users and
/// queues belong to the whole cluster.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Broker>,
    hosts: Vec<String>,
    /// Released after the nodes have stopped.
    _permit: OwnedSemaphorePermit,
}

impl Cluster {
    /// Whether this test run can start clusters.
    pub async fn available() -> bool {
        engine::mode().await == Mode::Docker
    }

    /// Starts `size` nodes at once and waits until each sees all of them.
    pub async fn start(size: usize, options: BrokerOptions) -> Result<Self> {
        suite::time_this_test();
        ensure!(Self::available().await, "a cluster needs containers");
        let permit = Broker::permit().await?;
        let id = Uuid::new_v4().simple().to_string();
        let hosts: Vec<_> = (1..=size).map(|n| format!("garenne-test-{}-{n}", &id[..12])).collect();
        let mut options = options;
        options.conf.push("cluster_formation.peer_discovery_backend = classic_config".to_owned());
        let known = hosts
            .iter()
            .zip(1..)
            .map(|(host, n)| format!("cluster_formation.classic_config.nodes.{n} = rabbit@{host}"));
        options.conf.extend(known);
        let nodes = hosts.iter().map(|host| {
            let member = ClusterMember { network: format!("garenne-test-{id}"), host: host.clone() };
            let options = options.clone();
            on_harness(async move { Broker::launch_at(Mode::Docker, options, Some(member)).await })
        });
        let cluster = Self { nodes: try_join_all(nodes).await?, hosts, _permit: permit };
        for node in 0..size {
            cluster.until_running(node, size).await?;
        }
        Ok(cluster)
    }

    /// A node.
    #[must_use]
    pub fn node(&self, index: usize) -> &Broker {
        &self.nodes[index]
    }

    /// Waits until a node sees this number of running nodes, including itself.
    pub async fn until_running(&self, node: usize, count: usize) -> Result<()> {
        eventually(format!("node {node} sees {count} nodes running"), async || {
            let seen: Vec<Value> = self.nodes[node].management().get(&["nodes"]).await?;
            let running = seen.iter().filter(|node| node["running"] == true).count();
            Ok(Seen::when(running == count, running))
        })
        .await
    }

    /// The node that leads a queue, according to the node `asked`.
    pub async fn leader(&self, asked: usize, vhost: &str, queue: &str) -> Result<usize> {
        let status: Value = self.nodes[asked].management().get(&["queues", vhost, queue]).await?;
        let leader = status["leader"].as_str().with_context(|| format!("{queue} has no leader: {status}"))?;
        let host = leader.trim_start_matches("rabbit@");
        self.hosts
            .iter()
            .position(|it| it == host)
            .with_context(|| format!("{leader} is not a node of this cluster"))
    }
}
