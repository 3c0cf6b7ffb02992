use axum::response::IntoResponse;
use garenne_map::Reason;
use garenne_protocol::task::KindError;
use serde_json::Value;
use serde_json::json;

use super::*;
use crate::{limits::Limits, memory::MemoryBudget};

/// One refusal of each code, besides those of records.
fn refusals() -> Vec<Refusal> {
    let wait = Duration::from_secs(2);
    vec![
        Refusal::malformed_body("expected value"),
        Refusal::field("garenne-key", "expected 1 to 255 bytes"),
        Refusal::from(KindRefused::NoLane { kind: "a.b".to_owned(), bindings: "reading.#".to_owned() }),
        Refusal::from(KindRefused::Invalid(KindError::Empty)),
        Refusal::no_map("x"),
        Refusal::unmapped(Unmapped { rule: None, reason: Reason::NoRule }),
        Refusal::too_large("body", Size::mib(4)),
        Refusal::encoding("br"),
        Refusal::media_type("text/csv", "application/senml+json"),
        Refusal::too_many("data points", 10_000),
        Refusal::unauthorized("no token"),
        Refusal::expired(),
        Refusal::precision("week"),
        Refusal::unfinished_line(),
        Refusal::foreign_device("d2", "roof").of_record(0),
        Refusal::hidden_device("roof"),
        Refusal::foreign_kind("a.b", "roof"),
        Refusal::foreign_origin("http://example.org"),
        Refusal::tls_required(),
        Refusal::key_reused(None),
        Refusal::key_reused(Some(0)),
        Refusal::rate_limited(5, wait),
        Refusal::timeout("line", wait),
        Refusal::broker(&PublishError::Blocked, wait),
        Refusal::broker(&PublishError::InDoubt("the connection ended".to_owned()), wait),
        MemoryBudget::new(&Limits::default()).exhausted(),
    ]
}

#[test]
fn http_and_lines_answer_the_same_code_and_the_reference_lists_it() {
    let reference = include_str!("../../../../docs/ingest.md");
    let faults = [
        Fault::UnsupportedMediaType,
        Fault::Malformed,
        Fault::Empty,
        Fault::TooManyRecords,
        Fault::WrongType,
        Fault::MissingField,
        Fault::UnknownField,
        Fault::Duplicate,
        Fault::BadName,
        Fault::OutOfRange,
        Fault::BadTime,
        Fault::ClockSkew,
        Fault::UnknownUnit,
        Fault::WrongUnit,
        Fault::UnsupportedVersion,
        Fault::NotNumeric,
    ];
    let records = faults.map(|fault| fault.in_field("field", "a problem").in_record(0).into());
    for refusal in refusals().into_iter().chain(records) {
        let (status, code) = (refusal.status.as_u16(), refusal.code);
        let message = &refusal.message;
        assert_eq!(refusal.line(), format!("error {code} {message}"));
        let problem: Value = serde_json::from_str(&refusal.problem()).unwrap();
        assert_eq!(
            (&problem["status"], &problem["code"], &problem["detail"]),
            (&json!(status), &json!(code), &json!(message))
        );
        let row = reference.lines().find(|line| line.starts_with(&format!("| {status} | `")));
        assert!(row.is_some_and(|row| row.contains(&format!("`{code}`"))), "{status} {code}");
        let response = refusal.into_response();
        assert_eq!(response.status(), status);
        assert_eq!(response.headers().contains_key("retry-after"), [429, 503].contains(&status), "{code}");
    }
}

#[test]
fn a_gateway_over_its_budget_is_busy_on_both_doors() {
    let refusal = MemoryBudget::new(&Limits::default()).exhausted();
    let reason = "the memory for requests is in use (gateway.memory_budget 24MiB)";
    assert_eq!(refusal.line(), format!("error busy {reason}"));
    assert!(refusal.problem().contains(r#""status":503"#) && refusal.problem().contains(reason));
    assert_eq!(refusal.into_response().headers()["retry-after"], "1");
}
