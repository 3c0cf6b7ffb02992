//! Parses a whole body: an object, an array of objects, or one of these per line.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::object::{Object, ObjectSeed, Plain};
use super::scalar::Errors;
use crate::sensor::fault::{BadRecord, Fault, quoted};
use crate::sensor::senml::Fields;

/// Receives the records of a body in order.
pub(super) trait RecordSink {
    /// Called at the start of each document, where no base fields are set.
    fn start_document(&mut self);
    fn plain(&mut self, plain: Plain<'_>, index: usize) -> Result<(), BadRecord>;
    fn senml(&mut self, fields: Fields<'_>, index: usize) -> Result<(), BadRecord>;
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

impl Form {
    /// The form of bodies with this content type; an empty one means JSON.
    ///
    /// # Errors
    /// [`Fault::UnsupportedMediaType`], with the accepted content types.
    pub fn of(content_type: &str) -> Result<Self, BadRecord> {
        let mut parts = content_type.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let is = |name: &str| media.eq_ignore_ascii_case(name);
        let foreign_charset = parts.any(|part| {
            part.split_once('=').is_some_and(|(key, value)| {
                key.trim().eq_ignore_ascii_case("charset")
                    && !value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
            })
        });
        let form = if media.is_empty() || is("application/json") || is("text/json") {
            Self::Json
        } else if is("application/senml+json") || is("application/sensml+json") {
            Self::Senml
        } else if ["application/x-ndjson", "application/ndjson", "application/jsonl", "application/jsonlines"]
            .iter()
            .any(|name| is(name))
        {
            Self::Lines
        } else {
            return Err(unsupported(content_type));
        };
        if foreign_charset { Err(unsupported(content_type)) } else { Ok(form) }
    }
}

fn unsupported(content_type: &str) -> BadRecord {
    let message = format!(
        "{} is not supported; expected application/json, application/senml+json or application/x-ndjson in UTF-8",
        quoted(content_type)
    );
    BadRecord::new(0, "content-type", Fault::UnsupportedMediaType, message)
}

/// Parses the body into `sink`. More than `max` records are refused.
pub(super) fn read<S: RecordSink>(
    form: Form,
    body: &[u8],
    max: usize,
    sink: &mut S,
) -> Result<(), BadRecord> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let message = format!("not UTF-8 from byte {} on", error.valid_up_to());
        BadRecord::new(0, "body", Fault::Malformed, message)
    })?;
    // JSON has no byte-order mark, but some Windows tools write one.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut progress = Progress { next: 0, max };
    if form != Form::Lines {
        return read_document(form, text, &mut progress, sink).map_err(|(error, _)| error);
    }
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        read_document(Form::Json, line, &mut progress, sink).map_err(|(mut error, is_syntax)| {
            if is_syntax {
                error.message = format!("line {}: {}", number + 1, error.message);
            }
            error
        })?;
    }
    Ok(())
}

/// The position in the body.
struct Progress {
    /// The index of the next record.
    next: usize,
    /// The maximum number of records.
    max: usize,
}

/// Parses one document. Documents are independent: base fields of one line do not apply to the next. The flag
/// in the error is true for JSON syntax errors.
fn read_document<S: RecordSink>(
    form: Form,
    text: &str,
    progress: &mut Progress,
    sink: &mut S,
) -> Result<(), (BadRecord, bool)> {
    sink.start_document();
    let errors = Errors::default();
    let mut parser = serde_json::Deserializer::from_str(text);
    let document = Document { form, is_plain: None, progress, errors: &errors, sink };
    let parsed = document.deserialize(&mut parser).and_then(|()| parser.end());
    parsed.map_err(|error| {
        errors.take().map(|kept| (kept, false)).unwrap_or_else(|| {
            (BadRecord::new(progress.next, "body", Fault::Malformed, format!("not JSON: {error}")), true)
        })
    })
}

struct Document<'a, S> {
    form: Form,
    /// Whether the records are plain readings. The first record decides for the whole document.
    is_plain: Option<bool>,
    progress: &'a mut Progress,
    errors: &'a Errors,
    sink: &'a mut S,
}

impl<'a, S: RecordSink> Document<'a, S> {
    fn seed(&self) -> Result<ObjectSeed<'a>, BadRecord> {
        let Progress { next, max } = *self.progress;
        if next >= max {
            let message = format!("more than {max} records");
            return Err(BadRecord::new(next, "body", Fault::TooManyRecords, message));
        }
        let senml_only = self.form == Form::Senml || self.is_plain == Some(false);
        Ok(ObjectSeed { index: next, errors: self.errors, senml_only })
    }

    fn emit(&mut self, object: Object<'_>) -> Result<(), BadRecord> {
        let index = self.progress.next;
        if self.is_plain.is_none() {
            self.is_plain = if self.form == Form::Senml { Some(false) } else { object.is_plain() };
        }
        match self.is_plain {
            Some(true) => {
                object.only_plain(index)?;
                self.sink.plain(object.plain, index)?;
            }
            Some(false) => self.sink.senml(object.senml, index)?,
            None => {
                let message = "neither a plain reading (device, metric, value) nor SenML (n, v)".to_owned();
                return Err(BadRecord::new(index, "body", Fault::MissingField, message));
            }
        }
        self.progress.next += 1;
        Ok(())
    }

    fn wrong_type<E: de::Error>(&self, got: &str) -> E {
        let expected = match self.form {
            Form::Senml => "a SenML pack, an array of records",
            Form::Json | Form::Lines => "an object or an array of objects",
        };
        let message = format!("{got} is not a valid body; expected {expected}");
        self.errors.keep(BadRecord::new(self.progress.next, "body", Fault::WrongType, message))
    }
}

impl<'de, S: RecordSink> DeserializeSeed<'de> for Document<'_, S> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, S: RecordSink> Visitor<'de> for Document<'_, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut records: A) -> Result<(), A::Error> {
        let errors = self.errors;
        loop {
            let seed = LimitedSeed { document: &self };
            let Some(object) = records.next_element_seed(seed)? else { return Ok(()) };
            self.emit(object).map_err(|error| errors.keep(error))?;
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, entries: A) -> Result<(), A::Error> {
        if self.form == Form::Senml {
            return Err(self.wrong_type("an object"));
        }
        let errors = self.errors;
        let seed = self.seed().map_err(|error| errors.keep(error))?;
        let object = seed.visit_map(entries)?;
        self.emit(object).map_err(|error| errors.keep(error))
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<(), E> {
        Err(self.wrong_type(if flag { "true" } else { "false" }))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<(), E> {
        Err(self.wrong_type("a number"))
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<(), E> {
        Err(self.wrong_type("a number"))
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<(), E> {
        Err(self.wrong_type("a number"))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        Err(self.wrong_type(&format!("the string {}", quoted(text))))
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Err(self.wrong_type("null"))
    }
}

/// Parses an element of the array. A record beyond the limit is refused before it is parsed.
struct LimitedSeed<'a, 'b, S> {
    document: &'a Document<'b, S>,
}

impl<'de, S: RecordSink> DeserializeSeed<'de> for LimitedSeed<'_, '_, S> {
    type Value = Object<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Object<'de>, D::Error> {
        let seed = self.document.seed().map_err(|error| self.document.errors.keep(error))?;
        seed.deserialize(deserializer)
    }
}
