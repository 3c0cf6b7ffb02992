//! JSON pointers (RFC 6901).

use crate::{
    document::{Document, Value},
    limits::{MAX_DEPTH, MAX_TEXT_BYTES},
};

/// A place in a document: `/a/0` from the whole payload, `./a/0` from the current element of `each`.
#[derive(Debug, Clone)]
pub(crate) struct Pointer {
    text: Box<str>,
    steps: Vec<Step>,
    /// Whether it begins at the current element of `each`.
    pub(crate) is_relative: bool,
}

#[derive(Debug, Clone)]
struct Step {
    name: Box<str>,
    /// The position in an array.
    index: Option<usize>,
}

impl Pointer {
    /// Parses a pointer. An empty text is the whole payload, `.` the current element.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(format!("{} bytes; at most {MAX_TEXT_BYTES}", text.len()));
        }
        let (is_relative, path) = text.strip_prefix('.').map_or((false, text), |path| (true, path));
        let steps = match path.strip_prefix('/') {
            Some(steps) => steps.split('/').map(Step::parse).collect::<Option<Vec<_>>>(),
            None => path.is_empty().then(Vec::new),
        };
        let steps = steps.ok_or_else(|| {
            format!("{text:?} is not a JSON pointer such as /a/b, or ./a/b in an element of `each`")
        })?;
        if steps.len() > MAX_DEPTH {
            return Err(format!("{text:?} has {} levels; at most {MAX_DEPTH}", steps.len()));
        }
        Ok(Self { text: text.into(), steps, is_relative })
    }

    /// The pointer as it was given; `the payload` if it was empty.
    pub(crate) fn described(&self) -> &str {
        match &*self.text {
            "" => "the payload",
            "." => "the element",
            text => text,
        }
    }

    /// The position of the value, if there is one.
    pub(crate) fn find(&self, document: &Document<'_>, element: usize) -> Option<usize> {
        let start = if self.is_relative { element } else { 0 };
        self.steps.iter().try_fold(start, |at, step| match document.node(at).value {
            Value::Object => document.children(at).find(|child| document.node(*child).key == *step.name),
            Value::Array => document.children(at).nth(step.index?),
            _ => None,
        })
    }
}

impl Step {
    fn parse(text: &str) -> Option<Self> {
        let is_escaped = |(at, _)| matches!(text.as_bytes().get(at + 1), Some(b'0' | b'1'));
        text.match_indices('~').all(is_escaped).then(|| Self {
            name: text.replace("~1", "/").replace("~0", "~").into(),
            index: text.parse().ok().filter(|_| text == "0" || !text.starts_with(['0', '+'])),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_find_values_as_in_rfc_6901() {
        let text = br#"{"foo":["bar","baz"],"":0,"a/b":1,"m~n":8,"x":{"0":2}}"#;
        let document = Document::parse(text).unwrap().unwrap();
        let found = |pointer: &str| {
            let at = Pointer::parse(pointer).unwrap().find(&document, 1);
            at.map(|at| document.node(at).value.to_string())
        };
        for (pointer, expected) in [
            ("", Some("an object")),
            ("/foo", Some("an array")),
            ("/foo/0", Some("\"bar\"")),
            ("/foo/1", Some("\"baz\"")),
            ("/foo/2", None),
            ("/foo/01", None),
            ("/foo/bar", None),
            ("/", Some("0")),
            ("/a~1b", Some("1")),
            ("/m~0n", Some("8")),
            ("/x/0", Some("2")),
            ("/foo/0/x", None),
            (".", Some("an array")),
            ("./1", Some("\"baz\"")),
        ] {
            assert_eq!(found(pointer).as_deref(), expected, "{pointer}");
        }
    }

    #[test]
    fn an_invalid_pointer_is_refused() {
        for text in ["a", "a/b", "/a~2", "/~", "..", ".a"] {
            assert!(Pointer::parse(text).unwrap_err().contains("is not a JSON pointer"), "{text}");
        }
        assert!(Pointer::parse(&"/a".repeat(33)).unwrap_err().ends_with("has 33 levels; at most 32"));
        assert_eq!(Pointer::parse(&"/".repeat(1025)).unwrap_err(), "1025 bytes; at most 1024");
    }
}
