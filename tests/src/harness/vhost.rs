//! A virtual host of a broker, and users on it.

use anyhow::Result;
use serde_json::json;

use super::{
    broker::{Broker, USER},
    management::VhostView,
    runtime::spawn_on_harness,
};

/// A virtual host of one scenario. It is deleted, with all that is in it, when this is dropped.
#[derive(Debug)]
pub struct VirtualHost {
    name: String,
    broker: Broker,
}

impl VirtualHost {
    pub(super) fn new(name: String, broker: Broker) -> Self {
        Self { name, broker }
    }

    /// Its name; needs no escaping in a URL.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where AMQP clients connect.
    #[must_use]
    pub fn amqp_url(&self) -> String {
        format!("{}/{}", self.broker.amqp_authority(USER), self.name)
    }

    /// Where AMQP clients connect to another node of the same cluster.
    #[must_use]
    pub fn amqp_url_at(&self, node: &Broker) -> String {
        format!("{}/{}", node.amqp_authority(USER), self.name)
    }

    /// Where the management API is, with user and password; the same for all virtual hosts.
    #[must_use]
    pub fn management_url(&self) -> String {
        self.broker.management_url()
    }

    /// The broker that it is on.
    #[must_use]
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// The management API's view of this virtual host.
    #[must_use]
    pub fn view(&self) -> VhostView<'_> {
        self.broker.management().vhost(&self.name)
    }

    /// Makes a user who has only these rights here (regular expressions), and returns the URL with which
    /// that user connects. The password is the name.
    ///
    /// # Errors
    /// When the management API refuses.
    pub async fn user_url(&self, name: &str, rights: Rights<'_>) -> Result<String> {
        let user = format!("{name}-{}", self.name);
        let management = self.broker.management();
        management.create_user(&user, &user).await?;
        let Rights { configure, write, read } = rights;
        let permissions = json!({ "configure": configure, "write": write, "read": read });
        management.put(&["permissions", &self.name, &user], &permissions).await?;
        Ok(format!("{}/{}", self.broker.amqp_authority(&user), self.name))
    }
}

impl Drop for VirtualHost {
    fn drop(&mut self) {
        let (management, name) = (self.broker.management().clone(), self.name.clone());
        // Nobody waits: what is left when the broker goes, goes with it.
        spawn_on_harness(async move {
            let _ = management.delete(&["vhosts", &name]).await;
        });
    }
}

/// A user's rights on a virtual host, each a regular expression over names.
#[derive(Clone, Copy, Debug)]
pub struct Rights<'a> {
    /// What the user may declare and delete.
    pub configure: &'a str,
    /// Where the user may publish.
    pub write: &'a str,
    /// From where the user may consume.
    pub read: &'a str,
}
