//! The file of rules.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    time::Duration,
};

use garenne_common::config::parse_toml;
use garenne_protocol::sensor::Unit;
use serde::Deserialize;

use super::Micros;

/// Most rules in a file.
pub(crate) const MOST_RULES: usize = 1000;

/// The shortest and longest `per`, `stuck_for` and `silent_for`: a second, as the retry ladder can wait
/// for nothing shorter, and 30 days.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// The rules of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rules {
    rules: Vec<Rule>,
    by_metric: HashMap<String, Vec<usize>>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rule {
    pub(crate) name: String,
    device: Devices,
    pub(crate) unit: Option<Unit>,
    pub(crate) condition: Condition,
    pub(crate) webhook: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
enum Devices {
    All,
    One(String),
    Beginning(String),
}

/// What makes a reading, or its absence, worth an alarm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Condition {
    /// Higher than `limit`; over at `clear` or less.
    Above { limit: f64, clear: f64 },
    /// Lower than `limit`; over at `clear` or more.
    Below { limit: f64, clear: f64 },
    /// Changes by more than `limit` in `per`.
    Faster { limit: f64, per: Micros },
    /// Does not change for `span`.
    Stuck { span: Micros },
    /// Does not come for `span`.
    Silent { span: Duration },
}

/// Why a file of rules was not taken. One line.
#[derive(Debug, thiserror::Error)]
#[error("rules file {}: {message}", .path.display())]
pub struct BadRules {
    /// The file.
    pub path: PathBuf,
    /// Which rule or line, which value, what is allowed.
    pub message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(default)]
    device: Option<String>,
    metric: String,
    unit: Option<String>,
    above: Option<f64>,
    below: Option<f64>,
    clear: Option<f64>,
    faster_than: Option<f64>,
    #[serde(default, with = "humantime_serde")]
    per: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    stuck_for: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    silent_for: Option<Duration>,
    webhook: Option<String>,
}

impl Rules {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, or a rule is wrong; the first thing found.
    pub fn load(path: &Path) -> Result<Self, BadRules> {
        let bad = |message| BadRules { path: path.to_owned(), message };
        let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
        Self::parse(&text).map_err(bad)
    }

    /// Reads rules.
    ///
    /// # Errors
    /// Not TOML, or a rule is wrong: which one, which value, what is allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = parse_toml(text)?;
        if file.rule.len() > MOST_RULES {
            return Err(format!("{} rules, {MOST_RULES} are allowed", file.rule.len()));
        }
        let mut names = HashSet::new();
        let mut rules = Self::default();
        for (index, entry) in file.rule.into_iter().enumerate() {
            let place = format!("rule {} ({:?})", index + 1, entry.name);
            if !names.insert(entry.name.clone()) {
                return Err(format!("{place}: there is a rule of this name already"));
            }
            let metric = entry.metric.clone();
            let rule = Rule::check(entry).map_err(|message| format!("{place}: {message}"))?;
            rules.by_metric.entry(metric).or_default().push(rules.rules.len());
            rules.rules.push(rule);
        }
        Ok(rules)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The webhooks that rules name.
    pub(crate) fn webhooks(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rules.iter().filter_map(|rule| Some((rule.name.as_str(), rule.webhook.as_deref()?)))
    }

    /// The rules for a device's metric.
    pub(crate) fn of<'a>(&'a self, device: &'a str, metric: &str) -> impl Iterator<Item = &'a Rule> + 'a {
        let places = self.by_metric.get(metric).map(Vec::as_slice).unwrap_or_default();
        places.iter().map(|place| &self.rules[*place]).filter(move |rule| rule.device.has(device))
    }
}

impl Devices {
    fn has(&self, device: &str) -> bool {
        match self {
            Self::All => true,
            Self::One(name) => name == device,
            Self::Beginning(beginning) => device.starts_with(beginning),
        }
    }
}

impl Rule {
    fn check(entry: Entry) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=64).contains(&entry.name.len()) || !entry.name.bytes().all(plain) {
            return Err("name: expected 1 to 64 of a-z A-Z 0-9 . _ -".to_owned());
        }
        if entry.metric.is_empty() {
            return Err("metric may not be empty".to_owned());
        }
        let device = match entry.device.as_deref() {
            None | Some("*") => Devices::All,
            Some("") => return Err("device may not be empty; \"*\" is every device".to_owned()),
            Some(text) => match text.strip_suffix('*') {
                Some(beginning) if !beginning.contains('*') => Devices::Beginning(beginning.to_owned()),
                None if !text.contains('*') => Devices::One(text.to_owned()),
                _ => return Err(format!("device: {text:?} has a star elsewhere than at its end")),
            },
        };
        let unit = entry.unit.as_deref().map(Unit::parse).transpose();
        let unit = unit.map_err(|error| format!("unit: {error}"))?;
        let condition = Condition::check(&entry)?;
        Ok(Self { name: entry.name, device, unit, condition, webhook: entry.webhook })
    }
}

impl Condition {
    fn check(entry: &Entry) -> Result<Self, String> {
        let Entry { above, below, clear, faster_than, per, stuck_for, silent_for, .. } = entry;
        let given = [
            above.is_some(),
            below.is_some(),
            faster_than.is_some(),
            stuck_for.is_some(),
            silent_for.is_some(),
        ];
        let count = given.iter().filter(|given| **given).count();
        if count != 1 {
            return Err(format!(
                "{count} conditions; exactly one of above, below, faster_than, stuck_for and silent_for is needed"
            ));
        }
        if clear.is_some() && above.is_none() && below.is_none() {
            return Err("clear belongs to above or below".to_owned());
        }
        if per.is_some() && faster_than.is_none() {
            return Err("per belongs to faster_than".to_owned());
        }
        let finite = |name: &str, value: f64| {
            if value.is_finite() { Ok(value) } else { Err(format!("{name}: {value} is not a finite number")) }
        };
        if let Some(limit) = *above {
            let (limit, clear) = (finite("above", limit)?, finite("clear", clear.unwrap_or(limit))?);
            return if clear <= limit {
                Ok(Self::Above { limit, clear })
            } else {
                Err(format!("clear: {clear} is higher than above, {limit}"))
            };
        }
        if let Some(limit) = *below {
            let (limit, clear) = (finite("below", limit)?, finite("clear", clear.unwrap_or(limit))?);
            return if clear >= limit {
                Ok(Self::Below { limit, clear })
            } else {
                Err(format!("clear: {clear} is lower than below, {limit}"))
            };
        }
        if let Some(limit) = *faster_than {
            let limit = finite("faster_than", limit)?;
            if limit < 0.0 {
                return Err(format!("faster_than: {limit} is negative; falls and rises both count"));
            }
            let per = per.ok_or("faster_than needs per, such as \"10m\"")?;
            return Ok(Self::Faster { limit, per: span("per", per)? });
        }
        if let Some(stuck) = *stuck_for {
            return Ok(Self::Stuck { span: span("stuck_for", stuck)? });
        }
        let silent = silent_for.expect("one of them is given");
        span("silent_for", silent)?;
        Ok(Self::Silent { span: silent })
    }

    /// How far back readings matter beyond the last few: twice, so that a stretch that was judged before
    /// is judged the same again.
    pub(crate) fn lookback(&self) -> Micros {
        match self {
            Self::Above { .. } | Self::Below { .. } | Self::Silent { .. } => 0,
            Self::Faster { per: span, .. } | Self::Stuck { span } => 2 * span,
        }
    }

    /// What an alarm says was broken.
    pub(crate) fn describe(&self) -> String {
        let shown =
            |micros: &Micros| humantime::format_duration(Duration::from_micros(micros.unsigned_abs()));
        match self {
            Self::Above { limit, .. } => format!("above {limit}"),
            Self::Below { limit, .. } => format!("below {limit}"),
            Self::Faster { limit, per } => format!("changes by more than {limit} in {}", shown(per)),
            Self::Stuck { span } => format!("has not changed for {}", shown(span)),
            Self::Silent { span } => format!("silent for {}", humantime::format_duration(*span)),
        }
    }
}

fn span(name: &str, span: Duration) -> Result<Micros, String> {
    if (Duration::from_secs(1)..=LONGEST).contains(&span) {
        Ok(i64::try_from(span.as_micros()).expect("30 days fit"))
    } else {
        Err(format!("{name}: {span:?}; 1 second to 30 days are allowed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_documentation_is_taken() {
        let rules = Rules::parse(
            r#"
            [[rule]]
            name = "too-hot"
            device = "greenhouse-*"
            metric = "temperature"
            unit = "Cel"
            above = 35.0
            clear = 33.0
            webhook = "ops"
            [[rule]]
            name = "frost"
            metric = "temperature"
            below = 2
            [[rule]]
            name = "window"
            metric = "temperature"
            faster_than = 5.0
            per = "10m"
            [[rule]]
            name = "dead"
            device = "greenhouse-7"
            metric = "temperature"
            stuck_for = "30m"
            "#,
        )
        .unwrap();
        let names = |device: &str, metric: &str| {
            rules.of(device, metric).map(|rule| rule.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names("greenhouse-7", "temperature"), ["too-hot", "frost", "window", "dead"]);
        assert_eq!(names("cellar", "temperature"), ["frost", "window"]);
        assert!(names("greenhouse-7", "humidity").is_empty());
    }

    #[test]
    fn a_bad_rule_is_named_with_what_is_allowed() {
        let refused = |lines: &str| {
            Rules::parse(&format!("[[rule]]\nname = \"r\"\nmetric = \"m\"\n{lines}")).unwrap_err()
        };
        assert_eq!(
            refused(""),
            "rule 1 (\"r\"): 0 conditions; exactly one of above, below, faster_than, stuck_for and silent_for is needed"
        );
        assert_eq!(refused("above = 1\nclear = 2"), "rule 1 (\"r\"): clear: 2 is higher than above, 1");
        assert_eq!(refused("below = 1\nclear = 0"), "rule 1 (\"r\"): clear: 0 is lower than below, 1");
        assert_eq!(refused("above = nan"), "rule 1 (\"r\"): above: NaN is not a finite number");
        assert_eq!(refused("faster_than = 1"), "rule 1 (\"r\"): faster_than needs per, such as \"10m\"");
        assert_eq!(
            refused("stuck_for = \"1ms\""),
            "rule 1 (\"r\"): stuck_for: 1ms; 1 second to 30 days are allowed"
        );
        assert_eq!(refused("above = 1\nper = \"1m\""), "rule 1 (\"r\"): per belongs to faster_than");
        assert_eq!(
            refused("above = 1\ndevice = \"a*b\""),
            "rule 1 (\"r\"): device: \"a*b\" has a star elsewhere than at its end"
        );
        assert!(refused("abov = 1").starts_with("line 4: unknown field `abov`"), "{}", refused("abov = 1"));
        let twice = "[[rule]]\nname = \"r\"\nmetric = \"m\"\nabove = 1\n".repeat(2);
        assert_eq!(Rules::parse(&twice).unwrap_err(), "rule 2 (\"r\"): there is a rule of this name already");
    }
}
