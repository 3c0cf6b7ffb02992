//! `garenne operators`: lines for the file of the dashboard's operators.

use std::io::{BufRead, Read, stdin};

use clap::Subcommand;
use garenne_common::{
    exit::{Exit, Failure},
    stdout,
};

use super::{QUEUES_RIGHT, Role, check_name, password::PasswordHash};

/// Most bytes that are read of standard input.
const MAX_INPUT: u64 = 4096;

/// `garenne operators …`.
#[derive(Clone, Debug, Subcommand)]
pub enum OperatorsVerb {
    /// Read a password from standard input and print a line for the file --operators
    #[command(
        after_help = "Example:\n  systemd-ask-password | garenne operators hash anna --role operator >> operators"
    )]
    Hash {
        /// The person's name
        name: String,
        /// What the person may do
        #[arg(long, value_name = "ROLE", default_value = "viewer")]
        role: Role,
        /// The person may also list the tasks in queues
        #[arg(long)]
        queues: bool,
    },
}

/// Runs `garenne operators …`. It needs no broker.
pub fn run(verb: &OperatorsVerb) -> Result<Exit, Failure> {
    let OperatorsVerb::Hash { name, role, queues } = verb;
    let refused = |problem: String| Failure::new(Exit::Usage, problem);
    check_name(name).map_err(refused)?;
    let mut password = String::new();
    stdin().lock().take(MAX_INPUT).read_line(&mut password).map_err(anyhow::Error::from)?;
    let hash = PasswordHash::new(password.trim_end_matches(['\r', '\n'])).map_err(refused)?;
    let right = if *queues { format!(" {QUEUES_RIGHT}") } else { String::new() };
    stdout::print_line(format_args!("{name} {role} {}{right}", hash.as_str()))?;
    Ok(Exit::Done)
}
