//! How a process ends: one line on stderr, and an exit code that scripts can distinguish.

use std::io::Write;
use std::process::{ExitCode, Termination};

use crate::text::{one_line, printable};

/// The exit codes of all Garenne binaries, with the numbers of `sysexits.h` where it defines one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Exit {
    /// Success.
    Done = 0,
    /// Failure, or a receipt with abandoned tasks.
    Failed = 1,
    /// The command line is invalid; clap exits with the same code.
    Usage = 2,
    /// The broker could not be reached within the retry budget.
    BrokerUnavailable = 69,
    /// The broker denied access: wrong password or missing permission.
    Denied = 77,
    /// A setting is invalid.
    Config = 78,
    /// Interrupted again during a hard stop.
    Interrupted = 130,
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        ExitCode::from(self as u8)
    }
}

/// An error that determines the exit code of its process.
pub trait HasExit: std::error::Error {
    /// The exit code.
    fn exit(&self) -> Exit;
}

/// Why `main` fails: the line for the user and the exit code for the caller.
///
/// `?` converts every [`HasExit`] error, and `anyhow::Error` with [`Exit::Failed`] unless it contains a `Failure`.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("{line}")]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// The problem and the remedy, on one line.
    pub line: String,
}

impl Failure {
    /// A failure with `message` on one line: line breaks become spaces, hidden characters are escaped.
    pub fn new(exit: Exit, message: impl std::fmt::Display) -> Self {
        let line = printable(&one_line(&message.to_string())).into_owned();
        Self { exit, line }
    }
}

impl<E: HasExit> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::new(error.exit(), &error)
    }
}

#[cfg(feature = "program")]
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let exit = error.downcast_ref::<Failure>().map_or(Exit::Failed, |failure| failure.exit);
        Failure::new(exit, format_args!("{error:#}"))
    }
}

/// Runs a binary's work and prints its failure as `program: line` to stderr.
///
/// ```no_run
/// use garenne_common::exit::{self, Exit};
///
/// #[tokio::main]
/// async fn main() -> Exit {
///     exit::run_main("garenne-worker", async { Ok(Exit::Done) }).await
/// }
/// ```
pub async fn run_main(program: &str, work: impl Future<Output = Result<Exit, Failure>>) -> Exit {
    report(program, work.await)
}

/// As [`run_main`], for a `main` that builds its own runtime.
pub fn report(program: &str, ended: Result<Exit, Failure>) -> Exit {
    ended.unwrap_or_else(|failure| {
        // If stderr is closed, there is nowhere to report that.
        let _ = writeln!(std::io::stderr().lock(), "{program}: {failure}");
        failure.exit
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_the_documented_ones() {
        let all = [
            Exit::Done,
            Exit::Failed,
            Exit::Usage,
            Exit::BrokerUnavailable,
            Exit::Denied,
            Exit::Config,
            Exit::Interrupted,
        ];
        assert_eq!(all.map(|exit| exit as u8), [0, 1, 2, 69, 77, 78, 130]);
    }

    #[derive(Debug, thiserror::Error)]
    #[error("no permission to\n  write")]
    struct Refused;

    impl HasExit for Refused {
        fn exit(&self) -> Exit {
            Exit::Denied
        }
    }

    #[tokio::test]
    async fn a_typed_error_exits_with_its_code_and_one_line() {
        let refused: Result<Exit, Refused> = Err(Refused);
        let work = async { Ok(refused?) };
        assert_eq!(run_main("test", work).await, Exit::Denied);
        assert_eq!(Failure::from(Refused).line, "no permission to write");
    }

    #[test]
    fn control_characters_in_an_error_are_escaped() {
        let failure = Failure::new(Exit::Failed, "no dead letter a\u{1b}]0;owned\u{7}\u{202e}\nb");
        assert_eq!(failure.line, r"no dead letter a\u{1b}]0;owned\u{7}\u{202e} b");
    }

    #[test]
    fn an_untyped_error_exits_as_failed_and_shows_its_causes() {
        let error = anyhow::anyhow!("port 80 is taken").context("gateway not started");
        let failure = Failure::from(error);
        assert_eq!(failure.exit, Exit::Failed);
        assert_eq!(failure.line, "gateway not started: port 80 is taken");
        let denied = anyhow::Error::from(Failure::new(Exit::Denied, "wrong password")).context("not started");
        let denied = Failure::from(denied);
        assert_eq!((denied.exit, denied.line.as_str()), (Exit::Denied, "not started: wrong password"));
    }
}
