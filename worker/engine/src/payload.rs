//! Payloads: the types that tasks carry.

use serde::Deserialize;

pub use garenne_protocol::task::ContentType;

/// A payload type. Determines the kind of the tasks that its handler runs.
///
/// [`json_payload!`](crate::json_payload) implements it for types that are read from JSON. Implement it by hand
/// for other encodings, or to validate a payload before the handler runs:
///
/// ```
/// # use garenne::payload::{ContentType, Payload, PayloadError};
/// struct Text(String);
///
/// impl Payload for Text {
///     const KIND: &'static str = "text.count";
///
///     fn read(_: ContentType, body: &[u8]) -> Result<Self, PayloadError> {
///         let text = std::str::from_utf8(body).map_err(|error| PayloadError::Malformed(error.to_string()))?;
///         Ok(Self(text.to_owned()))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the payload of a task",
    label = "not a payload",
    note = "the last argument of a handler is the payload: derive `serde::Deserialize` for it and name its kind with `garenne::json_payload!`"
)]
pub trait Payload: Sized + Send + 'static {
    /// The kind of the tasks that have this payload.
    const KIND: &'static str;

    /// Reads the payload from a message's body.
    ///
    /// # Errors
    /// [`PayloadError`] if the body is not a valid payload. The task becomes a dead letter, and the handler is not
    /// called.
    fn read(content_type: ContentType, body: &[u8]) -> Result<Self, PayloadError>;
}

/// Why a body is not a payload of its kind. The text becomes the dead letter's error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PayloadError {
    /// The body is not well-formed, such as broken JSON. A dead letter with reason `malformed`.
    Malformed(String),
    /// The body is well-formed, but not a payload of this kind. A dead letter with reason `invalid-payload`.
    Invalid(String),
}

impl PayloadError {
    /// Reads a type from JSON. Distinguishes broken JSON from JSON of another shape.
    ///
    /// # Errors
    /// [`PayloadError`] with serde's message, which names field, line and column.
    pub fn json<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, Self> {
        serde_json::from_slice(body).map_err(|error| {
            if body.is_empty() {
                Self::Malformed("the body is empty".into())
            } else if error.is_data() {
                Self::Invalid(error.to_string())
            } else {
                Self::Malformed(error.to_string())
            }
        })
    }
}

/// Implements [`Payload`] for a type that implements `serde::Deserialize`. The body must be JSON.
///
/// ```
/// #[derive(serde::Deserialize)]
/// struct Resize { width: u32 }
/// garenne::json_payload!(Resize, "image.resize");
/// ```
#[macro_export]
macro_rules! json_payload {
    ($type:ty, $kind:expr) => {
        impl $crate::payload::Payload for $type {
            const KIND: &'static str = $kind;

            fn read(
                _: $crate::payload::ContentType,
                body: &[u8],
            ) -> Result<Self, $crate::payload::PayloadError> {
                $crate::payload::PayloadError::json(body)
            }
        }
    };
}
