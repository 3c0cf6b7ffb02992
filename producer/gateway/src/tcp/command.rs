//! Commands of the TCP line protocol.

use crate::{influx::Precision, refusal::Refusal};

/// A line that is a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command<'l> {
    /// `auth TOKEN`: later lines are those of the token's sender.
    Auth(&'l str),
    /// `map NAME`: later lines are payloads for the map with this name.
    Map(&'l str),
    /// `influx` or `influx PRECISION`: later lines are in InfluxDB's protocol, with timestamps of this unit.
    Influx(Option<&'l str>),
}

impl<'l> Command<'l> {
    /// The command in a line; `None` if the line is none.
    pub(super) fn parse(line: &'l [u8]) -> Option<Self> {
        let (word, rest) = match memchr::memchr(b' ', line) {
            Some(space) => (&line[..space], Some(&line[space + 1..])),
            None => (line, None),
        };
        // Bytes that are not UTF-8 are no token and no name either.
        let rest = rest.map(|rest| str::from_utf8(rest).unwrap_or_default().trim());
        match (word, rest) {
            (b"auth", Some(token)) => Some(Self::Auth(token)),
            (b"map", Some(name)) => Some(Self::Map(name)),
            // With an equals sign it is a measurement `influx` and its fields.
            (b"influx", precision) if !precision.unwrap_or_default().contains('=') => {
                Some(Self::Influx(precision))
            }
            _ => None,
        }
    }
}

/// The precision of the command `influx`.
pub(super) fn precision(given: Option<&str>) -> Result<Precision, Refusal> {
    Precision::parse(given).ok_or_else(|| Refusal::precision(given.unwrap_or_default()))
}

/// Whether the first line of a connection that is no command is in InfluxDB's protocol: `measurement field=value`, or a
/// comment.
pub(super) fn is_influx(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    match line.first() {
        None | Some(b'{' | b'[' | b'"') => false,
        Some(b'#') => true,
        Some(_) => {
            let space = memchr::memchr(b' ', line);
            space.is_some_and(|space| memchr::memchr(b'=', &line[space..]).is_some())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_words_with_an_argument() {
        for (line, command) in [
            ("auth t", Some(Command::Auth("t"))),
            ("auth  t \r", Some(Command::Auth("t"))),
            ("map ttn", Some(Command::Map("ttn"))),
            ("influx", Some(Command::Influx(None))),
            ("influx ms", Some(Command::Influx(Some("ms")))),
            ("influx value=1", None),
            ("auth", None),
            ("mapped x", None),
            ("{\"auth\":1}", None),
        ] {
            assert_eq!(Command::parse(line.as_bytes()), command, "{line}");
        }
        assert!(precision(Some("ms")).is_ok() && precision(None).is_ok());
        assert_eq!(
            precision(Some("week")).unwrap_err().to_string(),
            "precision: \"week\" is unknown, expected ns, us, ms, s, m or h"
        );
    }

    #[test]
    fn json_and_influx_are_told_apart_by_the_first_line() {
        for (line, influx) in [
            ("cpu,host=a usage=1 1", true),
            ("cpu usage=1", true),
            ("  cpu usage=1", true),
            ("# comment", true),
            ("auth value=1 1763600000", true),
            ("{\"device\": \"a=b\"}", false),
            ("[1, 2]", false),
            (" {\"a\": \"=\"}", false),
            ("\"a b=c\"", false),
            ("21.5", false),
            ("hello world", false),
            ("a=b", false),
            ("", false),
        ] {
            assert_eq!(is_influx(line.as_bytes()), influx, "{line}");
        }
    }
}
