//! Cleans up servers even if the test process is killed.
//!
//! Statics are never dropped, and neither SIGKILL nor Ctrl-C runs destructors. Therefore each server has a shell that
//! reads from a pipe whose other end only this process holds. When this process ends, the pipe is closed, and the shell
//! cleans up. Garenne's own programs need no shell, because the kernel ends them with their parent: see
//! `garenne_drill::die_with_parent`.

use std::{
    io::Write,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};

/// A shell that runs a clean-up script when the value is dropped or this process ends.
#[derive(Debug)]
pub(crate) struct CleanupShell {
    shell: Child,
}

impl CleanupShell {
    /// Starts the shell. `script` runs once, at the end; `$last` in it is the last line given to
    /// [`tell`](Self::set_last), else empty. `arguments` are its `$1…`.
    pub(crate) fn start(script: &str, arguments: &[&str]) -> Result<Self> {
        let whole = format!("last=; while read -r line; do last=$line; done; {script}");
        let shell = Command::new("sh")
            .args(["-c", &whole, "cleanup"])
            .args(arguments)
            .stdin(Stdio::piped())
            // An inherited output would keep `cargo test | tail` waiting for the shell.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C ends the whole foreground group; the shell must survive it.
            .process_group(0)
            .spawn()
            .context("cannot start sh, which cleans up after the tests")?;
        Ok(Self { shell })
    }

    /// Changes what the script finds in `$last`.
    pub(crate) fn set_last(&mut self, line: &str) -> Result<()> {
        let pipe = self.shell.stdin.as_mut().context("the pipe to the cleanup shell is closed")?;
        writeln!(pipe, "{line}").context("the cleanup shell has ended")
    }
}

impl Drop for CleanupShell {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::CleanupShell;

    #[test]
    fn script_runs_at_the_end_with_the_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("last");
        let mut cleanup = CleanupShell::start(r#"echo "$last" > "$1""#, &[file.to_str().unwrap()]).unwrap();
        cleanup.set_last("first").unwrap();
        cleanup.set_last("second").unwrap();
        assert!(!file.exists());
        drop(cleanup);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "second\n");
    }
}
