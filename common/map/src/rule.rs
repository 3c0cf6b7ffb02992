//! A rule, compiled, and what it makes of a JSON or text payload.

use std::fmt::Write as _;

use garenne_protocol::{sensor::Timestamp, task::Source};

use crate::{
    document::{Document, Node, Value},
    pattern::{Captures, Pattern},
    plan::{Field, Fields, Name, Numbers, ReadingPlan, Units, step},
    pointer::Pointer,
    readings::{ElementProperties, Readings},
    template::{Alternatives, Scope},
    time::TimeFormats,
    unmapped::Reason,
};

#[derive(Debug)]
pub(crate) struct Rule {
    /// The patterns, for messages.
    pub(crate) label: String,
    pub(crate) patterns: Patterns,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) action: Action,
}

/// The patterns of a rule. Without any, it matches every source.
#[derive(Debug, Default)]
pub(crate) struct Patterns {
    pub(crate) topic: Option<Pattern>,
    pub(crate) path: Option<Pattern>,
    /// One for `routing_key`, and one for `topic` with dots instead of slashes.
    pub(crate) routing_keys: Vec<Pattern>,
}

/// Conditions on the payload.
#[derive(Debug)]
pub(crate) enum Condition {
    /// There is a value, or null.
    Has(Pointer),
    /// There is a value, or null, at one of these.
    HasAny(Vec<Pointer>),
    Equals(Pointer, Value<'static>),
}

/// Effect of a rule.
#[derive(Debug)]
pub(crate) enum Action {
    /// No reading, and no error.
    Skip,
    Json(Box<JsonAction>),
    Sparkplug(Box<SparkplugAction>),
}

/// How readings come from JSON or text.
#[derive(Debug)]
pub(crate) struct JsonAction {
    /// An object or an array whose members are mapped one by one.
    pub(crate) each: Option<Pointer>,
    pub(crate) device: Name,
    pub(crate) time: Option<TimePlan>,
    pub(crate) id: Option<Alternatives>,
    pub(crate) values: Option<ValuesPlan>,
    pub(crate) readings: Vec<ExplicitReading>,
    pub(crate) common: Common,
}

/// An object or an array below which each number is a reading.
#[derive(Debug)]
pub(crate) struct ValuesPlan {
    pub(crate) pointer: Pointer,
    /// Where the payload needs a value that is not null or empty. Without one, nothing below `pointer` was measured.
    pub(crate) conditions: Vec<Pointer>,
    pub(crate) plan: ReadingPlan,
}

/// Fields that both forms of payloads have.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) numbers: Numbers,
    pub(crate) units: Units,
    pub(crate) fields: Fields,
    /// Whether a payload without a number is no error.
    pub(crate) allow_empty: bool,
}

#[derive(Debug)]
pub(crate) struct TimePlan {
    pub(crate) from: Alternatives,
    pub(crate) formats: TimeFormats,
    /// Whether a time that is missing or invalid is the time of arrival.
    pub(crate) or_now: bool,
}

/// A reading whose value the rule names.
#[derive(Debug)]
pub(crate) struct ExplicitReading {
    pub(crate) value: Alternatives,
    pub(crate) plan: ReadingPlan,
    /// Whether a value that is missing or not a number is no error.
    pub(crate) optional: bool,
}

/// How readings come from Sparkplug B. The captures are group, message type, edge node, and device.
#[derive(Debug)]
pub(crate) struct SparkplugAction {
    pub(crate) device: Name,
    pub(crate) plan: ReadingPlan,
    pub(crate) common: Common,
}

impl Rule {
    /// The captures if a pattern matches the source.
    pub(crate) fn matches<'a>(&self, source: Source<'a>) -> Option<Captures<'a>> {
        let Patterns { topic, path, routing_keys } = &self.patterns;
        if topic.is_none() && path.is_none() && routing_keys.is_empty() {
            return Some(Captures::default());
        }
        let patterns = match source {
            Source::Topic(_) => topic.as_slice(),
            Source::Path(_) => path.as_slice(),
            Source::RoutingKey(_) => routing_keys,
        };
        patterns.iter().find_map(|pattern| pattern.matches(source.text()))
    }

    /// Whether the rule looks at the JSON of a payload.
    pub(crate) fn needs_document(&self) -> bool {
        !self.conditions.is_empty() || matches!(self.action, Action::Json(_))
    }

    /// Whether no payload reaches the rules behind this one.
    pub(crate) fn takes_everything(&self) -> bool {
        let Patterns { topic, path, routing_keys } = &self.patterns;
        self.conditions.is_empty() && topic.is_none() && path.is_none() && routing_keys.is_empty()
    }

    /// Whether the payload has what the rule requires.
    pub(crate) fn applies_to(&self, document: Option<&Document<'_>>) -> bool {
        let found = |pointer: &Pointer| {
            document.and_then(|document| Some(&document.node(pointer.find(document, 0)?).value))
        };
        self.conditions.iter().all(|condition| match condition {
            Condition::Has(pointer) => found(pointer).is_some(),
            Condition::HasAny(pointers) => pointers.iter().any(|pointer| found(pointer).is_some()),
            Condition::Equals(pointer, expected) => match (found(pointer), expected) {
                (None, _) => false,
                (Some(Value::Integer(integer)), Value::Number(number))
                | (Some(Value::Number(number)), Value::Integer(integer)) => *integer as f64 == *number,
                (Some(found), expected) => found == expected,
            },
        })
    }
}

impl JsonAction {
    /// Adds the readings of a payload. Without `each`, a problem of device, id or time is one of the payload; any other
    /// refuses a value, or an element of `each`.
    pub(crate) fn run(
        &self,
        document: &Document<'_>,
        captures: &Captures<'_>,
        readings: &mut Readings<'_>,
    ) -> Result<(), Reason> {
        let positions = self.common.fields.find(document);
        let run = Run { action: self, document, captures, positions };
        let Some(each) = &self.each else {
            return run.element(0, "", readings);
        };
        let at = container("each", each, document, 0)?;
        let in_array = document.node(at).value == Value::Array;
        for (index, child) in document.children(at).enumerate() {
            let key = step(&document.node(child).key, index, in_array);
            run.element(child, &key, readings).or_else(|reason| readings.refuse(&key, reason))?;
        }
        Ok(())
    }
}

/// The position of an object or an array.
fn container(
    field: &'static str,
    pointer: &Pointer,
    document: &Document<'_>,
    element: usize,
) -> Result<usize, Reason> {
    let what = || pointer.described().to_owned();
    let at = pointer.find(document, element).ok_or_else(|| Reason::Missing { field, what: what() })?;
    let node = document.node(at);
    if node.is_container() {
        return Ok(at);
    }
    let (what, given) = (what(), node.value.to_string());
    Err(Reason::WrongType { field, what, given, expected: "an object or an array" })
}

/// Properties that a value inherits from those above it.
#[derive(Clone, Copy)]
struct Inherited<'r> {
    plan: &'r ReadingPlan,
    /// The rule's entry about the array that the value is in.
    field: Option<&'r Field>,
}

struct Run<'r, 'a> {
    action: &'r JsonAction,
    document: &'r Document<'a>,
    captures: &'r Captures<'a>,
    /// The rule's entries about the values at these positions.
    positions: Vec<(usize, &'r Field)>,
}

impl Run<'_, '_> {
    fn scope<'s>(&'s self, element: usize, key: &'s str, name: &'s str) -> Scope<'s, 's> {
        Scope { captures: self.captures, document: Some(self.document), element, key, name }
    }

    /// Maps one element of `each`, or the whole payload.
    fn element(&self, at: usize, key: &str, readings: &mut Readings<'_>) -> Result<(), Reason> {
        let JsonAction { device, id, values, readings: explicit, .. } = self.action;
        let scope = self.scope(at, key, "");
        let (time, time_assumed) = self.time(&scope, readings)?;
        let id = match id.as_ref().map(|id| id.text("id", &scope)) {
            None | Some(Err(Reason::Missing { .. })) => None,
            Some(id) => Some(id?.into_owned()),
        };
        let properties = ElementProperties { device: device.text("device", &scope)?, time, time_assumed, id };
        for reading in explicit {
            let taken = self.explicit(reading, &properties, &scope, readings);
            taken.or_else(|reason| readings.refuse(&metric_of(&reading.plan, &scope), reason))?;
        }
        if let Some(ValuesPlan { pointer, conditions, plan }) = values {
            if let Some(absent) = conditions.iter().find(|condition| self.is_absent(condition, at)) {
                readings.unmeasured(pointer.described(), absent.described());
                return Ok(());
            }
            let top = container("values", pointer, self.document, at)?;
            let mut path = String::with_capacity(64);
            readings.reserve(self.document.size_of(top));
            self.spread(top, &mut path, Inherited { plan, field: None }, &properties, (at, key), readings)?;
        }
        Ok(())
    }

    /// Whether there is no value, or one that is null or empty.
    fn is_absent(&self, pointer: &Pointer, element: usize) -> bool {
        let Some(at) = pointer.find(self.document, element) else { return true };
        match &self.document.node(at).value {
            Value::Null => true,
            Value::Text(text) => text.trim().is_empty(),
            Value::Array | Value::Object => self.document.size_of(at) == 0,
            Value::Bool(_) | Value::Integer(_) | Value::Number(_) | Value::NotFinite => false,
        }
    }

    /// Adds a reading whose value the rule names.
    fn explicit(
        &self,
        ExplicitReading { value, plan, optional }: &ExplicitReading,
        properties: &ElementProperties,
        scope: &Scope<'_, '_>,
        readings: &mut Readings<'_>,
    ) -> Result<(), Reason> {
        let common = &self.action.common;
        let value = match value.value("value", scope) {
            Err(Reason::Missing { what, .. }) if *optional => {
                readings.skip(&what, "missing");
                return Ok(());
            }
            value => value?,
        };
        match common.numbers.read(&value, true, &plan.none) {
            Ok(Some(number)) => {
                readings.push(properties, plan, &common.units, scope, number)?;
                readings.take(value.address());
            }
            Ok(None) => readings.skip(&metric_of(plan, scope), "no value"),
            Err(_) if *value == Value::NotFinite => return Err(Reason::NotFinite(metric_of(plan, scope))),
            Err(_) if *optional => readings.skip(&metric_of(plan, scope), "not a number"),
            Err(given) => return Err(Reason::NotANumber { metric: metric_of(plan, scope), given }),
        }
        Ok(())
    }

    /// Adds a reading for each number below a value.
    fn spread(
        &self,
        at: usize,
        path: &mut String,
        inherited: Inherited<'_>,
        properties: &ElementProperties,
        (element, key): (usize, &str),
        readings: &mut Readings<'_>,
    ) -> Result<(), Reason> {
        let common = &self.action.common;
        let in_array = self.document.node(at).value == Value::Array;
        for (index, child) in self.document.children(at).enumerate() {
            let node = self.document.node(child);
            let field = self.field(child, node).or(inherited.field);
            let length = path.len();
            let dot = if path.is_empty() { "" } else { "." };
            // Writing to a string cannot fail.
            let _ = if in_array { write!(path, "{dot}{index}") } else { write!(path, "{dot}{}", node.key) };
            match field {
                Some(Field::Ignore) => readings.skip(path, "ignored"),
                field if node.is_container() => {
                    let field = field.filter(|_| node.value == Value::Array);
                    let inherited = Inherited { field, ..inherited };
                    self.spread(child, path, inherited, properties, (element, key), readings)?;
                }
                field => {
                    let (plan, is_named) = match field {
                        Some(Field::Plan(plan)) => (plan, true),
                        _ => (inherited.plan, false),
                    };
                    match common.numbers.read(&node.value, is_named, &plan.none) {
                        Ok(Some(number)) => {
                            let scope = self.scope(element, key, path);
                            match readings.push(properties, plan, &common.units, &scope, number) {
                                Ok(()) => readings.take(node.value.address()),
                                Err(reason) => readings.refuse(path, reason)?,
                            }
                        }
                        Ok(None) => readings.skip(path, "no value"),
                        Err(_) if node.value == Value::NotFinite => {
                            readings.refuse(path, Reason::NotFinite(path.clone()))?;
                        }
                        Err(given) if is_named => {
                            readings.refuse(path, Reason::NotANumber { metric: path.clone(), given })?;
                        }
                        Err(_) => readings.skip(path, "a text that is not in `enum`"),
                    }
                }
            }
            path.truncate(length);
        }
        Ok(())
    }

    fn field(&self, at: usize, node: &Node<'_>) -> Option<&Field> {
        let by_position = self.positions.iter().find(|(position, _)| *position == at);
        by_position.map(|(_, field)| *field).or_else(|| self.action.common.fields.names.get(&*node.key))
    }

    /// The time of an element, and whether it is not from the payload.
    fn time(&self, scope: &Scope<'_, '_>, readings: &Readings<'_>) -> Result<(Timestamp, bool), Reason> {
        let Some(TimePlan { from, formats, or_now }) = &self.action.time else {
            return Ok((readings.now, true));
        };
        let value = from.value("time", scope);
        let given = value.as_deref().ok().and_then(Value::as_integer);
        let time = value.and_then(|value| formats.read(&value).map_err(Reason::BadTime));
        match time {
            Ok(time) => {
                readings.check_time(time, given)?;
                Ok((time, false))
            }
            Err(_) if *or_now => Ok((readings.now, true)),
            Err(reason) => Err(reason),
        }
    }
}

/// The metric for a message.
fn metric_of(plan: &ReadingPlan, scope: &Scope<'_, '_>) -> String {
    plan.metric.text("metric", scope).map_or_else(|_| "the reading".to_owned(), |metric| metric.to_string())
}
