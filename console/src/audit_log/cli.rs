//! The command line of `garenne audit`.

use std::time::Duration;

use clap::Subcommand;
use garenne_operator::args::duration;

/// `garenne audit …`.
#[derive(Clone, Debug, Subcommand)]
pub enum AuditVerb {
    /// List operators' commands, oldest first: who, what, when and with which result
    #[command(
        after_help = "Examples:\n  garenne audit list --since 7d --command dead\n  garenne audit list --json | jq .actor"
    )]
    List {
        /// How far back
        #[arg(long, value_name = "TIME", default_value = "1d", value_parser = duration)]
        since: Duration,
        /// Only commands that begin with this, such as dead or dead.replay
        #[arg(long, value_name = "COMMAND")]
        command: Option<String>,
        /// Only commands of this person
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
        /// Print one JSON object per record, two for each command
        #[arg(long)]
        json: bool,
    },
}
