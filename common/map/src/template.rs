//! Texts of rules with placeholders: `{1}`, `{/a/b}`, `{./a}`, `{key}`, `{name}`.

use std::{borrow::Cow, fmt::Write as _};

use crate::{
    document::{Document, Value},
    limits::{MAX_PARTS, MAX_TEXT_BYTES},
    pattern::Captures,
    pointer::Pointer,
    unmapped::Reason,
};

/// A text with placeholders.
#[derive(Debug, Clone)]
pub(crate) struct Template(Vec<Part>);

#[derive(Debug, Clone)]
enum Part {
    Text(Box<str>),
    /// A wildcard of the pattern, from 1.
    Capture(usize),
    Pointer(Pointer),
    /// The member's name or the position of the current element of `each`.
    Key,
    /// The path of the current value below `values`.
    Name,
}

/// Source of a placeholder's text.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'s, 'a> {
    pub(crate) captures: &'s Captures<'a>,
    /// Absent in Sparkplug payloads.
    pub(crate) document: Option<&'s Document<'a>>,
    /// The position of the current element of `each`; that of the whole payload without `each`.
    pub(crate) element: usize,
    pub(crate) key: &'s str,
    pub(crate) name: &'s str,
}

/// The placeholders that a field may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowed {
    /// The number of captures that each of the rule's patterns has.
    pub(crate) captures: usize,
    pub(crate) pointers: bool,
    /// Pointers that are relative to an element of `each`, and its key.
    pub(crate) element: bool,
    pub(crate) name: bool,
}

impl Template {
    /// Parses a template. `{{` and `}}` are braces.
    pub(crate) fn parse(text: &str, allowed: Allowed) -> Result<Self, String> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(format!("{} bytes; at most {MAX_TEXT_BYTES}", text.len()));
        }
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let (brace, after) = rest[at..].split_at(1);
            if let Some(after) = after.strip_prefix(brace) {
                // `{}` is the whole payload; only equal braces are escapes.
                literal.push_str(brace);
                rest = after;
                continue;
            }
            let end = after.find('}').filter(|_| brace == "{");
            let end = end.ok_or_else(|| format!("{text:?} has a single {brace}; write {brace}{brace}"))?;
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal).into()));
            }
            parts.push(Part::parse(&after[..end], allowed)?);
            rest = &after[end + 1..];
        }
        literal.push_str(rest);
        if !literal.is_empty() || parts.is_empty() {
            parts.push(Part::Text(literal.into()));
        }
        if parts.len() > MAX_PARTS {
            return Err(format!("{text:?} has {} parts; at most {MAX_PARTS}", parts.len()));
        }
        Ok(Self(parts))
    }

    /// The text, if the template has no placeholders.
    pub(crate) fn constant(&self) -> Option<&str> {
        match &self.0[..] {
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The value. A template that is one placeholder has its type; any other is a text.
    fn value<'v>(&'v self, field: &'static str, scope: &Scope<'v, '_>) -> Result<Cow<'v, Value<'v>>, Reason> {
        if let [only] = &self.0[..] {
            return only.value(field, scope);
        }
        let mut text = String::new();
        for part in &self.0 {
            // Writing to a string cannot fail.
            let _ = match &*part.value(field, scope)? {
                Value::Text(part) => text.write_str(part),
                value @ (Value::Array | Value::Object) => return Err(part.is_not_text(field, value)),
                value => write!(text, "{value}"),
            };
        }
        Ok(Cow::Owned(Value::Text(text.into())))
    }
}

impl Part {
    fn parse(text: &str, allowed: Allowed) -> Result<Self, String> {
        let refused = |problem: &str| Err(format!("{{{text}}}: {problem}"));
        match text {
            "key" if allowed.element => return Ok(Self::Key),
            "key" => return refused("needs `each`"),
            "name" if allowed.name => return Ok(Self::Name),
            "name" => return refused("needs `values` and is allowed in `metric` only"),
            _ => {}
        }
        if let Ok(number) = text.parse() {
            if (1..=allowed.captures).contains(&number) {
                return Ok(Self::Capture(number));
            }
            return refused(&format!("the pattern has {} wildcards", allowed.captures));
        }
        let pointer = Pointer::parse(text)
            .map_err(|error| format!("{{{text}}}: not a number, key or name, and {error}"))?;
        if !allowed.pointers {
            return refused("a Sparkplug payload has no pointers");
        }
        if pointer.is_relative && !allowed.element {
            return refused("needs `each`");
        }
        Ok(Self::Pointer(pointer))
    }

    fn value<'v>(&'v self, field: &'static str, scope: &Scope<'v, '_>) -> Result<Cow<'v, Value<'v>>, Reason> {
        let text = |text: &'v str| Cow::Owned(Value::Text(text.into()));
        Ok(match self {
            Self::Text(literal) => text(literal),
            Self::Capture(number) => match scope.captures.get(*number) {
                "" => return Err(Reason::Missing { field, what: format!("capture {number}") }),
                capture => text(capture),
            },
            Self::Pointer(pointer) => {
                let found = scope.document.and_then(|document| {
                    let at = pointer.find(document, scope.element)?;
                    Some(&document.node(at).value)
                });
                match found {
                    None | Some(Value::Null) => {
                        return Err(Reason::Missing { field, what: pointer.described().to_owned() });
                    }
                    Some(value) => Cow::Borrowed(value),
                }
            }
            Self::Key => text(scope.key),
            Self::Name => text(scope.name),
        })
    }

    fn is_not_text(&self, field: &'static str, given: &Value<'_>) -> Reason {
        let what = match self {
            Self::Pointer(pointer) => pointer.described(),
            _ => "it",
        };
        let (what, given) = (what.to_owned(), given.to_string());
        Reason::WrongType { field, what, given, expected: "a text or a number" }
    }
}

/// Templates of which the first counts whose placeholders all stand for something.
#[derive(Debug, Clone)]
pub(crate) struct Alternatives(Vec<Template>);

impl Alternatives {
    pub(crate) fn parse<'t>(
        texts: impl ExactSizeIterator<Item = &'t str>,
        allowed: Allowed,
    ) -> Result<Self, String> {
        if !(1..=MAX_PARTS).contains(&texts.len()) {
            return Err(format!("{} alternatives; expected 1 to {MAX_PARTS}", texts.len()));
        }
        texts.map(|text| Template::parse(text, allowed)).collect::<Result<_, _>>().map(Self)
    }

    /// The text, if it is the same for all payloads.
    pub(crate) fn constant(&self) -> Option<&str> {
        self.0[0].constant()
    }

    /// The value of the first alternative that is not missing. If all are, the error is what the last one lacks.
    pub(crate) fn value<'v>(
        &'v self,
        field: &'static str,
        scope: &Scope<'v, '_>,
    ) -> Result<Cow<'v, Value<'v>>, Reason> {
        let mut missing = None;
        for template in &self.0 {
            match template.value(field, scope) {
                Err(reason @ Reason::Missing { .. }) => missing = Some(reason),
                other => return other,
            }
        }
        Err(missing.expect("there is an alternative"))
    }

    /// As [`Alternatives::value`], as text, which an array or an object is not.
    pub(crate) fn text<'v>(
        &'v self,
        field: &'static str,
        scope: &Scope<'v, '_>,
    ) -> Result<Cow<'v, str>, Reason> {
        match self.value(field, scope)? {
            Cow::Owned(Value::Text(text)) => Ok(text),
            Cow::Borrowed(Value::Text(text)) => Ok(Cow::Borrowed(text)),
            other if matches!(*other, Value::Array | Value::Object) => {
                let (what, given) = ("it".to_owned(), other.to_string());
                Err(Reason::WrongType { field, what, given, expected: "a text or a number" })
            }
            other => Ok(Cow::Owned(other.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Pattern;

    const ALL: Allowed = Allowed { captures: 2, pointers: true, element: true, name: true };

    fn rendered(templates: &[&str]) -> Result<String, String> {
        let document = Document::parse(br#"{"a":{"b":1.5,"c":"x","d":null},"e":[true]}"#).unwrap().unwrap();
        let pattern = Pattern::parse("t/+/#", '/').unwrap();
        let captures = pattern.matches("t/dev").unwrap();
        let scope = Scope { captures: &captures, document: Some(&document), element: 1, key: "k", name: "n" };
        let templates = Alternatives::parse(templates.iter().copied(), ALL)?;
        templates.text("device", &scope).map(Cow::into_owned).map_err(|reason| reason.to_string())
    }

    #[test]
    fn placeholders_are_replaced() {
        for (template, expected) in [
            ("{1}", "dev"),
            ("x-{1}/{key}.{name}", "x-dev/k.n"),
            ("{/a/b}", "1.5"),
            ("{./c}-{/e/0}", "x-true"),
            ("{{1}}", "{1}"),
            ("", ""),
        ] {
            assert_eq!(rendered(&[template]).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn the_first_alternative_without_a_missing_part_counts() {
        assert_eq!(rendered(&["{2}", "{/a/d}", "{/z}", "{1}", "{key}"]).unwrap(), "dev");
        assert_eq!(rendered(&["{/z}", "{2}"]).unwrap_err(), "device: capture 2 is missing");
        assert_eq!(rendered(&["{/a/d}"]).unwrap_err(), "device: /a/d is missing");
        assert_eq!(
            rendered(&["{/a}", "x"]).unwrap_err(),
            "device: it is an object, expected a text or a number"
        );
        assert_eq!(rendered(&["x{/a}"]).unwrap_err(), "device: /a is an object, expected a text or a number");
    }

    #[test]
    fn an_invalid_template_is_refused() {
        let none = Allowed { captures: 0, pointers: true, element: false, name: false };
        for (template, expected) in [
            ("{1}", "{1}: the pattern has 0 wildcards"),
            ("{0}", "{0}: the pattern has 0 wildcards"),
            ("{key}", "{key}: needs `each`"),
            ("{./a}", "{./a}: needs `each`"),
            ("{name}", "{name}: needs `values` and is allowed in `metric` only"),
            ("{a", "\"{a\" has a single {; write {{"),
            ("a}", "\"a}\" has a single }; write }}"),
        ] {
            assert_eq!(Template::parse(template, none).unwrap_err(), expected);
        }
        let error = Template::parse("{x}", none).unwrap_err();
        assert!(
            error.starts_with("{x}: not a number, key or name, and \"x\" is not a JSON pointer"),
            "{error}"
        );
        assert!(Template::parse(&"{key}".repeat(17), ALL).unwrap_err().ends_with("has 17 parts; at most 16"));
        assert!(Template::parse(&"x".repeat(1025), ALL).is_err());
        assert!(Alternatives::parse([].iter().copied(), ALL).is_err());
        assert!(Alternatives::parse(["x"; 17].iter().copied(), ALL).is_err());
    }
}
