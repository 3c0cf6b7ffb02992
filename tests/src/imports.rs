//! Reads the sources of crates and checks the imports between their modules.
//!
//! No module may import a module that imports it, directly or through others, at any level of the module tree: seen
//! from a directory, its subdirectories count as one module each. In the pool only `lib.rs` re-exports, and inherent
//! methods are defined in the file of their type, so that a call into another module is visible as an import.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// A module as its path from the crate root: `["state", "task_queue"]`.
type Module = Vec<String>;

/// The crates whose imports are checked.
const CRATES: [&str; 20] = [
    "common",
    "common/amqp",
    "common/map",
    "common/pool",
    "common/protocol",
    "console",
    "console/drill",
    "console/management",
    "console/operator",
    "producer",
    "producer/gateway",
    "producer/mqtt",
    "producer/spool",
    "tests/simulation",
    "worker",
    "worker/engine",
    "worker/database",
    "worker/postgres",
    "worker/readings",
    "worker/sensors",
];

fn sources(directory: &str) -> BTreeMap<Module, String> {
    fn read(directory: &Path, parent: &[String], found: &mut BTreeMap<Module, String>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            if name == "tests" {
                continue;
            }
            let module: Module = parent.iter().cloned().chain([name]).collect();
            if path.is_dir() {
                read(&path, &module, found);
            } else {
                found.insert(module, code(&fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let mut found = BTreeMap::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(directory).join("src"), &[], &mut found);
    assert!(found.len() > 2, "the sources have moved: {:?}", found.keys());
    found
}

/// The product code of a file: without comments and without the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let len = match () {
            () if word > 0 => word,
            () if rest.starts_with("::") => 2,
            () => first.len_utf8(),
        };
        if !first.is_whitespace() {
            tokens.push(&rest[..len]);
        }
        rest = &rest[len..];
    }
    tokens
}

/// The paths in `text` that start with `crate` or `super`, with `{…}` lists expanded.
fn paths(text: &str) -> Vec<Vec<String>> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let starts = matches!(tokens[at], "crate" | "super") && tokens.get(at + 1) == Some(&"::");
        // The `crate` of `pub(crate)` is followed by no path.
        if starts { at = path(&tokens, at, &[], &mut found) } else { at += 1 }
    }
    found
}

/// Reads the path at `tokens[at]` and returns the position behind it.
fn path(tokens: &[&str], mut at: usize, prefix: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = prefix.to_vec();
    loop {
        if tokens[at] == "{" {
            at += 1;
            while tokens[at] != "}" {
                at = if tokens[at] == "," { at + 1 } else { self::path(tokens, at, &path, found) };
            }
            return at + 1;
        }
        path.push(tokens[at].to_owned());
        at += 1;
        if tokens.get(at) != Some(&"::") {
            break;
        }
        at += 1;
    }
    found.push(path);
    at
}

/// The paths in `text` that it re-exports, each from a module below it.
fn reexports(text: &str) -> Vec<Vec<String>> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    for (at, _) in tokens.iter().enumerate().filter(|(_, token)| **token == "use") {
        let is_public = at > 0 && matches!(tokens[at - 1], "pub" | ")");
        if is_public && !matches!(tokens[at + 1], "crate" | "super") {
            path(&tokens, at + 1, &[], &mut found);
        }
    }
    found
}

/// The module that `path` names an item of, as seen from `from`. An item that is re-exported is one of the module
/// that defines it.
fn resolve(path: &[String], from: &Module, modules: &BTreeMap<Module, String>) -> Option<Module> {
    let mut target: Module = Vec::new();
    for (nth, part) in path.iter().enumerate() {
        match part.as_str() {
            "crate" => target.clear(),
            "super" if nth == 0 => target = from[..from.len() - 1].to_vec(),
            "super" => drop(target.pop()),
            _ => target.push(part.clone()),
        }
    }
    let mut item = None;
    while !target.is_empty() && !modules.contains_key(&target) {
        item = target.pop();
    }
    let text = modules.get(&target)?;
    let defined = reexports(text).into_iter().find(|path| path.len() > 1 && path.last() == item.as_ref());
    if let Some(path) = defined {
        target.extend_from_slice(&path[..path.len() - 1]);
        while !modules.contains_key(&target) {
            target.pop();
        }
    }
    Some(target)
}

fn imports(modules: &BTreeMap<Module, String>) -> BTreeSet<(Module, Module)> {
    let mut imports = BTreeSet::new();
    for (from, text) in modules.iter().filter(|(from, _)| *from != &["lib"]) {
        for path in paths(text) {
            let to = resolve(&path, from, modules)
                .unwrap_or_else(|| panic!("{from:?} imports a re-export of lib.rs: {path:?}"));
            if to != *from {
                imports.insert((from.clone(), to));
            }
        }
    }
    imports
}

/// A cycle in these edges, if there is one.
fn cycle(edges: &BTreeSet<(Module, Module)>) -> Option<Vec<Module>> {
    fn visit<'a>(
        node: &'a Module,
        edges: &'a BTreeSet<(Module, Module)>,
        way: &mut Vec<Module>,
        done: &mut BTreeSet<&'a Module>,
    ) -> Option<Vec<Module>> {
        if let Some(at) = way.iter().position(|visited| visited == node) {
            return Some(way[at..].to_vec());
        }
        if !done.insert(node) {
            return None;
        }
        way.push(node.clone());
        let next = edges.iter().filter(|(from, _)| from == node);
        let found = next.into_iter().find_map(|(_, to)| visit(to, edges, way, done));
        way.pop();
        found
    }
    let mut done = BTreeSet::new();
    edges.iter().find_map(|(from, _)| visit(from, edges, &mut Vec::new(), &mut done))
}

/// The imports as seen from the module `level`: between its children.
fn at_level(level: &[String], imports: &BTreeSet<(Module, Module)>) -> BTreeSet<(Module, Module)> {
    let child = |module: &Module| -> Option<Module> {
        module.starts_with(level).then(|| module.get(..=level.len()).map(<[_]>::to_vec)).flatten()
    };
    let edge = |(from, to): &(Module, Module)| Some((child(from)?, child(to)?));
    imports.iter().filter_map(edge).filter(|(from, to)| from != to).collect()
}

#[test]
fn no_modules_import_each_other() {
    for directory in CRATES {
        let modules = sources(directory);
        let imports = imports(&modules);
        assert!(!imports.is_empty(), "{directory}: imports are no longer recognized: {imports:?}");
        assert_eq!(cycle(&imports), None, "{directory}");
        let levels: BTreeSet<&[String]> = modules.keys().map(|module| &module[..module.len() - 1]).collect();
        for level in levels {
            let cycle = cycle(&at_level(level, &imports));
            assert_eq!(cycle, None, "{directory}: between the children of {level:?}");
        }
    }
}

#[test]
fn a_cycle_between_files_or_directories_is_found() {
    let module = |path: &str| path.split('/').map(str::to_owned).collect::<Module>();
    let edges = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| (module(a), module(b))).collect();
    let none: BTreeSet<_> = edges(&[("a", "b"), ("b", "c"), ("a", "c")]);
    assert_eq!(cycle(&none), None);
    let direct: BTreeSet<_> = edges(&[("a", "b"), ("b", "c"), ("c", "b")]);
    assert_eq!(cycle(&direct), Some(vec![module("b"), module("c")]));
    // No file imports a file that imports it, but the directories import each other.
    let nested: BTreeSet<_> = edges(&[("a/x", "b/x"), ("b/y", "a/y")]);
    assert_eq!(cycle(&nested), None);
    assert!(cycle(&at_level(&[], &nested)).is_some());
    let text = "use crate::{a::{X, b::Y}, c}; pub(crate) fn f() { super::d::g(); }";
    let joined: Vec<_> = paths(text).iter().map(|path| path.join("/")).collect();
    assert_eq!(joined, ["crate/a/X", "crate/a/b/Y", "crate/c", "super/d/g"]);
}

#[test]
fn inherent_methods_of_the_pool_are_defined_in_the_file_of_their_type() {
    let names_of = |text: &str, word: &str| -> BTreeSet<String> {
        let lines = text.lines().map(str::trim_start).filter(|line| !line.contains(" for "));
        let names = lines.filter_map(|line| {
            let after =
                line.trim_start_matches("pub(crate) ").trim_start_matches("pub ").strip_prefix(word)?;
            // Skips the generic parameters of an `impl`.
            let mut depth = 0_i32;
            let name = after.trim_start_matches(|c| {
                depth += i32::from(c == '<') - i32::from(c == '>');
                depth > 0 || c == '>' || c == ' '
            });
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
            Some(name[..end].to_owned())
        });
        names.collect()
    };
    let mut seen = 0;
    for (module, text) in sources("common/pool") {
        let defined: BTreeSet<_> =
            names_of(&text, "struct ").into_iter().chain(names_of(&text, "enum ")).collect();
        for name in names_of(&text, "impl") {
            assert!(defined.contains(&name), "{module:?} has methods of {name}");
            seen += 1;
        }
    }
    assert!(seen > 30, "inherent methods are no longer recognized: {seen}");
}
