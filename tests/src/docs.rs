//! The documentation: its pages, and the parts of it that are generated from the programs.
//!
//! `./dev docs` runs the example `docs`, which writes what this module generates.

pub mod book;
pub mod command_page;
pub mod commands;
pub mod example_settings;
pub mod markdown;
pub mod shown_commands;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The pages outside `docs/` that belong to the documentation.
pub const ROOT_PAGES: [&str; 5] =
    ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];

/// Directories whose `README.md` files are not part of the documentation.
const SKIPPED: [&str; 2] = ["target", "node_modules"];

/// The root of the repository.
pub fn repository() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("the crate is in a directory of the repository").to_owned()
}

/// Every page: those of the root, those below `docs/`, and the `README.md` of every directory. Paths are relative to
/// the root of the repository and sorted.
pub fn pages(repository: &Path) -> Vec<PathBuf> {
    fn walk(repository: &Path, directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(repository.join(directory)).expect("the repository can be read") {
            let entry = entry.expect("the repository can be read");
            let name = entry.file_name();
            let name = name.to_str().expect("file names are UTF-8");
            let path = directory.join(name);
            if entry.file_type().expect("the repository can be read").is_dir() {
                if !name.starts_with('.') && !SKIPPED.contains(&name) {
                    walk(repository, &path, found);
                }
            } else if name == "README.md" || (path.starts_with("docs") && name.ends_with(".md")) {
                found.push(path);
            }
        }
    }
    let mut found: Vec<PathBuf> =
        ROOT_PAGES.iter().filter(|page| **page != "README.md").map(PathBuf::from).collect();
    walk(repository, Path::new(""), &mut found);
    found.sort();
    found
}
