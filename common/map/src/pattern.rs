//! Patterns of sources, with the wildcards of MQTT.

use crate::limits::{MAX_CAPTURES, MAX_TEXT_BYTES};

/// A pattern. `+` stands for one level, `#` at the end for all remaining levels, or none. Both capture.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    separator: char,
    levels: Vec<Level>,
}

#[derive(Debug, Clone, PartialEq)]
enum Level {
    Text(Box<str>),
    One,
    Rest,
}

/// The parts of a source that match the wildcards of a pattern.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Captures<'a> {
    texts: [&'a str; MAX_CAPTURES],
    count: usize,
}

impl<'a> Captures<'a> {
    /// The capture with this number, from 1. Empty if the wildcard stands for nothing.
    pub(crate) fn get(&self, number: usize) -> &'a str {
        if (1..=self.count).contains(&number) { self.texts[number - 1] } else { "" }
    }

    /// The captures with another text of one of them.
    pub(crate) fn with<'b>(&self, number: usize, text: &'b str) -> Captures<'b>
    where
        'a: 'b,
    {
        let mut changed = *self;
        changed.texts[number - 1] = text;
        changed
    }

    fn push(&mut self, text: &'a str) {
        self.texts[self.count] = text;
        self.count += 1;
    }
}

impl Pattern {
    /// A pattern whose levels are separated by `separator`. A wildcard is a level of its own, and `#` the last one.
    pub(crate) fn parse(text: &str, separator: char) -> Result<Self, String> {
        if text.is_empty() || text.len() > MAX_TEXT_BYTES {
            return Err(format!("{} bytes; expected 1 to {MAX_TEXT_BYTES}", text.len()));
        }
        let mut levels = Vec::new();
        for level in text.split(separator) {
            if levels.last() == Some(&Level::Rest) {
                return Err(format!("{text:?}: # must be the last level"));
            }
            levels.push(match level {
                "+" => Level::One,
                "#" => Level::Rest,
                text if text.contains(['+', '#']) => {
                    return Err(format!("{text:?}: + and # must be whole levels"));
                }
                text => Level::Text(text.into()),
            });
        }
        let pattern = Self { separator, levels };
        if pattern.captures() > MAX_CAPTURES {
            return Err(format!("{} wildcards; at most {MAX_CAPTURES}", pattern.captures()));
        }
        Ok(pattern)
    }

    pub(crate) fn captures(&self) -> usize {
        self.levels.iter().filter(|level| !matches!(level, Level::Text(_))).count()
    }

    /// The captures if the pattern matches the source. As in MQTT, a wildcard at the beginning does not match a text
    /// that begins with `$`.
    pub(crate) fn matches<'a>(&self, source: &'a str) -> Option<Captures<'a>> {
        let mut captures = Captures::default();
        if source.starts_with('$') && !matches!(self.levels[0], Level::Text(_)) {
            return None;
        }
        let mut rest = Some(source);
        for level in &self.levels {
            if *level == Level::Rest {
                captures.push(rest.unwrap_or_default());
                return Some(captures);
            }
            let (text, after) = match rest?.split_once(self.separator) {
                Some((text, after)) => (text, Some(after)),
                None => (rest?, None),
            };
            match level {
                Level::Text(expected) if **expected != *text => return None,
                Level::One => captures.push(text),
                _ => {}
            }
            rest = after;
        }
        rest.is_none().then_some(captures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured<'a>(pattern: &str, source: &'a str) -> Option<Vec<&'a str>> {
        let captures = Pattern::parse(pattern, '/').unwrap().matches(source)?;
        Some((1..=captures.count).map(|number| captures.get(number)).collect())
    }

    #[test]
    fn wildcards_match_as_in_mqtt_and_capture() {
        for (pattern, source, expected) in [
            ("a/b", "a/b", Some(vec![])),
            ("a/b", "a/b/c", None),
            ("a/b", "a", None),
            ("tele/+/SENSOR", "tele/plug-1/SENSOR", Some(vec!["plug-1"])),
            ("tele/+/SENSOR", "tele/a/b/SENSOR", None),
            ("+/+", "a/", Some(vec!["a", ""])),
            ("+", "a/", None),
            ("a/#", "a", Some(vec![""])),
            ("a/#", "a/b/c", Some(vec!["b/c"])),
            ("a/+/#", "a", None),
            ("#", "a/b", Some(vec!["a/b"])),
            ("/v1/+", "/v1/x", Some(vec!["x"])),
            ("#", "$SYS/uptime", None),
            ("+/uptime", "$SYS/uptime", None),
            ("$SYS/+", "$SYS/uptime", Some(vec!["uptime"])),
        ] {
            assert_eq!(captured(pattern, source), expected, "{pattern} {source}");
        }
    }

    #[test]
    fn dots_separate_the_levels_of_a_routing_key() {
        let pattern = Pattern::parse("plant.+.#", '.').unwrap();
        let captures = pattern.matches("plant.boiler.temp.inlet").unwrap();
        assert_eq!((captures.get(1), captures.get(2), captures.get(3)), ("boiler", "temp.inlet", ""));
    }

    #[test]
    fn an_invalid_pattern_is_refused() {
        for (pattern, expected) in [
            ("", "0 bytes; expected 1 to 1024"),
            ("a/#/b", "\"a/#/b\": # must be the last level"),
            ("a/b+", "\"b+\": + and # must be whole levels"),
            ("+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/+", "17 wildcards; at most 16"),
        ] {
            assert_eq!(Pattern::parse(pattern, '/').unwrap_err(), expected);
        }
        assert!(Pattern::parse(&"x".repeat(1025), '/').is_err());
    }
}
