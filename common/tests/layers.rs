//! Imports run one way: the pool and the resilience helpers could each be a crate of their own.

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
fn pool_and_resilience_import_nothing_of_this_crate_and_know_nothing_of_amqp() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for part in ["pool.rs", "pool", "resilience.rs", "resilience"] {
        sources(&src.join(part), &mut found);
    }
    assert!(found.len() > 20, "the sources have moved: {found:?}");
    for (path, text) in found {
        for (number, line) in (1..).zip(text.lines()) {
            let code = line.split("//").next().unwrap_or_default();
            let outside = ["crate::", "lapin", "super::super::super"].iter().any(|word| code.contains(word));
            assert!(!outside, "{path}:{number}: {line}");
        }
    }
}
