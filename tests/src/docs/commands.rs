//! Manual pages and completions of the four programs.

use std::{fs, io, path::Path};

use clap::{Command, CommandFactory as _, ValueEnum as _};
use clap_complete::Shell;

/// The command lines of the four programs.
pub fn programs() -> [Command; 4] {
    [
        garenne_console::cli::Cli::command(),
        garenne_drill::cli::Cli::command(),
        garenne_producer::cli::Cli::command(),
        garenne_worker::cli::Cli::command(),
    ]
}

/// Writes a manual page for every program and subcommand into `directory`, such as `garenne-dead-replay.1`.
pub fn write_man_pages(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    programs().into_iter().try_for_each(|program| clap_mangen::generate_to(program, directory))
}

/// Writes the completions of every program into `directory`, for every shell that clap supports.
pub fn write_completions(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for mut program in programs() {
        let name = program.get_name().to_owned();
        for shell in Shell::value_variants() {
            clap_complete::generate_to(*shell, &mut program, &name, directory)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_and_subcommand_has_a_manual_page() {
        let directory = tempfile::tempdir().unwrap();
        write_man_pages(directory.path()).unwrap();
        let page = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        let pages = [
            "garenne.1",
            "garenne-drill.1",
            "garenne-producer.1",
            "garenne-worker.1",
            "garenne-producer-serve.1",
        ];
        for name in pages {
            assert!(page(name).contains(r"\-\-amqp\-url"), "{name} does not describe --amqp-url");
        }
        assert!(page("garenne-dead-replay.1").contains(r"\-\-dry\-run"));
        // The command is internal.
        assert!(!directory.path().join("garenne-drill-die-with-parent.1").exists());
    }

    #[test]
    fn every_program_has_completions() {
        let directory = tempfile::tempdir().unwrap();
        write_completions(directory.path()).unwrap();
        for (name, flag) in [
            ("garenne.bash", "--management-url"),
            ("garenne-drill.bash", "--broker-restart"),
            ("garenne-producer.fish", "tls-client-ca"),
            ("_garenne-worker", "--shutdown-mode"),
        ] {
            let text = fs::read_to_string(directory.path().join(name)).unwrap();
            assert!(text.contains(flag), "{name} does not complete {flag}");
        }
    }
}
