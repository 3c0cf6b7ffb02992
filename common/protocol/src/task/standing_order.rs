//! An operator's order that holds until another one overrules it, as it stands in the stream of stops.

use serde::{Deserialize, Serialize};

/// Written by the operator's tool, read by every worker, also by those that start later. Times are
/// milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StandingOrder {
    /// Stop one task, wherever it is.
    Task {
        /// Its id.
        task: String,
        /// When the order was given.
        at: i64,
    },
    /// Stop every task of a group that was published before the order.
    Group {
        /// The group.
        group: String,
        /// When the order was given.
        at: i64,
    },
    /// Start nothing of a group.
    Pause {
        /// The group.
        pause: String,
        /// When the order was given.
        at: i64,
    },
    /// Start what is of a group again.
    Resume {
        /// The group.
        resume: String,
        /// When the order was given.
        at: i64,
    },
}

impl StandingOrder {
    /// The routing key under which the control exchange takes it to the stream.
    pub const ROUTING_KEY: &'static str = "stop.order";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_written() {
        for (order, json) in [
            (StandingOrder::Task { task: "t".into(), at: 1 }, r#"{"task":"t","at":1}"#),
            (StandingOrder::Group { group: "g".into(), at: 2 }, r#"{"group":"g","at":2}"#),
            (StandingOrder::Pause { pause: "g".into(), at: 3 }, r#"{"pause":"g","at":3}"#),
            (StandingOrder::Resume { resume: "g".into(), at: 4 }, r#"{"resume":"g","at":4}"#),
        ] {
            assert_eq!(serde_json::to_string(&order).unwrap(), json);
            assert_eq!(serde_json::from_str::<StandingOrder>(json).unwrap(), order);
        }
    }
}
