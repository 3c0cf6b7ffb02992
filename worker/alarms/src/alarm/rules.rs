//! The file of rules.

use std::{collections::HashSet, ops::RangeInclusive, path::Path, time::Duration};

use garenne_common::{config::parse_toml, pattern::NamePattern};
use garenne_protocol::sensor::Unit;
use serde::Deserialize;

use super::condition::{Condition, Hold, Micros, Point, Sample};
use garenne_readings::toml_file::{self, every_device, finite, unit};

/// Most rules in a file.
const MAX_RULES: usize = 1000;

/// So many equal readings in a row are stuck even if they took less time than `stuck_for`.
const MAX_STUCK_READINGS: usize = 4096;

/// So many readings in a row beyond a limit raise an alarm even if they took less time than `for`.
const MAX_HELD_READINGS: usize = 65_536;

/// Most devices that a rule expects.
const MAX_EXPECTED: usize = 10_000;

/// The range of the durations. Silence is looked for once a second at most.
const DURATIONS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(30 * 24 * 3600);

/// The rules of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rules(Vec<Rule>);

/// How urgent an alarm is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing has to be done.
    Info,
    /// Something has to be done in working hours.
    #[default]
    Warning,
    /// Something has to be done now.
    Critical,
}

impl Severity {
    /// The name, as in the file of rules.
    pub fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// One rule.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Rule {
    /// The name, unique in the file.
    pub name: String,
    /// The unit to which readings are converted; none compares them as stored.
    pub unit: Option<Unit>,
    /// The condition that raises an alarm.
    pub condition: Condition,
    /// The webhook that receives the alert, by its name in the settings; none is the default one.
    pub webhook: Option<String>,
    /// The metric of the readings that it applies to.
    pub metric: String,
    /// The devices that it applies to.
    pub device: NamePattern,
    /// How urgent its alarms are.
    pub severity: Severity,
    /// The time after which the alert of an open alarm is repeated; none sends it once.
    pub remind_every: Option<Duration>,
    /// For a rule about silence: devices of which something must be stored at all; of a prefix, one.
    pub expected: Vec<NamePattern>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesFile {
    #[serde(default)]
    rule: Vec<RuleEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    name: String,
    #[serde(default = "every_device")]
    device: String,
    metric: String,
    unit: Option<String>,
    above: Option<f64>,
    below: Option<f64>,
    clear: Option<f64>,
    faster_than: Option<f64>,
    #[serde(default, with = "humantime_serde")]
    per: Option<Duration>,
    more_than: Option<f64>,
    #[serde(default, rename = "in", with = "humantime_serde")]
    within: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    stuck_for: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    silent_for: Option<Duration>,
    #[serde(default, rename = "for", with = "humantime_serde")]
    hold: Option<Duration>,
    #[serde(default)]
    severity: Severity,
    #[serde(default, with = "humantime_serde")]
    remind_every: Option<Duration>,
    #[serde(default)]
    expected: Vec<String>,
    webhook: Option<String>,
}

impl Rules {
    /// Reads a file of rules. An error names the first problem.
    pub fn load(path: &Path) -> Result<Self, String> {
        toml_file::load("rules file", path, Self::parse)
    }

    /// Parses rules in TOML. An error names the rule, the value, and the allowed values.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: RulesFile = parse_toml(text)?;
        if file.rule.len() > MAX_RULES {
            return Err(format!("{} rules; at most {MAX_RULES} are allowed", file.rule.len()));
        }
        let mut names = HashSet::new();
        let mut rules = Vec::with_capacity(file.rule.len());
        for (index, entry) in file.rule.into_iter().enumerate() {
            let position = format!("rule {} ({:?})", index + 1, entry.name);
            if !names.insert(entry.name.clone()) {
                return Err(format!("{position}: duplicate rule name"));
            }
            rules.push(Rule::from_entry(entry).map_err(|message| format!("{position}: {message}"))?);
        }
        Ok(Self(rules))
    }

    /// The name and the webhook of each rule that names a webhook.
    pub fn webhooks(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|rule| Some((rule.name.as_str(), rule.webhook.as_deref()?)))
    }

    /// The rules, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }

    /// The rules that apply to a device's metric, in the order of the file.
    pub fn matching<'a>(&'a self, device: &'a str, metric: &'a str) -> impl Iterator<Item = &'a Rule> + 'a {
        self.0.iter().filter(move |rule| rule.metric == metric && rule.matches(device))
    }
}

impl RuleEntry {
    fn condition(&self) -> Result<Condition, String> {
        let Self { above, below, clear, faster_than, per, more_than, within, stuck_for, silent_for, .. } =
            *self;
        if clear.is_some() && above.is_none() && below.is_none() {
            return Err("clear: only allowed with above or below".to_owned());
        }
        let hold = match self.hold {
            Some(_) if above.is_none() && below.is_none() => {
                return Err("for: only allowed with above or below".to_owned());
            }
            Some(time) => Some(Hold { duration: micros("for", time)?, readings: MAX_HELD_READINGS }),
            None => None,
        };
        if per.is_some() && faster_than.is_none() {
            return Err("per: only allowed with faster_than".to_owned());
        }
        if within.is_some() && more_than.is_none() {
            return Err("in: only allowed with more_than".to_owned());
        }
        let limits = |name: &str, limit: f64| -> Result<(f64, f64), String> {
            Ok((finite(name, limit)?, finite("clear", clear.unwrap_or(limit))?))
        };
        match (above, below, faster_than, more_than, stuck_for, silent_for) {
            (Some(above), None, None, None, None, None) => match limits("above", above)? {
                (limit, clear) if clear > limit => {
                    Err(format!("clear: {clear} is greater than above ({limit})"))
                }
                (limit, clear) => Ok(Condition::Above { limit, clear, hold }),
            },
            (None, Some(below), None, None, None, None) => match limits("below", below)? {
                (limit, clear) if clear < limit => {
                    Err(format!("clear: {clear} is less than below ({limit})"))
                }
                (limit, clear) => Ok(Condition::Below { limit, clear, hold }),
            },
            (None, None, Some(limit), None, None, None) => {
                let limit = finite("faster_than", limit)?;
                if limit < 0.0 {
                    return Err(format!(
                        "faster_than: {limit}; expected 0 or more, rises and falls both count"
                    ));
                }
                let per = per.ok_or("faster_than: per is missing, such as per = \"10m\"")?;
                Ok(Condition::RateOfChange { limit, per: micros("per", per)? })
            }
            (None, None, None, Some(limit), None, None) => {
                let limit = finite("more_than", limit)?;
                if limit < 0.0 {
                    return Err(format!("more_than: {limit}; expected 0 or more"));
                }
                let within = within.ok_or("more_than: in is missing, such as in = \"1h\"")?;
                Ok(Condition::Consumption { limit, within: micros("in", within)? })
            }
            (None, None, None, None, Some(duration), None) => {
                let duration = micros("stuck_for", duration)?;
                Ok(Condition::Stuck { duration, readings: MAX_STUCK_READINGS })
            }
            (None, None, None, None, None, Some(duration)) => {
                micros("silent_for", duration)?;
                Ok(Condition::Silent { duration })
            }
            _ => {
                let numbers = [above, below, faster_than, more_than].into_iter().flatten().count();
                let durations = [stuck_for, silent_for].into_iter().flatten().count();
                Err(format!(
                    "{} conditions; expected exactly one of above, below, faster_than, more_than, stuck_for and silent_for",
                    numbers + durations
                ))
            }
        }
    }
}

fn micros(name: &str, duration: Duration) -> Result<Micros, String> {
    if !DURATIONS.contains(&duration) {
        return Err(format!("{name}: {duration:?}; expected 1 second to 30 days"));
    }
    Ok(i64::try_from(duration.as_micros()).expect("30 days fit into 64 bits"))
}

fn pattern(field: &str, text: &str) -> Result<NamePattern, String> {
    NamePattern::parse(text).map_err(|error| format!("{field}: {error}"))
}

impl Rule {
    fn from_entry(entry: RuleEntry) -> Result<Self, String> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=64).contains(&entry.name.len()) || !entry.name.bytes().all(allowed) {
            return Err("name: expected 1 to 64 of a-z A-Z 0-9 . _ -".to_owned());
        }
        if entry.metric.is_empty() {
            return Err("metric: must not be empty".to_owned());
        }
        let device = pattern("device", &entry.device)?;
        let (unit, condition) = (unit(entry.unit.as_deref())?, entry.condition()?);
        if !entry.expected.is_empty() && !matches!(condition, Condition::Silent { .. }) {
            return Err("expected: only allowed with silent_for".to_owned());
        }
        if entry.expected.len() > MAX_EXPECTED {
            let count = entry.expected.len();
            return Err(format!("expected: {count} devices; at most {MAX_EXPECTED} are allowed"));
        }
        if let Some(every) = entry.remind_every {
            micros("remind_every", every)?;
        }
        let expected = |text: &String| match pattern("expected", text)? {
            expected if device.matches(expected.as_str()) => Ok(expected),
            other => Err(format!("expected: {other:?} does not match device = {device:?}")),
        };
        let expected = entry.expected.iter().map(expected).collect::<Result<_, _>>()?;
        let RuleEntry { name, metric, webhook, severity, remind_every, .. } = entry;
        Ok(Self { name, unit, condition, webhook, metric, device, severity, remind_every, expected })
    }

    fn matches(&self, device: &str) -> bool {
        self.device.matches(device)
    }

    /// The sample in the rule's unit; none if it measures another quantity. A sample of unknown unit is taken as it
    /// is. A zero without a start time says nothing about consumption.
    pub fn convert(&self, sample: &Sample) -> Option<Point> {
        let is_zero = sample.value == 0.0 && sample.start.is_none();
        if is_zero && matches!(self.condition, Condition::Consumption { .. }) {
            return None;
        }
        let value = match (sample.unit, self.unit) {
            (Some(from), Some(to)) => from.convert(sample.value, to).ok()?,
            _ => sample.value,
        };
        Some(Point { at: sample.at, value, start: sample.start, zero: sample.zero })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_match_by_device_pattern_and_metric() {
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
            rules.matching(device, metric).map(|rule| rule.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names("greenhouse-7", "temperature"), ["too-hot", "frost", "window", "dead"]);
        assert_eq!(names("cellar", "temperature"), ["frost", "window"]);
        assert!(names("greenhouse-7", "humidity").is_empty());
    }

    #[test]
    fn an_invalid_rule_is_refused_with_its_name_and_the_allowed_values() {
        let refused = |lines: &str| {
            Rules::parse(&format!("[[rule]]\nname = \"r\"\nmetric = \"m\"\n{lines}")).unwrap_err()
        };
        assert_eq!(
            refused(""),
            "rule 1 (\"r\"): 0 conditions; expected exactly one of above, below, faster_than, more_than, stuck_for and silent_for"
        );
        assert_eq!(refused("above = 1\nclear = 2"), "rule 1 (\"r\"): clear: 2 is greater than above (1)");
        assert_eq!(refused("below = 1\nclear = 0"), "rule 1 (\"r\"): clear: 0 is less than below (1)");
        assert_eq!(refused("above = nan"), "rule 1 (\"r\"): above: NaN is not a finite number");
        assert_eq!(
            refused("faster_than = 1"),
            "rule 1 (\"r\"): faster_than: per is missing, such as per = \"10m\""
        );
        assert_eq!(
            refused("stuck_for = \"1ms\""),
            "rule 1 (\"r\"): stuck_for: 1ms; expected 1 second to 30 days"
        );
        assert_eq!(refused("more_than = 5"), "rule 1 (\"r\"): more_than: in is missing, such as in = \"1h\"");
        assert_eq!(
            refused("more_than = -1\nin = \"1h\""),
            "rule 1 (\"r\"): more_than: -1; expected 0 or more"
        );
        assert_eq!(refused("above = 1\nin = \"1h\""), "rule 1 (\"r\"): in: only allowed with more_than");
        assert_eq!(refused("above = 1\nper = \"1m\""), "rule 1 (\"r\"): per: only allowed with faster_than");
        assert_eq!(
            refused("stuck_for = \"1m\"\nfor = \"1m\""),
            "rule 1 (\"r\"): for: only allowed with above or below"
        );
        assert_eq!(
            refused("above = 1\nfor = \"31days\""),
            "rule 1 (\"r\"): for: 2678400s; expected 1 second to 30 days"
        );
        assert_eq!(
            refused("above = 1\nremind_every = \"0s\""),
            "rule 1 (\"r\"): remind_every: 0ns; expected 1 second to 30 days"
        );
        assert_eq!(
            refused("above = 1\nexpected = [\"a\"]"),
            "rule 1 (\"r\"): expected: only allowed with silent_for"
        );
        assert_eq!(
            refused("silent_for = \"1m\"\ndevice = \"a-*\"\nexpected = [\"a-1\", \"b-*\"]"),
            "rule 1 (\"r\"): expected: \"b-*\" does not match device = \"a-*\""
        );
        let unknown = refused("above = 1\nseverity = \"urgent\"");
        assert!(
            unknown.contains("unknown variant `urgent`, expected one of `info`, `warning`, `critical`"),
            "{unknown}"
        );
        assert_eq!(
            refused("above = 1\ndevice = \"a*b\""),
            "rule 1 (\"r\"): device: \"a*b\"; expected a name, or a prefix and \"*\" at its end"
        );
        assert!(refused("abov = 1").starts_with("line 4: unknown field `abov`"), "{}", refused("abov = 1"));
        let twice = "[[rule]]\nname = \"r\"\nmetric = \"m\"\nabove = 1\n".repeat(2);
        assert_eq!(Rules::parse(&twice).unwrap_err(), "rule 2 (\"r\"): duplicate rule name");
    }
}
