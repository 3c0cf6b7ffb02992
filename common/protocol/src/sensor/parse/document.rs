//! A whole body: one object, an array, or one of these a line.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::object::{Object, ObjectSeed, Plain};
use super::scalar::Errors;
use crate::sensor::fault::{BadRecord, Fault, shown};
use crate::sensor::senml::Fields;

/// What becomes of the records, in order.
pub(super) trait Take {
    /// A document begins: no base field is in force.
    fn document(&mut self);
    fn plain(&mut self, plain: Plain<'_>, index: usize) -> Result<(), BadRecord>;
    fn senml(&mut self, fields: Fields<'_>, index: usize) -> Result<(), BadRecord>;
}

/// How a body is laid out, by its content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// An object or an array, plain or SenML.
    Json,
    /// A SenML pack: an array.
    Senml,
    /// A document of [`Form::Json`] a line; blank lines do not count.
    Lines,
}

impl Form {
    /// The form that a content type means; empty means JSON.
    ///
    /// # Errors
    /// [`Fault::UnsupportedMediaType`], naming what is accepted.
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
        "{} carries no readings; application/json, application/senml+json and application/x-ndjson in UTF-8 do",
        shown(content_type)
    );
    BadRecord::new(0, "content-type", Fault::UnsupportedMediaType, message)
}

/// Reads the body, of at most `most` records.
pub(super) fn read<T: Take>(form: Form, body: &[u8], most: usize, taker: &mut T) -> Result<(), BadRecord> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let message = format!("not UTF-8 from byte {} on", error.valid_up_to());
        BadRecord::new(0, "body", Fault::Malformed, message)
    })?;
    // A byte-order mark is not JSON, and what some Windows tools put first.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut progress = Progress { next: 0, most };
    if form != Form::Lines {
        return one(form, text, &mut progress, taker).map_err(|(error, _)| error);
    }
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        one(Form::Json, line, &mut progress, taker).map_err(|(mut error, is_syntax)| {
            if is_syntax {
                error.message = format!("line {}: {}", number + 1, error.message);
            }
            error
        })?;
    }
    Ok(())
}

/// How far the body has been read.
struct Progress {
    /// The index of the next record.
    next: usize,
    /// How many there may be.
    most: usize,
}

/// Reads one document, which stands alone: the base fields of one line say nothing about the next.
/// The error says whether it is about JSON itself.
fn one<T: Take>(
    form: Form,
    text: &str,
    progress: &mut Progress,
    taker: &mut T,
) -> Result<(), (BadRecord, bool)> {
    taker.document();
    let errors = Errors::default();
    let mut parser = serde_json::Deserializer::from_str(text);
    let document = Document { form, is_plain: None, progress, errors: &errors, taker };
    let parsed = document.deserialize(&mut parser).and_then(|()| parser.end());
    parsed.map_err(|error| {
        errors.take().map(|kept| (kept, false)).unwrap_or_else(|| {
            (BadRecord::new(progress.next, "body", Fault::Malformed, format!("not JSON: {error}")), true)
        })
    })
}

struct Document<'a, T> {
    form: Form,
    /// Decided by the first record, for all of the document.
    is_plain: Option<bool>,
    progress: &'a mut Progress,
    errors: &'a Errors,
    taker: &'a mut T,
}

impl<'a, T: Take> Document<'a, T> {
    fn seed(&self) -> Result<ObjectSeed<'a>, BadRecord> {
        let Progress { next, most } = *self.progress;
        if next >= most {
            let message = format!("more than {most} records");
            return Err(BadRecord::new(next, "body", Fault::TooManyRecords, message));
        }
        let senml_only = self.form == Form::Senml || self.is_plain == Some(false);
        Ok(ObjectSeed { index: next, errors: self.errors, senml_only })
    }

    fn take(&mut self, object: Object<'_>) -> Result<(), BadRecord> {
        let index = self.progress.next;
        if self.is_plain.is_none() {
            self.is_plain = if self.form == Form::Senml { Some(false) } else { object.is_plain() };
        }
        match self.is_plain {
            Some(true) => {
                object.only_plain(index)?;
                self.taker.plain(object.plain, index)?;
            }
            Some(false) => self.taker.senml(object.senml, index)?,
            None => {
                let message = "neither a plain reading (device, metric, value) nor SenML (n, v)".to_owned();
                return Err(BadRecord::new(index, "body", Fault::MissingField, message));
            }
        }
        self.progress.next += 1;
        Ok(())
    }

    fn wrong<E: de::Error>(&self, got: &str) -> E {
        let expected = match self.form {
            Form::Senml => "a SenML pack is an array of records",
            Form::Json | Form::Lines => "an object or an array of objects is needed",
        };
        let message = format!("{got} is no body; {expected}");
        self.errors.keep(BadRecord::new(self.progress.next, "body", Fault::WrongType, message))
    }
}

impl<'de, T: Take> DeserializeSeed<'de> for Document<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Take> Visitor<'de> for Document<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut records: A) -> Result<(), A::Error> {
        let errors = self.errors;
        // A record beyond the limit is refused when it starts, not when it has been read.
        loop {
            let seed = Guarded { document: &self };
            let Some(object) = records.next_element_seed(seed)? else { return Ok(()) };
            self.take(object).map_err(|error| errors.keep(error))?;
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, entries: A) -> Result<(), A::Error> {
        if self.form == Form::Senml {
            return Err(self.wrong("an object"));
        }
        let errors = self.errors;
        let seed = self.seed().map_err(|error| errors.keep(error))?;
        let object = seed.visit_map(entries)?;
        self.take(object).map_err(|error| errors.keep(error))
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<(), E> {
        Err(self.wrong(if flag { "true" } else { "false" }))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<(), E> {
        Err(self.wrong("a number"))
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<(), E> {
        Err(self.wrong("a number"))
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<(), E> {
        Err(self.wrong("a number"))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        Err(self.wrong(&format!("the string {}", shown(text))))
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Err(self.wrong("null"))
    }
}

/// An element of the array, read only while there is room for it.
struct Guarded<'a, 'b, T> {
    document: &'a Document<'b, T>,
}

impl<'de, T: Take> DeserializeSeed<'de> for Guarded<'_, '_, T> {
    type Value = Object<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Object<'de>, D::Error> {
        let seed = self.document.seed().map_err(|error| self.document.errors.keep(error))?;
        seed.deserialize(deserializer)
    }
}
