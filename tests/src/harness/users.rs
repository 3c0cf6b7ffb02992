//! The broker's users, one per program, with exactly the permissions that `deploy/rabbitmq/definitions.json` gives.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    broker::BrokerVersion,
    process::Program,
    vhost::{Rights, VirtualHost},
};

const DEFINITIONS: &str = include_str!("../../../deploy/rabbitmq/definitions.json");

/// Creates the user `garenne-<role>` of the definitions on a virtual host and returns its URL.
pub async fn user(vhost: &VirtualHost, role: &str) -> Result<String> {
    let definitions: Value = serde_json::from_str(DEFINITIONS)?;
    let of = |list: &str| {
        let all = definitions[list].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|one| one["user"] == format!("garenne-{role}")).collect::<Vec<_>>()
    };
    let granted = of("permissions").into_iter().next().context("the user is not in the definitions")?;
    let text = |field: &str| granted[field].as_str().with_context(|| format!("{role} without {field}"));
    let rights = Rights { configure: text("configure")?, write: text("write")?, read: text("read")? };
    let url = vhost.user_url(role, rights).await?;
    for topic in of("topic_permissions") {
        let rights = json!({"exchange": topic["exchange"], "write": topic["write"], "read": topic["read"]});
        let user = format!("{role}-{}", vhost.name());
        if vhost.broker().version() >= BrokerVersion(4, 3, 0) {
            // From 4.3 on, permissions can be given only for exchanges that exist.
            let exchange = topic["exchange"].as_str().context("a topic permission without an exchange")?;
            let events = json!({"type": "topic", "durable": true});
            vhost.broker().management().put(&["exchanges", vhost.name(), exchange], &events).await?;
        }
        vhost.broker().management().put(&["topic-permissions", vhost.name(), &user], &rights).await?;
    }
    Ok(url)
}

/// The users of one test environment, as URLs.
#[derive(Debug)]
pub(super) struct Users {
    pub(super) worker: String,
    pub(super) gateway: String,
    pub(super) console: String,
    pub(super) topology: Arc<Topology>,
}

impl Users {
    pub(super) async fn of(vhost: &VirtualHost) -> Result<Self> {
        let (worker, gateway, console, topology) = tokio::try_join!(
            user(vhost, "worker"),
            user(vhost, "gateway"),
            user(vhost, "console"),
            user(vhost, "topology")
        )?;
        let topology = Arc::new(Topology { url: topology, applied: Mutex::default() });
        Ok(Self { worker, gateway, console, topology })
    }
}

/// Declares the topology for programs that may not do so.
#[derive(Debug)]
pub(super) struct Topology {
    pub(super) url: String,
    /// The settings for which the topology was declared.
    applied: Mutex<BTreeSet<Vec<(String, String)>>>,
}

impl Topology {
    /// Declares the topology of a program's settings, once for the same settings.
    pub(super) async fn apply_for(&self, program: &Program) -> Result<()> {
        let is_relevant = |name: &str| name.starts_with("GARENNE_RETRY") || name.starts_with("GARENNE_LANES");
        let settings: Vec<_> =
            program.environment().iter().filter(|(name, _)| is_relevant(name)).cloned().collect();
        if self.applied.lock().unwrap_or_else(PoisonError::into_inner).contains(&settings) {
            return Ok(());
        }
        let tool = Program::garenne(&self.url, &["topology", "apply"]);
        settings.iter().fold(tool, |tool, (name, value)| tool.env(name, value)).succeed().await?;
        self.applied.lock().unwrap_or_else(PoisonError::into_inner).insert(settings);
        Ok(())
    }
}
