//! Writes what is generated of the documentation: the sources of the book.
//!
//! ```sh
//! ./dev docs
//! ```

use std::path::PathBuf;

use anyhow::Context as _;
use garenne_tests::docs::{book, repository};

fn main() -> anyhow::Result<()> {
    let target = std::env::args_os().nth(1).map(PathBuf::from).context("usage: docs DIRECTORY")?;
    book::write(&repository(), &target.join("book")).context("the book")?;
    Ok(())
}
