//! Parses a whole body: an object, an array of objects, or one of these per line.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

use super::object::{Object, Plain, RecordReader};
use super::scalar::{AnyValue, Scalar};
use crate::sensor::fault::{BadField, BadRecord, Fault, quoted};
use crate::sensor::senml::{Base, Fields};

/// The fields of a parsed record.
pub(super) enum RecordFields<'a> {
    Plain(Plain<'a>),
    /// With the base fields that earlier records of the document set.
    Senml(Fields<'a>, &'a mut Base),
}

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

/// Parses the body and passes its records to `sink`. More than `max` records are refused.
pub(super) fn read(
    form: Form,
    body: &[u8],
    max: usize,
    sink: impl FnMut(RecordFields<'_>) -> Result<(), BadField>,
) -> Result<(), BadRecord> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let message = format!("not UTF-8 from byte {} on", error.valid_up_to());
        Fault::Malformed.in_field("body", message).in_record(0)
    })?;
    // JSON has no byte-order mark, but some Windows tools write one.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader =
        BodyReader { form, max, index: 0, is_plain: None, base: Base::default(), error: None, sink };
    if form != Form::Lines {
        return reader.read_document(text, None);
    }
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        reader.read_document(line, Some(number + 1))?;
    }
    Ok(())
}

struct BodyReader<F> {
    form: Form,
    /// The maximum number of records.
    max: usize,
    /// The index of the current record.
    index: usize,
    /// Whether the records are plain readings. The first record decides for the whole document.
    is_plain: Option<bool>,
    base: Base,
    /// The typed error while a serde error, which has only a text, propagates through the parser.
    error: Option<BadField>,
    sink: F,
}

impl<F: FnMut(RecordFields<'_>) -> Result<(), BadField>> BodyReader<F> {
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
        if self.index >= self.max {
            return Err(Fault::TooManyRecords.in_field("body", format!("more than {} records", self.max)));
        }
        self.is_plain = self.is_plain.or(object.is_plain());
        let fields = match self.is_plain {
            Some(true) => {
                object.only_plain()?;
                RecordFields::Plain(object.plain)
            }
            Some(false) => RecordFields::Senml(object.senml, &mut self.base),
            None => {
                let message = "neither a plain reading (device, metric, value) nor SenML (n, v)";
                return Err(Fault::MissingField.in_field("body", message));
            }
        };
        (self.sink)(fields)?;
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
struct Elements<'a, F>(&'a mut BodyReader<F>);

impl<'de, F: FnMut(RecordFields<'_>) -> Result<(), BadField>> Visitor<'de> for Elements<'_, F> {
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
