//! The fields of a rule file, as TOML has them.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor},
};

/// The fields of `[[map]]`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RuleEntry {
    pub(crate) topic: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) routing_key: Option<String>,
    pub(crate) has: Vec<String>,
    pub(crate) has_any: Vec<String>,
    pub(crate) equals: BTreeMap<String, toml::Value>,
    pub(crate) skip: bool,
    pub(crate) format: PayloadFormat,
    pub(crate) each: Option<String>,
    pub(crate) device: Option<OneOrMore>,
    pub(crate) metric: Option<OneOrMore>,
    pub(crate) value: Option<OneOrMore>,
    pub(crate) values: Option<String>,
    pub(crate) values_if: Vec<String>,
    pub(crate) unit: Option<OneOrMore>,
    pub(crate) scale: Option<f64>,
    pub(crate) offset: Option<f64>,
    pub(crate) counter: Option<bool>,
    pub(crate) wraps_at: Option<f64>,
    pub(crate) max_per_hour: Option<f64>,
    pub(crate) reading: Vec<ReadingEntry>,
    pub(crate) time: Option<OneOrMore>,
    pub(crate) time_formats: Vec<String>,
    pub(crate) zone: Option<String>,
    pub(crate) time_or_now: bool,
    pub(crate) id: Option<OneOrMore>,
    pub(crate) ignore: Vec<String>,
    pub(crate) none: Vec<NoValueEntry>,
    #[serde(rename = "enum")]
    pub(crate) numbers: BTreeMap<String, f64>,
    pub(crate) units: BTreeMap<String, String>,
    pub(crate) fields: BTreeMap<String, FieldEntry>,
    pub(crate) allow_empty: bool,
}

/// The form of a payload.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PayloadFormat {
    /// JSON, or else text.
    #[default]
    Json,
    SparkplugB,
}

/// The fields of `[[map.reading]]`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ReadingEntry {
    pub(crate) metric: Option<OneOrMore>,
    pub(crate) value: Option<OneOrMore>,
    pub(crate) unit: Option<OneOrMore>,
    pub(crate) scale: Option<f64>,
    pub(crate) offset: Option<f64>,
    pub(crate) counter: Option<bool>,
    pub(crate) wraps_at: Option<f64>,
    pub(crate) max_per_hour: Option<f64>,
    pub(crate) none: Vec<NoValueEntry>,
    pub(crate) optional: bool,
}

/// The entry of a value in `[map.fields]`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FieldEntry {
    pub(crate) metric: Option<OneOrMore>,
    pub(crate) unit: Option<OneOrMore>,
    pub(crate) scale: Option<f64>,
    pub(crate) offset: Option<f64>,
    pub(crate) counter: Option<bool>,
    pub(crate) wraps_at: Option<f64>,
    pub(crate) max_per_hour: Option<f64>,
    pub(crate) none: Vec<NoValueEntry>,
}

/// A text or a number that stands for no value.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected a text or a number")]
pub(crate) enum NoValueEntry {
    Text(String),
    Number(f64),
}

/// A template, a number or a boolean; or a list of them. Numbers are their text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OneOrMore(pub(crate) Vec<String>);

impl OneOrMore {
    pub(crate) fn texts(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl<'de> Deserialize<'de> for OneOrMore {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;

        impl<'de> Visitor<'de> for Texts {
            type Value = OneOrMore;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number, or a list of texts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<OneOrMore, E> {
                Ok(OneOrMore(vec![text.to_owned()]))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<OneOrMore, E> {
                Ok(OneOrMore(vec![number.to_string()]))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<OneOrMore, E> {
                Ok(OneOrMore(vec![number.to_string()]))
            }

            fn visit_bool<E: Error>(self, flag: bool) -> Result<OneOrMore, E> {
                Ok(OneOrMore(vec![u8::from(flag).to_string()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<OneOrMore, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = elements.next_element()? {
                    texts.push(text);
                }
                Ok(OneOrMore(texts))
            }
        }

        deserializer.deserialize_any(Texts)
    }
}
