//! The faults of `./dev mutants histories`: each patch applies to the sources as they are, and the documentation lists it.

use std::{collections::BTreeMap, fs};

use crate::docs::repository;

const FOLDER: &str = "tests/simulation/mutations";

/// The patches by name.
fn patches() -> BTreeMap<String, String> {
    let entries = fs::read_dir(repository().join(FOLDER)).unwrap().map(|it| it.unwrap().path());
    let named = |path: std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().strip_suffix(".patch").expect("a patch");
        (name.to_owned(), fs::read_to_string(&path).unwrap())
    };
    entries.map(named).collect()
}

/// What a hunk needs to find, by file: its context and the lines that it removes. The second value of each pair is false if it
/// changes nothing.
fn hunks(patch: &str) -> Vec<(String, String, bool)> {
    // Of a further file of the patch.
    let is_header = |line: &str| line.starts_with("diff ") || line.starts_with("--- a/");
    let (mut file, mut found) = (String::new(), Vec::new());
    for line in patch.lines() {
        if let Some(path) = line.strip_prefix("+++ b/") {
            file = path.to_owned();
        } else if line.starts_with("@@ ") {
            found.push((file.clone(), String::new(), false));
        } else if let Some((_, text, changes)) = found.last_mut().filter(|_| !is_header(line)) {
            // An editor may have removed the space of an empty line.
            let (mark, rest) = line.split_at(line.len().min(1));
            if mark != "+" {
                text.push_str(rest);
                text.push('\n');
            }
            *changes |= mark == "+" || mark == "-";
        }
    }
    found
}

#[test]
fn each_patch_applies_in_one_place() {
    for (name, patch) in patches() {
        let hunks = hunks(&patch);
        assert!(!hunks.is_empty(), "{name} has no hunk");
        for (file, text, changes) in hunks {
            assert!(changes, "{name}: a hunk of {file} changes nothing");
            let source = fs::read_to_string(repository().join(&file)).unwrap_or_default();
            let count = format!("\n{source}").matches(&format!("\n{text}")).count();
            assert_eq!(
                count, 1,
                "{FOLDER}/{name}.patch does not apply: {file} has this {count} times:\n{text}"
            );
        }
    }
}

/// `./dev test --full` runs what finds each fault, and docs/reliability.md lists it.
#[test]
fn the_documentation_lists_each_fault_with_what_finds_it() {
    let read = |path: &str| fs::read_to_string(repository().join(path)).unwrap();
    let script = read("deploy/dev/mutants.sh");
    let tests: BTreeMap<_, _> =
        script.lines().filter_map(|line| line.trim().strip_prefix('[')?.split_once("]=")).collect();
    let page = read("docs/reliability.md");
    let rows = page.lines().skip_while(|line| !line.starts_with("| fault | what is wrong |")).skip(2);
    let mut listed = Vec::new();
    for row in rows.take_while(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.split(" | ").collect();
        let name = cells[0].trim_matches(['|', ' ', '`']);
        match tests.get(name) {
            Some(test) => assert_eq!(cells[2], format!("`{test}` |"), "{name}"),
            None => assert!(cells[2].starts_with("histories: "), "{name}: {row}"),
        }
        listed.push(name);
    }
    assert_eq!(listed, Vec::from_iter(patches().keys()));
    assert!(listed.len() >= 30 && tests.keys().all(|name| listed.contains(name)), "{tests:?}");
}
