//! The flags of lanes.

use toml::{Table, Value};

use crate::config::{ConfigError, Invalid, flag};

/// The key beside the lanes' names that selects the lanes this process works on: the field [`Lanes::only`].
const ONLY: &str = "only";

/// The settings that `--lane` accepts after the name.
const FIELDS: [&str; 4] = ["prefetch", "concurrency", "default_kind", "consumer_timeout"];

/// Flags of programs that consume. Flatten them with `#[command(flatten)]`, then call [`LaneArgs::add_to`].
#[derive(Debug, Clone, Default, clap::Args)]
pub struct LaneArgs {
    /// Work on this lane and no other not named, with these settings; repeatable [default: the lanes whose bindings or default_kind are of kinds that the worker has, and the catch-all lane]
    #[arg(long = "lane", value_name = "NAME[:prefetch=N,concurrency=MIN..MAX]")]
    pub lanes: Vec<String>,
    /// Tasks held at once on each lane, which is its AMQP prefetch and local queue size [default: 200]
    #[arg(long, value_name = "N")]
    pub prefetch: Option<String>,
    /// Tasks running at once on each lane [default: 1..4]
    #[arg(long, value_name = "MIN..MAX")]
    pub concurrency: Option<String>,
}

impl LaneArgs {
    /// Adds these flags to a program's own. The program's settings list `prefetch` and `concurrency` in
    /// [`crate::config::Settings::PER_LANE`].
    ///
    /// # Errors
    /// A `--lane` cannot be parsed.
    pub fn add_to(&self, flags: &mut Table) -> Result<(), ConfigError> {
        flag(flags, "prefetch", self.prefetch.as_ref());
        flag(flags, "concurrency", self.concurrency.as_ref());
        if self.lanes.is_empty() {
            return Ok(());
        }
        let mut lanes = Table::new();
        let mut only = Vec::new();
        for text in &self.lanes {
            let (name, settings) = parse(text)?;
            if lanes.insert(name.clone(), Value::Table(settings)).is_some() {
                return Err(refused(text, format!("lane {name} is given twice")));
            }
            only.push(Value::String(name));
        }
        lanes.insert(ONLY.to_owned(), Value::Array(only));
        flags.insert("lanes".to_owned(), Value::Table(lanes));
        Ok(())
    }
}

fn parse(text: &str) -> Result<(String, Table), ConfigError> {
    let (name, settings) = text.split_once(':').unwrap_or((text, ""));
    if name.is_empty() || name == ONLY {
        return Err(refused(text, "expected NAME[:prefetch=N,concurrency=MIN..MAX]".to_owned()));
    }
    let mut table = Table::new();
    for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(refused(
                text,
                format!("{setting:?} has no value, expected NAME[:prefetch=N,concurrency=MIN..MAX]"),
            ));
        };
        let key = key.trim().replace('-', "_");
        if !FIELDS.contains(&key.as_str()) {
            return Err(refused(text, format!("{key} is unknown, expected one of {}", FIELDS.join(", "))));
        }
        if table.insert(key.clone(), Value::String(value.trim().to_owned())).is_some() {
            return Err(refused(text, format!("{key} is given twice")));
        }
    }
    Ok((name.to_owned(), table))
}

fn refused(text: &str, problem: String) -> ConfigError {
    Invalid::new("lanes", format_args!("{text:?}"), problem).given_by("flag --lane")
}
