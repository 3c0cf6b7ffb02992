//! Parses a whole body: an object, an array of objects, or one of these per line.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

use super::object::{Object, RecordReader};
use super::scalar::{AnyValue, Scalar};
use super::{Converter, Limits, Names, Record};
use crate::sensor::Timestamp;
use crate::sensor::senml::Base;
use crate::{
    quoted,
    sensor::fault::{BadField, BadRecord, Fault},
};

/// The layout of a body, given by its content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// An object or an array, plain or SenML.
    Json,
    /// A SenML pack: an array.
    Senml,
    /// A document of [`Form::Json`] per line; blank lines are ignored.
    Lines,
}

/// The supported media types.
const FORMS: [(&str, Form); 9] = [
    ("", Form::Json),
    ("application/json", Form::Json),
    ("text/json", Form::Json),
    ("application/senml+json", Form::Senml),
    ("application/sensml+json", Form::Senml),
    ("application/x-ndjson", Form::Lines),
    ("application/ndjson", Form::Lines),
    ("application/jsonl", Form::Lines),
    ("application/jsonlines", Form::Lines),
];

impl Form {
    /// The form of bodies with this content type; an empty one means JSON.
    ///
    /// # Errors
    /// [`Fault::UnsupportedMediaType`], with the accepted content types.
    pub fn of(content_type: &str) -> Result<Self, BadRecord> {
        let mut parts = content_type.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let foreign_charset = parts.any(|part| {
            part.split_once('=').is_some_and(|(key, value)| {
                key.trim().eq_ignore_ascii_case("charset")
                    && !value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
            })
        });
        let known = FORMS.iter().find(|(name, _)| media.eq_ignore_ascii_case(name));
        known.filter(|_| !foreign_charset).map(|(_, form)| *form).ok_or_else(|| {
            let message = format!(
                "{} is not supported; expected application/json, application/senml+json or application/x-ndjson in UTF-8",
                quoted(content_type)
            );
            Fault::UnsupportedMediaType.in_field("content-type", message).in_record(0)
        })
    }
}

/// [`readings_from`](super::readings_from) for a body whose form is known, with other limits.
///
/// # Errors
/// The first error in the body, with the record's index.
pub fn readings_in(
    form: Form,
    body: &[u8],
    now: Timestamp,
    limits: &Limits,
) -> Result<Vec<Record>, BadRecord> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let message = format!("not UTF-8 from byte {} on", error.valid_up_to());
        Fault::Malformed.in_field("body", message).in_record(0)
    })?;
    // JSON has no byte-order mark, but some Windows tools write one.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = BodyReader {
        form,
        converter: Converter { names: Names::default(), now, limits },
        // Most bodies have one reading.
        records: Vec::with_capacity(1),
        index: 0,
        is_plain: None,
        base: Base::default(),
        error: None,
    };
    if form == Form::Lines {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            reader.read_document(line, Some(number + 1))?;
        }
    } else {
        reader.read_document(text, None)?;
    }
    if reader.records.is_empty() {
        return Err(Fault::Empty.in_field("body", "no record with a value").in_record(0));
    }
    Ok(reader.records)
}

struct BodyReader<'l> {
    form: Form,
    converter: Converter<'l>,
    records: Vec<Record>,
    /// The index of the current record.
    index: usize,
    /// Whether the records are plain readings. The first record decides for the whole document.
    is_plain: Option<bool>,
    base: Base,
    /// The typed error while a serde error, which has only a text, propagates through the parser.
    error: Option<BadField>,
}

impl BodyReader<'_> {
    /// Parses one document. Documents are independent: base fields of one line do not apply to the next.
    fn read_document(&mut self, text: &str, line: Option<usize>) -> Result<(), BadRecord> {
        self.is_plain = (self.form == Form::Senml).then_some(false);
        self.base = Base::default();
        self.parse(text).map_err(|error| {
            let error = self.error.take().unwrap_or_else(|| {
                let line = line.map(|number| format!("line {number}: ")).unwrap_or_default();
                Fault::Malformed.in_field("body", format!("{line}not JSON: {error}"))
            });
            error.in_record(self.index)
        })
    }

    fn parse(&mut self, text: &str) -> serde_json::Result<()> {
        let mut parser = serde_json::Deserializer::from_str(text);
        match text.trim_start().bytes().next() {
            Some(b'[') => parser.deserialize_seq(Elements(self))?,
            Some(b'{') if self.form != Form::Senml => {
                let mut object = Object::default();
                self.record(&mut object).deserialize(&mut parser)?;
                self.emit(object).map_err(|error| self.fail(error))?;
            }
            _ => {
                let expected = match self.form {
                    Form::Senml => "a SenML pack, an array of records",
                    Form::Json | Form::Lines => "an object or an array of objects",
                };
                let got = Scalar::deserialize(&mut parser)?.described();
                let message = format!("{got} is not a valid body; expected {expected}");
                return Err(self.fail(Fault::WrongType.in_field("body", message)));
            }
        }
        parser.end()
    }

    /// Parses a record into `object`.
    fn record<'o, 'de>(&'o mut self, object: &'o mut Object<'de>) -> AnyValue<RecordReader<'o, 'de>> {
        let senml_only = self.is_plain == Some(false);
        AnyValue(RecordReader { senml_only, object, error: &mut self.error })
    }

    fn emit(&mut self, object: Object<'_>) -> Result<(), BadField> {
        let max = self.converter.limits.records;
        if self.index >= max {
            return Err(Fault::TooManyRecords.in_field("body", format!("more than {max} records")));
        }
        self.is_plain = self.is_plain.or(object.is_plain());
        let record = match self.is_plain {
            Some(true) => {
                object.only_plain()?;
                Some(self.converter.plain(object.plain)?)
            }
            Some(false) => self.converter.senml(object.senml, &mut self.base)?,
            None => {
                let message = "neither a plain reading (device, metric, value) nor SenML (n, v)";
                return Err(Fault::MissingField.in_field("body", message));
            }
        };
        self.records.extend(record);
        self.index += 1;
        Ok(())
    }

    /// Keeps `error` and returns a serde error that ends the parse.
    fn fail<E: Error>(&mut self, error: BadField) -> E {
        self.error = Some(error);
        E::custom("invalid record")
    }
}

/// Parses the records of an array.
struct Elements<'a, 'l>(&'a mut BodyReader<'l>);

impl<'de> Visitor<'de> for Elements<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let body = self.0;
        loop {
            let mut object = Object::default();
            let Some(value) = elements.next_element_seed(body.record(&mut object))? else { return Ok(()) };
            let emitted = match value {
                Scalar::Object => body.emit(object),
                other => {
                    let message = format!("{} is not a record; expected an object", other.described());
                    Err(Fault::WrongType.in_field("body", message))
                }
            };
            emitted.map_err(|error| body.fail(error))?;
        }
    }
}
