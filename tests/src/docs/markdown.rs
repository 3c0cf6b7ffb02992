//! Links, headings and tables of a Markdown page.

use std::{
    collections::HashMap,
    ops::Range,
    path::{Component, Path, PathBuf},
};

use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};

/// A link or an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The target as written, such as `wire.md#batches`.
    pub target: String,
    /// Where the target is written in the page; `None` for links whose target is defined elsewhere.
    pub range: Option<Range<usize>>,
    /// The line of the link, from 1.
    pub line: usize,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The heading above the table.
    pub heading: String,
    /// The rows as plain text, the header row first.
    pub rows: Vec<Vec<String>>,
    /// The code spans of each row's cells.
    pub code: Vec<Vec<Vec<String>>>,
}

/// A link's target, split into the file and the heading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The file, relative to the root of the repository.
    pub file: PathBuf,
    /// The slug of the heading.
    pub anchor: Option<String>,
}

fn parser(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_FOOTNOTES)
}

/// The links and images of a page, in their order.
pub fn links(text: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for (event, range) in parser(text).into_offset_iter() {
        let Event::Start(Tag::Link { link_type, dest_url, .. } | Tag::Image { link_type, dest_url, .. }) =
            event
        else {
            continue;
        };
        let line = text[..range.start].matches('\n').count() + 1;
        let written = text[range.clone()].rfind(&*dest_url).map(|at| range.start + at);
        let range =
            written.filter(|_| link_type == LinkType::Inline).map(|start| start..start + dest_url.len());
        found.push(Link { target: dest_url.into_string(), range, line });
    }
    found
}

/// The slugs of a page's headings by GitHub's rule: lower case, without punctuation, `-` for spaces, and a number for
/// each repetition.
pub fn slugs(text: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut found = Vec::new();
    for heading in headings(text) {
        let slug: String = heading
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let count = seen.entry(slug.clone()).or_default();
        found.push(if *count == 0 { slug } else { format!("{slug}-{count}") });
        *count += 1;
    }
    found
}

/// The headings of a page as plain text.
pub fn headings(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut is_inside = false;
    for event in parser(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => {
                is_inside = true;
                found.push(String::new());
            }
            Event::End(TagEnd::Heading(_)) => is_inside = false,
            Event::Text(text) | Event::Code(text) if is_inside => {
                found.last_mut().expect("a heading has begun").push_str(&text);
            }
            _ => {}
        }
    }
    found
}

/// The tables of a page.
pub fn tables(text: &str) -> Vec<Table> {
    let mut found: Vec<Table> = Vec::new();
    let mut heading = String::new();
    let (mut is_heading, mut is_table) = (false, false);
    for event in parser(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => {
                is_heading = true;
                heading.clear();
            }
            Event::End(TagEnd::Heading(_)) => is_heading = false,
            Event::Start(Tag::Table(_)) => {
                is_table = true;
                found.push(Table { heading: heading.clone(), ..Table::default() });
            }
            Event::End(TagEnd::Table) => is_table = false,
            Event::Start(Tag::TableHead | Tag::TableRow) => {
                let table = found.last_mut().expect("a table has begun");
                table.rows.push(Vec::new());
                table.code.push(Vec::new());
            }
            Event::Start(Tag::TableCell) => {
                let table = found.last_mut().expect("a table has begun");
                table.rows.last_mut().expect("a row has begun").push(String::new());
                table.code.last_mut().expect("a row has begun").push(Vec::new());
            }
            Event::Text(text) | Event::Code(text) if is_heading => heading.push_str(&text),
            Event::Text(text) if is_table => cell(&mut found).0.push_str(&text),
            Event::Code(code) if is_table => {
                let (text, spans) = cell(&mut found);
                text.push_str(&code);
                spans.push(code.into_string());
            }
            _ => {}
        }
    }
    found
}

/// The cell that is being read.
fn cell(tables: &mut [Table]) -> (&mut String, &mut Vec<String>) {
    let table = tables.last_mut().expect("a table has begun");
    let text = table.rows.last_mut().and_then(|row| row.last_mut()).expect("a cell has begun");
    let code = table.code.last_mut().and_then(|row| row.last_mut()).expect("a cell has begun");
    (text, code)
}

/// The file and heading that a link on `page` leads to; `None` for links out of the repository.
///
/// # Errors
/// The link leads above the root of the repository.
pub fn resolve(page: &Path, target: &str) -> Result<Option<Target>, String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(None);
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor.to_owned())),
        None => (target, None),
    };
    if path.is_empty() {
        return Ok(Some(Target { file: page.to_owned(), anchor }));
    }
    let mut file = page.parent().unwrap_or(Path::new("")).to_owned();
    for component in Path::new(path).components() {
        match component {
            Component::ParentDir if !file.pop() => {
                return Err(format!("{target} leads out of the repository"));
            }
            Component::ParentDir | Component::CurDir => {}
            Component::Normal(name) => file.push(name),
            Component::RootDir | Component::Prefix(_) => return Err(format!("{target} is an absolute path")),
        }
    }
    Ok(Some(Target { file, anchor }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heading_has_the_slug_that_github_gives_it() {
        let page = "# `reading.process`\n## Headers and who is believed\n## Four servers for sensors' connections\n\
                    ## Memory, time and places\n## Places\n## Places\n";
        let expected = [
            "readingprocess",
            "headers-and-who-is-believed",
            "four-servers-for-sensors-connections",
            "memory-time-and-places",
            "places",
            "places-1",
        ];
        assert_eq!(slugs(page), expected);
    }

    #[test]
    fn links_are_found_outside_of_code_only() {
        let page =
            "See [one](a.md#b) and ![two](img/c.svg \"title\").\n\n`[no](code.md)` [three][3]\n\n[3]: d.md\n";
        let found = links(page);
        let targets: Vec<_> = found.iter().map(|link| link.target.as_str()).collect();
        assert_eq!(targets, ["a.md#b", "img/c.svg", "d.md"]);
        let written: Vec<_> = found.iter().map(|link| link.range.clone().map(|range| &page[range])).collect();
        assert_eq!(written, [Some("a.md#b"), Some("img/c.svg"), None]);
        assert_eq!(found[2].line, 3);
    }

    #[test]
    fn a_link_is_relative_to_its_page() {
        let to = |page: &str, target: &str| resolve(Path::new(page), target);
        let file = |file: &str, anchor: Option<&str>| {
            Ok(Some(Target { file: file.into(), anchor: anchor.map(str::to_owned) }))
        };
        assert_eq!(to("docs/guides/ingest.md", "../wire.md#batches"), file("docs/wire.md", Some("batches")));
        assert_eq!(to("docs/wire.md", "#batches"), file("docs/wire.md", Some("batches")));
        assert_eq!(to("README.md", "docs/wire.md"), file("docs/wire.md", None));
        assert_eq!(to("docs/wire.md", "https://example.com/a#b"), Ok(None));
        assert_eq!(to("README.md", "../a.md"), Err("../a.md leads out of the repository".to_owned()));
    }

    #[test]
    fn a_table_has_the_heading_above_it_and_its_code_spans() {
        let page =
            "# Top\n## Settings\n\n| setting | default |\n| --- | --- |\n| `a.{b, c}` | [1s](x.md), `2` |\n";
        let found = tables(page);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].heading, "Settings");
        assert_eq!(found[0].rows, [["setting", "default"], ["a.{b, c}", "1s, 2"]]);
        assert_eq!(found[0].code[1], [vec!["a.{b, c}"], vec!["2"]]);
    }
}
