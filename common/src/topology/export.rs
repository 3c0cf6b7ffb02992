//! The topology as a definitions file, and against what a broker's management API says.

use serde_json::{Map, Value, json};

use super::plan::{Arg, Topology};

/// The topology as RabbitMQ definitions, for `load_definitions` at boot or an import.
pub fn definitions(topology: &Topology, vhost: &str) -> Value {
    let exchanges: Vec<_> = topology
        .exchanges
        .iter()
        .map(|exchange| {
            json!({"name": exchange.name, "vhost": vhost, "type": exchange.kind.as_str(), "durable": true,
                   "auto_delete": false, "internal": false, "arguments": arguments(&exchange.arguments)})
        })
        .collect();
    let queues: Vec<_> = topology
        .queues
        .iter()
        .map(|queue| {
            json!({"name": queue.name, "vhost": vhost, "durable": true, "auto_delete": false,
                   "arguments": arguments(&queue.arguments)})
        })
        .collect();
    let bindings: Vec<_> = topology
        .bindings
        .iter()
        .map(|binding| {
            json!({"source": binding.exchange, "vhost": vhost, "destination": binding.queue,
                   "destination_type": "queue", "routing_key": binding.key, "arguments": {}})
        })
        .collect();
    json!({"vhosts": [{"name": vhost}], "exchanges": exchanges, "queues": queues, "bindings": bindings})
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Difference {
    /// `exchange`, `queue` or `binding`.
    pub what: &'static str,
    /// Its name.
    pub name: String,
    /// What is wrong, one line.
    pub detail: String,
}

/// Compares the wanted definitions with the arrays of the same names that the management API
/// answers (`exchanges`, `queues`, `bindings`). What the broker has beyond them is nobody's fault.
pub fn compare(wanted: &Value, actual: &Value) -> Vec<Difference> {
    let rows = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let mut differences = Vec::new();
    for (what, key, fields) in
        [("exchange", "exchanges", &["type", "durable"][..]), ("queue", "queues", &["durable"])]
    {
        let present = rows(actual, key);
        for want in rows(wanted, key) {
            let name = want["name"].as_str().unwrap_or_default().to_owned();
            let Some(have) = present.iter().find(|have| have["name"] == want["name"]) else {
                differences.push(Difference { what, name, detail: "missing".into() });
                continue;
            };
            for field in fields.iter().filter(|field| have[**field] != want[**field]) {
                let detail = format!("{field} is {}, should be {}", have[*field], want[*field]);
                differences.push(Difference { what, name: name.clone(), detail });
            }
            differences.extend(
                argument_differences(&want["arguments"], &have["arguments"]).map(|detail| Difference {
                    what,
                    name: name.clone(),
                    detail,
                }),
            );
        }
    }
    let present = rows(actual, "bindings");
    for want in rows(wanted, "bindings") {
        let same =
            |have: &Value| ["source", "destination", "routing_key"].iter().all(|f| have[*f] == want[*f]);
        if !present.iter().any(same) {
            let part = |field: &str| want[field].as_str().unwrap_or_default().to_owned();
            let name = format!("{} -> {} ({})", part("source"), part("destination"), part("routing_key"));
            differences.push(Difference { what: "binding", name, detail: "missing".into() });
        }
    }
    differences
}

fn argument_differences(want: &Value, have: &Value) -> impl Iterator<Item = String> {
    let empty = Map::new();
    let (want, have) = (want.as_object().unwrap_or(&empty), have.as_object().unwrap_or(&empty));
    let mut names: Vec<_> = want.keys().chain(have.keys()).cloned().collect();
    names.sort();
    names.dedup();
    let shown = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
    let found: Vec<_> = names
        .into_iter()
        .filter(|name| want.get(name) != have.get(name))
        .map(|name| format!("{name} is {}, should be {}", shown(have.get(&name)), shown(want.get(&name))))
        .collect();
    found.into_iter()
}

fn arguments<'a>(arguments: impl IntoIterator<Item = (&'a &'static str, &'a Arg)>) -> Value {
    arguments
        .into_iter()
        .map(|(name, value)| {
            let value = match value {
                Arg::Text(text) => json!(text),
                Arg::Number(number) => json!(number),
            };
            ((*name).to_owned(), value)
        })
        .collect::<Map<_, _>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{BrokerVersion, Ladder, LaneSpec, Names};

    fn wanted(version: &str) -> Value {
        let lane =
            LaneSpec { name: "fast".into(), bindings: vec!["reading.#".into()], consumer_timeout: None };
        let version: BrokerVersion = version.parse().unwrap();
        definitions(&Topology::new(&Names::new("garenne"), &[lane], &Ladder::default(), version), "/")
    }

    #[test]
    fn the_same_is_no_difference() {
        assert_eq!(compare(&wanted("4.0"), &wanted("4.0")), []);
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let mut actual = wanted("4.0");
        actual["bindings"].as_array_mut().unwrap().retain(|b| b["routing_key"] != "reading.#");
        let queues = actual["queues"].as_array_mut().unwrap();
        queues.retain(|queue| queue["name"] != "garenne.suspect");
        queues.iter_mut().find(|queue| queue["name"] == "garenne.tasks.fast").unwrap()["arguments"]["x-delivery-limit"] =
            json!(20);
        let texts: Vec<_> = compare(&wanted("4.0"), &actual)
            .into_iter()
            .map(|d| format!("{} {}: {}", d.what, d.name, d.detail))
            .collect();
        assert_eq!(
            texts,
            [
                "queue garenne.suspect: missing",
                "queue garenne.tasks.fast: x-delivery-limit is 20, should be -1",
                "binding garenne.tasks -> garenne.tasks.fast (reading.#): missing",
            ]
        );
    }

    #[test]
    fn an_old_broker_gets_no_delivery_limit_at_all() {
        assert!(!wanted("3.13").to_string().contains("x-delivery-limit"));
    }
}
