//! Records of operators' commands: who did what, when, and with which result.
//!
//! A command leaves two records with the same `id`: one before it begins, which the broker has confirmed before anything
//! happens, and one with its result. A command with one record was interrupted.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The binding key that matches all records.
pub const AUDIT_RECORDS: &str = "audit.#";

/// A record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Identifies the command.
    pub id: String,
    /// When the record was made, in milliseconds since 1970 by the clock of `actor.host`.
    pub at: i64,
    /// The command, such as `dead.replay`.
    pub command: String,
    /// How far it is.
    pub state: AuditState,
    /// The person or program that gave it.
    pub actor: AuditActor,
    /// Its arguments: ids, selections, modes.
    #[serde(default)]
    pub arguments: Value,
    /// Its result, such as counts, if `state` is [`AuditState::Done`].
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub result: Value,
    /// Why it failed, on one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How far a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditState {
    /// It begins when the broker has this record.
    Started,
    /// It has done what it could; `result` says how much.
    Done,
    /// It has failed; it may have done a part.
    Failed,
}

/// The person or program that gave a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditActor {
    /// The name of the person: by which they logged in to the dashboard, or of the operating system's user.
    pub name: String,
    /// `dashboard` or `command-line`.
    pub via: String,
    /// The person's address, if the command came over the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The broker's user of the program. The broker has checked it: it is also the message's property `user_id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amqp_user: Option<String>,
    /// The host of the program.
    pub host: String,
}

impl AuditRecord {
    /// The routing key.
    pub fn routing_key(&self) -> String {
        format!("audit.{}", self.command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_as_documented() {
        let record: AuditRecord = serde_json::from_value(serde_json::json!({
            "id": "1", "at": 5, "command": "dead.replay", "state": "started",
            "actor": {"name": "anna", "via": "dashboard", "host": "h"}, "arguments": {"id": ["a"]}, "new_field": 1,
        }))
        .unwrap();
        assert_eq!((record.routing_key().as_str(), record.state), ("audit.dead.replay", AuditState::Started));
        assert_eq!(
            serde_json::to_string(&record).unwrap(),
            r#"{"id":"1","at":5,"command":"dead.replay","state":"started","actor":{"name":"anna","via":"dashboard","host":"h"},"arguments":{"id":["a"]}}"#
        );
    }
}
