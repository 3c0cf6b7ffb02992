//! `garenne handler`: checks of handlers in other languages.

use std::time::Duration;

use clap::{Args, Subcommand};
use garenne_common::{
    config::Size,
    exit::{Exit, Failure},
    stdout,
};
use garenne_handlers::{CommandLine, check::Check};
use garenne_operator::args::duration;
use serde_json::Value;

/// What to do with a handler.
#[derive(Debug, Subcommand)]
pub enum HandlerVerb {
    /// Run a program through the cases of the handler protocol, without a broker; exit code 1 if one fails
    #[command(
        after_help = "Example:\n  garenne handler check --payload '{\"width\":200}' -- python3 resize.py"
    )]
    Check(CheckArgs),
}

/// How a program is checked.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Kind of the tasks [default: the first that the program has]
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// Payload of the tasks, JSON
    #[arg(long, value_name = "JSON", value_parser = json, default_value = "{}")]
    payload: Value,
    /// Time that the program may take to load
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    start_timeout: Duration,
    /// Time that the program may take to answer a task
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    task_timeout: Duration,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))
}

/// Runs the command.
pub async fn run(verb: HandlerVerb) -> Result<Exit, Failure> {
    let HandlerVerb::Check(CheckArgs { kind, payload, start_timeout, task_timeout, command }) = verb;
    let max_body = Size::mib(4).bytes();
    let command = CommandLine(command);
    let check = Check { command, kind, payload, start_timeout, task_timeout, max_body };
    let mut printed = Ok(());
    let results = check.run(|checked| printed = stdout::print(format!("{checked}\n"))).await;
    printed?;
    let failed = results.iter().filter(|checked| checked.problem.is_some()).count();
    let not_run = match Check::cases() - results.len() {
        0 => String::new(),
        others => format!(", {others} not run: the program must load first"),
    };
    stdout::print(format!("{} cases, {failed} failed{not_run}\n", Check::cases()))?;
    Ok(if failed == 0 { Exit::Done } else { Exit::Failed })
}
