//! Reads the sources of what a simulation runs, and checks that nothing there depends on the real clock, on unseeded
//! random numbers or on a random order: a history of the simulation must repeat itself with its seed.

use crate::sources::{Token, sources, tokens};

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

/// What is not allowed, as tokens, and what to use instead.
const NAMES: [(&str, &[&str], &str); 11] = [
    ("SystemTime::now", &["SystemTime", "::", "now"], "garenne_common::clock"),
    ("std::time::Instant", &["std", "::", "time", "::", "Instant"], "tokio::time::Instant"),
    ("StdInstant", &["StdInstant"], "tokio::time::Instant"),
    ("rand::", &["rand", "::"], "garenne_common::random"),
    ("getrandom::", &["getrandom", "::"], "garenne_common::random"),
    ("fastrand::", &["fastrand", "::"], "garenne_common::random"),
    ("now_v7", &["now_v7"], "garenne_protocol::task::new_uuid"),
    ("new_v4", &["new_v4"], "garenne_protocol::task::new_uuid"),
    ("HashMap<", &["HashMap", "<"], "BTreeMap"),
    ("HashSet<", &["HashSet", "<"], "BTreeSet"),
    ("select! {", &["select", "!", "{"], BIASED),
];

/// What the branches of a `select!` begin with, so that they are polled in their order.
const BIASED: &str = "biased;";

/// The files that may use a name, with the reason.
const EXCEPTIONS: [(&str, &str, &str); 15] = [
    ("common/src/clock.rs", "SystemTime::now", "the clock itself"),
    ("common/protocol/src/task/id.rs", "now_v7", "the source of ids itself"),
    ("common/protocol/src/task/version.rs", "SystemTime::now", "only the order of a reading's versions"),
    ("common/src/random.rs", "getrandom::", "the random source itself"),
    ("common/src/log_limit.rs", "HashMap<", "only the order of log lines"),
    ("common/pool/src/engine/batch_size.rs", "std::time::Instant", "takes the time of the core"),
    ("common/pool/src/engine/core.rs", "fastrand::", "a simulation replaces it"),
    ("common/pool/src/engine/core.rs", "std::time::Instant", "a simulation replaces it"),
    ("common/pool/src/engine/core.rs", "StdInstant", "a simulation replaces it"),
    ("common/pool/src/state/task_queue.rs", "HashMap<", "what it iterates over is sorted"),
    ("common/pool/src/state/task_queue.rs", "HashSet<", "only looked up"),
    ("worker/engine/src/fleet/directives.rs", "HashMap<", "what it iterates over is sorted"),
    ("worker/engine/src/pipeline/key_limits.rs", "HashMap<", "only looked up"),
    ("worker/engine/src/redelivery.rs", "HashMap<", "only looked up"),
    ("worker/engine/src/redelivery.rs", "HashSet<", "only looked up"),
];

/// The names in `tokens` that are not allowed, each with its line.
fn names(tokens: &[Token]) -> Vec<(&'static str, String)> {
    let begins = |at: usize, words: &[&str]| {
        tokens.len() >= at + words.len()
            && tokens[at..].iter().zip(words).all(|(token, word)| token.text == *word)
    };
    let found = NAMES.iter().flat_map(|&(name, words, instead)| {
        let is_biased = |at: usize| instead == BIASED && begins(at + words.len(), &["biased", ";"]);
        let uses = (0..tokens.len()).filter(|at| begins(*at, words) && !is_biased(*at)).collect::<Vec<_>>();
        uses.into_iter().map(move |at| (name, format!("{} (use {instead})", tokens[at].line)))
    });
    found.chain(imported_instants(tokens)).collect()
}

/// Lists of imports from the standard library with its clock.
fn imported_instants(tokens: &[Token]) -> Vec<(&'static str, String)> {
    let text = |at: usize| tokens.get(at).map_or("", |token| &*token.text);
    let starts = (0..tokens.len()).filter(|&at| text(at) == "use" && text(at + 1) == "std");
    let imports = starts.filter_map(|at| {
        let words: Vec<_> = (at + 2..tokens.len()).map(text).take_while(|word| *word != ";").collect();
        let time = words.iter().position(|word| *word == "time")?;
        // The other form is a path, which `NAMES` finds.
        let is_listed = words[time..].contains(&"Instant") && words != ["::", "time", "::", "Instant"];
        is_listed.then(|| ("std::time::Instant", format!("{} (use tokio::time::Instant)", tokens[at].line)))
    });
    imports.collect()
}

#[test]
fn what_a_simulation_runs_repeats_itself() {
    let mut uses = Vec::new();
    for (folder, parts) in PARTS {
        let prefixes: Vec<_> = parts.iter().map(|part| format!("{folder}/src/{part}")).collect();
        for source in sources(folder) {
            if parts.is_empty() || prefixes.iter().any(|prefix| source.path.starts_with(prefix)) {
                let names = names(&source.tokens).into_iter();
                uses.extend(names.map(|(name, line)| (source.path.clone(), name, line)));
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
        ("rand::rng().random();", &["rand::"]),
        ("let held: Mutex<HashMap<String, usize>> = held();", &["HashMap<"]),
        ("tokio::select! {\n    () = a => {}\n}", &["select! {"]),
        ("tokio::select! {\n    biased;\n    () = a => {}\n}", &[]),
        ("use std::time::Duration;\nuse tokio::time::{Instant, sleep};", &[]),
        ("operand::value(\"rand::\");", &[]),
    ] {
        // Imports stand outside of functions, and statements in one.
        let text = if code.starts_with("use") { code.to_owned() } else { format!("fn f() {{ {code} }}") };
        let found: Vec<_> = names(&tokens(&text)).into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, expected, "{code}");
    }
}
