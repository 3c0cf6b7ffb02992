//! The names of fields of a record.

use std::borrow::Cow;

use serde::Deserialize;

use crate::quoted;

/// The name of a field in an error: quoted and cut if it is long or has characters to escape.
pub(super) fn field_name(name: &str) -> String {
    let quoted = quoted(name);
    if quoted.len() == name.len() + 2 { name.to_owned() } else { quoted }
}

/// The name of a field, borrowed from the body if it has no escapes.
#[derive(Deserialize)]
pub(super) struct FieldName<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);
