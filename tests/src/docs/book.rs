//! The book: the pages that `docs/SUMMARY.md` lists, in the layout that mdBook reads.
//!
//! mdBook takes pages from one directory. Pages outside `docs/`, such as ARCHITECTURE.md, are copied into it, and links
//! between pages are rewritten, so that the same links work in the repository and in the book. A file that is no page,
//! such as the Helm chart's values, is copied when a page links to it.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use super::markdown::{links, resolve};

/// The directory of files that are no pages, in the book.
const FILES: &str = "files";

/// Writes the sources of the book into `directory`: `book.toml` and `src/`.
pub fn write(repository: &Path, directory: &Path) -> io::Result<()> {
    let source = directory.join("src");
    if source.exists() {
        fs::remove_dir_all(&source)?;
    }
    copy(&repository.join("docs"), &source)?;
    fs::remove_file(source.join("book.toml"))?;
    fs::copy(repository.join("docs/book.toml"), directory.join("book.toml"))?;
    let mut pages: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    let summary = PathBuf::from("docs/SUMMARY.md");
    for link in links(&fs::read_to_string(repository.join(&summary))?) {
        let Ok(Some(target)) = resolve(&summary, &link.target) else { continue };
        pages.insert(target.file.clone(), page_in_book(&target.file));
    }
    pages.insert(summary, "SUMMARY.md".into());
    for (page, in_book) in &pages {
        let text = rewrite(repository, page, &pages, &source)?;
        let path = source.join(in_book);
        fs::create_dir_all(path.parent().unwrap_or(&source))?;
        fs::write(path, text)?;
    }
    Ok(())
}

/// Where a page is in the book.
fn page_in_book(page: &Path) -> PathBuf {
    if let Ok(inside) = page.strip_prefix("docs") {
        return inside.to_owned();
    }
    match page.to_str() {
        // mdBook makes it the first page.
        Some("README.md") => "README.md".into(),
        path => path.unwrap_or_default().replace('/', "-").to_lowercase().into(),
    }
}

/// The text of a page with the links of the book. Copies the files that it links to.
fn rewrite(
    repository: &Path,
    page: &Path,
    pages: &BTreeMap<PathBuf, PathBuf>,
    source: &Path,
) -> io::Result<String> {
    let mut text = fs::read_to_string(repository.join(page))?;
    let here = page_in_book(page);
    let mut found = links(&text);
    // From the end, so that the ranges before stay valid. An image in a link comes after the link's start.
    found.sort_by_key(|link| link.range.as_ref().map(|range| range.start));
    for link in found.into_iter().rev() {
        let (Some(range), Ok(Some(target))) = (link.range, resolve(page, &link.target)) else { continue };
        let in_book = match pages.get(&target.file) {
            Some(page) => page.clone(),
            None if target.file.starts_with("docs") => page_in_book(&target.file),
            None => {
                let copy = Path::new(FILES).join(&target.file);
                let path = source.join(&copy);
                fs::create_dir_all(path.parent().unwrap_or(source))?;
                fs::copy(repository.join(&target.file), path)?;
                copy
            }
        };
        let anchor = target.anchor.map(|anchor| format!("#{anchor}")).unwrap_or_default();
        let to = if in_book == here { anchor } else { relative(&here, &in_book) + &anchor };
        text.replace_range(range, &to);
    }
    Ok(text)
}

/// The path of `to` as a link on the page `from`.
fn relative(from: &Path, to: &Path) -> String {
    let up = from.components().count() - 1;
    "../".repeat(up) + &to.to_string_lossy()
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docs::repository;

    #[test]
    fn every_link_of_the_book_leads_to_a_file_of_the_book() {
        fn check(source: &Path, directory: &Path, broken: &mut Vec<String>) -> usize {
            let mut count = 0;
            for entry in fs::read_dir(source.join(directory)).unwrap() {
                let path = directory.join(entry.unwrap().file_name());
                if source.join(&path).is_dir() {
                    count += check(source, &path, broken);
                } else if path.extension().is_some_and(|extension| extension == "md") {
                    for link in links(&fs::read_to_string(source.join(&path)).unwrap()) {
                        count += 1;
                        match resolve(&path, &link.target) {
                            Ok(Some(target)) if !source.join(&target.file).is_file() => {
                                broken.push(format!("{}: {}", path.display(), link.target));
                            }
                            Ok(_) => {}
                            Err(problem) => broken.push(format!("{}: {problem}", path.display())),
                        }
                    }
                }
            }
            count
        }
        let directory = tempfile::tempdir().unwrap();
        write(&repository(), directory.path()).unwrap();
        let mut broken = Vec::new();
        let count = check(&directory.path().join("src"), Path::new(""), &mut broken);
        assert!(broken.is_empty(), "broken links in the book:\n{}", broken.join("\n"));
        assert!(count > 80, "links are no longer recognized: {count}");
        assert!(directory.path().join("book.toml").is_file());
    }

    #[test]
    fn a_link_between_directories_goes_by_the_root_of_the_book() {
        let link = |from: &str, to: &str| relative(Path::new(from), Path::new(to));
        assert_eq!(link("wire.md", "guides/ingest.md"), "guides/ingest.md");
        assert_eq!(link("guides/ingest.md", "wire.md"), "../wire.md");
        assert_eq!(page_in_book(Path::new("SECURITY.md")), Path::new("security.md"));
        assert_eq!(page_in_book(Path::new("common/pool/README.md")), Path::new("common-pool-readme.md"));
    }
}
