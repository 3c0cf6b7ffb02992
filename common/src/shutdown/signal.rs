//! OS signals as commands. For `main` only: a library that catches signals takes them from its host.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Mode;

/// What an operator wants of a running process, by signal or through the admin port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Stop in this mode; during a stop, the stricter of the two modes holds.
    Shutdown(Mode),
    /// Stop hard now, whatever mode is under way.
    Escalate,
    /// Intake stops, the process stays.
    Quiet,
    /// Intake goes on.
    Resume,
}

/// Commands that can wait; an operator never has more in hand, and signals coalesce anyway.
const WAITING_COMMANDS: usize = 16;

/// The signals a process answers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caught {
    Terminate,
    Interrupt,
    Quit,
    Stop,
    Continue,
}

/// Remembers whether a stop was asked for: the same signal means more the second time.
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

/// Catches SIGTERM, SIGINT, SIGQUIT, SIGTSTP and SIGCONT from now on and answers the channel their
/// commands arrive on; give clones of the sender to the admin port.
///
/// The first SIGTERM or SIGINT is [`Command::Shutdown`] in `mode`, SIGQUIT the same in
/// [`Mode::Hard`]; each later one is [`Command::Escalate`]. SIGTSTP is [`Command::Quiet`], SIGCONT
/// [`Command::Resume`]. What an `Escalate` after a hard stop means is the binary's decision.
///
/// # Errors
/// The OS refuses a handler.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn commands(mode: Mode) -> io::Result<(mpsc::Sender<Command>, mpsc::Receiver<Command>)> {
    let (sender, receiver) = mpsc::channel(WAITING_COMMANDS);
    forward(mode, sender.clone())?;
    Ok((sender, receiver))
}

/// As [`commands`], into a channel that exists already. The task ends when the receiver is dropped
/// and another signal comes; aborting it leaves the signals caught and unanswered.
///
/// # Errors
/// The OS refuses a handler.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn forward(mode: Mode, commands: mpsc::Sender<Command>) -> io::Result<JoinHandle<()>> {
    // Handlers are installed here and not in the task: a signal that comes right after must count.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut stop = signal(SignalKind::from_raw(libc::SIGTSTP))?;
    let mut resume = signal(SignalKind::from_raw(libc::SIGCONT))?;
    let mut interpreter = Interpreter { mode, stopping: false };
    Ok(tokio::spawn(async move {
        loop {
            let caught = tokio::select! {
                Some(()) = terminate.recv() => Caught::Terminate,
                Some(()) = interrupt.recv() => Caught::Interrupt,
                Some(()) = quit.recv() => Caught::Quit,
                Some(()) = stop.recv() => Caught::Stop,
                Some(()) = resume.recv() => Caught::Continue,
                else => return,
            };
            if commands.send(interpreter.command(caught)).await.is_err() {
                return;
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mode: Mode, caught: &[Caught]) -> Vec<Command> {
        let mut interpreter = Interpreter { mode, stopping: false };
        caught.iter().map(|&one| interpreter.command(one)).collect()
    }

    #[test]
    fn a_second_stop_signal_escalates_whichever_it_is() {
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
    fn quiet_and_resume_spend_no_stop() {
        assert_eq!(
            read(Mode::Soft, &[Caught::Stop, Caught::Continue, Caught::Terminate]),
            [Command::Quiet, Command::Resume, Command::Shutdown(Mode::Soft)]
        );
    }

    /// One test for all real signals: they go to the whole process, so two such tests would hear
    /// each other.
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
