//! Log lines without hidden characters: field values may be untrusted text.

use std::io;

use tracing_subscriber::{
    field::MakeExt,
    fmt::{
        FormatFields,
        format::{Writer, debug_fn},
    },
};

use crate::text::{PrintableWriter, printable_json};

/// Formats an event's message and fields as the subscriber's default formatter does, and escapes hidden characters in
/// them. One event is one line.
pub(super) fn printable_fields() -> impl for<'w> FormatFields<'w> + Send + Sync + 'static {
    debug_fn(|writer: &mut Writer<'_>, field, value| {
        let name = field.name();
        let name = name.strip_prefix("r#").unwrap_or(name);
        match writer.has_ansi_escapes() {
            _ if name == "message" => {}
            true => write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?,
            false => write!(writer, "{name}=")?,
        }
        std::fmt::Write::write_fmt(&mut PrintableWriter(writer), format_args!("{value:?}"))
    })
    .delimited(" ")
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
