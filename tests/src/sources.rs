//! The product code of the workspace as tokens: without comments, and without what is compiled for tests only.

use std::{collections::BTreeMap, fs, path::Path, sync::LazyLock};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Block, File, Item, ItemImpl, ItemMod, Stmt, visit_mut::VisitMut};

use crate::{docs::repository, workspace::product_crates};

/// A file of a crate.
pub(crate) struct Source {
    /// Its path from the root of the repository.
    pub(crate) path: String,
    /// Its path from the root of the crate, without extension: `["state", "task_queue"]`.
    pub(crate) module: Vec<String>,
    pub(crate) tokens: Vec<Token>,
}

/// A word, a punctuation mark, a bracket or a literal. `::` and `->` are one token each.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// The line in the file, from 1.
    pub(crate) line: usize,
}

/// The folders of the crates that are checked: those of the product, and the simulation.
pub(crate) fn crates() -> Vec<String> {
    [product_crates(), vec!["tests/simulation".to_owned()]].concat()
}

/// The product code of the crate in `folder`. It is parsed once for all tests.
pub(crate) fn sources(folder: &str) -> &'static [Source] {
    static PARSED: LazyLock<BTreeMap<String, Vec<Source>>> =
        LazyLock::new(|| crates().into_iter().map(|folder| (folder.clone(), parse(&folder))).collect());
    &PARSED[folder]
}

fn parse(folder: &str) -> Vec<Source> {
    fn read(folder: &Path, parent: &[String], found: &mut Vec<Source>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            // Modules of this name are compiled for tests only.
            if name == "tests" {
                continue;
            }
            let module: Vec<_> = parent.iter().cloned().chain([name.to_owned()]).collect();
            if path.is_dir() {
                read(&path, &module, found);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let tokens = tokens(&fs::read_to_string(&path).unwrap());
                let path = path.strip_prefix(repository()).unwrap().to_str().unwrap().to_owned();
                found.push(Source { path, module, tokens });
            }
        }
    }
    let mut found = Vec::new();
    read(&repository().join(folder).join("src"), &[], &mut found);
    assert!(!found.is_empty(), "{folder} has no sources");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The tokens of a file of Rust without what is compiled for tests only.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    flatten(product_file(text).into_token_stream(), &mut found);
    found
}

/// A file of Rust without what is compiled for tests only.
pub(crate) fn product_file(text: &str) -> File {
    let mut file = syn::parse_file(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    WithoutTests.visit_file_mut(&mut file);
    file
}

fn flatten(stream: TokenStream, found: &mut Vec<Token>) {
    let mut joined = false;
    for tree in stream {
        let was_joined = std::mem::take(&mut joined);
        match tree {
            TokenTree::Group(group) => {
                let text = |bracket: char| if bracket == ' ' { String::new() } else { bracket.to_string() };
                let (open, close) = match group.delimiter() {
                    proc_macro2::Delimiter::Parenthesis => ('(', ')'),
                    proc_macro2::Delimiter::Brace => ('{', '}'),
                    proc_macro2::Delimiter::Bracket => ('[', ']'),
                    proc_macro2::Delimiter::None => (' ', ' '),
                };
                found.push(Token { text: text(open), line: group.span_open().start().line });
                flatten(group.stream(), found);
                found.push(Token { text: text(close), line: group.span_close().start().line });
            }
            TokenTree::Punct(punct) => {
                let pair = [":", "-"].into_iter().zip([':', '>']).find(|pair| pair.1 == punct.as_char());
                match (pair, found.last_mut()) {
                    (Some((first, second)), Some(last)) if was_joined && last.text == first => {
                        last.text.push(second);
                    }
                    _ => {
                        joined = punct.spacing() == proc_macro2::Spacing::Joint;
                        let line = punct.span().start().line;
                        found.push(Token { text: punct.to_string(), line });
                    }
                }
            }
            tree @ (TokenTree::Ident(_) | TokenTree::Literal(_)) => {
                found.push(Token { text: tree.to_string(), line: tree.span().start().line });
            }
        }
    }
}

/// Removes what has the attribute `#[cfg(test)]`.
struct WithoutTests;

fn is_product(attributes: &[Attribute]) -> bool {
    let is_test = |it: &Attribute| {
        it.path().is_ident("cfg") && it.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    };
    !attributes.iter().any(is_test)
}

fn is_product_item(item: &Item) -> bool {
    match item {
        Item::Const(it) => is_product(&it.attrs),
        Item::Enum(it) => is_product(&it.attrs),
        Item::ExternCrate(it) => is_product(&it.attrs),
        Item::Fn(it) => is_product(&it.attrs),
        Item::Impl(it) => is_product(&it.attrs),
        Item::Macro(it) => is_product(&it.attrs),
        Item::Mod(it) => is_product(&it.attrs),
        Item::Static(it) => is_product(&it.attrs),
        Item::Struct(it) => is_product(&it.attrs),
        Item::Trait(it) => is_product(&it.attrs),
        Item::Type(it) => is_product(&it.attrs),
        Item::Use(it) => is_product(&it.attrs),
        _ => true,
    }
}

impl VisitMut for WithoutTests {
    fn visit_file_mut(&mut self, file: &mut File) {
        file.items.retain(is_product_item);
        syn::visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, module: &mut ItemMod) {
        if let Some((_, items)) = &mut module.content {
            items.retain(is_product_item);
        }
        syn::visit_mut::visit_item_mod_mut(self, module);
    }

    fn visit_item_impl_mut(&mut self, block: &mut ItemImpl) {
        block.items.retain(|item| match item {
            syn::ImplItem::Const(it) => is_product(&it.attrs),
            syn::ImplItem::Fn(it) => is_product(&it.attrs),
            _ => true,
        });
        syn::visit_mut::visit_item_impl_mut(self, block);
    }

    fn visit_block_mut(&mut self, block: &mut Block) {
        block.stmts.retain(|statement| match statement {
            Stmt::Local(it) => is_product(&it.attrs),
            Stmt::Item(it) => is_product_item(it),
            _ => true,
        });
        syn::visit_mut::visit_block_mut(self, block);
    }
}

#[test]
fn tests_comments_and_strings_are_no_product_code() {
    let text = r#"
        mod first; // second
        #[cfg(test)]
        mod tests;
        #[cfg(not(test))]
        fn third() -> a::B { "fourth()" }
        impl C {
            #[cfg(test)]
            fn fifth() {}
            fn sixth() { select! { _ = seventh() => {} } }
        }
        #[cfg(test)]
        pub(crate) use eighth::{ninth, tenth};
        const LAST: u8 = 1;
    "#;
    let all: Vec<_> = tokens(text).into_iter().map(|token| (token.text, token.line)).collect();
    let has = |text: &str| all.iter().find(|(it, _)| it == text).map(|(_, line)| *line);
    for (product, line) in [("first", 2), ("third", 6), ("::", 6), ("->", 6), ("seventh", 10), ("LAST", 14)] {
        assert_eq!(has(product), Some(line), "{product}");
    }
    for absent in ["second", "tests", "fourth", "fifth", "ninth"] {
        assert_eq!(has(absent), None, "{absent}");
    }
}
