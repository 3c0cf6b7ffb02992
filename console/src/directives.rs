//! Directives to the fleet over RabbitMQ: stop tasks, pause groups, drain or quiet workers.

mod cli;
mod send;

pub use cli::{GroupVerb, StopArgs, TaskVerb, WorkerArgs, pause, send, stop};
pub use send::{ALL_WORKERS, WorkerCommand, send_command, set_group_paused, stop_tasks};
