//! The JSON Schema of what [`readings_from`](super::readings_from) takes.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{Limits, Timestamp, Unit, senml::VERSION};

/// Stands for the payload of `reading.process` in generated documents: a plain reading, an array of
/// them, or a SenML pack. A schema cannot say everything; the parser has the last word.
#[derive(Debug, Clone, Copy)]
pub struct ReadingsSchema;

/// A plain reading as it is sent: [`Reading`](super::Reading) with its optional fields left out or
/// null, and an id.
#[derive(Debug, Clone, Copy)]
pub struct PlainSchema;

/// One record of a SenML pack, by RFC 8428's labels.
#[derive(Debug, Clone, Copy)]
pub struct SenmlSchema;

impl JsonSchema for ReadingsSchema {
    fn schema_name() -> Cow<'static, str> {
        "Readings".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let plain = generator.subschema_for::<PlainSchema>();
        let senml = generator.subschema_for::<SenmlSchema>();
        let most = Limits::default().records;
        // What tells SenML from anything else with fields that SenML would ignore.
        let named = json_schema!({ "anyOf": [{ "required": ["n"] }, { "required": ["bn"] }] });
        json_schema!({
            "description": "A reading, several, or a SenML pack (RFC 8428).",
            "anyOf": [
                plain,
                { "type": "array", "items": plain, "minItems": 1, "maxItems": most },
                {
                    "description": "A SenML pack",
                    "type": "array", "items": senml, "contains": named, "minItems": 1, "maxItems": most
                },
                { "allOf": [senml, named] }
            ]
        })
    }
}

impl JsonSchema for PlainSchema {
    fn schema_name() -> Cow<'static, str> {
        "PlainReading".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let unit = generator.subschema_for::<Unit>();
        let time = generator.subschema_for::<Timestamp>();
        let limits = Limits::default();
        json_schema!({
            "description": "A reading. Without a time it was measured now.",
            "type": "object",
            "additionalProperties": false,
            "required": ["device", "metric", "value"],
            "properties": {
                "device": { "type": "string", "minLength": 1, "maxLength": limits.name_bytes },
                "metric": { "type": "string", "minLength": 1, "maxLength": limits.name_bytes },
                "value": { "type": "number" },
                "unit": { "anyOf": [unit, { "type": "null" }] },
                "time": { "anyOf": [time, { "type": "null" }] },
                "id": { "type": ["string", "null"], "minLength": 1, "maxLength": limits.id_bytes }
            }
        })
    }
}

impl JsonSchema for SenmlSchema {
    fn schema_name() -> Cow<'static, str> {
        "SenmlRecord".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let unit = generator.subschema_for::<Unit>();
        json_schema!({
            "description": "A SenML record. Other fields are ignored unless their name ends in _, which is refused.",
            "type": "object",
            "patternProperties": { "_$": false },
            "properties": {
                "bn": { "type": "string", "description": "base name, before the names from here on" },
                "bt": { "type": "number", "description": "base time, added to the times from here on" },
                "bu": unit,
                "bv": { "type": "number", "description": "base value, added to the values from here on" },
                "bs": { "type": "number", "description": "base sum, added to the sums from here on" },
                "bver": { "type": "integer", "minimum": 1, "maximum": VERSION },
                "n": { "type": "string", "pattern": "^[A-Za-z0-9:./_-]*$" },
                "u": unit,
                "v": { "type": "number" },
                "vb": { "type": "boolean", "description": "taken as 1 or 0" },
                "vs": { "type": "string", "description": "valid SenML, but no reading: refused" },
                "vd": { "type": "string", "description": "valid SenML, but no reading: refused" },
                "s": { "type": "number", "description": "sum; only beside a value" },
                "t": { "type": "number", "description": "Unix seconds; below 2^28 relative to now" },
                "ut": { "type": "number" }
            }
        })
    }
}
