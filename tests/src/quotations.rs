//! Checks the pages on the library: what they quote is in the applications, which are compiled and run.

use std::fs;

use crate::docs::repository;

/// The blocks of a page that are not compiled, because they quote a part of an application.
fn quotations(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = page;
    while let Some((_, from)) = rest.split_once("```rust,ignore\n") {
        let (block, after) = from.split_once("```").expect("a block ends");
        found.push(unindented(block));
        rest = after;
    }
    found
}

fn unindented(code: &str) -> String {
    code.lines().map(|line| line.trim_start().to_owned() + "\n").collect()
}

fn texts(directory: &str) -> Vec<(String, String)> {
    let files = fs::read_dir(repository().join(directory)).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    paths.map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap())).collect()
}

#[test]
fn what_the_pages_on_the_library_quote_is_in_an_application() {
    let applications: Vec<_> =
        texts("examples/apps/src/bin").iter().map(|(_, text)| unindented(text)).collect();
    let pages = texts("docs/library");
    let count: usize = pages.iter().map(|(_, page)| quotations(page).len()).sum();
    assert!(applications.len() > 5 && count > 10, "{} applications, {count} quotations", applications.len());
    for (name, page) in pages {
        assert!(page.contains("examples/apps/src/bin/"), "{name} names no application");
        for quoted in quotations(&page) {
            let is_quotation = applications.iter().any(|application| application.contains(&quoted));
            assert!(is_quotation, "{name} quotes what no application has:\n{quoted}");
        }
    }
}

#[test]
fn the_guide_names_every_application() {
    let guide = fs::read_to_string(repository().join("docs/guides/handlers.md")).unwrap();
    for (path, _) in texts("examples/apps/src/bin") {
        let name = path.rsplit('/').next().unwrap();
        assert!(guide.contains(&format!("(../../examples/apps/src/bin/{name})")), "{name}");
    }
}
