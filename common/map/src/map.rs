//! A rule file: its rules in order, of which the first that matches counts.

use std::{
    cell::OnceCell,
    path::Path,
    sync::{Mutex, PoisonError},
};

use garenne_protocol::{
    sensor::{BadRecord, Limits, Record, Sifted, Timestamp, lenient},
    task::Source,
};

use crate::{
    builtin,
    compile::compile,
    document::Document,
    entry::RuleEntry,
    limits::{MAX_FILE_BYTES, MAX_PARTS, MAX_PAYLOAD_BYTES, MAX_RULES, MAX_SOURCE_BYTES, MAX_TEXT_BYTES},
    readings::{Finished, Readings},
    remainder::remainder,
    rule::{Action, Rule},
    sparkplug::{self, EdgeNodes},
    unmapped::{Reason, Unmapped},
};

/// The rules of a file, compiled.
///
/// [`Map::apply`] takes `&self`, so that threads can share a map. Only Sparkplug rules have a state: the names that
/// births announce. It is behind a lock.
#[derive(Debug)]
pub struct Map {
    parameters: Vec<String>,
    rules: Vec<Rule>,
    nodes: Mutex<EdgeNodes>,
}

/// Result of a rule for a payload.
#[derive(Debug, Clone, PartialEq)]
pub struct Mapped {
    /// The number of the rule, from 1.
    pub rule: usize,
    /// The readings. Empty if the rule skips the source or allows payloads without a number. A repeat of the payload is
    /// harmless for each record that has an id, or a time that is not assumed.
    pub records: Vec<Record>,
    /// How often the rule left out the values of the payload, or of an element of `each`, because `values_if` says that
    /// nothing was measured.
    pub unmeasured: usize,
    /// The values that are refused, in the order of their positions. A position counts the readings and the refused
    /// values before it.
    pub refused: Vec<BadRecord>,
}

/// Most refused values that [`Mapped::refusal`] names.
const MAX_NAMED: usize = 5;

impl Mapped {
    /// The values that are refused, on one line.
    pub fn refusal(&self) -> String {
        let named: Vec<_> = self.refused.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        let more = self.refused.len().saturating_sub(MAX_NAMED);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        format!("rule {}: {}{more}", self.rule, named.join("; "))
    }

    /// The codes of the values that are refused.
    pub fn codes(&self) -> Vec<&'static str> {
        self.refused.iter().map(|refused| refused.code.code()).collect()
    }

    /// The records by position, as [`sift_readings`](garenne_protocol::sensor::parse::sift_readings) returns them.
    pub fn sifted(self) -> Sifted {
        let mut slots = Vec::with_capacity(self.records.len() + self.refused.len());
        let mut records = self.records.into_iter();
        for refused in &self.refused {
            let before = refused.index.saturating_sub(slots.len());
            slots.extend(records.by_ref().take(before).map(Some));
            slots.push(None);
        }
        slots.extend(records.map(Some));
        Sifted { slots, refused: self.refused, notes: Vec::new() }
    }
}

/// A rule file that cannot be used. The text is one line: file, rule, field, problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("map {file}: {problem}")]
pub struct InvalidMap {
    /// The file's path, or `builtin:` and the name.
    pub file: String,
    /// The rule, the field and the problem.
    pub problem: String,
}

impl Map {
    /// Loads a shipped map, such as `builtin:zigbee2mqtt`, or a file.
    pub fn load(name: &str) -> Result<Self, InvalidMap> {
        let invalid = |problem: String| InvalidMap { file: name.to_owned(), problem };
        if let Some(builtin) = name.strip_prefix(builtin::PREFIX) {
            let builtin = builtin::find(builtin).ok_or_else(|| {
                let names: Vec<_> = builtin::BUILTIN.iter().map(|map| map.name).collect();
                invalid(format!("no such map; there are {}", names.join(", ")))
            })?;
            return Self::parse(name, builtin.text);
        }
        let path = Path::new(name);
        // Checked before it is read, so that a device or a huge file does not fill the memory.
        let size = path.metadata().map_err(|error| invalid(error.to_string()))?.len();
        if size > MAX_FILE_BYTES as u64 {
            return Err(invalid(too_large(size)));
        }
        let text = std::fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
        Self::parse(name, &text)
    }

    /// Compiles rules in TOML. `file` is the name for errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, InvalidMap> {
        parse(text)
            .map(|(parameters, rules)| Self { parameters, rules, nodes: Mutex::default() })
            .map_err(|problem| InvalidMap { file: file.to_owned(), problem })
    }

    /// Maps a payload, or says why no reading comes out. `now` is the time of readings without one. A value that is
    /// refused does not take the others with it.
    pub fn apply(
        &self,
        source: Source<'_>,
        payload: &[u8],
        now: Timestamp,
        limits: &Limits,
    ) -> Result<Mapped, Unmapped> {
        self.explain(source, payload, now, limits, &mut |_, _| {})
    }

    /// As [`Map::apply`]. `skipped` is told of each value that becomes no reading, and why.
    pub fn explain(
        &self,
        source: Source<'_>,
        payload: &[u8],
        now: Timestamp,
        limits: &Limits,
        skipped: &mut dyn FnMut(&str, &str),
    ) -> Result<Mapped, Unmapped> {
        let (rule, finished, _) = self.run(source, payload, Readings::new(limits, now, skipped))?;
        let Finished { records, refused, unmeasured, .. } = finished;
        Ok(Mapped { rule, records, unmeasured, refused })
    }

    /// What remains of a payload that [`Map::apply`] refuses values of: `null` in place of the values that became
    /// readings, in JSON and in Sparkplug B. A payload in another form has one value.
    pub fn remainder(&self, source: Source<'_>, payload: &[u8], now: Timestamp, limits: &Limits) -> Vec<u8> {
        let mut ignored = |_: &str, _: &str| {};
        let readings = Readings::new(limits, now, &mut ignored).tracking();
        let run = self.run(source, payload, readings);
        let Ok((rule, _, taken)) = run else { return payload.to_vec() };
        match self.rules[rule - 1].action {
            Action::Sparkplug(_) => sparkplug::remainder(payload, &taken),
            Action::Json(_) | Action::Skip => remainder(payload, &taken),
        }
    }

    /// Returns the number of the rule, what became of the values, and the positions of those that became readings, if
    /// they are tracked.
    fn run(
        &self,
        source: Source<'_>,
        payload: &[u8],
        readings: Readings<'_>,
    ) -> Result<(usize, Finished, Vec<usize>), Unmapped> {
        let in_no_rule = |reason| Unmapped { rule: None, reason };
        if source.text().len() > MAX_SOURCE_BYTES {
            return Err(in_no_rule(Reason::LongSource(source.text().len())));
        }
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(in_no_rule(Reason::TooLarge(payload.len())));
        }
        let repaired = OnceCell::new();
        // Parsed when the first rule needs it; the inner option is none if the payload is empty.
        let mut document: Option<Option<Document<'_>>> = None;
        for (number, rule) in (1..).zip(&self.rules) {
            let Some(captures) = rule.matches(source) else { continue };
            let in_rule = |reason| Unmapped { rule: Some(number), reason };
            if document.is_none() && rule.needs_document() {
                let parsed = Document::parse(payload).or_else(|reason| {
                    let Reason::Malformed(_) = reason else { return Err(reason) };
                    let text = repaired.get_or_init(|| lenient::repaired(payload));
                    Document::parse(text).map_err(|_| reason)
                });
                document = Some(parsed.map_err(in_rule)?);
            }
            let document = document.as_ref().and_then(Option::as_ref);
            if !rule.applies_to(document) {
                continue;
            }
            let mut readings = readings;
            let finished = match &rule.action {
                Action::Skip => readings.finish(true),
                Action::Json(action) => {
                    let run =
                        document.map_or(Ok(()), |document| action.run(document, &captures, &mut readings));
                    run.and_then(|()| readings.finish(action.common.allow_empty))
                }
                Action::Sparkplug(action) => {
                    // A panic while the lock is held leaves the names of births as they were or replaced.
                    let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
                    nodes.run(action, &captures, payload, readings)
                }
            };
            let mut finished = finished.map_err(in_rule)?;
            let mut taken = std::mem::take(&mut finished.taken);
            if let (Action::Json(_), Some(document), false) = (&rule.action, document, taken.is_empty()) {
                taken = document.positions(&taken);
            }
            return Ok((number, finished, taken));
        }
        Err(in_no_rule(Reason::NoRule))
    }

    /// The query parameters that senders of webhooks add. Over HTTP any other one is refused.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.parameters.iter().map(String::as_str)
    }

    /// The patterns of a rule, for messages. `number` is that of [`Mapped::rule`].
    pub fn pattern(&self, number: usize) -> &str {
        number.checked_sub(1).and_then(|index| self.rules.get(index)).map_or("", |rule| &rule.label)
    }
}

/// The query parameters and the rules of a file.
fn parse(text: &str) -> Result<(Vec<String>, Vec<Rule>), String> {
    if text.len() > MAX_FILE_BYTES {
        return Err(too_large(text.len() as u64));
    }
    let mut file: toml::Table = toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        format!("line {line}: {}", one_line(error.message()))
    })?;
    let entries = match file.remove("map") {
        Some(toml::Value::Array(entries)) => entries,
        Some(_) => return Err("map: expected a list of tables, [[map]]".to_owned()),
        None => return Err("map: there is no rule, [[map]]".to_owned()),
    };
    let parameters = file.remove("parameters").map(|names| names.try_into().map_err(|_| names_expected()));
    let parameters: Vec<String> = parameters.transpose()?.unwrap_or_default();
    if parameters.len() > MAX_PARTS || parameters.iter().any(|name| name.len() > MAX_TEXT_BYTES) {
        return Err(names_expected());
    }
    if let Some(field) = file.keys().next() {
        return Err(format!("unknown field {field:?}; a file has only parameters and [[map]]"));
    }
    if !(1..=MAX_RULES).contains(&entries.len()) {
        return Err(format!("{} rules; expected 1 to {MAX_RULES}", entries.len()));
    }
    let mut rules: Vec<Rule> = Vec::with_capacity(entries.len());
    for (number, entry) in (1..).zip(entries) {
        if rules.last().is_some_and(Rule::takes_everything) {
            return Err(format!("rule {number}: is never reached: rule {} takes every payload", number - 1));
        }
        let entry: Result<RuleEntry, toml::de::Error> = entry.try_into();
        let rule = entry.map_err(|error| in_field(&error.to_string())).and_then(compile);
        rules.push(rule.map_err(|error| format!("rule {number}: {error}"))?);
    }
    Ok((parameters, rules))
}

fn names_expected() -> String {
    format!("parameters: expected a list of at most {MAX_PARTS} names of query parameters")
}

fn too_large(size: u64) -> String {
    format!("the file is {size} bytes long; {MAX_FILE_BYTES} are allowed")
}

/// An error of the toml crate with its field first. The crate adds the field as a last line, "in `scale`".
fn in_field(error: &str) -> String {
    let error = error.trim().replace("expected f64", "expected a number");
    let field = error.rsplit_once("\nin `").and_then(|(text, field)| Some((text, field.strip_suffix('`')?)));
    field.map_or_else(|| one_line(&error), |(text, field)| format!("{field}: {}", one_line(text)))
}

fn one_line(text: &str) -> String {
    text.trim().replace('\n', "; ")
}

#[cfg(test)]
mod tests;
