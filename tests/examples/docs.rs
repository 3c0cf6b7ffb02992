//! Writes what is generated of the documentation: the sources of the book, manual pages and
//! completions.
//!
//! ```sh
//! ./dev docs
//! ```

use std::path::PathBuf;

use anyhow::Context as _;
use garenne_tests::docs::{book, commands, repository};

fn main() -> anyhow::Result<()> {
    let target = std::env::args_os().nth(1).map(PathBuf::from).context("usage: docs DIRECTORY")?;
    book::write(&repository(), &target.join("book")).context("the book")?;
    commands::write_man_pages(&target.join("man")).context("the manual pages")?;
    commands::write_completions(&target.join("completions")).context("the completions")?;
    Ok(())
}
