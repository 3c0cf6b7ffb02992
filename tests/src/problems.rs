//! Each problem that `diagnose` knows has a scenario that provokes it and asks every tool for it, and an entry in
//! docs/guides/troubleshooting.md.

use std::{collections::BTreeMap, fs};

use garenne_console::diagnose::Code;
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Item, ItemFn, LitStr, parse2};

use crate::docs::repository;

/// The functions that ask every tool for a problem. The name of the problem is their first text.
const ASKING: [&str; 2] = ["until_seen", "until_said"];

/// Collects the problems that a piece of a scenario asks for, within macros too.
fn collect(tokens: TokenStream, asked: &mut Vec<String>) {
    let mut asks = false;
    for token in tokens {
        if let TokenTree::Group(group) = &token {
            if asks {
                asked.extend(first_text(group.stream()));
            }
            collect(group.stream(), asked);
        }
        asks = matches!(&token, TokenTree::Ident(name) if ASKING.contains(&name.to_string().as_str()));
    }
}

fn first_text(tokens: TokenStream) -> Option<String> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Group(group) => first_text(group.stream()),
        token => parse2::<LitStr>(token.into()).ok().map(|text| text.value()),
    })
}

/// The problems and the scenarios that ask every tool for them.
fn scenarios() -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::<String, Vec<String>>::new();
    for entry in fs::read_dir(repository().join("tests/tests/scenarios")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|it| it != "rs") {
            continue;
        }
        let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
        let tests = file.items.iter().filter_map(|item| match item {
            Item::Fn(function) if is_test(function) => Some(function),
            _ => None,
        });
        for test in tests {
            let mut asked = Vec::new();
            collect(test.block.to_token_stream(), &mut asked);
            for problem in asked {
                found.entry(problem).or_default().push(test.sig.ident.to_string());
            }
        }
    }
    found
}

fn is_test(function: &ItemFn) -> bool {
    let last = |attribute: &syn::Attribute| attribute.path().segments.last().map(|it| it.ident.to_string());
    function.attrs.iter().any(|attribute| last(attribute).as_deref() == Some("test"))
}

#[test]
fn every_problem_has_a_scenario_that_asks_every_tool() {
    let scenarios = scenarios();
    let without: Vec<_> = Code::NAMES.iter().filter(|name| !scenarios.contains_key(**name)).collect();
    assert!(without.is_empty(), "no scenario provokes {without:?}; those that have one: {scenarios:#?}");
    let unknown: Vec<_> = scenarios.keys().filter(|name| !Code::NAMES.contains(&name.as_str())).collect();
    assert!(unknown.is_empty(), "scenarios ask for problems that do not exist: {unknown:?}");
}

#[test]
fn every_problem_has_an_entry_in_the_guide() {
    let guide = fs::read_to_string(repository().join("docs/guides/troubleshooting.md")).unwrap();
    let without: Vec<_> =
        Code::NAMES.iter().filter(|name| !guide.contains(&format!("**`{name}`**"))).collect();
    assert!(without.is_empty(), "docs/guides/troubleshooting.md has no entry for {without:?}");
}
