//! The command line.

use clap::{Args, Parser, Subcommand};
use garenne_common::config::{CommonArgs, ConfigError, flag, load};

use crate::settings::ProducerSettings;

/// Readings and tasks into Garenne: a gateway for sensors, and tools that publish, replay and
/// simulate.
#[derive(Debug, Parser)]
#[command(name = "garenne-producer", version, arg_required_else_help = true)]
pub struct Cli {
    /// Flags of every program.
    #[command(flatten)]
    pub common: CommonArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the sensor gateway: HTTP and the TCP line protocol on one port
    #[command(after_help = SERVE_EXAMPLE)]
    Serve(ServeArgs),
}

const SERVE_EXAMPLE: &str = "Example:
  garenne-producer serve --listen 0.0.0.0:8080 --amqp-url amqp://guest:guest@127.0.0.1:5672/%2f
  curl -i -H 'content-type: application/json' http://127.0.0.1:8080/v1/readings \\
       -d '{\"device\":\"d1\",\"metric\":\"temperature\",\"value\":21.5,\"unit\":\"Cel\"}'";

/// Flags of `serve`.
#[derive(Debug, Clone, Default, Args)]
pub struct ServeArgs {
    /// Where sensors connect [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Who runs their connections: connection-pool, and for comparison sequential or unbounded [default: connection-pool]
    #[arg(long, value_name = "SERVER")]
    pub server: Option<String>,
}

impl Cli {
    /// The settings that flags, environment and file add up to.
    ///
    /// # Errors
    /// The first setting that is refused.
    pub fn settings(&self) -> Result<ProducerSettings, ConfigError> {
        let mut flags = toml::Table::new();
        let Command::Serve(serve) = &self.command;
        {
            flag(&mut flags, "listen", serve.listen.as_ref());
            flag(&mut flags, "server", serve.server.as_ref());
        }
        load(self.common.sources(flags))
    }
}
