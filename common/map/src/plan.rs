//! How a value becomes a reading: metric, unit, scale and offset, and the numbers of texts.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use garenne_protocol::{
    quoted,
    sensor::{Counter, Fault, Unit, is_code, parse::check_name, units::UnknownUnit},
};

use crate::{
    document::{Document, Value},
    pointer::Pointer,
    template::{Alternatives, Scope},
    unmapped::Reason,
};

/// How a number becomes a reading.
#[derive(Debug, Clone)]
pub(crate) struct ReadingPlan {
    pub(crate) metric: Name,
    pub(crate) unit: UnitPlan,
    pub(crate) scale: f64,
    pub(crate) offset: f64,
    /// If the values are those of a cumulative counter. `wraps_at` is that of the payload's number, before `scale`.
    pub(crate) counter: Option<Counter>,
    /// Besides those of the rule.
    pub(crate) none: NoValues,
}

/// A device or a metric.
#[derive(Debug, Clone)]
pub(crate) enum Name {
    /// Checked when the rules were read.
    Constant(Arc<str>),
    Template(Alternatives),
}

#[derive(Debug, Clone)]
pub(crate) enum UnitPlan {
    None,
    Constant(Unit),
    Template(Alternatives),
}

/// The numbers that values stand for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Numbers {
    pub(crate) texts: HashMap<Box<str>, f64>,
    pub(crate) none: NoValues,
}

/// Texts and numbers that stand for no value. A text that is a number is among both.
#[derive(Debug, Clone, Default)]
pub(crate) struct NoValues {
    pub(crate) texts: HashSet<Box<str>>,
    pub(crate) numbers: Vec<f64>,
}

/// Units of foreign symbols; `None` for a symbol that no unit has.
pub(crate) type Units = HashMap<Box<str>, Option<Unit>>;

/// A rule's entry about single values below `values`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fields {
    /// By the member's name, at any depth.
    pub(crate) names: BTreeMap<Box<str>, Field>,
    pub(crate) pointers: Vec<(Pointer, Field)>,
}

#[derive(Debug, Clone)]
pub(crate) enum Field {
    /// The value, and everything below it, is no reading.
    Ignore,
    Plan(ReadingPlan),
}

impl Name {
    /// The name, checked.
    pub(crate) fn text(&self, field: &'static str, scope: &Scope<'_, '_>) -> Result<Arc<str>, Reason> {
        match self {
            Self::Constant(name) => Ok(Arc::clone(name)),
            Self::Template(template) => {
                let name = template.text(field, scope)?;
                check_name(field, &name).map_err(|error| Reason::Invalid(error.in_record(0)))?;
                Ok(name.as_ref().into())
            }
        }
    }
}

impl UnitPlan {
    /// The unit. A unit from the payload that is missing or empty is none.
    pub(crate) fn unit(&self, units: &Units, scope: &Scope<'_, '_>) -> Result<Option<Unit>, Reason> {
        let symbol = match self {
            Self::None => return Ok(None),
            Self::Constant(unit) => return Ok(Some(*unit)),
            Self::Template(template) => match template.text("unit", scope) {
                Err(Reason::Missing { .. }) => return Ok(None),
                symbol => symbol?,
            },
        };
        if let Some(known) = units.get(&*symbol) {
            return Ok(*known);
        }
        if symbol.is_empty() {
            return Ok(None);
        }
        let unknown = |error: UnknownUnit| Fault::UnknownUnit.in_field("unit", error.to_string());
        Unit::parse(&symbol).map(Some).map_err(|error| Reason::Invalid(unknown(error).in_record(0)))
    }
}

impl Numbers {
    /// The number of a value. `Ok(None)` for null and what is in `none` of the rule or in `own`. With `parse_text`, a
    /// text such as `21.5` is a number. An error describes the value.
    pub(crate) fn read(
        &self,
        value: &Value<'_>,
        parse_text: bool,
        own: &NoValues,
    ) -> Result<Option<f64>, String> {
        let none = [&self.none, own];
        let number = match value {
            Value::Null => return Ok(None),
            Value::Bool(flag) => return Ok(Some(f64::from(u8::from(*flag)))),
            Value::Integer(number) => *number as f64,
            Value::Number(number) => *number,
            Value::Text(text) => {
                if none.iter().any(|none| none.texts.contains(&**text)) {
                    return Ok(None);
                }
                if let Some(number) = self.texts.get(&**text) {
                    return Ok(Some(*number));
                }
                let parsed = text.trim().parse().ok().filter(|number: &f64| parse_text && number.is_finite());
                parsed.ok_or_else(|| quoted(text))?
            }
            Value::NotFinite | Value::Array | Value::Object => return Err(value.to_string()),
        };
        let is_none = none.iter().any(|none| none.numbers.iter().any(|code| is_code(number, *code)));
        Ok(Some(number).filter(|_| !is_none))
    }
}

impl Fields {
    /// The positions that the pointers have in a document.
    pub(crate) fn find(&self, document: &Document<'_>) -> Vec<(usize, &Field)> {
        let fields = self.pointers.iter();
        fields.filter_map(|(pointer, field)| Some((pointer.find(document, 0)?, field))).collect()
    }
}

/// The name of a member, or the position of an array's element.
pub(crate) fn step<'k>(key: &'k str, index: usize, in_array: bool) -> Cow<'k, str> {
    if in_array { Cow::Owned(index.to_string()) } else { Cow::Borrowed(key) }
}
