//! Compiles the fields of a rule file, and refuses what is invalid.

use std::{collections::BTreeMap, sync::Arc};

use garenne_protocol::sensor::{Unit, parse::check_name};

mod numbers;
use numbers::{check_plan, counter_plan, finite};

use crate::{
    document::Value,
    entry::{FieldEntry, NoValueEntry, OneOrMore, PayloadFormat, ReadingEntry, RuleEntry},
    limits::MAX_ENTRIES,
    pattern::Pattern,
    plan::{Field, Fields, Name, NoValues, Numbers, ReadingPlan, UnitPlan, Units},
    pointer::Pointer,
    rule::{
        Action, Common, Condition, ExplicitReading, JsonAction, Patterns, Rule, SparkplugAction, TimePlan,
        ValuesPlan,
    },
    template::{Allowed, Alternatives},
    time::TimeFormats,
};

/// Compiles a rule. An error names the field and the problem.
pub(crate) fn compile(entry: RuleEntry) -> Result<Rule, String> {
    let lengths = [
        ("has", entry.has.len()),
        ("has_any", entry.has_any.len()),
        ("values_if", entry.values_if.len()),
        ("equals", entry.equals.len()),
        ("ignore", entry.ignore.len()),
        ("none", entry.none.len()),
        ("enum", entry.numbers.len()),
        ("units", entry.units.len()),
        ("fields", entry.fields.len()),
        ("reading", entry.reading.len()),
    ];
    if let Some((field, length)) = lengths.iter().find(|(_, length)| *length > MAX_ENTRIES) {
        return Err(format!("{field}: {length} entries; at most {MAX_ENTRIES}"));
    }
    let (label, patterns, captures) = patterns(&entry)?;
    let conditions = conditions(&entry)?;
    let is_sparkplug = entry.format == PayloadFormat::SparkplugB;
    let action = if entry.skip {
        refuse_others(&entry, "skip = true")?;
        Action::Skip
    } else if is_sparkplug {
        if !conditions.is_empty() {
            return Err("has, has_any, equals: not allowed with format = \"sparkplug-b\"".to_owned());
        }
        Action::Sparkplug(Box::new(sparkplug(&entry, captures)?))
    } else {
        Action::Json(Box::new(json(&entry, captures)?))
    };
    Ok(Rule { label, patterns, conditions, action })
}

/// The patterns, their text, and how many captures each of them has at least.
fn patterns(entry: &RuleEntry) -> Result<(String, Patterns, usize), String> {
    let parse = |field: &str, text: &Option<String>, separator| {
        let pattern = text.as_ref().map(|text| Pattern::parse(text, separator));
        pattern.transpose().map_err(|error| format!("{field}: {error}"))
    };
    let topic = parse("topic", &entry.topic, '/')?;
    let path = parse("path", &entry.path, '/')?;
    let routing_key = parse("routing_key", &entry.routing_key, '.')?;
    // RabbitMQ's MQTT plugin replaces the slashes of topics by dots.
    let dotted = entry.topic.as_ref().map(|topic| topic.replace('/', "."));
    let dotted = parse("topic", &dotted, '.')?;
    let of_all = [&topic, &path, &routing_key].into_iter().flatten().map(Pattern::captures).min();
    let texts = [("topic", &entry.topic), ("path", &entry.path), ("routing_key", &entry.routing_key)];
    let texts = texts.iter().filter_map(|(field, text)| Some(format!("{field} {:?}", text.as_ref()?)));
    let mut label = texts.collect::<Vec<_>>().join(", ");
    if label.is_empty() {
        "every source".clone_into(&mut label);
    }
    let routing_keys = routing_key.into_iter().chain(dotted).collect();
    Ok((label, Patterns { topic, path, routing_keys }, of_all.unwrap_or(0)))
}

fn conditions(entry: &RuleEntry) -> Result<Vec<Condition>, String> {
    let absolute = |field: &str, text: &str| match Pointer::parse(text) {
        Ok(pointer) if pointer.is_relative => Err(format!("{field}: {text:?} must not begin with a dot")),
        pointer => pointer.map_err(|error| format!("{field}: {error}")),
    };
    let mut conditions = Vec::new();
    for text in &entry.has {
        conditions.push(Condition::Has(absolute("has", text)?));
    }
    if !entry.has_any.is_empty() {
        let pointers = entry.has_any.iter().map(|text| absolute("has_any", text));
        conditions.push(Condition::HasAny(pointers.collect::<Result<_, _>>()?));
    }
    for (text, expected) in &entry.equals {
        let expected = match expected {
            toml::Value::String(text) => Value::Text(text.clone().into()),
            toml::Value::Boolean(flag) => Value::Bool(*flag),
            toml::Value::Integer(number) => Value::Integer(*number),
            toml::Value::Float(number) => Value::Number(*number),
            _ => {
                return Err(format!(
                    "equals: the value of {text:?} is not a text, a number or true or false"
                ));
            }
        };
        conditions.push(Condition::Equals(absolute("equals", text)?, expected));
    }
    Ok(conditions)
}

/// Refuses fields that have no effect.
fn refuse_others(entry: &RuleEntry, because: &str) -> Result<(), String> {
    let given = [
        ("each", entry.each.is_some()),
        ("value", entry.value.is_some()),
        ("values", entry.values.is_some()),
        ("values_if", !entry.values_if.is_empty()),
        ("reading", !entry.reading.is_empty()),
        ("time", entry.time.is_some()),
        ("time_formats", !entry.time_formats.is_empty()),
        ("zone", entry.zone.is_some()),
        ("time_or_now", entry.time_or_now),
        ("id", entry.id.is_some()),
    ];
    let only_skip = [
        ("device", entry.device.is_some()),
        ("metric", entry.metric.is_some()),
        ("unit", entry.unit.is_some()),
        ("scale", entry.scale.is_some()),
        ("offset", entry.offset.is_some()),
        ("counter", entry.counter.is_some()),
        ("wraps_at", entry.wraps_at.is_some()),
        ("max_per_hour", entry.max_per_hour.is_some()),
        ("ignore", !entry.ignore.is_empty()),
        ("none", !entry.none.is_empty()),
        ("enum", !entry.numbers.is_empty()),
        ("units", !entry.units.is_empty()),
        ("fields", !entry.fields.is_empty()),
        ("allow_empty", entry.allow_empty),
        ("format", entry.format != PayloadFormat::Json),
    ];
    let others = only_skip.into_iter().filter(|_| entry.skip);
    check_none_given(given.into_iter().chain(others), &format!("with {because}"))
}

/// Refuses the first of these fields that is given.
fn check_none_given(
    fields: impl IntoIterator<Item = (&'static str, bool)>,
    because: &str,
) -> Result<(), String> {
    match fields.into_iter().find(|(_, is_given)| *is_given) {
        Some((field, _)) => Err(format!("{field}: has no effect {because}")),
        None => Ok(()),
    }
}

/// The reading whose fields are those of the rule.
fn top(entry: &RuleEntry) -> ReadingEntry {
    ReadingEntry {
        metric: entry.metric.clone(),
        value: entry.value.clone(),
        unit: entry.unit.clone(),
        scale: entry.scale,
        offset: entry.offset,
        counter: entry.counter,
        wraps_at: entry.wraps_at,
        max_per_hour: entry.max_per_hour,
        ..ReadingEntry::default()
    }
}

fn json(entry: &RuleEntry, captures: usize) -> Result<JsonAction, String> {
    let allowed = Allowed { captures, pointers: true, element: entry.each.is_some(), name: false };
    let place = |field: &str, text: &str| match Pointer::parse(text) {
        Ok(pointer) if pointer.is_relative && (field == "each" || !allowed.element) => {
            Err(format!("{field}: {text:?} begins with a dot, which needs `each`"))
        }
        pointer => pointer.map_err(|error| format!("{field}: {error}")),
    };
    let each = entry.each.as_deref().map(|text| place("each", text)).transpose()?;
    let values = entry.values.as_deref().map(|text| place("values", text)).transpose()?;
    let top = top(entry);
    if values.is_some() && top.value.is_some() {
        return Err("value: not allowed with `values`; use [[map.reading]]".to_owned());
    }
    let mut readings = Vec::new();
    let values = match values {
        Some(pointer) => {
            let allowed = Allowed { name: true, ..allowed };
            let conditions = entry.values_if.iter().map(|text| place("values_if", text));
            let conditions = conditions.collect::<Result<_, _>>()?;
            Some(ValuesPlan { pointer, conditions, plan: plan(&top, allowed, Some("{name}"))? })
        }
        None if top.value.is_some() || entry.reading.is_empty() => {
            readings.push(explicit(&top, allowed)?);
            None
        }
        None => {
            let needs_value = [
                ("metric", top.metric.is_some()),
                ("unit", top.unit.is_some()),
                ("scale", top.scale.is_some()),
                ("offset", top.offset.is_some()),
                ("counter", top.counter.is_some()),
                ("wraps_at", top.wraps_at.is_some()),
                ("max_per_hour", top.max_per_hour.is_some()),
            ];
            check_none_given(needs_value, "without `value` or `values`")?;
            None
        }
    };
    for (number, reading) in (1..).zip(&entry.reading) {
        readings.push(explicit(reading, allowed).map_err(|error| format!("reading {number}: {error}"))?);
    }
    if values.is_none() {
        let needs_values = [
            ("fields", !entry.fields.is_empty()),
            ("ignore", !entry.ignore.is_empty()),
            ("values_if", !entry.values_if.is_empty()),
        ];
        check_none_given(needs_values, "without `values`")?;
    }
    let time = match &entry.time {
        Some(from) => Some(TimePlan {
            from: alternatives("time", from, allowed)?,
            formats: TimeFormats::parse(&entry.time_formats, entry.zone.as_deref())?,
            or_now: entry.time_or_now,
        }),
        None => {
            let needs_time = [
                ("time_formats", !entry.time_formats.is_empty()),
                ("zone", entry.zone.is_some()),
                ("time_or_now", entry.time_or_now),
            ];
            check_none_given(needs_time, "without `time`")?;
            None
        }
    };
    let device = entry.device.as_ref().ok_or("device: required field is missing")?;
    let default = values.as_ref().map(|values| &values.plan);
    Ok(JsonAction {
        each,
        device: name("device", device, allowed)?,
        time,
        id: entry.id.as_ref().map(|id| alternatives("id", id, allowed)).transpose()?,
        common: common(entry, Allowed { name: true, ..allowed }, default)?,
        values,
        readings,
    })
}

fn sparkplug(entry: &RuleEntry, captures: usize) -> Result<SparkplugAction, String> {
    refuse_others(entry, "format = \"sparkplug-b\"")?;
    if entry.path.is_some() || entry.routing_key.is_some() || captures != 4 {
        return Err(
            "topic: a Sparkplug rule has only a topic, whose 4 wildcards are the group, the message \
            type, the edge node and the device, such as \"spBv1.0/+/+/+/#\""
                .to_owned(),
        );
    }
    let allowed = Allowed { captures, pointers: false, element: false, name: false };
    let default = OneOrMore(["{1}/{3}/{4}", "{1}/{3}"].map(str::to_owned).to_vec());
    let device = name("device", entry.device.as_ref().unwrap_or(&default), allowed)?;
    let allowed = Allowed { name: true, ..allowed };
    let plan = plan(&top(entry), allowed, Some("{name}"))?;
    Ok(SparkplugAction { device, common: common(entry, allowed, Some(&plan))?, plan })
}

fn common(entry: &RuleEntry, allowed: Allowed, default: Option<&ReadingPlan>) -> Result<Common, String> {
    let mut texts = std::collections::HashMap::new();
    for (text, number) in &entry.numbers {
        texts.insert(text.as_str().into(), finite("enum", *number)?);
    }
    Ok(Common {
        numbers: Numbers { texts, none: no_values(&entry.none)? },
        units: units(&entry.units)?,
        fields: match default {
            Some(default) => fields(entry, allowed, default)?,
            None => Fields::default(),
        },
        allow_empty: entry.allow_empty,
    })
}

fn no_values(entries: &[NoValueEntry]) -> Result<NoValues, String> {
    let mut none = NoValues::default();
    for entry in entries {
        match entry {
            NoValueEntry::Number(number) => none.numbers.push(finite("none", *number)?),
            NoValueEntry::Text(text) => {
                none.texts.insert(text.as_str().into());
                none.numbers.extend(text.trim().parse().ok().filter(|number: &f64| number.is_finite()));
            }
        }
    }
    Ok(none)
}

fn units(entries: &BTreeMap<String, String>) -> Result<Units, String> {
    let unit = |(foreign, symbol): (&String, &String)| {
        let unit = (!symbol.is_empty()).then(|| Unit::parse(symbol)).transpose();
        Ok((foreign.as_str().into(), unit.map_err(|error| format!("units: {error}"))?))
    };
    entries.iter().map(unit).collect()
}

/// The rule's entries about single values. A text that begins with a slash is a pointer, any other a name.
fn fields(entry: &RuleEntry, allowed: Allowed, default: &ReadingPlan) -> Result<Fields, String> {
    let mut fields = Fields::default();
    let mut add = |list: &str, text: &str, field: Field| {
        if !text.starts_with('/') || !allowed.pointers {
            return match fields.names.insert(text.into(), field) {
                Some(_) => Err(format!("{list}: {text:?} is given twice")),
                None => Ok(()),
            };
        }
        let pointer = Pointer::parse(text).map_err(|error| format!("{list}: {error}"))?;
        fields.pointers.push((pointer, field));
        Ok(())
    };
    for text in &entry.ignore {
        add("ignore", text, Field::Ignore)?;
    }
    for (text, field) in &entry.fields {
        let FieldEntry { metric, unit, scale, offset, counter, wraps_at, max_per_hour, none } = field;
        let in_field = |error: String| format!("fields: {text:?}: {error}");
        let metric = metric.as_ref().map(|metric| name("metric", metric, allowed));
        let unit = unit.as_ref().map(|unit| unit_plan(unit, allowed));
        let plan = ReadingPlan {
            metric: metric.transpose().map_err(in_field)?.unwrap_or_else(|| default.metric.clone()),
            unit: unit.transpose().map_err(in_field)?.unwrap_or_else(|| default.unit.clone()),
            scale: finite("scale", scale.unwrap_or(default.scale)).map_err(in_field)?,
            offset: finite("offset", offset.unwrap_or(default.offset)).map_err(in_field)?,
            counter: counter_plan((*counter, *wraps_at, *max_per_hour), default.counter).map_err(in_field)?,
            none: no_values(none).map_err(in_field)?,
        };
        check_plan(&plan).map_err(in_field)?;
        add("fields", text, Field::Plan(plan))?;
    }
    Ok(fields)
}

fn explicit(entry: &ReadingEntry, allowed: Allowed) -> Result<ExplicitReading, String> {
    let whole = OneOrMore(vec![if allowed.element { "{.}" } else { "{}" }.to_owned()]);
    let value = alternatives("value", entry.value.as_ref().unwrap_or(&whole), allowed)?;
    if let Some(constant) = value.constant()
        && !constant.parse().is_ok_and(f64::is_finite)
    {
        return Err(format!(
            "value: {constant:?} is not a number; a placeholder is in braces, such as {{/a/b}}"
        ));
    }
    Ok(ExplicitReading { value, plan: plan(entry, allowed, None)?, optional: entry.optional })
}

/// The plan of a reading. Without a default, the metric is required.
fn plan(entry: &ReadingEntry, allowed: Allowed, default: Option<&str>) -> Result<ReadingPlan, String> {
    let default = default.map(|metric| OneOrMore(vec![metric.to_owned()]));
    let metric = entry.metric.as_ref().or(default.as_ref()).ok_or("metric: required field is missing")?;
    let plan = ReadingPlan {
        metric: name("metric", metric, allowed)?,
        unit: match &entry.unit {
            Some(unit) => unit_plan(unit, Allowed { name: false, ..allowed })?,
            None => UnitPlan::None,
        },
        scale: finite("scale", entry.scale.unwrap_or(1.0))?,
        offset: finite("offset", entry.offset.unwrap_or(0.0))?,
        counter: counter_plan((entry.counter, entry.wraps_at, entry.max_per_hour), None)?,
        none: no_values(&entry.none)?,
    };
    check_plan(&plan)?;
    Ok(plan)
}

fn name(field: &'static str, texts: &OneOrMore, allowed: Allowed) -> Result<Name, String> {
    let template = alternatives(field, texts, allowed)?;
    match template.constant() {
        Some(constant) => {
            let checked = check_name(field, constant).map(|()| Name::Constant(Arc::from(constant)));
            checked.map_err(|error| format!("{field}: {}", error.in_record(0).message))
        }
        None => Ok(Name::Template(template)),
    }
}

fn unit_plan(texts: &OneOrMore, allowed: Allowed) -> Result<UnitPlan, String> {
    let template = alternatives("unit", texts, allowed)?;
    match template.constant() {
        Some(constant) => {
            Unit::parse(constant).map(UnitPlan::Constant).map_err(|error| format!("unit: {error}"))
        }
        None => Ok(UnitPlan::Template(template)),
    }
}

fn alternatives(field: &str, texts: &OneOrMore, allowed: Allowed) -> Result<Alternatives, String> {
    Alternatives::parse(texts.texts(), allowed).map_err(|error| format!("{field}: {error}"))
}
