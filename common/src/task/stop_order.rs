//! An operator's order to stop a task or a group, as it stands in the stream of stops.

use serde::{Deserialize, Serialize};

/// Written by the operator's tool, read by every worker. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StopOrder {
    /// One task, wherever it is.
    Task {
        /// Its id.
        task: String,
        /// When the order was given.
        at: i64,
    },
    /// Every task of a group that was published before the order.
    Group {
        /// The group.
        group: String,
        /// When the order was given.
        at: i64,
    },
}

impl StopOrder {
    /// The routing key under which the control exchange takes it to the stream.
    pub const ROUTING_KEY: &'static str = "stop.order";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_written() {
        for order in
            [StopOrder::Task { task: "t".into(), at: 1 }, StopOrder::Group { group: "g".into(), at: 2 }]
        {
            let json = serde_json::to_vec(&order).unwrap();
            assert_eq!(serde_json::from_slice::<StopOrder>(&json).unwrap(), order);
        }
    }
}
