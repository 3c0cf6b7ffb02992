//! The flags that every Garenne program has.

use std::fmt::Display;
use std::path::PathBuf;

use super::Sources;

/// Flags of every program: `#[command(flatten)]` them, then [`CommonArgs::sources`].
///
/// Values are checked by [`super::load`] and not by clap, so that a bad value reads the same
/// wherever it came from, and ends with the code for configuration.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Common options")]
pub struct CommonArgs {
    /// Broker with user, password and virtual host [default: amqp://guest:guest@127.0.0.1:5672/%2f]
    #[arg(long, value_name = "URL", global = true)]
    pub amqp_url: Option<String>,
    /// Broker's management API, such as http://guest:guest@127.0.0.1:15672
    #[arg(long, value_name = "URL", global = true)]
    pub management_url: Option<String>,
    /// First part of every exchange's and queue's name [default: garenne]
    #[arg(long, value_name = "NAME", global = true)]
    pub prefix: Option<String>,
    /// Log lines on stderr for people or for collectors: human or json [default: human]
    #[arg(long, value_name = "FORMAT", global = true)]
    pub log_format: Option<String>,
    /// Where the admin port listens [default: 127.0.0.1:9464, or a free port if that is taken]
    #[arg(long, value_name = "ADDR", global = true)]
    pub admin: Option<String>,
    /// File with the token that the admin port's commands need; without one they are refused
    #[arg(long, value_name = "FILE", global = true)]
    pub admin_token_file: Option<PathBuf>,
    /// Settings in TOML; every setting is also an environment variable, such as GARENNE_AMQP_URL
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Show the settings as they resolve, secrets masked, and exit
    #[arg(long, global = true)]
    pub print_config: bool,
}

impl CommonArgs {
    /// These flags and the program's `own` as sources for [`super::load`].
    pub fn sources(&self, mut own: toml::Table) -> Sources {
        flag(&mut own, "amqp_url", self.amqp_url.as_ref());
        flag(&mut own, "management_url", self.management_url.as_ref());
        flag(&mut own, "prefix", self.prefix.as_ref());
        flag(&mut own, "log_format", self.log_format.as_ref());
        flag(&mut own, "admin", self.admin.as_ref());
        flag(&mut own, "admin_token_file", self.admin_token_file.as_ref().map(|path| path.display()));
        Sources { file: self.config.clone(), flags: own, ..Sources::default() }
    }
}

/// Puts a flag's value, if it was given, under the name of its setting.
pub fn flag(flags: &mut toml::Table, setting: &str, value: Option<impl Display>) {
    if let Some(value) = value {
        flags.insert(setting.to_owned(), toml::Value::String(value.to_string()));
    }
}
