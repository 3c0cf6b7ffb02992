//! One JSON object, plain or SenML. The two share no field name, so one pass reads either.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::scalar::{Errors, Field, Flag, Instant, Kind, Number, Text, Whole};
use crate::sensor::Timestamp;
use crate::sensor::fault::{BadRecord, Fault, shown};
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

/// The names a plain reading knows, for the error about one that it does not.
const PLAIN_FIELDS: [&str; 6] = ["device", "metric", "value", "unit", "time", "id"];

/// Everything a record may hold.
#[derive(Default)]
pub(super) struct Object<'a> {
    pub(super) plain: Plain<'a>,
    pub(super) senml: Fields<'a>,
    /// The first field that neither form knows. SenML ignores it, a plain reading does not.
    unknown: Option<String>,
    has_plain: bool,
    has_senml: bool,
}

impl Object<'_> {
    /// `Some(true)` for a plain reading, `Some(false)` for SenML, `None` for neither.
    pub(super) fn is_plain(&self) -> Option<bool> {
        if self.has_plain { Some(true) } else { self.has_senml.then_some(false) }
    }

    /// A plain reading has no field but its own: a misspelt `time` would else mean "now".
    pub(super) fn only_plain(&self, index: usize) -> Result<(), BadRecord> {
        let unknown = match &self.unknown {
            Some(unknown) => unknown,
            None if self.has_senml => {
                let message = "SenML fields among those of a plain reading".to_owned();
                return Err(BadRecord::new(index, "body", Fault::UnknownField, message));
            }
            None => return Ok(()),
        };
        // The edit distance costs the product of the lengths; `unknown` has at most LONGEST_SHOWN characters.
        let close = |field: &&&str| strsim::osa_distance(unknown, field) <= 2;
        let hint = PLAIN_FIELDS.iter().find(close).map(|field| format!("; did you mean {field}?"));
        let message = format!(
            "a plain reading has no such field, only {}{}",
            PLAIN_FIELDS.join(", "),
            hint.unwrap_or_default()
        );
        Err(BadRecord::new(index, bounded(unknown), Fault::UnknownField, message))
    }
}

/// The most characters of a foreign field name that are kept, compared and quoted.
const LONGEST_SHOWN: usize = 60;

/// A copy of bounded size of a field's name: names are as long as a body may be.
fn cut(name: &str) -> String {
    match name.char_indices().nth(LONGEST_SHOWN) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

fn bounded(name: &str) -> String {
    let quoted = shown(name);
    if quoted.len() == name.len() + 2 { name.to_owned() } else { quoted }
}

/// Reads the record at `index`; in a SenML document plain fields are unknown ones, to be ignored.
#[derive(Clone, Copy)]
pub(super) struct ObjectSeed<'e> {
    pub(super) index: usize,
    pub(super) errors: &'e Errors,
    pub(super) senml_only: bool,
}

impl<'e> ObjectSeed<'e> {
    fn refuse<E: de::Error>(self, field: impl Into<Cow<'static, str>>, code: Fault, message: String) -> E {
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
            return Err(self.refuse(name, Fault::Duplicate, "it is given twice".to_owned()));
        }
        *slot = value.or(slot.take());
        Ok(())
    }

    fn wrong<T, E: de::Error>(self, got: &str) -> Result<T, E> {
        Err(self.refuse("body", Fault::WrongType, format!("{got} is not a record; a record is an object")))
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
                        let message = "a field that must be understood and is not (RFC 8428, 4.4)".to_owned();
                        return Err(self.refuse(bounded(&name), Fault::UnknownField, message));
                    }
                    entries.next_value::<IgnoredAny>()?;
                    object.unknown.get_or_insert(name);
                }
            }
        }
        Ok(object)
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Object<'de>, E> {
        self.wrong(if flag { "true" } else { "false" })
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Object<'de>, E> {
        self.wrong("a number")
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Object<'de>, E> {
        self.wrong("a number")
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Object<'de>, E> {
        self.wrong("a number")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Object<'de>, E> {
        self.wrong(&format!("the string {}", shown(text)))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Object<'de>, E> {
        self.wrong("null")
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, _: A) -> Result<Object<'de>, A::Error> {
        self.wrong("an array")
    }
}

/// A field's name.
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
