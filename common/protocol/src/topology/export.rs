//! Exports the topology as a RabbitMQ definitions file, and compares it with a broker's management API.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::plan::Topology;

/// The topology as RabbitMQ definitions, for `load_definitions` at boot or for an import.
pub fn definitions(topology: &Topology, vhost: &str) -> Value {
    let exchanges: Vec<_> = topology
        .exchanges
        .iter()
        .map(|exchange| {
            json!({"name": exchange.name, "vhost": vhost, "type": exchange.kind.as_str(), "durable": true,
                   "auto_delete": false, "internal": false, "arguments": exchange.arguments})
        })
        .collect();
    let queues: Vec<_> = topology
        .queues
        .iter()
        .map(|queue| {
            json!({"name": queue.name, "vhost": vhost, "durable": true, "auto_delete": false,
                   "arguments": queue.arguments})
        })
        .collect();
    let bindings: Vec<_> = topology
        .bindings()
        .map(|binding| {
            json!({"source": binding.exchange, "vhost": vhost, "destination": binding.to.name(),
                   "destination_type": binding.to.kind(), "routing_key": binding.key, "arguments": {}})
        })
        .collect();
    json!({"vhosts": [{"name": vhost}], "exchanges": exchanges, "queues": queues, "bindings": bindings})
}

/// A difference between the broker and the topology.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Difference {
    /// `exchange`, `queue` or `binding`.
    pub what: &'static str,
    /// The name; for a binding `source -> destination (routing key)`.
    pub name: String,
    /// The difference, one line.
    pub detail: String,
}

impl Difference {
    /// One that does not exist.
    pub fn missing(what: &'static str, name: String) -> Self {
        Self { what, name, detail: "missing".to_owned() }
    }

    /// Whether it does not exist.
    pub fn is_missing(&self) -> bool {
        self.detail == "missing"
    }
}

/// Compares the topology with the management API's arrays `exchanges`, `queues` and `bindings` in `actual`.
///
/// Anything else on the broker is ignored, except bindings of [`Topology::unbound`]: a second route to a lane
/// would run its tasks twice or lose them.
pub fn compare(topology: &Topology, actual: &Value) -> Vec<Difference> {
    let wanted = &definitions(topology, "/");
    let rows = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let mut differences = Vec::new();
    for (what, key, fields) in
        [("exchange", "exchanges", &["type", "durable"][..]), ("queue", "queues", &["durable"])]
    {
        let present = rows(actual, key);
        for want in rows(wanted, key) {
            let details = match present.iter().find(|have| have["name"] == want["name"]) {
                Some(have) => field_differences(fields, &want, have),
                None => vec!["missing".to_owned()],
            };
            let name = || want["name"].as_str().unwrap_or_default().to_owned();
            differences.extend(details.into_iter().map(|detail| Difference { what, name: name(), detail }));
        }
    }
    let present = rows(actual, "bindings");
    let wanted = rows(wanted, "bindings");
    let contains = |rows: &[Value], one: &Value| {
        let fields = ["source", "destination", "destination_type", "routing_key"];
        rows.iter().any(|row| fields.iter().all(|field| row[*field] == one[*field]))
    };
    for want in wanted.iter().filter(|want| !contains(&present, want)) {
        differences.push(Difference::missing("binding", describe(want)));
    }
    // With any routing key: a pattern that is no longer in the settings misroutes tasks as well.
    let is_unbound = |have: &Value| {
        topology.unbound().any(|it| {
            let names = [&have["source"], &have["destination"], &have["destination_type"]];
            names == [it.exchange.as_str(), it.to.name(), it.to.kind()]
        })
    };
    for have in present.iter().filter(|have| is_unbound(have) && !contains(&wanted, have)) {
        let detail = "stale binding of another shard count; `garenne topology apply` removes it if its key is \
                      one of the lane's bindings";
        differences.push(Difference { what: "binding", name: describe(have), detail: detail.into() });
    }
    differences
}

fn describe(binding: &Value) -> String {
    let part = |field: &str| binding[field].as_str().unwrap_or_default().to_owned();
    format!("{} -> {} ({})", part("source"), part("destination"), part("routing_key"))
}

/// The differences in these fields and in all arguments of an exchange or queue.
fn field_differences(fields: &[&str], want: &Value, have: &Value) -> Vec<String> {
    let arguments = [want, have].into_iter().filter_map(|row| row["arguments"].as_object());
    let names: BTreeSet<&str> = arguments.flat_map(Map::keys).map(String::as_str).collect();
    let fields = fields.iter().map(|field| (*field, want.get(field), have.get(field)));
    let arguments =
        names.iter().map(|name| (*name, want["arguments"].get(name), have["arguments"].get(name)));
    let text = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
    fields
        .chain(arguments)
        .filter(|(_, want, have)| want != have)
        .map(|(name, want, have)| format!("{name} is {}, should be {}", text(have), text(want)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{BrokerVersion, Ladder, LaneExchange, LaneSpec, Names};

    fn wanted(version: &str, shards: u16) -> Topology {
        let bindings = vec!["reading.#".into()];
        let lane = LaneSpec {
            name: "fast".into(),
            exchange: LaneExchange::Tasks,
            bindings,
            catch_all: false,
            shards,
            celery: false,
            queue: None,
            consumer_timeout: None,
        };
        let version: BrokerVersion = version.parse().unwrap();
        Topology::new(&Names::new("garenne"), &[lane], &Ladder::default(), version)
    }

    fn texts(wanted: &Topology, actual: &Value) -> Vec<String> {
        compare(wanted, actual).into_iter().map(|d| format!("{} {}: {}", d.what, d.name, d.detail)).collect()
    }

    #[test]
    fn equal_topologies_have_no_difference() {
        for shards in [1, 4] {
            let wanted = wanted("4.0", shards);
            assert_eq!(compare(&wanted, &definitions(&wanted, "/")), []);
        }
    }

    #[test]
    fn differences_state_the_actual_and_the_expected_value() {
        let wanted = wanted("4.0", 1);
        let mut actual = definitions(&wanted, "/");
        actual["bindings"].as_array_mut().unwrap().retain(|b| b["routing_key"] != "reading.#");
        let queues = actual["queues"].as_array_mut().unwrap();
        queues.retain(|queue| queue["name"] != "garenne.quarantine");
        queues.iter_mut().find(|queue| queue["name"] == "garenne.tasks.fast").unwrap()["arguments"]["x-delivery-limit"] =
            json!(20);
        assert_eq!(
            texts(&wanted, &actual),
            [
                "queue garenne.quarantine: missing",
                "queue garenne.tasks.fast: x-delivery-limit is 20, should be -1",
                "binding garenne.tasks -> garenne.tasks.fast (reading.#): missing",
            ]
        );
    }

    #[test]
    fn a_stale_binding_of_another_shard_count_is_reported() {
        let mut actual = definitions(&wanted("4.0", 2), "/");
        let old = json!({"source": "garenne.tasks", "destination": "garenne.tasks.fast",
                         "destination_type": "queue", "routing_key": "reading.*"});
        actual["bindings"].as_array_mut().unwrap().push(old);
        let detail = "stale binding of another shard count; `garenne topology apply` removes it if its key is \
                      one of the lane's bindings";
        assert_eq!(
            texts(&wanted("4.0", 2), &actual),
            [format!("binding garenne.tasks -> garenne.tasks.fast (reading.*): {detail}")]
        );
        let of_two = definitions(&wanted("4.0", 2), "/");
        let found = texts(&wanted("4.0", 1), &of_two);
        assert_eq!(
            found[found.len() - 3..],
            [
                "binding garenne.tasks -> garenne.tasks.fast (reading.#): missing".to_owned(),
                format!("binding garenne.tasks -> garenne.shards.fast (reading.#): {detail}"),
                format!("binding garenne.shards.fast -> garenne.tasks.fast.1 (1): {detail}"),
            ]
        );
    }

    #[test]
    fn more_shards_add_an_exchange_queues_and_rungs_and_keep_the_first_queue_unchanged() {
        for version in ["3.10", "4.0", "4.3"] {
            let (one, four) = (definitions(&wanted(version, 1), "/"), definitions(&wanted(version, 4), "/"));
            let named = |of: &Value, list: &str, name: &str| {
                of[list].as_array().unwrap().iter().find(|row| row["name"] == name).cloned()
            };
            let lane = |of| named(of, "queues", "garenne.tasks.fast").unwrap();
            assert_eq!(lane(&one), lane(&four));
            let last = named(&four, "queues", "garenne.tasks.fast.3").unwrap();
            assert_eq!(last["arguments"]["x-queue-leader-locator"], "balanced");
            assert_eq!(last["arguments"].get("x-delivery-limit").is_some(), version != "3.10");
            assert!(named(&four, "queues", "garenne.tasks.fast.4").is_none());
            let exchange = named(&four, "exchanges", "garenne.shards.fast").unwrap();
            assert_eq!(
                (exchange["type"].as_str(), exchange["arguments"]["hash-header"].as_str()),
                (Some("x-consistent-hash"), Some("garenne-key"))
            );
            let rung = named(&four, "queues", "garenne.retry.fast.shards.1s").unwrap();
            assert_eq!(rung["arguments"]["x-dead-letter-exchange"], "garenne.shards.fast");
            assert!(named(&one, "exchanges", "garenne.shards.fast").is_none());
            let rung = named(&one, "queues", "garenne.retry.fast.1s").unwrap();
            assert_eq!(
                (
                    &rung["arguments"]["x-dead-letter-exchange"],
                    &rung["arguments"]["x-dead-letter-routing-key"]
                ),
                (&json!(""), &json!("garenne.tasks.fast"))
            );
        }
    }

    #[test]
    fn brokers_before_4_0_get_no_delivery_limit() {
        assert!(!definitions(&wanted("3.13", 4), "/").to_string().contains("x-delivery-limit"));
    }
}
