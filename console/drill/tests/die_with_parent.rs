//! The hidden command through which a drill starts its processes.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const DRILL: &str = env!("CARGO_BIN_EXE_garenne-drill");

/// A shell that runs `script`; `$0` in it is `garenne-drill`.
fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, DRILL]);
    command
}

/// Whether a process runs. A process that was not waited for yet counts as ended.
fn is_running(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z') && !rest.is_empty())
}

#[test]
fn the_program_is_killed_when_its_parent_is_killed() {
    let script = r#""$0" die-with-parent $$ sh -c 'echo $$; exec sleep 600' & wait"#;
    let mut parent = shell(script).stdout(Stdio::piped()).spawn().unwrap();
    let mut pid = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    assert!(is_running(pid.trim()), "{pid}");
    parent.kill().unwrap();
    parent.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while is_running(pid.trim()) {
        assert!(Instant::now() < deadline, "process {pid} still runs");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_program_gets_its_arguments_unchanged() {
    let output = shell(r#""$0" die-with-parent $$ echo --amqp-url -x --help; exit"#).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "--amqp-url -x --help\n");
}

#[test]
fn no_program_starts_when_the_parent_has_ended() {
    let output = shell(r#""$0" die-with-parent 1 echo started"#).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), [].as_slice()));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "garenne-drill: parent process 1 has ended\n");
}
