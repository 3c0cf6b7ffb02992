//! The answer of a handler in another language.

use std::time::Duration;

use garenne::{Output, TaskError};
use serde_json::value::RawValue;

pub(crate) type Answer = Result<Output, TaskError>;

/// For how long a task is deferred that a handler cannot take. No attempt is spent on the failures of a handler.
pub(crate) const DEFERRAL: Duration = Duration::from_secs(2);

/// The output of a task that succeeded.
pub(crate) fn output(body: &[u8]) -> Answer {
    if body.is_empty() {
        return Output::json(&());
    }
    match serde_json::from_slice::<&RawValue>(body) {
        Ok(json) => Output::json(&json),
        Err(error) => Err(TaskError::reject(format!("the output is not JSON: {error}"))),
    }
}

/// An output: JSON, or text.
pub(crate) fn output_of(printed: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(printed);
    match text.trim() {
        "" => Output::json(&()),
        text => match serde_json::from_str::<&RawValue>(text) {
            Ok(json) => Output::json(&json),
            Err(_) => Output::json(&text),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_json_or_a_text() {
        let json = |printed: &[u8]| output_of(printed).unwrap().json.get().to_owned();
        assert_eq!(json(b""), "null");
        assert_eq!(json(b" {\"a\": 1}\n"), "{\"a\": 1}");
        assert_eq!(json(b"done: 3 \xff\n"), "\"done: 3 \u{fffd}\"");
    }
}
