//! Converts OS signals into commands. For `main` only: a library that catches signals takes them from its host.

use std::{io, mem};

use futures_util::{
    FutureExt, StreamExt,
    stream::{poll_fn, select_all},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use super::Mode;
use crate::supervise;

/// An operator's command to a running process, by signal or through the admin port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Stop in this mode. During a shutdown, the stricter of the two modes applies.
    Shutdown(Mode),
    /// Stop hard now, in place of the current mode.
    Escalate,
    /// Stop the intake and keep running.
    Quiet,
    /// Resume the intake.
    Resume,
}

/// Capacity of the command channel: more than an operator sends at once, and signals coalesce.
const COMMAND_CAPACITY: usize = 16;

/// Catches SIGTERM, SIGINT, SIGQUIT, SIGTSTP and SIGCONT from now on, and returns the channel that receives their
/// commands. Give clones of the sender to the admin port.
///
/// The first SIGTERM or SIGINT is [`Command::Shutdown`] in `mode`, SIGQUIT the same in
/// [`Mode::Hard`]; each later one is [`Command::Escalate`]. SIGTSTP is [`Command::Quiet`], SIGCONT
/// [`Command::Resume`]. The binary decides what an `Escalate` during a hard stop does.
///
/// # Errors
/// The OS refuses a handler.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn commands(mode: Mode) -> io::Result<(mpsc::Sender<Command>, mpsc::Receiver<Command>)> {
    let (sender, receiver) = mpsc::channel(COMMAND_CAPACITY);
    let catch = |kind, command| {
        let mut signal = signal(kind)?;
        Ok::<_, io::Error>(poll_fn(move |cx| signal.poll_recv(cx)).map(move |()| command))
    };
    // Handlers are installed before the task runs, so that a signal right after this call is not missed.
    let signals = select_all([
        catch(SignalKind::terminate(), Command::Shutdown(mode))?,
        catch(SignalKind::interrupt(), Command::Shutdown(mode))?,
        catch(SignalKind::quit(), Command::Shutdown(Mode::Hard))?,
        catch(SignalKind::from_raw(libc::SIGTSTP), Command::Quiet)?,
        catch(SignalKind::from_raw(libc::SIGCONT), Command::Resume)?,
    ]);
    let state = (signals, false, sender.clone());
    let forwarding = supervise::restarting("signals", state, |(signals, stopping, commands)| {
        async move {
            while let Some(command) = signals.next().await {
                if commands.send(escalated(command, stopping)).await.is_err() {
                    return;
                }
            }
        }
        .boxed()
    });
    forwarding.spawn().detach();
    Ok((sender, receiver))
}

/// The command of a signal. Every stop signal after the first escalates; `stopping` records the first.
fn escalated(command: Command, stopping: &mut bool) -> Command {
    match command {
        Command::Shutdown(_) if mem::replace(stopping, true) => Command::Escalate,
        command => command,
    }
}

/// Resolves at the next stop command, for programs that do not pause: the commands to do so are ignored.
pub async fn stop_requested(commands: &mut mpsc::Receiver<Command>) {
    while let Some(command) = commands.recv().await {
        if matches!(command, Command::Shutdown(_) | Command::Escalate) {
            return;
        }
    }
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(caught: &[Command]) -> Vec<Command> {
        let mut stopping = false;
        caught.iter().map(|&one| escalated(one, &mut stopping)).collect()
    }

    const SOFT: Command = Command::Shutdown(Mode::Soft);
    const HARD: Command = Command::Shutdown(Mode::Hard);

    #[test]
    fn any_second_stop_signal_escalates() {
        assert_eq!(read(&[SOFT, SOFT, SOFT]), [SOFT, Command::Escalate, Command::Escalate]);
        assert_eq!(read(&[SOFT, HARD]), [SOFT, Command::Escalate]);
        assert_eq!(read(&[HARD, SOFT]), [HARD, Command::Escalate]);
    }

    #[test]
    fn quiet_and_resume_do_not_count_as_stop_signals() {
        let caught = [Command::Quiet, Command::Resume, SOFT];
        assert_eq!(read(&caught), caught);
    }

    /// One test for all real signals: they go to the whole process, so two such tests would disturb each other.
    #[tokio::test]
    async fn the_signals_of_the_os_arrive_as_commands() {
        let kill = |name| {
            let pid = std::process::id().to_string();
            std::process::Command::new("kill").args(["-s", name, &pid]).status().unwrap().success()
        };
        let (_sender, mut receiver) = commands(Mode::Soft).unwrap();
        for (name, command) in [
            ("TSTP", Command::Quiet),
            ("CONT", Command::Resume),
            ("TERM", Command::Shutdown(Mode::Soft)),
            ("INT", Command::Escalate),
            ("QUIT", Command::Escalate),
        ] {
            assert!(kill(name));
            assert_eq!(receiver.recv().await, Some(command), "{name}");
        }
        let (_sender, mut receiver) = commands(Mode::Soft).unwrap();
        assert!(kill("QUIT"));
        assert_eq!(receiver.recv().await, Some(HARD));
    }
}
