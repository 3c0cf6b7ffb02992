//! The committed JSON Schemas are those of the types.

use std::path::PathBuf;

use garenne_protocol::sensor::schema::ReadingsSchema;
use garenne_sensors::{alert, reading, spectrum, window};
use schemars::{Schema, generate::SchemaSettings};

fn schemas() -> Vec<(&'static str, Schema)> {
    let input = || SchemaSettings::draft2020_12().into_generator();
    let output = || SchemaSettings::draft2020_12().for_serialize().into_generator();
    vec![
        ("reading.process", input().into_root_schema_for::<ReadingsSchema>()),
        ("reading.process.result", output().into_root_schema_for::<reading::Processed>()),
        ("alert.notify", input().into_root_schema_for::<alert::Alert>()),
        ("alert.notify.result", output().into_root_schema_for::<alert::Delivered>()),
        ("window.analyze", input().into_root_schema_for::<window::Payload>()),
        ("window.analyze.result", output().into_root_schema_for::<window::Answer>()),
        ("spectrum.analyze", input().into_root_schema_for::<spectrum::Payload>()),
        ("spectrum.analyze.result", output().into_root_schema_for::<spectrum::Answer>()),
    ]
}

/// `UPDATE_SCHEMAS=1 cargo test -p garenne-worker --test schemas` writes them anew.
#[test]
fn committed_schemas_are_the_types() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/schemas");
    for (kind, schema) in schemas() {
        let path = folder.join(format!("{kind}.json"));
        let text = serde_json::to_string_pretty(&schema).expect("a schema is JSON") + "\n";
        if std::env::var_os("UPDATE_SCHEMAS").is_some() {
            std::fs::write(&path, &text).expect("the folder is there");
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == text, "{} is out of date: run with UPDATE_SCHEMAS=1", path.display());
    }
}
