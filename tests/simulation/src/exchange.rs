//! Exchanges and bindings: which queues a message is routed to.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use amq_protocol::types::{AMQPValue, FieldTable};
use garenne_protocol::{
    task::header,
    topology::{Arg, Destination, Exchange as Declared, ExchangeKind, Route},
};

use crate::id::QueueId;

/// All exchanges besides the default one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exchanges(HashMap<Arc<str>, Exchange>);

#[derive(Clone, Debug)]
struct Exchange {
    kind: ExchangeKind,
    alternate: Option<Arc<str>>,
    /// The header whose hash selects the queue.
    hash_header: Option<String>,
    bindings: Vec<(String, To)>,
}

#[derive(Clone, Debug, PartialEq)]
enum To {
    Queue(QueueId),
    Exchange(Arc<str>),
}

/// Names of queues. A name keeps its id when its queue is deleted.
pub(crate) type QueueNames = BTreeMap<Arc<str>, QueueId>;

impl Exchanges {
    /// Adds an exchange. One that exists keeps its bindings.
    pub(crate) fn declare(&mut self, declared: &Declared) {
        let text = |name: &str| match declared.arguments.get(name) {
            Some(Arg::Text(text)) => Some(text.clone()),
            _ => None,
        };
        self.0.entry(declared.name.as_str().into()).or_insert_with(|| Exchange {
            kind: declared.kind,
            alternate: text("alternate-exchange").map(Into::into),
            hash_header: text("hash-header"),
            bindings: Vec::new(),
        });
    }

    /// Adds or removes a binding. Names that do not exist change nothing.
    pub(crate) fn change(&mut self, route: &Route, queues: &QueueNames) {
        let (Route::Bind(binding) | Route::Unbind(binding)) = route;
        let to = match &binding.to {
            Destination::Queue(name) => queues.get(name.as_str()).map(|queue| To::Queue(*queue)),
            Destination::Exchange(name) => Some(To::Exchange(name.as_str().into())),
        };
        let (Some(exchange), Some(to)) = (self.0.get_mut(binding.exchange.as_str()), to) else { return };
        let entry = (binding.key.clone(), to);
        exchange.bindings.retain(|it| *it != entry);
        if matches!(route, Route::Bind(_)) {
            exchange.bindings.push(entry);
        }
    }

    /// Removes every binding of a deleted queue.
    pub(crate) fn unbind(&mut self, queue: QueueId) {
        for exchange in self.0.values_mut() {
            exchange.bindings.retain(|(_, to)| *to != To::Queue(queue));
        }
    }

    /// Deletes an exchange.
    pub(crate) fn delete(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// The queues of a message, each once, in the order of the bindings. [`None`] if there is no such exchange.
    pub(crate) fn route(
        &self,
        exchange: &str,
        key: &str,
        headers: &Option<FieldTable>,
        queues: &QueueNames,
    ) -> Option<Vec<QueueId>> {
        let mut found = Vec::new();
        self.route_key(exchange, key, headers, queues, &mut found)?;
        for name in ["CC", "BCC"] {
            if let Some(AMQPValue::FieldArray(keys)) = header::get(headers, name) {
                for key in keys.as_slice().iter().filter_map(header::text) {
                    self.route_key(exchange, &key, headers, queues, &mut found)?;
                }
            }
        }
        Some(found)
    }

    fn route_key(
        &self,
        name: &str,
        key: &str,
        headers: &Option<FieldTable>,
        queues: &QueueNames,
        found: &mut Vec<QueueId>,
    ) -> Option<()> {
        let add = |found: &mut Vec<QueueId>, queue: QueueId| {
            if !found.contains(&queue) {
                found.push(queue);
            }
        };
        if name.is_empty() {
            queues.get(key).into_iter().for_each(|queue| add(found, *queue));
            return Some(());
        }
        let exchange = self.0.get(name)?;
        let bindings = match exchange.kind {
            ExchangeKind::ConsistentHash if !exchange.bindings.is_empty() => {
                let at = bucket(exchange, headers);
                &exchange.bindings[at..=at]
            }
            _ => &exchange.bindings[..],
        };
        let mut routed = false;
        for (pattern, to) in bindings {
            if exchange.kind == ExchangeKind::Topic && !matches(pattern, key) {
                continue;
            }
            routed = true;
            match to {
                To::Queue(queue) => add(found, *queue),
                // A destination that was deleted takes nothing.
                To::Exchange(next) => {
                    let _ = self.route_key(next, key, headers, queues, found);
                }
            }
        }
        if let (false, Some(alternate)) = (routed, &exchange.alternate) {
            let _ = self.route_key(alternate, key, headers, queues, found);
        }
        Some(())
    }
}

/// The binding that the hash of the header selects. Weights are equal, and messages without the header go to one queue.
fn bucket(exchange: &Exchange, headers: &Option<FieldTable>) -> usize {
    let value = exchange.hash_header.as_ref().and_then(|name| header::get(headers, name));
    let text = value.and_then(header::text).unwrap_or_default();
    // FNV-1a.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash % exchange.bindings.len() as u64) as usize
}

/// Whether a topic pattern matches a routing key: `*` stands for one word, `#` for any number.
fn matches(pattern: &str, key: &str) -> bool {
    fn words(pattern: &[&str], key: &[&str]) -> bool {
        match pattern.split_first() {
            None => key.is_empty(),
            Some((&"#", rest)) => (0..=key.len()).any(|taken| words(rest, &key[taken..])),
            Some((word, rest)) => key
                .split_first()
                .is_some_and(|(first, left)| (*word == "*" || word == first) && words(rest, left)),
        }
    }
    if pattern == "#" || pattern == key {
        return true;
    }
    let (pattern, key): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), key.split('.').collect());
    words(&pattern, &key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_patterns_match_words() {
        for (pattern, key, expected) in [
            ("#", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.*", "a.b.c", false),
            ("a.#", "a", true),
            ("a.#", "a.b.c", true),
            ("#.c", "a.b.c", true),
            ("a.#.c", "a.c", true),
            ("a.#.c", "a.b", false),
            ("*.b", "a.b", true),
            ("a.b", "a.b", true),
        ] {
            assert_eq!(matches(pattern, key), expected, "{pattern} {key}");
        }
    }
}
