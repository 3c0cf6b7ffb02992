//! Dependencies between modules and crates point in one direction.

use std::{fs, path::Path};

fn sources(path: &Path, found: &mut Vec<(String, String)>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            sources(&entry.unwrap().path(), found);
        }
    } else {
        found.push((path.display().to_string(), fs::read_to_string(path).unwrap()));
    }
}

#[test]
fn resilience_imports_nothing_of_this_crate_but_backoff_lock_and_supervise() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for part in ["resilience.rs", "resilience"] {
        sources(&src.join(part), &mut found);
    }
    assert!(found.len() > 4, "the sources have moved: {found:?}");
    for (path, text) in found {
        for (number, line) in (1..).zip(text.lines()) {
            let code = line.split("//").next().unwrap_or_default();
            let code = ["supervise", "backoff", "lock"]
                .iter()
                .fold(code.to_owned(), |code, module| code.replace(&format!("crate::{module}"), ""));
            let outside = ["crate::", "lapin", "super::super::super"].iter().any(|word| code.contains(word));
            assert!(!outside, "{path}:{number}: {line}");
        }
    }
}

/// The pool can be published alone.
#[test]
fn the_pool_depends_on_no_other_crate_of_the_workspace() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("pool/Cargo.toml");
    let manifest: toml::Table = fs::read_to_string(manifest).unwrap().parse().unwrap();
    let names: Vec<_> = manifest["dependencies"].as_table().unwrap().keys().collect();
    assert!(names.iter().any(|name| *name == "tokio"), "the manifest has moved: {names:?}");
    let ours = |name: &str| name.starts_with("garenne") || name == "lapin";
    assert!(!names.iter().any(|name| ours(name)), "{names:?}");
}

/// The traces module decides whether a span is recorded. A span made with OpenTelemetry's API elsewhere would bypass
/// that decision.
#[test]
fn only_the_traces_module_names_opentelemetry() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for part in [
        "common/src",
        "common/amqp/src",
        "common/pool/src",
        "common/protocol/src",
        "producer/src",
        "producer/gateway/src",
        "worker/src",
        "console/src",
        "console/drill/src",
        "console/operator/src",
    ] {
        sources(&root.join(part), &mut found);
    }
    assert!(found.len() > 200, "the sources have moved: {}", found.len());
    let names = |(path, text): &(String, String)| {
        let code =
            text.lines().any(|line| line.split("//").next().unwrap_or_default().contains("opentelemetry"));
        code.then(|| path.clone())
    };
    // Tests of the gateway's OTLP input are OpenTelemetry's exporters, and make no spans.
    let is_client = |path: &str| ["/otlp/tests.rs", "/tests/otlp.rs"].iter().any(|file| path.ends_with(file));
    let outside: Vec<_> = found
        .iter()
        .filter_map(names)
        .filter(|path| !path.contains("/telemetry/traces") && !is_client(path))
        .collect();
    assert!(outside.is_empty(), "{outside:?}");
    assert!(found.iter().filter_map(names).count() > 3, "the module has moved");
}
