//! Messages as Celery 5.7 (kombu 5.7, py-amqp 5.4) published them to RabbitMQ, recorded with `basic.get`.

use std::time::{Duration, UNIX_EPOCH};

use amq_protocol::types::FieldArray;
use serde_json::{Value, json};

use super::*;
use crate::task::{Copied, Origin};

const CAPTURED: &str = include_str!("captured.json");
const ID: &str = "6e9ad3b5-6d2c-4c1c-9d1e-0a3d3f2f8c01";
const REPLIES: &str = "ded2fd87-d0af-3edf-bee1-98e8bff10c4a";

/// 2026-11-29T10:28:54Z, when they were published.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_795_948_134)
}

/// A header value with the type that py-amqp writes.
fn amqp(value: &Value) -> AMQPValue {
    match value {
        Value::Null => AMQPValue::Void,
        Value::Bool(value) => AMQPValue::Boolean(*value),
        Value::Number(number) => match number.as_i64() {
            Some(number) => AMQPValue::LongLongInt(number),
            None => AMQPValue::Double(number.as_f64().unwrap()),
        },
        Value::String(text) => header::long(text),
        Value::Array(values) => AMQPValue::FieldArray(values.iter().map(amqp).collect::<Vec<_>>().into()),
        Value::Object(_) => AMQPValue::FieldTable(table(value)),
    }
}

fn table(values: &Value) -> FieldTable {
    let values = values.as_object().unwrap();
    values.iter().map(|(name, value)| (name.as_str().into(), amqp(value))).collect::<BTreeMap<_, _>>().into()
}

fn message(headers: &Value, properties: &Value) -> BasicProperties {
    let text = |name: &str| properties[name].as_str().map(ShortString::from);
    let mut message = BasicProperties::default().with_headers(table(headers));
    if let Some(it) = text("content_type") {
        message = message.with_content_type(it);
    }
    if let Some(it) = text("content_encoding") {
        message = message.with_content_encoding(it);
    }
    if let Some(it) = text("correlation_id") {
        message = message.with_correlation_id(it);
    }
    if let Some(it) = text("reply_to") {
        message = message.with_reply_to(it);
    }
    if let Some(it) = text("expiration") {
        message = message.with_expiration(it);
    }
    match properties["priority"].as_u64() {
        Some(priority) => message.with_priority(u8::try_from(priority).unwrap()),
        None => message,
    }
}

fn captured(name: &str) -> (BasicProperties, Vec<u8>) {
    let all: Vec<Value> = serde_json::from_str(CAPTURED).unwrap();
    let one = all.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("{name} is recorded"));
    let byte = |hex: &[u8]| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap();
    let body = match one["body"].as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None => one["bytes"].as_str().unwrap().as_bytes().chunks(2).map(byte).collect(),
    };
    (message(&one["headers"], &one["properties"]), body)
}

fn read(properties: &BasicProperties, body: &[u8]) -> Result<(Envelope, CeleryCall), BadCall> {
    let call = CeleryCall::read(properties, body, &"Europe/Paris".parse().unwrap(), now())?;
    let task = Envelope::read("celery", &call.properties, None, |_| false, now()).unwrap();
    Ok((task, call))
}

fn body_of(call: &CeleryCall) -> &str {
    std::str::from_utf8(&call.body).unwrap()
}

#[test]
fn a_call_is_a_task_with_its_kind_id_and_arguments() {
    for (name, kind, body) in [
        ("delay", "proj.tasks.add", r#"{"args":[2, 3],"kwargs":{}}"#),
        (
            "kwargs",
            "proj.tasks.mail",
            r#"{"args":["ann@example.org"],"kwargs":{"subject": "Gr\u00fc\u00dfe"}}"#,
        ),
        ("send-task", "proj.tasks.add", r#"{"args":[2],"kwargs":{"y": 3}}"#),
        (
            "datetime",
            "proj.tasks.mail",
            r#"{"args":[{"__type__": "datetime", "__value__": "2026-12-01T00:00:00+00:00"}],"kwargs":{}}"#,
        ),
    ] {
        let (properties, sent) = captured(name);
        assert!(CeleryCall::is_call(&properties, &sent));
        let (task, call) = read(&properties, &sent).unwrap();
        assert_eq!((task.kind.as_str(), task.id.as_str(), task.id_given), (kind, ID, true), "{name}");
        assert_eq!(body_of(&call), body, "{name}");
        assert_eq!((task.attempt, task.timeout, task.not_before, task.expires_at), (0, None, None, None));
        assert_eq!(task.reply_to.as_deref(), Some(REPLIES));
        assert_eq!(task.correlation_id.as_deref(), Some(ID));
        assert!(task.celery && call.properties.priority().is_none());
        let headers = call.properties.headers().as_ref().unwrap().inner();
        assert_eq!(headers.keys().map(ShortString::as_str).collect::<Vec<_>>(), [header::CELERY], "{name}");
    }
}

#[test]
fn options_of_a_call_are_those_of_a_task() {
    let secs = Duration::from_secs;
    for (name, not_before, expires_at, timeout, attempt) in [
        ("countdown", Some(1_795_948_194_604), None, None, 0),
        ("eta-aware", Some(1_796_119_200_250), None, None, 0),
        // In the zone of the setting, here Europe/Paris.
        ("eta-naive", Some(1_796_122_800_000), None, None, 0),
        ("expires-seconds", None, Some(1_795_951_734_641), None, 0),
        ("expires-aware", None, Some(1_798_761_600_000), None, 0),
        ("time-limits", None, None, Some(Duration::from_millis(20_500)), 0),
        ("hard-limit", None, None, Some(secs(30)), 0),
        ("retries", None, None, None, 2),
        ("group", None, None, None, 0),
    ] {
        let (properties, sent) = captured(name);
        let (task, call) = read(&properties, &sent).unwrap();
        let read = (task.not_before, task.expires_at, task.timeout, task.attempt);
        assert_eq!(read, (not_before, expires_at, timeout, attempt), "{name}");
        assert_eq!(call.properties.expiration(), &None, "the header says it exactly");
        assert_eq!(task.group, None, "a group of Celery is none of Garenne");
    }
    let (properties, sent) = captured("priority-headers");
    let (task, call) = read(&properties, &sent).unwrap();
    assert_eq!((call.properties.priority(), task.group.as_deref()), (&Some(4), Some("import")));
    let tenant = header::get(call.properties.headers(), "tenant").and_then(header::text);
    assert_eq!(tenant.as_deref(), Some("acme"));
    let (properties, sent) = captured("ignore-result");
    assert_eq!(read(&properties, &sent).unwrap().0.reply_to, None);
}

#[test]
fn what_only_celery_can_run_is_refused_and_named() {
    for (name, error) in [
        ("link", "it has callbacks (link), which only Celery's workers run"),
        ("link-error", "it has errbacks (link_error), which only Celery's workers run"),
        ("chain", "it has a chain, which only Celery's workers run"),
        ("chord", "it has a chord, which only Celery's workers run"),
        (
            "pickle",
            "content type \"application/x-python-serialize\" (pickle) is not supported; send JSON: task_serializer = \"json\"",
        ),
        ("compression", "compression \"application/x-gzip\" is not supported; leave task_compression unset"),
    ] {
        let (properties, sent) = captured(name);
        let refused = read(&properties, &sent).unwrap_err().to_string();
        assert!(refused.ends_with(error), "{name}: {refused}");
        let labelled = CeleryCall::refused(&properties);
        let kind = labelled.kind().as_ref().map(ShortString::as_str);
        assert_eq!((kind, labelled.headers()), (Some("proj.tasks.add"), properties.headers()), "{name}");
        assert!(labelled.message_id().is_some());
        assert!(CeleryCall::is_call(&labelled, &sent), "a replay is refused again");
    }
}

#[test]
fn a_sender_that_is_not_python_may_leave_all_but_the_task_out() {
    let call = |headers: Value, body: &str| {
        let properties = message(&headers, &json!({}));
        assert!(CeleryCall::is_call(&properties, body.as_bytes()));
        read(&properties, body.as_bytes())
    };
    let (task, read) = call(json!({"task": "proj.tasks.add"}), "[[1],{},{}]").unwrap();
    assert_eq!((task.kind.as_str(), task.id_given, task.reply_to), ("proj.tasks.add", false, None));
    assert_eq!(body_of(&read), r#"{"args":[1],"kwargs":{}}"#);
    for (body, payload) in [
        ("[[1], null, null]", r#"{"args":[1],"kwargs":{}}"#),
        ("[[], {\"a\": 1}]", r#"{"args":[],"kwargs":{"a": 1}}"#),
        ("[null, {}, {\"chain\": []}]", r#"{"args":[],"kwargs":{}}"#),
    ] {
        assert_eq!(body_of(&call(json!({"task": "a.b", "id": "i"}), body).unwrap().1), payload);
    }
    for (headers, body, error) in [
        (json!({"task": "a b"}), "[[],{},{}]", "kind \"a b\" may hold only letters"),
        (json!({"task": "a"}), "{}", "the body must be [args, kwargs, embed]: invalid type: map"),
        (json!({"task": "a"}), "[1,{},{}]", "args is no array"),
        (json!({"task": "a"}), "[[],[],{}]", "kwargs is no object"),
        (json!({"task": "a"}), "", "EOF while parsing"),
        (json!({"task": "a", "eta": "soon"}), "[[],{},{}]", "header eta is no time in ISO 8601: \"soon\""),
        (json!({"task": "a", "expires": 5}), "[[],{},{}]", "header expires is no time"),
        (json!({"task": "a", "eta": "2027-06-01T00:00:00Z"}), "[[],{},{}]", "more than 30 days ahead"),
        (json!({"task": "a", "id": "x".repeat(200)}), "[[],{},{}]", "message_id has 200 bytes"),
    ] {
        let refused = call(headers, body).unwrap_err().to_string();
        assert!(refused.starts_with("a message of Celery: ") && refused.contains(error), "{refused}");
    }
}

#[test]
fn a_call_without_headers_is_recognized_by_its_body() {
    let none = BasicProperties::default();
    assert!(CeleryCall::is_call(&none, b" [ [1,2],{},{}]"));
    for body in ["", "[1,[2]]", r#"{"args":[]}"#, "5"] {
        assert!(!CeleryCall::is_call(&none, body.as_bytes()), "{body}");
    }
    let call = CeleryCall::read(&none, b"[[1,2],{},{}]", &CeleryZone::default(), now()).unwrap();
    let task = Envelope::read("proj.tasks.add", &call.properties, None, |_| true, now()).unwrap();
    assert_eq!((task.kind.as_str(), task.celery), ("proj.tasks.add", true));
}

#[test]
fn ids_come_from_the_header_or_from_the_correlation() {
    let with = |headers: Value| message(&headers, &json!({"correlation_id": "c"}));
    let id = |headers| read(&with(headers), b"[[],{},{}]").unwrap().0.id.to_string();
    assert_eq!(id(json!({"task": "a", "id": "i"})), "i");
    assert_eq!(id(json!({"task": "a", "id": null})), "c");
}

#[test]
fn copies_of_a_call_are_tasks_of_garenne() {
    let (properties, sent) = captured("time-limits");
    let (task, call) = read(&properties, &sent).unwrap();
    let copy = Copied::of(&call.properties, &task, now()).attempt(1).into_properties();
    assert!(!CeleryCall::is_call(&copy, &call.body));
    assert!(Origin::Lane.believable(&copy).is_none());
    let again = Envelope::read("q", &copy, None, |_| false, now()).unwrap();
    assert_eq!((again.celery, again.attempt, again.timeout), (true, 1, task.timeout));
    assert_eq!((&again.kind, &again.id, &again.reply_to), (&task.kind, &task.id, &task.reply_to));
    let dead = Copied::of(&copy, &again, now()).bare().into_properties();
    assert!(Envelope::read("q", &dead, None, |_| false, now()).unwrap().celery);
}

#[test]
fn a_call_that_stays_celerys_loses_only_what_the_broker_wrote() {
    let (sent, _) = captured("priority-headers");
    let sent = sent.with_expiration("60000".into()).with_delivery_mode(2);
    let mut headers = sent.headers().clone().unwrap();
    for name in ["x-death", "x-delivery-count", "x-first-death-queue", "x-last-death-reason", "CC"] {
        headers.insert(name.into(), header::long("zz"));
    }
    let delivered = sent.clone().with_headers(headers).with_user_id("u".into());
    assert_eq!(Copied::unchanged(&delivered), sent);
}

#[test]
fn a_sender_cannot_pass_for_a_worker() {
    let mut headers = table(&json!({"task": "a", header::CELERY: true, header::ATTEMPT: 9}));
    headers.insert("mine".into(), header::long("kept"));
    let forged = BasicProperties::default().with_headers(headers);
    let (believed, _) = Origin::Publisher.believable(&forged).unwrap();
    assert!(CeleryCall::is_call(&believed, b"") && !CeleryCall::is_call(&forged, b""));
}

#[test]
fn limits_are_positive_numbers() {
    let limit = |limits: Value| {
        let headers = Some(table(&json!({"timelimit": limits})));
        time_limit_ms(&headers)
    };
    assert_eq!(limit(json!([0, -1])), None);
    assert_eq!(limit(json!([10, 300.25])), Some(10_000));
    assert_eq!(limit(json!([null, 0.0005])), Some(1));
    assert_eq!(limit(json!([1e300, null])), Some(Envelope::MAX_MS));
    assert_eq!(limit(json!("5")), None);
    assert_eq!(limit(Value::Array(Vec::new())), None);
    assert!(
        matches!(amqp(&json!([1])), AMQPValue::FieldArray(it) if it == FieldArray::from(vec![AMQPValue::LongLongInt(1)]))
    );
}
