//! A virtual host of a broker, and users on it.

use anyhow::Result;
use serde_json::json;

use super::{
    broker::{Broker, USER},
    management::VhostView,
    runtime::spawn_on_harness,
};

/// The virtual host of one scenario. It is deleted with its contents when the value is dropped.
#[derive(Debug)]
pub struct VirtualHost {
    name: String,
    broker: Broker,
}

impl VirtualHost {
    pub(super) fn new(name: String, broker: Broker) -> Self {
        Self { name, broker }
    }

    /// Its name, which needs no escaping in a URL.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL for AMQP clients.
    #[must_use]
    pub fn amqp_url(&self) -> String {
        format!("{}/{}", self.broker.amqp_authority(USER), self.name)
    }

    /// The URL for AMQP clients at another node of the same cluster.
    #[must_use]
    pub fn amqp_url_at(&self, node: &Broker) -> String {
        format!("{}/{}", node.amqp_authority(USER), self.name)
    }

    /// The URL of the management API with user and password. It is the same for all virtual hosts.
    #[must_use]
    pub fn management_url(&self) -> String {
        self.broker.management_url()
    }

    /// Its broker.
    #[must_use]
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// The management API's view of this virtual host.
    #[must_use]
    pub fn view(&self) -> VhostView<'_> {
        self.broker.management().vhost(&self.name)
    }

    /// Creates a user with only these permissions on this virtual host, and returns the user's URL. The password equals
    /// the name.
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
        // Not awaited: virtual hosts that are left are removed with the broker.
        spawn_on_harness(async move {
            let _ = management.delete(&["vhosts", &name]).await;
        });
    }
}

/// A user's permissions on a virtual host, each a regular expression for names.
#[derive(Clone, Copy, Debug)]
pub struct Rights<'a> {
    /// Names that the user may declare and delete.
    pub configure: &'a str,
    /// Exchanges to which the user may publish.
    pub write: &'a str,
    /// Queues from which the user may consume.
    pub read: &'a str,
}
