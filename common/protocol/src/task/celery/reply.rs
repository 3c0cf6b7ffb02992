//! Replies in the form of Celery's result backend `rpc://`.

use serde::Serialize;
use serde_json::value::RawValue;

use super::super::outcome::DeadReason;

/// The property `content_encoding` of a reply: Celery does not decode a body without it.
pub const CELERY_REPLY_ENCODING: &str = "utf-8";

#[derive(Serialize)]
struct Reply<'a, R> {
    status: &'static str,
    result: R,
    traceback: Option<&'a str>,
    children: [&'static str; 0],
    task_id: &'a str,
}

/// An exception, as Celery's JSON serializer writes it.
#[derive(Serialize)]
struct Exception<'a> {
    exc_type: &'static str,
    exc_message: [&'a str; 1],
    exc_module: &'static str,
}

/// The reply for a task that succeeded with this result.
pub fn celery_success(task: &str, result: &RawValue) -> Vec<u8> {
    write(&Reply { status: "SUCCESS", result, traceback: None, children: [], task_id: task })
}

/// The reply for a task that became a dead letter. `AsyncResult.get()` raises `TaskRevokedError` if the task was stopped
/// or has expired, and `RuntimeError` otherwise.
pub fn celery_failure(task: &str, reason: Option<DeadReason>, error: &str) -> Vec<u8> {
    let (status, exc_type, exc_module) = match reason {
        Some(DeadReason::Stopped | DeadReason::Expired) => {
            ("REVOKED", "TaskRevokedError", "celery.exceptions")
        }
        _ => ("FAILURE", "RuntimeError", "builtins"),
    };
    let result = Exception { exc_type, exc_message: [error], exc_module };
    write(&Reply { status, result, traceback: None, children: [], task_id: task })
}

fn write(reply: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(reply).expect("strings and valid JSON can be serialized")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_have_the_form_of_the_rpc_backend() {
        let text = |reply: Vec<u8>| String::from_utf8(reply).unwrap();
        let result = RawValue::from_string("[1,2]".to_owned()).unwrap();
        assert_eq!(
            text(celery_success("t1", &result)),
            r#"{"status":"SUCCESS","result":[1,2],"traceback":null,"children":[],"task_id":"t1"}"#
        );
        assert_eq!(
            text(celery_failure("t1", Some(DeadReason::AttemptsExhausted), "bad \"x\"")),
            concat!(
                r#"{"status":"FAILURE","result":{"exc_type":"RuntimeError","exc_message":["bad \"x\""],"#,
                r#""exc_module":"builtins"},"traceback":null,"children":[],"task_id":"t1"}"#
            )
        );
        let revoked = text(celery_failure("t1", Some(DeadReason::Stopped), "stopped by an operator"));
        assert!(revoked.starts_with(
            r#"{"status":"REVOKED","result":{"exc_type":"TaskRevokedError","exc_message":["stopped by an operator"]"#
        ), "{revoked}");
    }
}
