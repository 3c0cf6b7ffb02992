//! The processes below this one.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait, waitpid};

/// The pause between two looks at processes that were killed.
const PAUSE: Duration = Duration::from_millis(2);

/// The processes below one, without those that have exited.
fn descendants(of: Pid) -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for process in processes() {
        if let Some((state, parent)) = state_and_parent(process)
            && !matches!(state, 'Z' | 'X')
        {
            children.entry(parent).or_default().push(process);
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![of.as_raw_pid()];
    while let Some(parent) = parents.pop() {
        let below = children.remove(&parent).unwrap_or_default();
        found.extend(below.iter().copied().filter_map(Pid::from_raw));
        parents.extend(below);
    }
    found
}

/// The state of a process, and its parent. [`None`] if it has gone.
fn state_and_parent(process: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// The memory of the processes below one, in bytes, if it is more than `limit`. Pages that several of them share, as after a fork,
/// count once.
pub(super) fn memory_beyond(limit: u64, of: Pid) -> Option<u64> {
    let processes = descendants(of);
    let sum = |of: fn(&Pid) -> Option<u64>| processes.iter().filter_map(of).sum::<u64>();
    // It counts shared pages once per process, but it costs little: usually nothing else is read.
    if sum(resident) <= limit {
        return None;
    }
    let used = sum(|process| proportional(process).or_else(|| resident(process)));
    (used > limit).then_some(used)
}

/// The memory of a process, with all of what others have too.
fn resident(process: &Pid) -> Option<u64> {
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    let statm = fs::read_to_string(format!("/proc/{}/statm", process.as_raw_pid())).ok()?;
    Some(statm.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()? * page)
}

/// The memory of a process, with its share of the pages that others have too.
fn proportional(process: &Pid) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", process.as_raw_pid())).ok()?;
    let kib = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Kills the processes below this one until none is left, or for `timeout`. Those that have exited are left to be reaped.
pub(super) fn kill_all(timeout: Duration) {
    let began = Instant::now();
    while kill_descendants() && began.elapsed() <= timeout {
        std::thread::sleep(PAUSE);
    }
}

/// Sends SIGKILL to the processes below this one. Returns whether there were some.
fn kill_descendants() -> bool {
    let processes = descendants(getpid());
    for process in &processes {
        let _ = kill_process(*process, Signal::KILL);
    }
    !processes.is_empty()
}

/// Kills and reaps the processes below this one until none is left, or for `timeout`.
///
/// A process that has just been started can be missing in a look at all processes, and one whose parents have exited is a child of
/// this one. So nothing is left below this one only when it has no child.
pub(super) fn end_all(timeout: Duration) {
    let began = Instant::now();
    loop {
        kill_descendants();
        loop {
            // Of any process group: `waitpid` without a process asks for those of its own group only.
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        if began.elapsed() > timeout {
            return;
        }
        std::thread::yield_now();
    }
}

/// Reaps processes that this one has inherited and that have exited. `own` is left to be waited for.
pub(super) fn reap_others(own: Pid) {
    let parent = getpid().as_raw_pid();
    for process in processes().filter(|process| *process != own.as_raw_pid()) {
        if matches!(state_and_parent(process), Some(('Z', of)) if of == parent) {
            let _ = waitpid(Pid::from_raw(process), WaitOptions::NOHANG);
        }
    }
}

/// All processes of the system.
fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn pages_that_forked_processes_share_count_once() {
        // Three processes with the memory of the shell.
        let script = "x=$(head -c 33554432 /dev/zero | tr '\\0' x); exec 3<&0
            for i in 1 2 3; do (read -r end <&3; : \"$x\") & done; echo up; read -r end";
        let mut shell = Command::new("sh");
        let mut shell =
            shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut up = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut up).unwrap();
        let of = Pid::from_child(&shell);
        let of_one = resident(&of).unwrap();
        let sum: u64 = descendants(of).iter().filter_map(resident).sum();
        let used = memory_beyond(0, of);
        let beyond = [of_one * 2, of_one / 4].map(|limit| memory_beyond(limit, of).is_some());
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(of_one > 32 << 20 && sum > of_one * 2, "{of_one} {sum}");
        assert_eq!(beyond, [false, true], "{used:?} of {of_one}");
    }
}
