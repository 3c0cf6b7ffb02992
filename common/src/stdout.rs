//! Writes the output of commands to stdout.
//!
//! `println!` panics if the reader has closed the pipe, as in `… | head -1`. Restoring the default action of SIGPIPE
//! would end the process, but also at a write to a socket whose peer is gone.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
};

use crate::exit::{Exit, Failure};

/// Prints text to stdout.
///
/// # Errors
/// A failed write. That the reader has closed the pipe is not an error.
pub fn print(text: impl Display) -> Result<(), Failure> {
    write(io::stdout().lock(), text)
}

/// As [`print()`], with a line feed.
///
/// # Errors
/// As [`print()`].
pub fn print_line(line: impl Display) -> Result<(), Failure> {
    print(format_args!("{line}\n"))
}

fn write(mut out: impl Write, text: impl Display) -> Result<(), Failure> {
    // One write, so that lines of several threads do not mix.
    match out.write_all(text.to_string().as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Failed, format_args!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails at each write, or at the flush.
    struct Failing(ErrorKind, bool);

    impl Write for Failing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.1 { Ok(bytes.len()) } else { Err(self.0.into()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_closed_pipe_is_not_an_error_and_a_full_disk_is() {
        for buffered in [false, true] {
            assert_eq!(write(Failing(ErrorKind::BrokenPipe, buffered), "text"), Ok(()));
            let failure = write(Failing(ErrorKind::StorageFull, buffered), "text").unwrap_err();
            assert_eq!(
                (failure.exit, failure.line.as_str()),
                (Exit::Failed, "cannot write to stdout: no storage space")
            );
        }
        let mut out = Vec::new();
        assert_eq!(write(&mut out, format_args!("{}\n", 7)), Ok(()));
        assert_eq!(out, b"7\n");
    }
}
