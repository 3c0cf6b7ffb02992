//! Virtual hosts, users, permissions and connections.

use serde_json::json;

use crate::{client::ManagementClient, error::ManagementError};

impl ManagementClient {
    /// Creates a virtual host on which `user` has all permissions.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub async fn create_vhost(&self, vhost: &str, user: &str) -> Result<(), ManagementError> {
        self.put(&["vhosts", vhost], &json!({})).await?;
        self.set_permissions(vhost, user, ".*", ".*", ".*").await
    }

    /// Deletes a virtual host with everything in it.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub async fn delete_vhost(&self, vhost: &str) -> Result<(), ManagementError> {
        self.delete(&["vhosts", vhost]).await
    }

    /// Creates a user without tags and permissions, or changes the password of an existing one.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub async fn create_user(&self, user: &str, password: &str) -> Result<(), ManagementError> {
        self.put(&["users", user], &json!({ "password": password, "tags": "" })).await
    }

    /// Sets a user's permissions on a virtual host: three regular expressions over names.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub async fn set_permissions(
        &self,
        vhost: &str,
        user: &str,
        configure: &str,
        write: &str,
        read: &str,
    ) -> Result<(), ManagementError> {
        let permissions = json!({ "configure": configure, "write": write, "read": read });
        self.put(&["permissions", vhost, user], &permissions).await
    }

    /// Closes a client's connection from the broker's side.
    ///
    /// # Errors
    /// [`ManagementError::NotFound`] for an unknown connection, or another [`ManagementError`].
    pub async fn close_connection(&self, name: &str) -> Result<(), ManagementError> {
        self.delete(&["connections", name]).await
    }
}
