//! The committed JSON Schemas of the heads are those of the types, and the recorded conversation of the documentation is valid.

use std::{env, fs, path::PathBuf};

use schemars::{JsonSchema, Schema, generate::SchemaSettings};
use serde_json::{Map, Value};

use super::{FromChild, ToChild};

fn documentation(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(path)
}

fn schema_of<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>()
}

/// `UPDATE_SCHEMAS=1 cargo test -p garenne-handlers --lib schemas` writes them anew.
#[test]
fn committed_schemas_are_the_types() {
    for (name, schema) in [
        ("handler.from-child", schema_of::<FromChild>()),
        ("handler.from-worker", schema_of::<ToChild<'_>>()),
    ] {
        let path = documentation(&format!("schemas/{name}.json"));
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if env::var_os("UPDATE_SCHEMAS").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == text, "{} is out of date: run with UPDATE_SCHEMAS=1", path.display());
    }
}

#[test]
fn the_recorded_conversation_is_valid() {
    let page = fs::read_to_string(documentation("reference/handlers.md")).unwrap();
    let recorded = page.split("## Recorded conversation").nth(1).unwrap().split("```").nth(1).unwrap();
    let [from_child, from_worker] = [schema_of::<FromChild>(), schema_of::<ToChild<'_>>()].map(Value::from);
    let mut heads = 0;
    for line in recorded.lines().skip(1) {
        let (direction, frame) = line.split_at(2);
        let schema = if direction == "< " { &from_child } else { &from_worker };
        let head = serde_json::Deserializer::from_str(frame).into_iter::<Value>().next().unwrap().unwrap();
        assert_eq!(check(schema, schema, &head), Ok(()), "{line}");
        heads += 1;
    }
    assert!(heads > 10, "{heads} heads");
    for (schema, invalid) in [
        (&from_child, r#"{"type":"done","id":"a"}"#),
        (&from_child, r#"{"type":"hello","protocol":1,"concurrency":0}"#),
        (&from_child, r#"{"type":"progress","id":"a","attempt":1,"done":1.5}"#),
        (&from_child, r#"{"type":"reject","id":"a","attempt":1,"error":"no","reason":"other"}"#),
        (&from_child, r#"{"type":"dance"}"#),
        (&from_worker, r#"{"type":"cancel","id":"a","attempt":1}"#),
    ] {
        let head = serde_json::from_str(invalid).unwrap();
        assert!(check(schema, schema, &head).is_err(), "{invalid}");
    }
}

/// Checks a value against a schema, as far as the schemas of frames go.
fn check(root: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let Value::Object(schema) = schema else { return Ok(()) };
    let number = |value: &Value| value.as_f64().unwrap();
    for (keyword, wanted) in schema {
        let is_valid = match (keyword.as_str(), wanted, value) {
            ("$schema" | "$defs" | "title" | "description" | "default" | "format", ..) => true,
            ("$ref", Value::String(reference), _) => {
                check(root, root.pointer(reference.strip_prefix('#').unwrap()).unwrap(), value)?;
                true
            }
            ("type", Value::String(name), _) => is_of(name, value),
            ("type", Value::Array(names), _) => names.iter().any(|name| is_of(name.as_str().unwrap(), value)),
            ("const", wanted, value) => wanted == value,
            ("enum", Value::Array(values), _) => values.contains(value),
            ("oneOf" | "anyOf", Value::Array(schemas), _) => {
                let fitting = schemas.iter().filter(|schema| check(root, schema, value).is_ok()).count();
                fitting == 1 || fitting > 1 && keyword == "anyOf"
            }
            ("minimum", minimum, Value::Number(_)) => number(value) >= number(minimum),
            ("maximum", maximum, Value::Number(_)) => number(value) <= number(maximum),
            ("required", Value::Array(names), Value::Object(members)) => {
                names.iter().all(|name| members.contains_key(name.as_str().unwrap()))
            }
            ("properties", Value::Object(schemas), Value::Object(members)) => {
                members_fit(root, schemas, members)?;
                true
            }
            ("additionalProperties", Value::Bool(true), _) => true,
            ("items", schema, Value::Array(items)) => {
                items.iter().try_for_each(|item| check(root, schema, item))?;
                true
            }
            // They concern values of another type.
            ("minimum" | "maximum" | "required" | "properties" | "items", ..) => true,
            _ => panic!("the keyword {keyword:?} is not checked: {wanted}"),
        };
        if !is_valid {
            return Err(format!("{value} is not {keyword} {wanted}"));
        }
    }
    Ok(())
}

fn members_fit(
    root: &Value,
    schemas: &Map<String, Value>,
    members: &Map<String, Value>,
) -> Result<(), String> {
    let mut known = members.iter().filter_map(|(name, value)| Some((schemas.get(name)?, value)));
    known.try_for_each(|(schema, value)| check(root, schema, value))
}

fn is_of(name: &str, value: &Value) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        _ => false,
    }
}
