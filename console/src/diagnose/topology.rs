//! What is missing on the broker, or is not as the settings want it.

use std::collections::BTreeSet;

use garenne_operator::queues::Snapshot;
use garenne_protocol::topology::Difference;

use super::{
    Facts,
    problem::{
        Code::{MissingBinding, MissingExchange, MissingQueue, TopologyDiffers},
        Problem,
        Severity::{Critical, Warning},
        listed,
    },
};

pub(super) fn problems(facts: &Facts<'_>, snapshot: &Snapshot) -> Vec<Problem> {
    let differences = facts.differences.unwrap_or_default();
    let of = |what: &str| {
        let missing = differences.iter().filter(|it| it.what == what && it.is_missing());
        missing.map(|it| it.name.as_str()).collect::<Vec<_>>()
    };
    // The snapshot is newer, and has no streams.
    let listed_now = snapshot.missing.iter().map(String::as_str);
    let streams = of("queue").into_iter().filter(|name| !snapshot.queues.contains_key(*name));
    let queues: BTreeSet<_> = listed_now.chain(streams).collect();
    let queues: Vec<_> = queues.into_iter().collect();
    let exchanges = of("exchange");
    // The bindings of what is missing are missing too.
    let is_of = |binding: &str, name: &&str| {
        binding.starts_with(&format!("{name} -> ")) || binding.contains(&format!(" -> {name} ("))
    };
    let has_ends = |binding: &&str| !queues.iter().chain(&exchanges).any(|name| is_of(binding, name));
    let bindings: Vec<_> = of("binding").into_iter().filter(has_ends).collect();
    let missing = [
        (
            MissingQueue,
            "queue",
            queues,
            "`garenne topology apply` creates it; what was published meanwhile is unroutable or lost",
        ),
        (MissingExchange, "exchange", exchanges, "`garenne topology apply` creates it"),
        (
            MissingBinding,
            "binding",
            bindings,
            "`garenne topology apply` creates it; until then its messages go to garenne.unroutable or nowhere",
        ),
    ];
    let mut problems: Vec<_> = missing
        .into_iter()
        .filter(|(_, _, names, _)| !names.is_empty())
        .map(|(code, noun, names, next)| {
            let plural = if names.len() == 1 { "" } else { "s" };
            let detail = format!("missing {noun}{plural}: {}", listed(&names));
            Problem::new(code, Critical, "").detail(detail).next(next)
        })
        .collect();
    // Queues of former shards are named with their lane.
    let is_leftover = |name: &String| snapshot.lanes.iter().any(|lane| lane.leftovers.contains_key(name));
    let others = differences.iter().filter(|it| !it.is_missing() && !is_leftover(&it.name));
    let others: Vec<_> =
        others.map(|Difference { what, name, detail }| format!("{what} {name}: {detail}")).collect();
    if !others.is_empty() {
        problems.push(
            Problem::new(TopologyDiffers, Warning, "")
                .detail(format!("the broker differs from the settings: {}", listed(&others)))
                .next("`garenne topology check` lists all of it; what exists keeps its arguments until it is deleted and created again"),
        );
    }
    problems
}
