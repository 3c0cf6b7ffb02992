//! Reads the sources of crates and checks the imports between their modules.
//!
//! No module may import a module that imports it, directly or through others, at any level of the module tree: seen
//! from a directory, its subdirectories count as one module each. In the pool only `lib.rs` re-exports, and inherent
//! methods are defined in the file of their type, so that a call into another module is visible as an import.

use std::collections::{BTreeMap, BTreeSet};

use crate::sources::{Token, crates, sources, tokens};

/// A module as its path from the crate root: `["state", "task_queue"]`.
type Module = Vec<String>;

fn modules(folder: &str) -> BTreeMap<Module, &'static [Token]> {
    sources(folder).iter().map(|source| (source.module.clone(), &*source.tokens)).collect()
}

fn is(tokens: &[Token], at: usize, text: &str) -> bool {
    tokens.get(at).is_some_and(|token| token.text == text)
}

/// The paths that start with `crate` or `super`, with `{…}` lists expanded.
fn paths(tokens: &[Token]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let starts = matches!(&*tokens[at].text, "crate" | "super") && is(tokens, at + 1, "::");
        // The `crate` of `pub(crate)` is followed by no path.
        if starts { at = path(tokens, at, &[], &mut found) } else { at += 1 }
    }
    found
}

/// Reads the path at `tokens[at]` and returns the position behind it.
fn path(tokens: &[Token], mut at: usize, prefix: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = prefix.to_vec();
    loop {
        if is(tokens, at, "{") {
            at += 1;
            while !is(tokens, at, "}") {
                at = if is(tokens, at, ",") { at + 1 } else { self::path(tokens, at, &path, found) };
            }
            return at + 1;
        }
        path.push(tokens[at].text.clone());
        at += 1;
        if !is(tokens, at, "::") {
            break;
        }
        at += 1;
    }
    found.push(path);
    at
}

/// The paths that a module re-exports, each from a module below it.
fn reexports(tokens: &[Token]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for at in (1..tokens.len()).filter(|at| is(tokens, *at, "use")) {
        let is_public = is(tokens, at - 1, "pub") || is(tokens, at - 1, ")");
        if is_public && !is(tokens, at + 1, "crate") && !is(tokens, at + 1, "super") {
            path(tokens, at + 1, &[], &mut found);
        }
    }
    found
}

/// The module that `path` names an item of, as seen from `from`. An item that is re-exported is one of the module
/// that defines it.
fn resolve(path: &[String], from: &Module, modules: &BTreeMap<Module, &[Token]>) -> Option<Module> {
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

fn imports(modules: &BTreeMap<Module, &[Token]>) -> BTreeSet<(Module, Module)> {
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
    for directory in crates() {
        let modules = modules(&directory);
        let imports = imports(&modules);
        let is_one_file = modules.len() < 3;
        assert!(is_one_file || !imports.is_empty(), "{directory}: imports are no longer recognized");
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
    let joined: Vec<_> = paths(&tokens(text)).iter().map(|path| path.join("/")).collect();
    assert_eq!(joined, ["crate/a/X", "crate/a/b/Y", "crate/c", "super/d/g"]);
}

/// The simulation replaces the broker at this seam.
#[test]
fn the_engine_names_lapin_only_where_it_consumes() {
    let names_lapin = |tokens: &[Token]| tokens.iter().any(|token| token.text == "lapin");
    let found: Vec<_> =
        modules("worker/engine").into_iter().filter(|(_, tokens)| names_lapin(tokens)).collect();
    assert_eq!(
        found.into_iter().map(|(module, _)| module.join("::")).collect::<Vec<_>>(),
        ["consumer::amqp"]
    );
}

#[test]
fn inherent_methods_of_the_pool_are_defined_in_the_file_of_their_type() {
    /// The name behind the token at `at`, and behind its generic parameters.
    fn name(tokens: &[Token], mut at: usize) -> &str {
        let mut depth = 0;
        loop {
            at += 1;
            match &*tokens[at].text {
                "<" => depth += 1,
                ">" => depth -= 1,
                name if depth == 0 => return name,
                _ => {}
            }
        }
    }
    let mut seen = 0;
    for (module, tokens) in modules("common/pool") {
        let at = |word: &str| (0..tokens.len()).filter(|at| is(tokens, *at, word)).collect::<Vec<_>>();
        let types = [at("struct"), at("enum")].concat();
        let defined: BTreeSet<_> = types.into_iter().map(|at| name(tokens, at)).collect();
        for at in at("impl") {
            let begin = tokens[at..].iter().position(|token| token.text == "{").unwrap();
            let head = &tokens[at..at + begin];
            // `impl` is also a type of an argument, and `for` names the type of a trait's methods.
            let is_item = at == 0 || matches!(&*tokens[at - 1].text, "}" | ";" | "]");
            if is_item && !head.iter().any(|token| token.text == "for") {
                assert!(defined.contains(name(tokens, at)), "{module:?} has methods of {}", name(tokens, at));
                seen += 1;
            }
        }
    }
    assert!(seen > 30, "inherent methods are no longer recognized: {seen}");
}
