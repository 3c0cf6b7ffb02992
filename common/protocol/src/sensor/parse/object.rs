//! Parses one record: a plain reading or a SenML record. The two have no field name in common, so one pass can
//! parse either.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::scalar::{Errors, Field, Flag, Instant, Kind, Number, Text, Whole};
use crate::sensor::Timestamp;
use crate::sensor::fault::{BadRecord, Fault, quoted};
use crate::sensor::senml::Fields;

/// The fields of a plain reading as they were sent.
#[derive(Default)]
pub(super) struct Plain<'a> {
    pub(super) device: Option<Cow<'a, str>>,
    pub(super) metric: Option<Cow<'a, str>>,
    pub(super) value: Option<f64>,
    pub(super) unit: Option<Cow<'a, str>>,
    pub(super) time: Option<Timestamp>,
    pub(super) id: Option<Cow<'a, str>>,
}

/// All field names of a plain reading.
const PLAIN_FIELDS: [&str; 6] = ["device", "metric", "value", "unit", "time", "id"];

/// The fields of a record of either form.
#[derive(Default)]
pub(super) struct Object<'a> {
    pub(super) plain: Plain<'a>,
    pub(super) senml: Fields<'a>,
    /// The first field that neither form has. SenML ignores it, a plain reading is refused.
    unknown: Option<String>,
    has_plain: bool,
    has_senml: bool,
}

impl Object<'_> {
    /// `Some(true)` for a plain reading, `Some(false)` for SenML, `None` for neither.
    pub(super) fn is_plain(&self) -> Option<bool> {
        if self.has_plain { Some(true) } else { self.has_senml.then_some(false) }
    }

    /// Refuses fields other than those of a plain reading. If they were ignored, a misspelt `time` would silently
    /// become the current time.
    pub(super) fn only_plain(&self, index: usize) -> Result<(), BadRecord> {
        let unknown = match &self.unknown {
            Some(unknown) => unknown,
            None if self.has_senml => {
                let message = "mixes fields of a plain reading and of SenML".to_owned();
                return Err(BadRecord::new(index, "body", Fault::UnknownField, message));
            }
            None => return Ok(()),
        };
        // The edit distance takes time in proportion to both lengths; `unknown` has at most MAX_NAME characters.
        let is_close = |field: &&&str| strsim::osa_distance(unknown, field) <= 2;
        let hint = PLAIN_FIELDS.iter().find(is_close).map(|field| format!("; did you mean {field}?"));
        let message = format!(
            "unknown field; a plain reading has only {}{}",
            PLAIN_FIELDS.join(", "),
            hint.unwrap_or_default()
        );
        Err(BadRecord::new(index, field_name(unknown), Fault::UnknownField, message))
    }
}

/// Maximum number of characters kept of an unknown field's name.
const MAX_NAME: usize = 60;

/// A bounded copy of a field's name, which can be as long as the body.
fn cut(name: &str) -> String {
    match name.char_indices().nth(MAX_NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// The name for [`BadRecord::field`]: quoted if it is long or has characters to escape.
fn field_name(name: &str) -> String {
    let quoted = quoted(name);
    if quoted.len() == name.len() + 2 { name.to_owned() } else { quoted }
}

/// Parses the record at `index`. With `senml_only`, fields of plain readings are ignored as unknown.
#[derive(Clone, Copy)]
pub(super) struct ObjectSeed<'e> {
    pub(super) index: usize,
    pub(super) errors: &'e Errors,
    pub(super) senml_only: bool,
}

impl<'e> ObjectSeed<'e> {
    fn error<E: de::Error>(self, field: impl Into<Cow<'static, str>>, code: Fault, message: String) -> E {
        self.errors.keep(BadRecord::new(self.index, field, code, message))
    }

    fn field<'de, A: MapAccess<'de>, K: Kind<'de>>(
        self,
        entries: &mut A,
        kind: K,
        name: &'static str,
        slot: &mut Option<K::Out>,
    ) -> Result<(), A::Error> {
        let value = entries.next_value_seed(Field { index: self.index, name, errors: self.errors, kind })?;
        if slot.is_some() && value.is_some() {
            return Err(self.error(name, Fault::Duplicate, "given twice".to_owned()));
        }
        *slot = value.or(slot.take());
        Ok(())
    }

    fn wrong_type<T, E: de::Error>(self, got: &str) -> Result<T, E> {
        Err(self.error("body", Fault::WrongType, format!("{got} is not a record; expected an object")))
    }
}

impl<'de, 'e> DeserializeSeed<'de> for ObjectSeed<'e> {
    type Value = Object<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Object<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, 'e> Visitor<'de> for ObjectSeed<'e> {
    type Value = Object<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Object<'de>, A::Error> {
        let mut object = Object::default();
        while let Some(label) = entries.next_key_seed(LabelSeed)? {
            let label = if self.senml_only && label.is_plain() { Label::Ignored } else { label };
            object.has_plain |= label.is_plain();
            object.has_senml |= label.is_senml();
            let (plain, senml) = (&mut object.plain, &mut object.senml);
            let entries = &mut entries;
            match label {
                Label::Device => self.field(entries, Text, "device", &mut plain.device)?,
                Label::Metric => self.field(entries, Text, "metric", &mut plain.metric)?,
                Label::Value => self.field(entries, Number, "value", &mut plain.value)?,
                Label::Unit => self.field(entries, Text, "unit", &mut plain.unit)?,
                Label::Time => self.field(entries, Instant, "time", &mut plain.time)?,
                Label::Id => self.field(entries, Text, "id", &mut plain.id)?,
                Label::Bn => self.field(entries, Text, "bn", &mut senml.bn)?,
                Label::Bt => self.field(entries, Number, "bt", &mut senml.bt)?,
                Label::Bu => self.field(entries, Text, "bu", &mut senml.bu)?,
                Label::Bv => self.field(entries, Number, "bv", &mut senml.bv)?,
                Label::Bs => self.field(entries, Number, "bs", &mut senml.bs)?,
                Label::Bver => self.field(entries, Whole, "bver", &mut senml.bver)?,
                Label::N => self.field(entries, Text, "n", &mut senml.n)?,
                Label::U => self.field(entries, Text, "u", &mut senml.u)?,
                Label::V => self.field(entries, Number, "v", &mut senml.v)?,
                Label::Vs => self.field(entries, Text, "vs", &mut senml.vs)?,
                Label::Vb => self.field(entries, Flag, "vb", &mut senml.vb)?,
                Label::Vd => self.field(entries, Text, "vd", &mut senml.vd)?,
                Label::S => self.field(entries, Number, "s", &mut senml.s)?,
                Label::T => self.field(entries, Number, "t", &mut senml.t)?,
                Label::Ut => self.field(entries, Number, "ut", &mut senml.ut)?,
                Label::Ignored => drop(entries.next_value::<IgnoredAny>()?),
                Label::Other { name, must_understand } => {
                    if must_understand {
                        let message = "unknown field that must be understood (RFC 8428, 4.4)".to_owned();
                        return Err(self.error(field_name(&name), Fault::UnknownField, message));
                    }
                    entries.next_value::<IgnoredAny>()?;
                    object.unknown.get_or_insert(name);
                }
            }
        }
        Ok(object)
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Object<'de>, E> {
        self.wrong_type(if flag { "true" } else { "false" })
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Object<'de>, E> {
        self.wrong_type("a number")
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Object<'de>, E> {
        self.wrong_type("a number")
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Object<'de>, E> {
        self.wrong_type("a number")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Object<'de>, E> {
        self.wrong_type(&format!("the string {}", quoted(text)))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Object<'de>, E> {
        self.wrong_type("null")
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, _: A) -> Result<Object<'de>, A::Error> {
        self.wrong_type("an array")
    }
}

/// The name of a field.
#[derive(PartialEq)]
enum Label {
    Device,
    Metric,
    Value,
    Unit,
    Time,
    Id,
    Bn,
    Bt,
    Bu,
    Bv,
    Bs,
    Bver,
    N,
    U,
    V,
    Vs,
    Vb,
    Vd,
    S,
    T,
    Ut,
    Ignored,
    Other { name: String, must_understand: bool },
}

impl Label {
    fn is_plain(&self) -> bool {
        matches!(self, Self::Device | Self::Metric | Self::Value | Self::Unit | Self::Time | Self::Id)
    }

    fn is_senml(&self) -> bool {
        !self.is_plain() && !matches!(self, Self::Ignored | Self::Other { .. })
    }
}

struct LabelSeed;

impl<'de> DeserializeSeed<'de> for LabelSeed {
    type Value = Label;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Label, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for LabelSeed {
    type Value = Label;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Label, E> {
        Ok(match name {
            "device" => Label::Device,
            "metric" => Label::Metric,
            "value" => Label::Value,
            "unit" => Label::Unit,
            "time" => Label::Time,
            "id" => Label::Id,
            "bn" => Label::Bn,
            "bt" => Label::Bt,
            "bu" => Label::Bu,
            "bv" => Label::Bv,
            "bs" => Label::Bs,
            "bver" => Label::Bver,
            "n" => Label::N,
            "u" => Label::U,
            "v" => Label::V,
            "vs" => Label::Vs,
            "vb" => Label::Vb,
            "vd" => Label::Vd,
            "s" => Label::S,
            "t" => Label::T,
            "ut" => Label::Ut,
            _ => Label::Other { name: cut(name), must_understand: name.ends_with('_') },
        })
    }
}
