//! Bounds of rule files, sources and payloads.

use garenne_protocol::task::Source;

/// Maximum size of a rule file, in bytes.
pub const MAX_FILE_BYTES: usize = 256 * 1024;
/// Maximum number of rules in a file.
pub const MAX_RULES: usize = 256;
/// Maximum number of entries of a list or table in a rule: `reading`, `fields`, `ignore`, `enum` and the others.
pub const MAX_ENTRIES: usize = 1_000;
/// Maximum number of alternatives of a field, of placeholders in a template, and of time formats.
pub const MAX_PARTS: usize = 16;
/// Maximum number of captures of a pattern.
pub const MAX_CAPTURES: usize = 16;
/// Maximum size of a text in a rule, in bytes: a pattern, a template, a pointer, a name.
pub const MAX_TEXT_BYTES: usize = 1_024;
/// Maximum size of a source, in bytes: a topic, a path, a routing key.
pub const MAX_SOURCE_BYTES: usize = Source::MAX_BYTES;
/// Maximum size of a payload, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 1024 * 1024;
/// Maximum number of values in a payload, objects and arrays included; in Sparkplug B, of metrics.
pub const MAX_VALUES: usize = 10_000;
/// Maximum depth of nested objects and arrays in a payload.
pub const MAX_DEPTH: usize = 32;
/// Maximum number of Sparkplug edge nodes whose births are remembered.
pub const MAX_NODES: usize = 1_000;
/// Maximum number of metrics in the births of one Sparkplug edge node and its devices.
pub const MAX_NODE_METRICS: usize = 10_000;
/// Maximum number of metrics in the births of all Sparkplug edge nodes.
pub const MAX_METRICS: usize = 100_000;
