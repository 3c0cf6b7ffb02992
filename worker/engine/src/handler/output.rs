//! The output of a handler.

use std::{any::Any, fmt, sync::Arc};

use garenne_protocol::task::{ContentType, DeadReason, NewTask};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::TaskError;

/// The result of a task.
///
/// Handlers may return any [`Serialize`] type instead; see [`IntoOutput`]. `Output` itself is for results with a value for a
/// sink, or with a part that is refused.
#[derive(Clone)]
#[non_exhaustive]
pub struct Output {
    /// The result as serialized JSON. It is what sinks store and what replies contain.
    pub json: Box<RawValue>,
    /// The tasks that the handler requested with [`follow_up`](super::TaskContext::follow_up). Set by the worker
    /// after the handler has returned; what a handler writes here is discarded.
    pub follow_ups: Vec<NewTask>,
    /// What the handler refuses of the payload.
    pub refused: Option<RefusedPart>,
    extension: Option<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { json, follow_ups, refused, extension } = self;
        f.debug_struct("Output")
            .field("json", json)
            .field("follow_ups", follow_ups)
            .field("refused", refused)
            .field("has_extension", &extension.is_some())
            .finish()
    }
}

/// What a handler refuses of a payload whose other parts it accepts. It becomes a dead letter of its own, which is
/// confirmed before the task is acked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPart {
    /// Why.
    pub reason: DeadReason,
    /// The same for people.
    pub error: String,
    /// The codes that `garenne_records_refused_total{door="amqp"}` counts.
    pub codes: Vec<&'static str>,
    /// The body of the dead letter. A task that runs it again must have no second effect.
    pub payload: Vec<u8>,
    /// The content type of the body; [`None`] for the task's.
    pub content_type: Option<ContentType>,
}

impl Output {
    /// An output of JSON only.
    ///
    /// # Errors
    /// A [rejection](TaskError::reject) if `value` cannot be serialized as JSON.
    pub fn json(value: &impl Serialize) -> Result<Self, TaskError> {
        let json = to_raw_value(value)
            .map_err(|error| TaskError::reject(format!("the output cannot be serialized: {error}")))?;
        Ok(Self::raw(json))
    }

    /// An output of JSON that is written already.
    pub fn raw(json: Box<RawValue>) -> Self {
        Self { json, follow_ups: Vec::new(), refused: None, extension: None }
    }

    /// Sets what the handler refuses of the payload.
    #[must_use]
    pub fn with_refused(self, refused: Option<RefusedPart>) -> Self {
        Self { refused, ..self }
    }

    /// Adds a value for a sink of the program that knows its type, in place of an earlier one. It is neither stored by other
    /// sinks nor part of the JSON.
    ///
    /// ```
    /// # use garenne::{Output, TaskError};
    /// struct Rows(Vec<f64>);
    ///
    /// # fn main() -> Result<(), TaskError> {
    /// let output = Output::json(&2)?.with_extension(Rows(vec![20.5, 21.0]));
    /// // In the sink:
    /// assert_eq!(output.extension::<Rows>().map(|rows| rows.0.len()), Some(2));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_extension<T: Any + Send + Sync>(self, value: T) -> Self {
        Self { extension: Some(Arc::new(value)), ..self }
    }

    /// The value that the handler added, if it is a `T`.
    pub fn extension<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.extension.as_ref()?.downcast_ref()
    }
}

/// A type that a handler can return in its `Result`: [`Output`], or any [`Serialize`] type, which becomes the output's JSON.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the output of a handler",
    label = "not an output",
    note = "an output implements `serde::Serialize`: add `#[derive(serde::Serialize)]`, or return `()`"
)]
pub trait IntoOutput {
    /// Converts the value into an output.
    ///
    /// # Errors
    /// A [rejection](TaskError::reject) if the value cannot be serialized as JSON.
    fn into_output(self) -> Result<Output, TaskError>;
}

impl IntoOutput for Output {
    fn into_output(self) -> Result<Output, TaskError> {
        Ok(self)
    }
}

#[diagnostic::do_not_recommend]
impl<T: Serialize> IntoOutput for T {
    fn into_output(self) -> Result<Output, TaskError> {
        Output::json(&self)
    }
}
