//! The encoding of a recording: one for all of its lines.

use std::{borrow::Cow, io};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The encoding of a recording that is not ASCII.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Encoding {
    /// UTF-8. A byte that is not UTF-8 becomes U+FFFD.
    #[value(name = "utf-8")]
    #[serde(rename = "utf-8")]
    Utf8,
    /// Windows-1252, which contains Latin-1. Loggers and spreadsheets write it.
    #[value(name = "windows-1252")]
    Windows1252,
}

/// What bytes 0x80 to 0x9F mean in Windows-1252. The five that mean nothing are control characters, as in WHATWG's
/// standard.
const WINDOWS_1252: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}',
    '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

impl Encoding {
    pub(super) fn decode(self, line: &[u8]) -> Cow<'_, str> {
        let character = |&byte: &u8| match byte {
            0x80..=0x9f => WINDOWS_1252[usize::from(byte - 0x80)],
            _ => char::from(byte),
        };
        match self {
            Self::Windows1252 if !line.is_ascii() => Cow::Owned(line.iter().map(character).collect()),
            _ => String::from_utf8_lossy(line),
        }
    }
}

/// What the lines of a recording tell about its encoding.
#[derive(Debug, Default)]
pub(super) struct EncodingEvidence {
    lines: u64,
    /// Characters of several bytes that are UTF-8. Text in Windows-1252 almost never has one.
    characters: u64,
    /// Bytes that are not UTF-8.
    bad: u64,
    first_bad_line: u64,
}

impl EncodingEvidence {
    /// Takes the next line.
    pub(super) fn add(&mut self, line: &[u8]) {
        self.lines += 1;
        if line.is_ascii() {
            return;
        }
        for chunk in line.utf8_chunks() {
            self.characters += chunk.valid().chars().filter(|it| !it.is_ascii()).count() as u64;
            if !chunk.invalid().is_empty() {
                self.bad += 1;
                self.first_bad_line = if self.first_bad_line == 0 { self.lines } else { self.first_bad_line };
            }
        }
    }

    /// The encoding that fits more of the characters. `None` if all lines are ASCII.
    pub(super) fn decided(&self) -> Option<Encoding> {
        match (self.characters, self.bad) {
            (0, 0) => None,
            (characters, bad) if characters >= bad => Some(Encoding::Utf8),
            _ => Some(Encoding::Windows1252),
        }
    }

    /// A note if the encoding is a guess, or if not all bytes fit it.
    pub(super) fn note(&self) -> Option<String> {
        let Self { bad, first_bad_line: line, .. } = self;
        match self.decided().filter(|_| *bad > 0)? {
            Encoding::Utf8 => Some(format!(
                "the file is UTF-8 but for {bad} bytes, the first in line {line}; names that have one are refused \
                 (--encoding decides)"
            )),
            Encoding::Windows1252 => Some(format!(
                "the file is not UTF-8, first in line {line}, and is read as Windows-1252 (--encoding decides)"
            )),
        }
    }
}

/// Refuses UTF-16 by the first bytes of a file. The error says how to convert it.
pub(super) fn refuse_utf_16(start: &[u8]) -> io::Result<()> {
    let marked = start.starts_with(&[0xff, 0xfe]) || start.starts_with(&[0xfe, 0xff]);
    // Without a mark every other byte of ASCII text is 0.
    let zeros =
        |first: usize| start.iter().take(64).skip(first).step_by(2).filter(|&&byte| byte == 0).count();
    let from = match marked {
        true => "UTF-16",
        false if zeros(1) > 1 && zeros(0) == 0 => "UTF-16LE",
        false if zeros(0) > 1 && zeros(1) == 0 => "UTF-16BE",
        false => return Ok(()),
    };
    Err(io::Error::other(format!("the file is UTF-16; convert it with `iconv -f {from} -t UTF-8`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(lines: &[&[u8]]) -> (Option<Encoding>, Option<String>) {
        let mut evidence = EncodingEvidence::default();
        lines.iter().for_each(|line| evidence.add(line));
        (evidence.decided(), evidence.note())
    }

    #[test]
    fn the_encoding_is_the_one_that_fits_more_characters() {
        assert_eq!(decided(&[b"time,a", b"1,2"]), (None, None));
        assert_eq!(decided(&["t,µ".as_bytes()]), (Some(Encoding::Utf8), None));
        let latin =
            "the file is not UTF-8, first in line 2, and is read as Windows-1252 (--encoding decides)";
        assert_eq!(decided(&[b"t", b"\xb0C"]), (Some(Encoding::Windows1252), Some(latin.to_owned())));
        let mixed = "the file is UTF-8 but for 1 bytes, the first in line 3; names that have one are refused \
                     (--encoding decides)";
        let lines = ["Küche".as_bytes(), "Küche".as_bytes(), b"K\xc3\xbcche;ge\xf6ffnet"];
        assert_eq!(decided(&lines), (Some(Encoding::Utf8), Some(mixed.to_owned())));
    }

    #[test]
    fn bytes_are_decoded() {
        assert_eq!(Encoding::Windows1252.decode(b"\x80 \xb5g/m\xb3 \x96"), "€ µg/m³ –");
        assert_eq!(Encoding::Windows1252.decode("µ".as_bytes()), "Âµ");
        assert_eq!(Encoding::Utf8.decode(b"K\xfcche"), "K\u{fffd}che");
        assert_eq!(Encoding::Utf8.decode("Küche".as_bytes()), "Küche");
    }

    #[test]
    fn utf_16_is_refused_with_the_command_to_convert_it() {
        let refused = |start: &[u8]| refuse_utf_16(start).err().map(|error| error.to_string());
        let text =
            |from: &str| Some(format!("the file is UTF-16; convert it with `iconv -f {from} -t UTF-8`"));
        assert_eq!(refused(b"\xff\xfea\0"), text("UTF-16"));
        assert_eq!(refused(b"t\0i\0m\0e\0"), text("UTF-16LE"));
        assert_eq!(refused(b"\0t\0i\0m\0e"), text("UTF-16BE"));
        assert_eq!(refused(b"time,value\n"), None);
    }
}
