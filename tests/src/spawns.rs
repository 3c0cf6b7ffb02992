//! Reads the sources of crates and checks that every task and thread is spawned by `garenne_common::supervise`, which
//! takes its name and what a panic means.

use std::{fs, path::Path};

/// The crates whose spawns are checked.
const CRATES: [&str; 18] = [
    "common",
    "common/amqp",
    "common/map",
    "common/protocol",
    "console",
    "console/drill",
    "console/management",
    "console/operator",
    "producer",
    "producer/gateway",
    "producer/mqtt",
    "producer/spool",
    "worker",
    "worker/engine",
    "worker/database",
    "worker/postgres",
    "worker/readings",
    "worker/sensors",
];

/// The files that may spawn directly, with the reason.
const EXCEPTIONS: [(&str, &str); 5] = [
    ("common/src/supervise.rs", "the helper itself"),
    ("common/src/supervise/continued.rs", "a part of the helper"),
    ("common/src/supervise/process.rs", "a part of the helper"),
    (
        "producer/gateway/src/server/worker_pool.rs",
        "hands connections to the pool, which catches their panics",
    ),
    ("worker/database/src/connector.rs", "deadpool takes the handle of the connection's task"),
];

/// The product code of the files below `folder`, by path from the repository's root.
pub(crate) fn sources(folder: &str) -> Vec<(String, String)> {
    fn read(root: &Path, folder: &str, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = format!("{folder}/{}", path.file_name().unwrap().to_str().unwrap());
            if path.file_stem().is_some_and(|stem| stem == "tests") {
                continue;
            }
            if path.is_dir() {
                read(root, &name, found);
            } else {
                found.push((name, code(&fs::read_to_string(path).unwrap())));
            }
        }
    }
    let mut found = Vec::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &format!("{folder}/src"), &mut found);
    assert!(!found.is_empty(), "the sources have moved");
    found
}

/// The product code of a file: without comments and without the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The direct spawns in `code`: each call of a function `spawn…` with the task as its argument, except those of the
/// helper. Its `spawn()` has none, its `spawn_on(…)` only the runtime.
fn direct_spawns(code: &str) -> Vec<String> {
    let calls = code.match_indices("spawn").filter(|(at, _)| {
        let before = code[..*at].trim_end();
        let is_word = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_') || code[..*at] != *before;
        is_word && !before.ends_with("supervise::") && !before.ends_with("fn")
    });
    let calls = calls.filter_map(|(at, _)| {
        let open = at + code[at..].find(|c: char| !c.is_alphanumeric() && c != '_')?;
        let name = &code[at..open];
        let arguments = arguments(code[open..].strip_prefix('(')?);
        let expected = match name {
            "spawn" => 0,
            "spawn_on" => 1,
            "spawn_blocking" | "spawn_blocking_on" | "spawn_local" | "spawn_local_on" | "spawn_scoped" => 0,
            _ => return None,
        };
        (arguments > expected).then(|| line(code, at))
    });
    let builders = code.match_indices("thread::Builder").map(|(at, _)| line(code, at));
    calls.chain(builders).collect()
}

pub(crate) fn line(code: &str, at: usize) -> String {
    let number = code[..at].lines().count().max(1);
    format!("{number}: {}", code.lines().nth(number - 1).unwrap_or_default().trim())
}

/// Number of arguments in `text`, which begins behind the opening parenthesis of a call.
fn arguments(text: &str) -> usize {
    let (mut depth, mut commas, mut is_empty) = (0_i32, 0, true);
    for c in text.chars() {
        match c {
            ')' if depth == 0 => break,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            // A trailing comma is followed by no argument.
            ',' if depth == 0 => {
                commas += usize::from(!is_empty);
                is_empty = true;
                continue;
            }
            _ => {}
        }
        is_empty &= c.is_whitespace();
    }
    commas + usize::from(!is_empty)
}

#[test]
fn every_task_and_thread_is_spawned_with_its_name_and_role() {
    let files: Vec<_> = CRATES.iter().flat_map(|folder| sources(folder)).collect();
    let is_exception = |path: &str| EXCEPTIONS.iter().any(|(file, _)| *file == path);
    let direct = |(path, code): &(String, String)| {
        direct_spawns(code).into_iter().map(|line| format!("{path}:{line}")).collect::<Vec<_>>()
    };
    let found: Vec<_> = files.iter().filter(|(path, _)| !is_exception(path)).flat_map(direct).collect();
    assert_eq!(found, Vec::<String>::new());
    for (file, reason) in EXCEPTIONS {
        let excepted = files.iter().find(|(path, _)| path == file);
        let spawns = excepted.is_some_and(|(_, code)| !direct_spawns(code).is_empty());
        assert!(spawns, "{file} ({reason}) no longer spawns a task; remove the exception");
    }
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
        assert_eq!(direct_spawns(direct).len(), 1, "{direct}");
    }
    for supervised in [
        "supervise::isolated(\"name\", run(1, 2)).spawn();",
        "supervise::isolated(\"name\", run()).spawn_on(\n    &runtime,\n);",
        "supervise::spawn_blocking(\"name\", || read());",
        "task.spawn_in(&tracker).detach(); task.spawn_into(&mut set);",
        "fn spawn(task: Task) {}",
        "respawn(task); spawned(task)",
    ] {
        assert_eq!(direct_spawns(supervised), Vec::<String>::new(), "{supervised}");
    }
}
