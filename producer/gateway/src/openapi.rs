//! The OpenAPI 3.1 description of the API: the file `openapi.json`, completed with what the program knows.

use garenne_protocol::sensor::Reading;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// The document of a gateway whose lanes have these bindings. The schema of a reading is derived from its type.
pub(crate) fn document(bindings: &[String]) -> Value {
    let mut document: Value = serde_json::from_str(include_str!("openapi.json")).expect("a constant");
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    let kind = &mut document["paths"]["/v1/tasks/{kind}"]["post"]["parameters"][0];
    kind["schema"]["pattern"] = kinds(bindings).into();
    let settings = SchemaSettings::draft2020_12();
    let settings = settings.with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut generator = settings.into_generator();
    generator.subschema_for::<Reading>();
    for (name, schema) in generator.take_definitions(true) {
        document["components"]["schemas"][name] = schema;
    }
    document
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_pattern_follows_the_bindings() {
        let bindings = ["reading.#", "a.*", "exact"].map(str::to_owned);
        assert_eq!(kinds(&bindings), r"^(reading(\.[A-Za-z0-9_-]+)*|a\.[A-Za-z0-9_-]+|exact)$");
    }

    #[test]
    fn every_reference_has_a_definition() {
        fn references<'d>(value: &'d Value, found: &mut Vec<&'d str>) {
            match value {
                Value::Object(fields) => {
                    found.extend(fields.get("$ref").and_then(Value::as_str));
                    fields.values().for_each(|value| references(value, found));
                }
                Value::Array(values) => values.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let document = document(&["reading.#".to_owned()]);
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.contains(&"#/components/schemas/Reading"));
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }
}
