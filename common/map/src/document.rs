//! A payload as a list of values that borrow from it.
//!
//! The values of a JSON text are kept in document order in one vector. Each knows where the values below it end, so a
//! lookup skips what it does not need, and parsing allocates once, not once per object.

use std::{borrow::Cow, collections::HashSet, fmt};

use garenne_protocol::{quoted, sensor::lenient, shown_number};
use serde::{
    Deserialize,
    de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor},
};

use crate::{
    limits::{MAX_DEPTH, MAX_VALUES},
    unmapped::Reason,
};

/// The values of a payload in document order. The first one is the whole payload.
#[derive(Debug)]
pub(crate) struct Document<'a>(Vec<Node<'a>>);

/// A value of a document.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    /// The name of an object's member; empty for elements of arrays and the whole payload.
    pub(crate) key: Cow<'a, str>,
    pub(crate) value: Value<'a>,
    /// The position behind the values below this one.
    end: usize,
}

/// A JSON value, without what is below it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    Integer(i64),
    /// Also an integer above `i64::MAX`.
    Number(f64),
    Text(Cow<'a, str>),
    NotFinite,
    Array,
    Object,
}

impl Value<'_> {
    /// Identifies a value of a document.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub(crate) const fn as_integer(&self) -> Option<i64> {
        if let Self::Integer(number) = self { Some(*number) } else { None }
    }
}

impl fmt::Display for Value<'_> {
    /// As in an error: a text is quoted and cut to 60 characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(flag) => flag.fmt(f),
            Self::Integer(number) => number.fmt(f),
            Self::Number(number) => f.write_str(&shown_number(*number)),
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::NotFinite => f.write_str("a number that is not finite"),
            Self::Array => f.write_str("an array"),
            Self::Object => f.write_str("an object"),
        }
    }
}

impl<'a> Document<'a> {
    /// Parses a payload: JSON, or else text such as `ON`. `None` if it is empty. What begins as an object, an array or
    /// a string must be JSON.
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Option<Self>, Reason> {
        let text = std::str::from_utf8(payload)
            .map_err(|error| Reason::Malformed(format!("not UTF-8 from byte {} on", error.valid_up_to())))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).trim();
        let Some(first) = text.bytes().next() else { return Ok(None) };
        match Self::json(text) {
            Ok(document) => Ok(Some(document)),
            Err(Reason::Malformed(_)) if !matches!(first, b'{' | b'[' | b'"') => {
                let node = Node { key: "".into(), value: Value::Text(text.into()), end: 1 };
                Ok(Some(Self(vec![node])))
            }
            Err(reason) => Err(reason),
        }
    }

    fn json(text: &'a str) -> Result<Self, Reason> {
        // A member of an object has about 20 bytes in the payloads of sensors.
        let capacity = (text.len() / 20 + 1).min(64);
        let mut parser = Parser { nodes: Vec::with_capacity(capacity), beyond: None };
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let parsed = Element { parser: &mut parser, key: "".into(), depth: 0 }
            .deserialize(&mut deserializer)
            .and_then(|()| deserializer.end());
        match (parsed, parser.beyond) {
            (_, Some(reason)) => Err(reason),
            (Err(error), None) => Err(Reason::Malformed(format!("not JSON: {error}"))),
            (Ok(()), None) => Ok(Self(parser.nodes)),
        }
    }

    /// The value at a position.
    pub(crate) fn node(&self, at: usize) -> &Node<'a> {
        &self.0[at]
    }

    /// The positions of values of this document.
    pub(crate) fn positions(&self, values: &[usize]) -> Vec<usize> {
        let values: HashSet<_> = values.iter().copied().collect();
        let nodes = self.0.iter().enumerate();
        let found = nodes.filter(|(_, node)| values.contains(&node.value.address()));
        found.map(|(position, _)| position).collect()
    }

    /// The number of values below a value.
    pub(crate) fn size_of(&self, at: usize) -> usize {
        self.0[at].end - at - 1
    }

    /// The positions of the members or elements directly below a value.
    pub(crate) fn children(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        let end = self.0[at].end;
        let mut next = at + 1;
        std::iter::from_fn(move || {
            let child = next;
            (child < end).then(|| next = self.0[child].end)?;
            Some(child)
        })
    }
}

impl Node<'_> {
    /// Whether it is an object or an array.
    pub(crate) fn is_container(&self) -> bool {
        matches!(self.value, Value::Object | Value::Array)
    }
}

struct Parser<'a> {
    nodes: Vec<Node<'a>>,
    /// The limit that ended the parse, because serde's error has only a text.
    beyond: Option<Reason>,
}

/// Parses one value, and those below it.
struct Element<'p, 'a> {
    parser: &'p mut Parser<'a>,
    key: Cow<'a, str>,
    depth: usize,
}

/// The name of a member, borrowed from the payload if it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Element<'_, 'a> {
    fn push<E: de::Error>(self, value: Value<'a>) -> Result<(), E> {
        let Self { parser, key, depth } = self;
        if parser.nodes.len() >= MAX_VALUES {
            parser.beyond = Some(Reason::TooManyValues);
            return Err(E::custom("too many values"));
        }
        if depth >= MAX_DEPTH && matches!(value, Value::Array | Value::Object) {
            parser.beyond = Some(Reason::TooDeep);
            return Err(E::custom("too deep"));
        }
        let end = parser.nodes.len() + 1;
        parser.nodes.push(Node { key, value, end });
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Element<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Element<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.push(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<(), E> {
        self.push(Value::Bool(flag))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<(), E> {
        self.push(Value::Integer(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<(), E> {
        self.push(i64::try_from(number).map_or(Value::Number(number as f64), Value::Integer))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<(), E> {
        self.push(Value::Number(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        self.push(Value::Text(text.to_owned().into()))
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<(), E> {
        self.push(if text == lenient::NOT_FINITE { Value::NotFinite } else { Value::Text(text.into()) })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let Self { parser, key, depth } = self;
        let at = parser.nodes.len();
        Element { parser: &mut *parser, key, depth }.push(Value::Array)?;
        loop {
            let element = Element { parser: &mut *parser, key: "".into(), depth: depth + 1 };
            if elements.next_element_seed(element)?.is_none() {
                break;
            }
        }
        parser.nodes[at].end = parser.nodes.len();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let Self { parser, key, depth } = self;
        let at = parser.nodes.len();
        Element { parser: &mut *parser, key, depth }.push(Value::Object)?;
        while let Some(Name(key)) = members.next_key()? {
            members.next_value_seed(Element { parser: &mut *parser, key, depth: depth + 1 })?;
        }
        parser.nodes[at].end = parser.nodes.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(payload: &str) -> Value<'_> {
        Document::parse(payload.as_bytes()).unwrap().unwrap().node(0).value.clone()
    }

    #[test]
    fn bare_numbers_texts_and_json_are_parsed() {
        assert_eq!(root(" 21.5\r\n"), Value::Number(21.5));
        assert_eq!(root("-3"), Value::Integer(-3));
        assert_eq!(root("18446744073709551615"), Value::Number(18_446_744_073_709_551_615.0));
        assert_eq!(root("ON"), Value::Text("ON".into()));
        assert_eq!(root("true"), Value::Bool(true));
        assert_eq!(root("007"), Value::Text("007".into()));
        assert_eq!(root("\u{feff}{}"), Value::Object);
        assert_eq!(root(r#""a\nb""#), Value::Text("a\nb".into()));
        assert!(Document::parse(b" \n").unwrap().is_none());
    }

    #[test]
    fn broken_json_and_foreign_bytes_are_refused() {
        let refused = |payload: &[u8]| Document::parse(payload).unwrap_err().to_string();
        assert_eq!(refused(b"{\"a\":"), "not JSON: EOF while parsing a value at line 1 column 5");
        assert_eq!(refused(b"[1] 2"), "not JSON: trailing characters at line 1 column 5");
        assert_eq!(refused(b"ab\xff"), "not UTF-8 from byte 2 on");
    }

    #[test]
    fn children_skip_what_is_below_them() {
        let text = br#"{"a":{"b":[1,2]},"c":3,"d":[]}"#;
        let document = Document::parse(text).unwrap().unwrap();
        let keys: Vec<_> = document.children(0).map(|at| &*document.node(at).key).collect();
        assert_eq!(keys, ["a", "c", "d"]);
    }

    #[test]
    fn depth_and_number_of_values_are_limited() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(Document::parse(nested(MAX_DEPTH).as_bytes()).is_ok());
        assert!(matches!(Document::parse(nested(MAX_DEPTH + 1).as_bytes()), Err(Reason::TooDeep)));
        let many = |count: usize| format!("[{}1]", "1,".repeat(count - 2));
        assert!(Document::parse(many(MAX_VALUES).as_bytes()).is_ok());
        assert!(matches!(Document::parse(many(MAX_VALUES + 1).as_bytes()), Err(Reason::TooManyValues)));
    }
}
