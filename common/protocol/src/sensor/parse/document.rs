//! Parses a whole body: an object, an array of objects, or one of these per line.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

use super::object::{Object, RecordReader};
use super::scalar::{AnyValue, Scalar};
use super::{Converter, Limits, Names, Record, Sifted};
use crate::sensor::Timestamp;
use crate::sensor::senml::{Base, earlier_is_invalid};
use crate::{
    quoted,
    sensor::{
        fault::{BadField, BadRecord, Fault},
        lenient,
    },
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
    let mut reader = BodyReader::new(form, now, limits, true);
    let text = text_of(body).map_err(|error| error.in_record(0))?;
    if form == Form::Lines {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !is_blank(line.as_bytes())) {
            reader.read_document(line, Some(number + 1)).map_err(|error| reader.here(error))?;
        }
    } else {
        reader.read_document(text, None).map_err(|error| reader.here(error))?;
    }
    let records: Vec<_> = reader.sifted.slots.into_iter().flatten().chain(reader.sums).collect();
    if records.is_empty() {
        return Err(no_record());
    }
    Ok(records)
}

/// As [`readings_in`], but a record that is refused does not take the others with it. Numbers and bytes that JSON does not
/// allow are refused with the record or the field that has them; `body` is changed to mark them. In [`Form::Lines`] a
/// line is refused that is not JSON.
///
/// # Errors
/// The body is refused as a whole: it is not JSON, has too many records, or has none.
pub fn sift_readings(
    form: Form,
    body: &mut [u8],
    now: Timestamp,
    limits: &Limits,
) -> Result<Sifted, BadRecord> {
    let mut reader = BodyReader::new(form, now, limits, false);
    if form == Form::Lines {
        let lines = body.split_mut(|byte| *byte == b'\n').enumerate();
        for (number, line) in lines.filter(|(_, line)| !is_blank(line)) {
            match reader.sift_document(line, Some(number + 1)) {
                Err(error) if error.code == Fault::TooManyRecords => return Err(error),
                Err(_) if reader.sifted.slots.len() + reader.sums.len() >= limits.records => {
                    return Err(reader.here(too_many(limits.records)));
                }
                // The line is one record, whatever it was meant to be.
                Err(error) => {
                    let index = reader.sifted.slots.len();
                    reader.sifted.refused.push(BadRecord { index, ..error });
                    reader.sifted.slots.push(None);
                }
                Ok(()) => {}
            }
        }
    } else {
        reader.sift_document(body, None)?;
    }
    let mut sifted = reader.sifted;
    sifted.slots.extend(reader.sums.into_iter().map(Some));
    if sifted.refused.is_empty() && sifted.slots.iter().all(Option::is_none) {
        return Err(no_record());
    }
    Ok(sifted)
}

/// Whether a line has only white space, NULs and a byte-order mark at its start.
fn is_blank(line: &[u8]) -> bool {
    let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
    line.iter().all(|byte| byte.is_ascii_whitespace() || *byte == 0)
}

fn text_of(bytes: &[u8]) -> Result<&str, BadField> {
    str::from_utf8(bytes).map_err(|error| {
        Fault::Malformed.in_field("body", format!("not UTF-8 from byte {} on", error.valid_up_to()))
    })
}

fn too_many(max: usize) -> BadField {
    Fault::TooManyRecords.in_field("body", format!("more than {max} records"))
}

fn no_record() -> BadRecord {
    Fault::Empty.in_field("body", "no record with a value").in_record(0)
}

struct BodyReader<'l> {
    form: Form,
    converter: Converter<'l>,
    sifted: Sifted,
    /// The sums that SenML records have beside a value.
    sums: Vec<Record>,
    /// Whether the first error ends the parse.
    strict: bool,
    /// Whether the records are plain readings. The first record decides for the whole document.
    is_plain: Option<bool>,
    base: Base,
    /// Base fields that an earlier record has with an invalid value, and that none has set since.
    broken_base: Vec<&'static str>,
    /// The typed error while a serde error, which has only a text, propagates through the parser.
    error: Option<BadField>,
}

impl<'l> BodyReader<'l> {
    fn new(form: Form, now: Timestamp, limits: &'l Limits, strict: bool) -> Self {
        // Most bodies have one reading.
        let sifted = Sifted { slots: Vec::with_capacity(1), ..Sifted::default() };
        let converter = Converter { names: Names::default(), now, limits };
        let base = Base::default();
        let (sums, broken_base) = (Vec::new(), Vec::new());
        Self { form, converter, sifted, sums, strict, is_plain: None, base, broken_base, error: None }
    }

    /// The error with the index of the current record.
    fn here(&self, error: BadField) -> BadRecord {
        error.in_record(self.sifted.slots.len())
    }

    fn refuse(&mut self, error: BadField) {
        let refused = self.here(error);
        self.sifted.refused.push(refused);
        self.sifted.slots.push(None);
    }

    /// Parses one document. Documents are independent: base fields of one line do not apply to the next.
    fn read_document(&mut self, text: &str, line: Option<usize>) -> Result<(), BadField> {
        self.is_plain = (self.form == Form::Senml).then_some(false);
        self.base = Base::default();
        self.broken_base.clear();
        // JSON has no byte-order mark, but some Windows tools write one.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        self.parse(text).map_err(|error| {
            self.error.take().unwrap_or_else(|| {
                let line = line.map(|number| format!("line {number}: ")).unwrap_or_default();
                Fault::Malformed.in_field("body", format!("{line}not JSON: {error}"))
            })
        })
    }

    /// Parses one document, and once more after a repair if it is not JSON.
    fn sift_document(&mut self, bytes: &mut [u8], line: Option<usize>) -> Result<(), BadRecord> {
        let start = (self.sifted.slots.len(), self.sifted.refused.len(), self.sifted.notes.len());
        let sums = self.sums.len();
        let first = match text_of(bytes).and_then(|text| self.read_document(text, line)) {
            Ok(()) => return Ok(()),
            Err(error) => self.here(error),
        };
        if first.code != Fault::Malformed {
            return Err(first);
        }
        let forget = |sifted: &mut Sifted| {
            sifted.slots.truncate(start.0);
            sifted.refused.truncate(start.1);
            sifted.notes.truncate(start.2);
        };
        forget(&mut self.sifted);
        self.sums.truncate(sums);
        lenient::repair(bytes);
        match text_of(bytes).and_then(|text| self.read_document(text, line)) {
            Ok(()) => Ok(()),
            Err(error) if error.code() == Fault::Malformed => {
                forget(&mut self.sifted);
                self.sums.truncate(sums);
                Err(first)
            }
            Err(error) => Err(self.here(error)),
        }
    }

    fn parse(&mut self, text: &str) -> serde_json::Result<()> {
        let mut parser = serde_json::Deserializer::from_str(text);
        match text.trim_start().bytes().next() {
            Some(b'[') => parser.deserialize_seq(Elements(self))?,
            Some(b'{') if self.form != Form::Senml => {
                let mut object = Object::default();
                self.record(&mut object).deserialize(&mut parser)?;
                let record = self.record_of(object);
                self.take(record)?;
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
    fn record<'o, 'de>(&self, object: &'o mut Object<'de>) -> AnyValue<RecordReader<'o, 'de>> {
        AnyValue(RecordReader { senml_only: self.is_plain == Some(false), object })
    }

    /// The record of an object; `None` if it has only base fields.
    fn record_of(&mut self, mut object: Object<'_>) -> Result<Option<Record>, BadField> {
        self.is_plain = self.is_plain.or(object.is_plain());
        let problem = object.problem.take().map_or(Ok(()), |problem| Err(*problem));
        match self.is_plain {
            Some(true) => {
                problem?;
                object.only_plain()?;
                self.converter.plain(object.plain).map(Some)
            }
            Some(false) => {
                let given = &object.senml;
                let is_set = |field: &&'static str| match *field {
                    "bn" => given.bn.is_some(),
                    "bt" => given.bt.is_some(),
                    "bu" => given.bu.is_some(),
                    _ => given.bv.is_some(),
                };
                self.broken_base.retain(|field| !is_set(field));
                self.broken_base.append(&mut object.broken_base);
                if let Err(problem) = problem {
                    // Those that are valid apply to later records.
                    let _ = self.base.set(given);
                    return Err(problem);
                }
                if let Some(field) = self.broken_base.first().filter(|_| !given.only_base()) {
                    return Err(earlier_is_invalid(field));
                }
                let (record, sum) = self.converter.senml(object.senml, &mut self.base)?;
                let unstored = match sum.transpose() {
                    Ok(sum) => {
                        self.sums.extend(sum);
                        None
                    }
                    Err(unstored) if self.strict => return Err(unstored),
                    Err(unstored) => Some(unstored),
                };
                let notes = object.note.map(|note| *note).into_iter().chain(unstored);
                self.sifted.notes.extend(notes.map(|note| note.in_record(self.sifted.slots.len())));
                Ok(record)
            }
            None => {
                problem?;
                let message = "neither a plain reading (device, metric, value) nor SenML (n, v)";
                Err(Fault::MissingField.in_field("body", message))
            }
        }
    }

    /// Adds a record, or refuses it.
    fn take<E: Error>(&mut self, record: Result<Option<Record>, BadField>) -> Result<(), E> {
        let max = self.converter.limits.records;
        if self.sifted.slots.len() + self.sums.len() >= max {
            return Err(self.fail(too_many(max)));
        }
        match record {
            Ok(record) => self.sifted.slots.push(record),
            Err(error) if self.strict => return Err(self.fail(error)),
            Err(error) => self.refuse(error),
        }
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
            let record = match value {
                Scalar::Object => body.record_of(object),
                other => {
                    let message = format!("{} is not a record; expected an object", other.described());
                    Err(Fault::WrongType.in_field("body", message))
                }
            };
            body.take(record)?;
        }
    }
}
