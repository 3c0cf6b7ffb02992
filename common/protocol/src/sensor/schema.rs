//! The JSON Schema of the input of [`readings_from`](super::readings_from).

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{
    Limits, SentCounter, Timestamp, Unit,
    senml::VERSION,
    timestamp::{MAX, MICROS, MIN},
};

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

impl JsonSchema for Unit {
    fn schema_name() -> Cow<'static, str> {
        "Unit".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let spellings = Self::spellings().iter().map(|(spelling, _)| *spelling);
        let symbols: Vec<_> = Self::all().map(Self::symbol).chain(spellings).collect();
        json_schema!({
            "description": "A unit of the SenML registry (RFC 8428, RFC 8798), case-sensitive.",
            "type": "string",
            "enum": symbols
        })
    }
}

impl JsonSchema for Timestamp {
    fn schema_name() -> Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A time: RFC 3339 with a UTC offset, or Unix seconds. Rounded to microseconds.",
            "anyOf": [
                { "type": "string", "format": "date-time" },
                { "type": "number", "minimum": MIN / MICROS, "maximum": MAX / MICROS }
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reading;

    #[test]
    fn the_schema_has_required_fields_and_length_limits() {
        let schema = serde_json::to_value(schemars::schema_for!(Reading)).unwrap();
        assert_eq!(schema["required"], serde_json::json!(["device", "metric", "value", "time"]));
        assert_eq!(schema["properties"]["device"]["maxLength"], 128);
    }
}
