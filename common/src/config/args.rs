//! The flags of all Garenne programs.

use std::{
    fmt::{self, Display},
    path::PathBuf,
};

use clap::ValueHint;
use serde::Serialize;
use toml::Table;

use super::{Sources, secret};

/// Flags of all programs. Flatten them with `#[command(flatten)]`, then call [`CommonArgs::sources`].
///
/// [`super::load`] checks the values, not clap, so that an invalid value has the same error and exit code from every
/// source. URLs may contain passwords and need not be valid [`super::SecretUrl`]s: debug output masks them.
#[derive(Clone, Debug, Default, clap::Args, Serialize)]
#[command(next_help_heading = "Common options")]
pub struct CommonArgs {
    /// Broker with user, password and virtual host.
    // Not in the doc comment: rustdoc would parse the brackets around the URL as a link.
    #[arg(
        long,
        value_name = "URL",
        global = true,
        help = "Broker with user, password and virtual host [default: amqp://guest:guest@127.0.0.1:5672/%2f]"
    )]
    pub amqp_url: Option<UrlText>,
    /// Broker's management API, such as http://guest:guest@127.0.0.1:15672
    #[arg(long, value_name = "URL", global = true)]
    pub management_url: Option<UrlText>,
    /// First part of every exchange's and queue's name [default: garenne]
    #[arg(long, value_name = "NAME", global = true)]
    pub prefix: Option<String>,
    /// Log lines on stderr for people or for collectors: human or json [default: human]
    #[arg(long, value_name = "FORMAT", global = true)]
    pub log_format: Option<String>,
    /// Where the admin port listens [default: 127.0.0.1:9464, or a free port if that is taken]
    #[arg(long, value_name = "ADDR", global = true, hide = !cfg!(feature = "admin"))]
    pub admin: Option<String>,
    /// File with the token that the admin port's commands need; without one they are refused
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath, global = true, hide = !cfg!(feature = "admin"))]
    pub admin_token_file: Option<String>,
    /// Collector that spans are posted to, such as http://127.0.0.1:4318 [default: none, no spans]
    #[arg(long, value_name = "URL", global = true, hide = !cfg!(feature = "otlp"))]
    #[serde(skip)]
    pub otlp: Option<UrlText>,
    /// Settings in TOML; every setting is also an environment variable, such as GARENNE_AMQP_URL
    #[arg(long, value_name = "FILE", global = true)]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Show the settings as they resolve, secrets masked, and exit
    #[arg(long, global = true)]
    #[serde(skip)]
    pub print_config: bool,
}

/// The text of a URL, which may contain a password and need not be valid.
#[derive(Clone, Serialize)]
#[serde(transparent)]
pub struct UrlText(String);

impl From<String> for UrlText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// With the password masked.
impl fmt::Debug for UrlText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&secret::mask("url", &self.0), f)
    }
}

impl CommonArgs {
    /// These flags and the program's `own` flags, as sources for [`super::load`].
    pub fn sources(&self, mut own: Table) -> Sources {
        own.extend(Table::try_from(self).expect("flags are texts"));
        if let Some(endpoint) = &self.otlp {
            let otlp = Table::from_iter([("endpoint".to_owned(), endpoint.0.as_str().into())]);
            own.insert("otlp".into(), otlp.into());
        }
        Sources { file: self.config.clone(), flags: own }
    }
}

/// Inserts a flag's value, if it was given, under the name of its setting.
pub fn flag(flags: &mut Table, setting: &str, value: Option<impl Display>) {
    if let Some(value) = value {
        flags.insert(setting.to_owned(), toml::Value::String(value.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::config::{Common, ConfigError, LogFormat, Otlp, Settings, load_with};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        common: CommonArgs,
        #[command(subcommand)]
        command: Option<Command>,
    }

    #[derive(clap::Subcommand)]
    enum Command {
        Serve,
    }

    #[derive(Default, Serialize, Deserialize)]
    #[serde(default)]
    struct Config {
        #[serde(flatten)]
        common: Common,
    }

    impl Settings for Config {
        fn common_mut(&mut self) -> &mut Common {
            &mut self.common
        }
    }

    fn resolve(flags: &[&str]) -> Result<Common, ConfigError> {
        let cli = Cli::parse_from(["test"].iter().chain(flags));
        load_with::<Config>(cli.common.sources(toml::Table::new()), []).map(|config| config.common)
    }

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_sets_its_setting() {
        let common = resolve(&[
            "--amqp-url=amqps://u:p@broker/v",
            "--management-url=https://broker:15671",
            "--prefix=test",
            "--log-format=json",
            "--admin=0.0.0.0:9464",
            "--admin-token-file=/run/token",
            "--otlp=http://collector:4318",
        ]);
        let expected = Common {
            amqp_url: "amqps://u:p@broker/v".parse().unwrap(),
            management_url: Some("https://broker:15671".parse().unwrap()),
            prefix: "test".into(),
            log_format: LogFormat::Json,
            admin: Some(([0, 0, 0, 0], 9464).into()),
            admin_token_file: Some("/run/token".into()),
            otlp: Otlp { endpoint: Some("http://collector:4318".parse().unwrap()), ..Otlp::default() },
            ..Common::default()
        };
        assert_eq!(common.unwrap(), expected);
        assert_eq!(resolve(&[]).unwrap(), Common::default());
    }

    #[test]
    fn an_invalid_collector_url_names_its_flag() {
        assert_eq!(
            resolve(&["--otlp=collector:4317"]).unwrap_err().to_string(),
            "setting otlp.endpoint = \"collector:4317\" (flag --otlp) is refused: expected a URL such as \
             scheme://user:password@host:port/path (the scheme is missing)"
        );
    }

    #[test]
    fn debug_output_shows_no_password() {
        let cli = Cli::parse_from(["test", "--amqp-url", "amqp://u:s3cret@broker"]);
        let args = format!("{:?}", cli.common);
        assert!(args.contains(r#"amqp_url: Some("amqp://u:***@broker")"#), "{args}");
        let sources = format!("{:?}", cli.common.sources(toml::Table::new()));
        assert_eq!(sources, r#"Sources { file: None, flags: ["amqp_url"] }"#);
    }

    #[test]
    fn flags_may_follow_the_subcommand() {
        let cli = Cli::parse_from(["test", "serve", "--prefix", "late", "--print-config"]);
        assert!(matches!(cli.command, Some(Command::Serve)));
        assert_eq!(cli.common.prefix.as_deref(), Some("late"));
        assert!(cli.common.print_config);
    }

    #[test]
    fn an_invalid_value_of_a_flag_names_the_flag() {
        assert_eq!(
            resolve(&["--log-format", "xml"]).unwrap_err().to_string(),
            "setting log_format = \"xml\" (flag --log-format) is refused: expected human or json"
        );
        assert_eq!(
            resolve(&["--config", "/nonexistent.toml"]).unwrap_err().to_string(),
            "configuration file /nonexistent.toml (flag --config) cannot be used: \
             No such file or directory (os error 2)"
        );
    }
}
