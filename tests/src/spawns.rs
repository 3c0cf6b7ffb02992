//! Reads the sources of crates and checks that every task and thread is spawned by `garenne_common::supervise`, which
//! takes its name and what a panic means.

use crate::{
    sources::{Source, Token, sources, tokens},
    workspace::product_crates,
};

/// The files that may spawn directly, with the reason.
const EXCEPTIONS: [(&str, &str); 7] = [
    ("common/pool/src/engine/worker_thread.rs", "the pool depends on tokio alone"),
    ("common/pool/src/spawn.rs", "the pool depends on tokio alone"),
    ("common/src/supervise.rs", "the helper itself"),
    ("common/src/supervise/continued.rs", "a part of the helper"),
    ("common/src/supervise/process.rs", "a part of the helper"),
    (
        "producer/gateway/src/server/worker_pool.rs",
        "hands connections to the pool, which catches their panics",
    ),
    ("worker/database/src/connector.rs", "deadpool takes the handle of the connection's task"),
];

/// The lines of direct spawns: each call of a function `spawn…` with the task as its argument, except those of the
/// helper. Its `spawn()` has none, its `spawn_on(…)` only the runtime.
fn direct_spawns(tokens: &[Token]) -> Vec<usize> {
    let text = |at: usize| tokens.get(at).map_or("", |token| &*token.text);
    let direct = (0..tokens.len()).filter(|&at| {
        let is_of_helper = at > 1 && text(at - 1) == "::" && text(at - 2) == "supervise";
        let is_definition = at > 0 && text(at - 1) == "fn";
        let expected = match text(at) {
            "spawn" => 0,
            "spawn_on" => 1,
            "spawn_blocking" | "spawn_blocking_on" | "spawn_local" | "spawn_local_on" | "spawn_scoped" => 0,
            "Builder" => return at > 1 && text(at - 1) == "::" && text(at - 2) == "thread",
            _ => return false,
        };
        text(at + 1) == "(" && !is_of_helper && !is_definition && arguments(&tokens[at + 2..]) > expected
    });
    direct.map(|at| tokens[at].line).collect()
}

/// Number of arguments in `tokens`, which begin behind the opening parenthesis of a call.
fn arguments(tokens: &[Token]) -> usize {
    let (mut depth, mut commas, mut is_empty) = (0, 0, true);
    for token in tokens {
        match &*token.text {
            ")" if depth == 0 => break,
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            // A trailing comma is followed by no argument.
            "," if depth == 0 => {
                commas += usize::from(!is_empty);
                is_empty = true;
                continue;
            }
            _ => {}
        }
        is_empty = false;
    }
    commas + usize::from(!is_empty)
}

#[test]
fn every_task_and_thread_is_spawned_with_its_name_and_role() {
    let files: Vec<_> = product_crates().iter().flat_map(|folder| sources(folder)).collect();
    let is_exception = |path: &str| EXCEPTIONS.iter().any(|(file, _)| *file == path);
    let direct = |source: &&Source| {
        direct_spawns(&source.tokens).iter().map(|line| format!("{}:{line}", source.path)).collect::<Vec<_>>()
    };
    let found: Vec<_> = files.iter().filter(|source| !is_exception(&source.path)).flat_map(direct).collect();
    assert_eq!(found, Vec::<String>::new());
    for (file, reason) in EXCEPTIONS {
        let excepted = files.iter().find(|source| source.path == file);
        let spawns = excepted.is_some_and(|source| !direct_spawns(&source.tokens).is_empty());
        assert!(spawns, "{file} ({reason}) no longer spawns a task; remove the exception");
    }
}

fn in_function(statements: &str) -> String {
    format!("fn f() {{ {statements} }}")
}

#[test]
fn direct_spawns_are_distinguished_from_those_of_the_helper() {
    for direct in [
        "tokio::spawn(run());",
        "spawn(async move { run().await });",
        "task::spawn_blocking(|| read());",
        "std::thread::spawn(move || read(lines, &sender));",
        "std::thread::Builder::new().name(name)",
        "set.spawn(run());",
        "tracker.spawn_on(run(), &runtime);",
        "runtime\n    .spawn(\n        run(),\n    );",
    ] {
        assert_eq!(direct_spawns(&tokens(&in_function(direct))).len(), 1, "{direct}");
    }
    for supervised in [
        "supervise::isolated(\"name\", run(1, 2)).spawn();",
        "supervise::isolated(\"name\", run()).spawn_on(\n    &runtime,\n);",
        "supervise::spawn_blocking(\"name\", || read());",
        "task.spawn_in(&tracker).detach(); task.spawn_into(&mut set);",
        "fn spawn(task: Task) {}",
        "respawn(task); spawned(task)",
    ] {
        assert_eq!(direct_spawns(&tokens(&in_function(supervised))), Vec::<usize>::new(), "{supervised}");
    }
}
