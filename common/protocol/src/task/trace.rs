//! The trace context of a task, as defined by W3C Trace Context.

use std::{fmt, sync::Arc};

/// Maximum size of a `tracestate` that is propagated, in bytes: the minimum that the specification demands.
const MAX_STATE: usize = 512;

/// A trace and the parent span of whatever continues it. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct TraceContext {
    parent: Arc<str>,
    state: Option<Arc<str>>,
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parent)
    }
}

impl TraceContext {
    /// Parses `traceparent` and `tracestate`. A later version than 00 is parsed as 00, as the specification
    /// demands. `None` if `parent` is invalid; an invalid `state` counts as absent.
    pub fn parse(parent: &str, state: Option<&str>) -> Option<Self> {
        let parent = parent.trim();
        let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let mut fields = parent.split('-');
        let mut field = |length| fields.next().filter(|text| text.len() == length && is_hex(text));
        let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        let has_zero_id = [trace, span].iter().any(|id| id.bytes().all(|byte| byte == b'0'));
        if version == "ff" || (version == "00" && fields.next().is_some()) || has_zero_id {
            return None;
        }
        let state = state.map(str::trim).filter(|state| {
            (1..=MAX_STATE).contains(&state.len()) && state.bytes().all(|it| (b' '..=b'~').contains(&it))
        });
        let parent =
            if version == "00" { parent.into() } else { format!("00-{trace}-{span}-{flags}").into() };
        Some(Self { parent, state: state.map(Arc::from) })
    }

    /// The value of `traceparent`.
    pub fn parent(&self) -> &str {
        &self.parent
    }

    /// The value of `tracestate`, if there is one.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// The trace id: 32 hexadecimal digits.
    pub fn trace_id(&self) -> &str {
        &self.parent[3..35]
    }

    /// The id of the parent span: 16 hexadecimal digits.
    pub fn span_id(&self) -> &str {
        &self.parent[36..52]
    }

    /// The trace flags.
    pub fn flags(&self) -> u8 {
        u8::from_str_radix(&self.parent[53..], 16).expect("two hexadecimal digits")
    }

    /// Whether the sampled flag is set: the caller may have recorded its spans.
    pub fn is_sampled(&self) -> bool {
        self.flags() & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_context_is_parsed_into_its_fields() {
        let context = TraceContext::parse(PARENT, Some("vendor=1,other=2")).unwrap();
        assert_eq!(context.trace_id(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.span_id(), "b7ad6b7169203331");
        assert!(context.is_sampled());
        assert_eq!((context.parent(), context.state()), (PARENT, Some("vendor=1,other=2")));
        let unsampled = TraceContext::parse(&PARENT.replace("-01", "-02"), None).unwrap();
        assert!(!unsampled.is_sampled() && unsampled.flags() == 2);
    }

    #[test]
    fn a_later_version_is_parsed_as_version_00() {
        let later = format!("cc{}-more", &PARENT[2..]);
        assert_eq!(TraceContext::parse(&later, None).unwrap().parent(), PARENT);
        assert_eq!(
            TraceContext::parse(&format!("{PARENT}-more"), None),
            None,
            "version 00 has no more fields"
        );
    }

    #[test]
    fn an_invalid_context_is_none() {
        let zeros = |from: usize, to: usize| {
            let mut text = PARENT.to_owned();
            text.replace_range(from..to, &"0".repeat(to - from));
            text
        };
        for bad in [
            "",
            "nonsense",
            &PARENT[..54],
            &PARENT.to_uppercase(),
            &format!("ff{}", &PARENT[2..]),
            &zeros(3, 35),
            &zeros(36, 52),
            &PARENT.replace('-', "_"),
        ] {
            assert_eq!(TraceContext::parse(bad, None), None, "{bad:?}");
        }
        let without = TraceContext::parse(PARENT, Some(&"x".repeat(513))).unwrap();
        assert_eq!(without.state(), None);
        assert_eq!(TraceContext::parse(PARENT, Some("a=\u{1}b")).unwrap().state(), None);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in "\\PC{0,70}", at in 0usize..56) {
            let _ = TraceContext::parse(&text, Some(&text));
            let mixed: String = PARENT.chars().take(at).chain(text.chars()).collect();
            if let Some(context) = TraceContext::parse(&mixed, None) {
                prop_assert_eq!(context.parent().len(), 55);
            }
        }
    }
}
