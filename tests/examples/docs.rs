//! Writes the generated parts of the documentation: `docs/garenne.example.toml`, `docs/commands.md`, the sources of the
//! book, manual pages and completions.
//!
//! ```sh
//! ./dev docs
//! ```

use std::{fs, path::PathBuf};

use anyhow::{Context as _, anyhow};
use garenne_tests::docs::{book, command_page, commands, example_settings, repository};

fn main() -> anyhow::Result<()> {
    let target = std::env::args_os().nth(1).map(PathBuf::from).context("usage: docs DIRECTORY")?;
    let example =
        example_settings::generate(&repository()).map_err(|problems| anyhow!(problems.join("\n")))?;
    fs::write(repository().join(example_settings::PATH), example).context(example_settings::PATH)?;
    fs::write(repository().join(command_page::PATH), command_page::generate(&repository()))
        .context(command_page::PATH)?;
    book::write(&repository(), &target.join("book")).context("the book")?;
    commands::write_man_pages(&target.join("man")).context("the manual pages")?;
    commands::write_completions(&target.join("completions")).context("the completions")?;
    Ok(())
}
