//! The OpenAPI 3.1 description of the API.

use garenne_protocol::sensor::{Reading, Unit};
use serde_json::{Value, json};

/// The document of a gateway whose lanes have these bindings. The schema of a reading is derived from its type.
pub(crate) fn document(bindings: &[String]) -> Value {
    let mut reading = serde_json::to_value(schemars::schema_for!(Reading)).expect("a schema is plain JSON");
    let definitions = reading.as_object_mut().and_then(|schema| schema.remove("$defs"));
    let mut schemas = json!({
        "SenmlRecord": senml_record(),
        "SenmlPack": { "type": "array", "minItems": 1, "items": reference("SenmlRecord") },
        "Accepted": {
            "type": "object",
            "required": ["accepted", "ids"],
            "properties": {
                "accepted": { "type": "integer", "minimum": 1, "description": "Number of records that the broker has confirmed." },
                "ids": {
                    "type": "array",
                    "items": { "type": "string", "maxLength": 128 },
                    "description": "The task id of each record, in order."
                }
            }
        },
        "Problem": problem_schema(),
    });
    let table = schemas.as_object_mut().expect("an object literal");
    if let Some(Value::Object(definitions)) = definitions {
        table.extend(definitions);
    }
    let text = reading.to_string().replace("#/$defs/", "#/components/schemas/");
    table.insert("Reading".to_owned(), serde_json::from_str(&text).expect("still JSON"));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Garenne gateway",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A 2xx is sent only after the broker has confirmed that every record of the request is stored in a queue."
        },
        "paths": {
            "/v1/readings": { "post": readings_operation() },
            "/v1/tasks/{kind}": { "post": task_operation(bindings) },
            "/openapi.json": { "get": {
                "operationId": "openapi",
                "summary": "This document",
                "security": [],
                "responses": { "200": {
                    "description": "OpenAPI 3.1",
                    "content": { "application/json": { "schema": { "type": "object" } } }
                } }
            } }
        },
        "security": [{}, { "token": [] }],
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas,
            "responses": {
                "Accepted": {
                    "description": "The broker has confirmed every record.",
                    "content": { "application/json": { "schema": reference("Accepted") } }
                },
                "Problem": {
                    "description": "No record of the request is confirmed.",
                    "content": { "application/problem+json": { "schema": reference("Problem") } }
                },
                "Retry": {
                    "description": "The broker or the gateway is overloaded. Send the request again; a repetition has no second effect.",
                    "headers": { "Retry-After": { "schema": { "type": "integer", "minimum": 1 }, "description": "Seconds." } },
                    "content": { "application/problem+json": { "schema": reference("Problem") } }
                }
            }
        }
    })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn responses() -> Value {
    let mut responses = json!({ "202": { "$ref": "#/components/responses/Accepted" } });
    let table = responses.as_object_mut().expect("an object literal");
    for status in ["400", "401", "403", "408", "413", "415", "422"] {
        table.insert(status.to_owned(), json!({ "$ref": "#/components/responses/Problem" }));
    }
    for status in ["429", "503"] {
        table.insert(status.to_owned(), json!({ "$ref": "#/components/responses/Retry" }));
    }
    responses
}

fn idempotency_key() -> Value {
    json!({
        "name": "Idempotency-Key", "in": "header", "required": false,
        "description": "The same key with the same body has no second effect.",
        "schema": { "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[!-~]+$" }
    })
}

fn readings_operation() -> Value {
    let plain = json!({ "oneOf": [
        reference("Reading"),
        { "type": "array", "minItems": 1, "items": reference("Reading") },
        reference("SenmlPack")
    ] });
    json!({
        "operationId": "postReadings",
        "summary": "Send readings: one, an array, or a SenML pack; all or none are accepted",
        "parameters": [idempotency_key()],
        "requestBody": { "required": true, "content": {
            "application/json": {
                "schema": plain,
                "example": { "device": "greenhouse-1", "metric": "temperature", "value": 21.5, "unit": "Cel", "time": "2026-11-20T07:30:00Z" }
            },
            "application/senml+json": {
                "schema": reference("SenmlPack"),
                "example": [{ "bn": "urn:dev:ow:10e2073a0108006:", "n": "temperature", "u": "Cel", "v": 21.5 }]
            },
            "application/x-ndjson": {
                "schema": { "type": "string" },
                "example": "{\"device\":\"d\",\"metric\":\"temperature\",\"value\":21.5}\n"
            }
        } },
        "responses": responses()
    })
}

/// The kinds that the bindings match, as a regular expression: `*` is one word, `#` any number of words.
fn kinds(bindings: &[String]) -> String {
    const WORD: &str = "[A-Za-z0-9_-]+";
    let pattern = |binding: &String| match binding.strip_suffix(".#") {
        Some(start) => format!("{}(\\.{WORD})*", start.replace('.', "\\.").replace('*', WORD)),
        None if binding == "#" => format!("{WORD}(\\.{WORD})*"),
        None => binding.replace('.', "\\.").replace('*', WORD).replace('#', ".*"),
    };
    format!("^({})$", bindings.iter().map(pattern).collect::<Vec<_>>().join("|"))
}

fn task_operation(bindings: &[String]) -> Value {
    let milliseconds = |name: &str, description: &str| {
        json!({
            "name": name, "in": "header", "required": false, "description": description,
            "schema": { "type": "integer", "minimum": 0, "maximum": 2_592_000_000_i64 }
        })
    };
    let name = |name: &str, description: &str| {
        json!({
            "name": name, "in": "header", "required": false, "description": description,
            "schema": { "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$" }
        })
    };
    json!({
        "operationId": "postTask",
        "summary": "Send one task of any kind that a lane takes",
        "parameters": [
            { "name": "kind", "in": "path", "required": true,
              "schema": { "type": "string", "minLength": 1, "maxLength": 127, "pattern": kinds(bindings) } },
            idempotency_key(),
            name("garenne-group", "Tasks of one group can be stopped, paused and awaited together."),
            name("garenne-key", "Tasks with the same key go to the same queue of a lane with several shards."),
            milliseconds("garenne-delay-ms", "Earliest start, in milliseconds from now."),
            milliseconds("garenne-timeout-ms", "Timeout of an attempt, in milliseconds.")
        ],
        "requestBody": { "required": true, "content": {
            "application/json": { "schema": {} },
            "application/senml+json": { "schema": reference("SenmlPack") }
        } },
        "responses": responses()
    })
}

/// A subset of what is accepted: the fields of RFC 8428 that a schema can describe without the other records of the
/// pack.
fn senml_record() -> Value {
    let name = json!({ "type": "string", "minLength": 1, "maxLength": 60, "pattern": "^[A-Za-z0-9][A-Za-z0-9:._/-]*$" });
    let number = json!({ "type": "number", "minimum": -1e100, "maximum": 1e100 });
    // Below 2^28 it is relative to now, else a Unix time.
    let time = json!({ "type": "number", "minimum": -1e9, "maximum": 1e11 });
    let unit = json!({ "enum": Unit::all().map(Unit::symbol).collect::<Vec<_>>() });
    json!({
        "type": "object",
        "description": "A record of RFC 8428 with a number or a boolean; text and data values are refused.",
        "required": ["n"],
        "oneOf": [{ "required": ["v"] }, { "required": ["vb"] }],
        "additionalProperties": false,
        "properties": {
            "bn": name, "n": name, "bt": time, "t": time, "bu": unit, "u": unit, "bv": number, "v": number,
            "vb": { "type": "boolean" }, "ut": { "type": "number" }, "bver": { "const": 10 }
        }
    })
}

fn problem_schema() -> Value {
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail", "code"],
        "properties": {
            "type": { "type": "string" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string" },
            "code": { "type": "string", "description": "Machine-readable code." },
            "record": { "type": "integer", "minimum": 0, "description": "Index of the invalid record, from 0." },
            "field": { "type": "string", "description": "Name of the invalid field." }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_pattern_follows_the_bindings() {
        let bindings = ["reading.#", "a.*", "exact"].map(str::to_owned);
        assert_eq!(kinds(&bindings), r"^(reading(\.[A-Za-z0-9_-]+)*|a\.[A-Za-z0-9_-]+|exact)$");
    }
}
