//! Converts OS signals into commands. For `main` only: a library that catches signals takes them from its host.

use std::io;

use futures_util::{
    FutureExt, StreamExt,
    stream::{poll_fn, select_all},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use super::Mode;
use crate::supervise::{self, TaskHandle};

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

/// The signals that are caught.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caught {
    Terminate,
    Interrupt,
    Quit,
    Stop,
    Continue,
}

/// Maps signals to commands. The second stop signal escalates.
#[derive(Debug)]
struct Interpreter {
    mode: Mode,
    stopping: bool,
}

impl Interpreter {
    fn command(&mut self, caught: Caught) -> Command {
        match caught {
            Caught::Stop => Command::Quiet,
            Caught::Continue => Command::Resume,
            Caught::Terminate | Caught::Interrupt | Caught::Quit if self.stopping => Command::Escalate,
            Caught::Terminate | Caught::Interrupt => {
                self.stopping = true;
                Command::Shutdown(self.mode)
            }
            Caught::Quit => {
                self.stopping = true;
                Command::Shutdown(Mode::Hard)
            }
        }
    }
}

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
    forward(mode, sender.clone())?.detach();
    Ok((sender, receiver))
}

/// As [`commands`], into an existing channel. The task ends at the first signal after the receiver was dropped. If it
/// is aborted, the signals stay caught and are ignored.
///
/// # Errors
/// The OS refuses a handler.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn forward(mode: Mode, commands: mpsc::Sender<Command>) -> io::Result<TaskHandle<()>> {
    let catch = |kind, caught| {
        let mut signal = signal(kind)?;
        Ok::<_, io::Error>(poll_fn(move |cx| signal.poll_recv(cx)).map(move |()| caught))
    };
    // Handlers are installed before the task runs, so that a signal right after this call is not missed.
    let signals = select_all([
        catch(SignalKind::terminate(), Caught::Terminate)?,
        catch(SignalKind::interrupt(), Caught::Interrupt)?,
        catch(SignalKind::quit(), Caught::Quit)?,
        catch(SignalKind::from_raw(libc::SIGTSTP), Caught::Stop)?,
        catch(SignalKind::from_raw(libc::SIGCONT), Caught::Continue)?,
    ]);
    let state = (signals, Interpreter { mode, stopping: false }, commands);
    let forwarding = supervise::restarting("signals", state, |(signals, interpreter, commands)| {
        async move {
            while let Some(caught) = signals.next().await {
                if commands.send(interpreter.command(caught)).await.is_err() {
                    return;
                }
            }
        }
        .boxed()
    });
    Ok(forwarding.spawn())
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

    fn read(mode: Mode, caught: &[Caught]) -> Vec<Command> {
        let mut interpreter = Interpreter { mode, stopping: false };
        caught.iter().map(|&one| interpreter.command(one)).collect()
    }

    #[test]
    fn any_second_stop_signal_escalates() {
        assert_eq!(
            read(Mode::Light, &[Caught::Terminate, Caught::Interrupt, Caught::Interrupt]),
            [Command::Shutdown(Mode::Light), Command::Escalate, Command::Escalate]
        );
        assert_eq!(
            read(Mode::Soft, &[Caught::Interrupt, Caught::Quit]),
            [Command::Shutdown(Mode::Soft), Command::Escalate]
        );
    }

    #[test]
    fn quit_stops_hard_at_once() {
        assert_eq!(
            read(Mode::Light, &[Caught::Quit, Caught::Terminate]),
            [Command::Shutdown(Mode::Hard), Command::Escalate]
        );
    }

    #[test]
    fn quiet_and_resume_do_not_count_as_stop_signals() {
        assert_eq!(
            read(Mode::Soft, &[Caught::Stop, Caught::Continue, Caught::Terminate]),
            [Command::Quiet, Command::Resume, Command::Shutdown(Mode::Soft)]
        );
    }

    /// One test for all real signals: they go to the whole process, so two such tests would disturb each other.
    #[tokio::test]
    async fn the_signals_of_the_os_arrive_as_commands() {
        let (_sender, mut receiver) = commands(Mode::Soft).unwrap();
        for (name, command) in [
            ("TSTP", Command::Quiet),
            ("CONT", Command::Resume),
            ("TERM", Command::Shutdown(Mode::Soft)),
            ("INT", Command::Escalate),
            ("QUIT", Command::Escalate),
        ] {
            let pid = std::process::id().to_string();
            assert!(std::process::Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
            assert_eq!(receiver.recv().await, Some(command), "{name}");
        }
    }
}
