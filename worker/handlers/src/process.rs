//! A handler's process, as the worker sees it.

use std::{
    fmt, io,
    io::IoSlice,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
    process::Stdio,
};

use garenne_common::supervise;
use rustix::{
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::{Pid, Signal, kill_process_group},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf, pipe},
    },
    process::{Child, Command},
    sync::watch,
};

use crate::{
    guardian::{self, Order, Report},
    logs::Logs,
};

/// A process that was started. Dropping it kills the process with everything below it.
pub(crate) struct Process {
    control: OwnedWriteHalf,
    ended: watch::Receiver<Option<Ended>>,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With this exit code.
    Exited(i32),
    /// By a signal.
    Killed(i32),
    /// By its guardian, when its memory exceeded the limit.
    OutOfMemory { used: u64, limit: u64 },
    /// With its guardian, which somebody else killed.
    WithGuardian,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Killed(signal) => match signal_hook::low_level::signal_name(*signal) {
                Some(name) => write!(f, "was ended by {name}"),
                None => write!(f, "was ended by signal {signal}"),
            },
            Self::OutOfMemory { used, limit } => {
                let [used, limit] = [used, limit].map(|bytes| *bytes as f64 / f64::from(1 << 20));
                write!(
                    f,
                    "was ended because it used {used:.1} MiB of memory, more than its limit of {limit:.1} MiB"
                )
            }
            Self::WithGuardian => f.write_str("was ended because its guardian was"),
        }
    }
}

impl Process {
    /// Starts a process and waits until its program is executed. It gets `descriptors` by the numbers of the order. The
    /// most likely error is that the program does not exist.
    pub(crate) async fn start(order: &Order, descriptors: Vec<OwnedFd>, logs: &Logs) -> io::Result<Self> {
        let (own, theirs) = StdStream::pair()?;
        let (stdout, stdout_of_child) = io::pipe()?;
        let (stderr, stderr_of_child) = io::pipe()?;
        // Without a copy of any descriptor of this process: all of them are closed on exec.
        let guardian = Command::new("/proc/self/exe")
            .arg(guardian::ARGUMENT)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(OwnedFd::from(stdout_of_child)))
            .stderr(Stdio::from(OwnedFd::from(stderr_of_child)))
            .spawn()?;
        logs.follow(pipe::Receiver::from_owned_fd(stdout.into())?, "stdout");
        logs.follow(pipe::Receiver::from_owned_fd(stderr.into())?, "stderr");
        own.set_nonblocking(true)?;
        let mut own = UnixStream::from_std(own)?;
        send_order(&mut own, order, &descriptors).await?;
        drop(descriptors);
        let (reports, control) = own.into_split();
        let mut reports = BufReader::new(reports);
        let process = match next_report(&mut reports).await? {
            Some(Report::Started(process)) => process,
            Some(Report::Failed(error)) => return Err(io::Error::other(error)),
            other => return Err(io::Error::other(format!("the guardian of the process reported {other:?}"))),
        };
        let (sender, ended) = watch::channel(None);
        let watching = async move {
            let end = end_of(reports, guardian, process).await;
            sender.send_replace(Some(end));
        };
        supervise::isolated("handler-process", watching).spawn().detach();
        Ok(Self { control, ended })
    }

    /// Sends SIGTERM to the process group.
    pub(crate) fn terminate(&self) {
        self.order(guardian::TERMINATE);
    }

    /// Sends SIGKILL to the process and everything below it.
    pub(crate) fn kill(&self) {
        self.order(guardian::KILL);
    }

    fn order(&self, order: u8) {
        // An error means that the guardian has exited, and with it the process: the socket always has room for a byte.
        let _ = self.control.try_write(&[order]);
    }

    /// Waits until the process and everything below it has ended.
    pub(crate) async fn ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        end.unwrap_or(Ended::WithGuardian)
    }
}

async fn send_order(guardian: &mut UnixStream, order: &Order, descriptors: &[OwnedFd]) -> io::Result<()> {
    let order = serde_json::to_vec(order)?;
    let size = u32::try_from(order.len()).map_err(io::Error::other)?.to_be_bytes();
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    guardian
        .async_io(tokio::io::Interest::WRITABLE, || {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(guardian::MOST_DESCRIPTORS))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
            Ok(sendmsg(&*guardian, &[IoSlice::new(&size)], &mut ancillary, SendFlags::NOSIGNAL)?)
        })
        .await?;
    guardian.write_all(&order).await
}

async fn next_report(reports: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Report>> {
    let mut line = String::new();
    match reports.read_line(&mut line).await? {
        0 => Ok(None),
        _ => Ok(Some(serde_json::from_str(&line)?)),
    }
}

/// Waits for the end of the process, and reaps the guardian.
async fn end_of(mut reports: BufReader<OwnedReadHalf>, mut guardian: Child, process: i32) -> Ended {
    let end = match next_report(&mut reports).await {
        Ok(Some(Report::Exited(code))) => Ended::Exited(code),
        Ok(Some(Report::Killed(signal))) => Ended::Killed(signal),
        Ok(Some(Report::OutOfMemory { used, limit })) => Ended::OutOfMemory { used, limit },
        Ok(_) | Err(_) => {
            // Its descendants are those of another process now; its group is all that is known of them.
            let _ = Pid::from_raw(process).map(|group| kill_process_group(group, Signal::KILL));
            Ended::WithGuardian
        }
    };
    let _ = guardian.wait().await;
    end
}
