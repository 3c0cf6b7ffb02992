//! Reads the sources of what a simulation runs, and checks that nothing there depends on the real clock, on unseeded
//! random numbers or on a random order: a history of the simulation must repeat itself with its seed.

use crate::spawns::{line, sources};

/// The crates of which a part is checked, and the paths below `src` of that part; none stand for all of it.
const PARTS: [(&str, &[&str]); 5] = [
    ("worker/engine", &[]),
    ("common/pool", &[]),
    ("common/protocol", &["task"]),
    (
        "common",
        &["backoff.rs", "clock.rs", "log_limit.rs", "random.rs", "resilience", "shutdown", "supervise"],
    ),
    (
        "common/amqp",
        &["dead_letters.rs", "heartbeat_publisher.rs", "publisher.rs", "publisher/route_health.rs"],
    ),
];

/// What is not allowed, and what to use instead.
const NAMES: [(&str, &str); 9] = [
    ("SystemTime::now", "garenne_common::clock"),
    ("std::time::Instant", "tokio::time::Instant"),
    ("StdInstant", "tokio::time::Instant"),
    ("rand::", "garenne_common::random"),
    ("now_v7", "garenne_protocol::task::new_uuid"),
    ("new_v4", "garenne_protocol::task::new_uuid"),
    ("HashMap<", "BTreeMap"),
    ("HashSet<", "BTreeSet"),
    ("select! {", "biased;"),
];

/// The files that may use a name, with the reason.
const EXCEPTIONS: [(&str, &str, &str); 14] = [
    ("common/src/clock.rs", "SystemTime::now", "the clock itself"),
    ("common/protocol/src/task/id.rs", "now_v7", "the source of ids itself"),
    ("common/protocol/src/task/version.rs", "SystemTime::now", "only the order of a reading's versions"),
    ("common/src/random.rs", "rand::", "the random source itself"),
    ("common/src/log_limit.rs", "HashMap<", "only the order of log lines"),
    ("common/pool/src/engine/batch_size.rs", "std::time::Instant", "takes the time of the core"),
    ("common/pool/src/engine/core.rs", "rand::", "a simulation replaces it"),
    ("common/pool/src/engine/core.rs", "StdInstant", "a simulation replaces it"),
    ("common/pool/src/state/task_queue.rs", "HashMap<", "what it iterates over is sorted"),
    ("common/pool/src/state/task_queue.rs", "HashSet<", "only looked up"),
    ("worker/engine/src/fleet/directives.rs", "HashMap<", "what it iterates over is sorted"),
    ("worker/engine/src/pipeline/key_limits.rs", "HashMap<", "only looked up"),
    ("worker/engine/src/redelivery.rs", "HashMap<", "only looked up"),
    ("worker/engine/src/redelivery.rs", "HashSet<", "only looked up"),
];

/// The names in `code` that are not allowed, each with its line.
fn names(code: &str) -> Vec<(&'static str, String)> {
    let found = NAMES.iter().flat_map(|&(name, instead)| {
        let uses = code.match_indices(name).filter(move |(at, _)| {
            let is_biased = name == "select! {" && code[at + name.len()..].trim_start().starts_with(instead);
            // `operand::` is another word.
            let is_word = !code[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            is_word && !is_biased
        });
        uses.map(move |(at, _)| (name, format!("{} (use {instead})", line(code, at))))
    });
    found.chain(imported_instants(code)).collect()
}

/// Lists of imports from the standard library with its clock.
fn imported_instants(code: &str) -> impl Iterator<Item = (&'static str, String)> {
    let imports = code.match_indices("use std::").filter_map(|(at, _)| {
        let text = &code[at..at + code[at..].find(';')?];
        let of_time = text.split_once("time::").map(|(_, time)| time)?;
        let is_clock = of_time.split([',', '{', '}']).any(|it| it.trim() == "Instant");
        is_clock.then(|| ("std::time::Instant", format!("{} (use tokio::time::Instant)", line(code, at))))
    });
    imports.collect::<Vec<_>>().into_iter()
}

#[test]
fn what_a_simulation_runs_repeats_itself() {
    let mut uses = Vec::new();
    for (folder, parts) in PARTS {
        let prefixes: Vec<_> = parts.iter().map(|part| format!("{folder}/src/{part}")).collect();
        for (path, code) in sources(folder) {
            if parts.is_empty() || prefixes.iter().any(|prefix| path.starts_with(prefix)) {
                uses.extend(names(&code).into_iter().map(|(name, line)| (path.clone(), name, line)));
            }
        }
    }
    let is_exception = |path: &str, name: &str| EXCEPTIONS.iter().any(|it| (it.0, it.1) == (path, name));
    let found: Vec<_> = uses.iter().filter(|(path, name, _)| !is_exception(path, name)).collect();
    assert!(found.is_empty(), "{found:#?}");
    for (file, name, reason) in EXCEPTIONS {
        let is_used = uses.iter().any(|it| (it.0.as_str(), it.1) == (file, name));
        assert!(is_used, "{file} ({reason}) no longer uses {name}; remove the exception");
    }
}

#[test]
fn names_are_found_wherever_they_are_imported_from() {
    for (code, expected) in [
        ("let now = std::time::SystemTime::now();", &["SystemTime::now"][..]),
        ("use std::{\n    sync::Arc,\n    time::{Duration, Instant},\n};", &["std::time::Instant"]),
        ("use std::{sync::Arc, time::Instant};", &["std::time::Instant"]),
        ("rand::rng().random()", &["rand::"]),
        ("held: Mutex<HashMap<String, usize>>", &["HashMap<"]),
        ("tokio::select! {\n    () = a => {}\n}", &["select! {"]),
        ("tokio::select! {\n    biased;\n    () = a => {}\n}", &[]),
        ("use std::time::Duration;\nuse tokio::time::{Instant, sleep};", &[]),
        ("operand::value()", &[]),
    ] {
        let found: Vec<_> = names(code).into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, expected, "{code}");
    }
}
