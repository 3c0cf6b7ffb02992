//! Checks the pages of the documentation: every link leads to a file and a heading that exist, every page is in the
//! book, and the paths that ARCHITECTURE.md names exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::docs::{
    markdown::{Target, links, resolve, slugs, tables},
    pages, repository, shown_commands,
};

/// The heading above the table of ARCHITECTURE.md whose paths are checked.
const CHANGES: &str = "To change something";

fn read(page: &Path) -> String {
    fs::read_to_string(repository().join(page)).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

/// Problems of a page's links, one line each.
fn broken_links(page: &Path, text: &str, headings: &BTreeMap<PathBuf, Vec<String>>) -> Vec<String> {
    let mut broken = Vec::new();
    for link in links(text) {
        let problem = match resolve(page, &link.target) {
            Ok(None) => None,
            Ok(Some(Target { file, anchor })) if repository().join(&file).exists() => {
                anchor.and_then(|anchor| {
                    let found = headings.get(&file).is_some_and(|slugs| slugs.contains(&anchor));
                    (!found).then(|| format!("{} has no heading #{anchor}", file.display()))
                })
            }
            Ok(Some(Target { file, .. })) => Some(format!("{} does not exist", file.display())),
            Err(problem) => Some(problem),
        };
        let place = format!("{}:{}", page.display(), link.line);
        broken.extend(problem.map(|problem| format!("{place}: [{}]: {problem}", link.target)));
    }
    broken
}

#[test]
fn every_link_leads_to_an_existing_file_and_heading() {
    let pages: BTreeMap<PathBuf, String> =
        pages(&repository()).into_iter().map(|page| (page.clone(), read(&page))).collect();
    assert!(pages.len() > 20, "the pages have moved: {:?}", pages.keys());
    let headings = pages.iter().map(|(page, text)| (page.clone(), slugs(text))).collect();
    let broken: Vec<_> = pages.iter().flat_map(|(page, text)| broken_links(page, text, &headings)).collect();
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
    let count: usize = pages.values().map(|text| links(text).len()).sum();
    assert!(count > 80, "links are no longer recognized: {count}");
}

#[test]
fn every_page_below_docs_is_in_the_book() {
    let summary = Path::new("docs/SUMMARY.md");
    let listed: Vec<PathBuf> = links(&read(summary))
        .iter()
        .filter_map(|link| resolve(summary, &link.target).unwrap())
        .map(|target| target.file)
        .collect();
    let unique: BTreeSet<_> = listed.iter().collect();
    assert_eq!(unique.len(), listed.len(), "docs/SUMMARY.md lists a page twice: {listed:?}");
    let pages = pages(&repository()).into_iter().filter(|page| page.starts_with("docs") && page != summary);
    let missing: Vec<_> = pages.filter(|page| !unique.contains(page)).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md does not list {missing:?}");
}

/// The generated page has usage lines, and the examples of the programs' help.
const GENERATED: &str = "docs/commands.md";

#[test]
fn every_page_says_which_of_its_commands_are_run() {
    let pages = pages(&repository()).into_iter().filter(|page| {
        page != Path::new(GENERATED) && (page.starts_with("docs") || page == Path::new("README.md"))
    });
    let problems: Vec<_> = pages
        .flat_map(|page| {
            let problems = shown_commands::problems(&read(&page));
            problems.into_iter().map(move |problem| format!("{}:{problem}", page.display()))
        })
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_broken_link_is_named_with_its_page_and_line() {
    let headings = BTreeMap::from([(PathBuf::from("SECURITY.md"), vec!["reporting".to_owned()])]);
    let text = "# A\n\n[good](../SECURITY.md#reporting)\n[file](none.md)\n[anchor](../SECURITY.md#nothing)\n";
    assert_eq!(
        broken_links(Path::new("docs/a.md"), text, &headings),
        [
            "docs/a.md:4: [none.md]: docs/none.md does not exist",
            "docs/a.md:5: [../SECURITY.md#nothing]: SECURITY.md has no heading #nothing",
        ]
    );
}

#[test]
fn every_path_in_the_table_of_changes_exists() {
    let table =
        tables(&read(Path::new("ARCHITECTURE.md"))).into_iter().find(|table| table.heading == CHANGES);
    let table = table.unwrap_or_else(|| panic!("ARCHITECTURE.md has no table below {CHANGES:?}"));
    let rows = || table.code.iter().skip(1);
    // The last column also has commands and settings.
    let more = rows().flat_map(|row| &row[2]).filter(|code| code.contains('/') && !code.contains(' '));
    let paths: BTreeSet<&String> = rows().flat_map(|row| &row[1]).chain(more).collect();
    assert!(paths.len() > 20, "paths are no longer recognized: {paths:?}");
    let missing: Vec<_> = paths.into_iter().filter(|path| !repository().join(path).exists()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names paths that do not exist: {missing:?}");
}
