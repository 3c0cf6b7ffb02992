//! Log lines without hidden characters: field values may be untrusted text.

use std::{
    error::Error,
    fmt::{self, Debug, Write as _},
    io,
};

use ::tracing::field::{Field, Visit};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{FormatFields, format::Writer},
};

use crate::text::{PrintableWriter, printable_json, with_causes};

/// Formats an event's message and fields as the subscriber's default formatter does, and escapes hidden characters in
/// them. One event is one line.
pub(super) struct PrintableFields;

impl<'w> FormatFields<'w> for PrintableFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = FieldVisitor { writer, first: true, written: Ok(()) };
        fields.record(&mut visitor);
        visitor.written
    }
}

struct FieldVisitor<'w> {
    writer: Writer<'w>,
    first: bool,
    written: fmt::Result,
}

impl FieldVisitor<'_> {
    fn write(&mut self, field: &Field, value: &dyn Debug) -> fmt::Result {
        if !std::mem::take(&mut self.first) {
            self.writer.write_char(' ')?;
        }
        match field.name() {
            "message" => {}
            name => {
                let name = name.strip_prefix("r#").unwrap_or(name);
                match self.writer.has_ansi_escapes() {
                    // The name in italics, the equals sign dimmed.
                    true => write!(self.writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?,
                    false => write!(self.writer, "{name}=")?,
                }
            }
        }
        write!(PrintableWriter(&mut self.writer), "{value:?}")
    }
}

impl Visit for FieldVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Skips the fields that the `log` bridge adds for the subscriber.
        if self.written.is_ok() && !field.name().starts_with("log.") {
            self.written = self.write(field, value);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.record_debug(field, &format_args!("{value}")),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.record_debug(field, &format_args!("{}", with_causes(value)));
    }
}

/// Escapes hidden characters in JSON lines. Relies on the subscriber writing each event with a single call.
pub(super) struct PrintableLine<W>(pub(super) W);

impl<W: io::Write> io::Write for PrintableLine<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.0.write_all(printable_json(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
