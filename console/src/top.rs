//! `garenne top`: a live view of the fleet in the terminal.

mod screen;

use std::{
    io::{IsTerminal, stdout},
    time::Duration,
};

use garenne_common::{
    exit::{Exit, Failure},
    supervise,
};
use garenne_operator::operator::Operator;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::{sync::mpsc, time::interval};

use crate::monitor::FleetMonitor;
use screen::Screen;

/// Refresh interval.
const INTERVAL: Duration = Duration::from_secs(1);

/// Shows the fleet until the user presses `q`. While the broker cannot be reached, the problem is shown.
pub async fn run(operator: Operator, objective: Duration) -> Result<Exit, Failure> {
    if !stdout().is_terminal() {
        return Err(Failure::new(Exit::Usage, "top needs a terminal; `garenne status` prints the same once"));
    }
    let (monitor, _tasks) = FleetMonitor::start(operator, objective);
    let (sender, mut keys) = mpsc::unbounded_channel();
    // Reading an event blocks. The thread ends with the process.
    let read_keys = move || while event::read().is_ok_and(|event| sender.send(event).is_ok()) {};
    supervise::spawn_thread("terminal keys", read_keys).map_err(anyhow::Error::from)?.detach();
    let mut terminal = ratatui::try_init().map_err(anyhow::Error::from)?;
    let mut screen = Screen::default();
    let mut tick = interval(INTERVAL);
    let ended = loop {
        let now = monitor.now();
        if let Err(error) = terminal.draw(|frame| screen.draw(frame, &now)) {
            break Err(anyhow::Error::from(error).into());
        }
        tokio::select! {
            _ = tick.tick() => {}
            event = keys.recv() => match event {
                Some(event) if !is_quit(&event) => screen.handle(&event),
                _ => break Ok(Exit::Done),
            }
        }
    };
    ratatui::restore();
    ended
}

fn is_quit(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}
