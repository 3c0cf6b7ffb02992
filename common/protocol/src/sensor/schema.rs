//! The JSON Schema of the input of [`readings_from`](super::readings_from).

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{Limits, SentCounter, Timestamp, Unit, senml::VERSION};

/// The schema of the payload of `reading.process`: a plain reading, an array of them, or a SenML pack. The
/// parser checks more than a schema can express.
#[derive(Debug, Clone, Copy)]
pub struct ReadingsSchema;

/// The schema of a plain reading as sent: [`Reading`](super::Reading) with an optional id, and optional fields
/// absent or null.
struct PlainSchema;

/// The schema of a SenML record, with the labels of RFC 8428.
struct SenmlSchema;

impl JsonSchema for ReadingsSchema {
    fn schema_name() -> Cow<'static, str> {
        "Readings".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let plain = generator.subschema_for::<PlainSchema>();
        let senml = generator.subschema_for::<SenmlSchema>();
        let max = Limits::default().records;
        // Without a required name, any object would be valid, because SenML ignores unknown fields.
        let named = json_schema!({ "anyOf": [{ "required": ["n"] }, { "required": ["bn"] }] });
        json_schema!({
            "description": "A reading, an array of readings, or a SenML pack (RFC 8428).",
            "anyOf": [
                plain,
                { "type": "array", "items": plain, "minItems": 1, "maxItems": max },
                {
                    "description": "A SenML pack",
                    "type": "array", "items": senml, "contains": named, "minItems": 1, "maxItems": max
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
        let counter = generator.subschema_for::<SentCounter>();
        let max = Limits::TEXT_BYTES;
        json_schema!({
            "description": "A reading. The default of time is the time of receipt.",
            "type": "object",
            "additionalProperties": false,
            "required": ["device", "metric", "value"],
            "properties": {
                "device": { "type": "string", "minLength": 1, "maxLength": max },
                "metric": { "type": "string", "minLength": 1, "maxLength": max },
                "value": { "type": "number" },
                "unit": { "anyOf": [unit, { "type": "null" }] },
                "counter": { "anyOf": [counter, { "type": ["boolean", "null"] }] },
                "time": { "anyOf": [time, { "type": "null" }] },
                "id": { "type": ["string", "null"], "minLength": 1, "maxLength": max }
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
            "description": "A SenML record. Unknown fields are ignored; those whose names end in _ are refused.",
            "type": "object",
            "patternProperties": { "_$": false },
            "properties": {
                "bn": { "type": "string", "description": "base name, prepended to the names from here on" },
                "bt": { "type": "number", "description": "base time, added to the times from here on" },
                "bu": unit,
                "bv": { "type": "number", "description": "base value, added to the values from here on" },
                "bs": { "type": "number", "description": "base sum, added to the sums from here on" },
                "bver": { "type": "integer", "minimum": 1, "maximum": VERSION },
                "n": { "type": "string", "pattern": "^[A-Za-z0-9:./_-]*$" },
                "u": unit,
                "v": { "type": "number" },
                "vb": { "type": "boolean", "description": "converted to 1 or 0" },
                "vs": { "type": "string", "description": "refused: not a number" },
                "vd": { "type": "string", "description": "refused: not a number" },
                "s": { "type": "number", "description": "sum of value × seconds: a counter of its own" },
                "t": { "type": "number", "description": "Unix seconds; below 2^28 relative to now" },
                "ut": { "type": "number" }
            }
        })
    }
}
