//! The guardian of a handler's process: a small process that starts it, ends it, and reaps what it leaves behind.
//!
//! The worker starts its own program again as the guardian. The guardian is a *subreaper*, so everything that the handler's
//! process starts stays below it, also after a parent of it has exited or it has begun a session of its own. When the process
//! has exited, or the worker is gone, the guardian kills all of that before it reports and exits. So a worker that is killed
//! leaves no process behind.
//!
//! Worker and guardian are connected by a socket, which is the guardian's standard input:
//!
//! | direction | content |
//! | --- | --- |
//! | to the guardian | the length of the order, u32; the order as JSON, with the descriptors that the process gets |
//! | to the guardian | `T` for SIGTERM or `K` for SIGKILL, any number of times |
//! | to the worker | reports, a JSON line each |
//!
//! The end of the socket means that the worker is gone.

mod tree;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    io::{IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::PathBuf,
    process::{self, Command, Stdio},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use command_fds::{CommandFdExt, FdMapping};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
    process::{
        Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process_group, pidfd_open, set_child_subreaper,
        setsid, waitpid,
    },
};
use serde::{Deserialize, Serialize};

/// The first argument of a program that is started as a guardian.
pub(crate) const ARGUMENT: &str = "__handler-guardian";

/// Asks for SIGTERM to the process group.
pub(crate) const TERMINATE: u8 = b'T';
/// Asks for SIGKILL to every process.
pub(crate) const KILL: u8 = b'K';

/// Most descriptors that a process gets besides the standard ones.
pub(crate) const MOST_DESCRIPTORS: usize = 4;

/// How often the memory of a process with a limit is measured.
const MEMORY_INTERVAL: Duration = Duration::from_millis(200);
/// How often processes are reaped that the guardian has inherited.
const REAP_INTERVAL: Duration = Duration::from_secs(5);
/// For how long processes that were killed are waited for. A process in a system call that cannot be interrupted takes longer.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
/// What is added to `oom_score_adj`: if memory runs out, the kernel ends handlers before the worker.
const OOM_SCORE: &str = "500";

/// What to start.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) command: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) directory: Option<PathBuf>,
    /// User and group, for a worker that runs as root.
    pub(crate) user: Option<(u32, u32)>,
    /// The most memory of the process and its descendants together, in bytes.
    pub(crate) memory: Option<u64>,
    /// The numbers that the process gets the descriptors by.
    pub(crate) descriptors: Vec<i32>,
}

/// What became of the process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// It was started.
    Started(i32),
    /// It could not be started.
    Failed(String),
    /// It has exited with this code, and so has everything below it.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
    /// It was ended because it needed more memory than it may have, in bytes.
    OutOfMemory { used: u64, limit: u64 },
}

/// Becomes a guardian if the program was started as one, and then never returns. Programs that run handlers call this first, before
/// they start threads.
pub fn run_if_asked() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next() != Some(OsString::from(ARGUMENT)) {
        return;
    }
    let outcome = guard();
    if let Err(error) = &outcome {
        eprintln!("guardian of a handler: {error}");
    }
    process::exit(outcome.is_err().into());
}

fn guard() -> io::Result<()> {
    // An interrupt from a terminal, and a stop of a whole control group, are for the worker.
    let _ = setsid();
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    set_child_subreaper(Some(getpid()))?;
    // Whoever started the worker may have left descriptors open, which the process would inherit.
    close_fds::set_fds_cloexec(3, &[]);
    let mut worker = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (order, descriptors) = receive(&worker)?;
    let memory = order.memory;
    let started = start(order, descriptors);
    // These are the process's own now. The worker sees the end of its logs when the process has closed them.
    let null = fs::OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let process = match started {
        Ok(process) => process,
        Err(error) => return report(&mut worker, &Report::Failed(error.to_string())),
    };
    let _ = fs::write(format!("/proc/{}/oom_score_adj", process.as_raw_pid()), OOM_SCORE);
    report(&mut worker, &Report::Started(process.as_raw_pid()))?;
    let end = until_end(&mut worker, process, memory)?;
    tree::end_all(KILL_TIMEOUT);
    report(&mut worker, &end)
}

fn receive(worker: &UnixStream) -> io::Result<(Order, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut size = [0; 4];
    let received =
        recvmsg(worker, &mut [IoSliceMut::new(&mut size)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes < size.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    let mut order = vec![0; usize::try_from(u32::from_be_bytes(size)).expect("u32 fits usize")];
    (&mut &*worker).read_exact(&mut order)?;
    Ok((serde_json::from_slice(&order)?, descriptors))
}

fn report(worker: &mut UnixStream, report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    worker.write_all(&line)
}

/// Starts the process in a process group of its own. Its descriptors are those of the order and the standard ones.
fn start(order: Order, descriptors: Vec<OwnedFd>) -> io::Result<Pid> {
    let Order { command, environment, directory, user, descriptors: numbers, .. } = order;
    let (program, arguments) =
        command.split_first().ok_or_else(|| io::Error::other("the command is empty"))?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(environment).process_group(0).stdin(Stdio::null());
    if let Some(directory) = directory {
        command.current_dir(directory);
    }
    if let Some((user, group)) = user {
        command.uid(user).gid(group);
    }
    let mappings = descriptors.into_iter().zip(numbers);
    let mappings = mappings.map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd }).collect();
    command.fd_mappings(mappings).map_err(io::Error::other)?;
    let process = command.spawn()?;
    Ok(Pid::from_child(&process))
}

/// Obeys the worker until the process has exited.
fn until_end(worker: &mut UnixStream, process: Pid, memory: Option<u64>) -> io::Result<Report> {
    let exit = pidfd_open(process, PidfdFlags::empty())?;
    let mut out_of_memory = None;
    let mut reaped = Instant::now();
    let mut has_worker = true;
    loop {
        let interval = if memory.is_some() { MEMORY_INTERVAL } else { REAP_INTERVAL };
        let timeout = Timespec { tv_sec: interval.as_secs() as i64, tv_nsec: interval.subsec_nanos().into() };
        let mut events = vec![PollFd::new(&exit, PollFlags::IN)];
        if has_worker {
            events.push(PollFd::new(&*worker, PollFlags::IN));
        }
        match poll(&mut events, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_exited = !events[0].revents().is_empty();
        let has_order = events.get(1).is_some_and(|event| !event.revents().is_empty());
        if has_order {
            let mut orders = [0; 64];
            let received = worker.read(&mut orders).unwrap_or_default();
            has_worker = received > 0;
            if !has_worker || orders[..received].contains(&KILL) {
                tree::kill_all(KILL_TIMEOUT);
            } else {
                let _ = kill_process_group(process, Signal::TERM);
            }
        }
        if has_exited && let Some((_, status)) = waitpid(Some(process), WaitOptions::NOHANG)? {
            return Ok(match (out_of_memory, status.terminating_signal()) {
                (Some((used, limit)), _) => Report::OutOfMemory { used, limit },
                (None, Some(signal)) => Report::Killed(signal),
                (None, None) => Report::Exited(status.exit_status().unwrap_or_default()),
            });
        }
        if let Some(limit) = memory
            && out_of_memory.is_none()
            && let Some(used) = tree::memory_beyond(limit, getpid())
        {
            out_of_memory = Some((used, limit));
            tree::kill_all(KILL_TIMEOUT);
        }
        if reaped.elapsed() >= REAP_INTERVAL {
            reaped = Instant::now();
            tree::reap_others(process);
        }
    }
}
