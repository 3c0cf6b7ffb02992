//! Answers as JSON or CSV.

use axum::http::{HeaderMap, StatusCode, header};
use serde::Deserialize;

use crate::dashboard::problem::Problem;

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    Json,
    Csv,
}

impl Format {
    /// The value of `format=`, else the first known type of the header `accept`. JSON is the default.
    pub(super) fn of(given: Option<Self>, headers: &HeaderMap) -> Result<Self, Problem> {
        if let Some(format) = given {
            return Ok(format);
        }
        let Some(accept) = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()) else {
            return Ok(Self::Json);
        };
        let types = accept.split(',').map(|range| range.split(';').next().unwrap_or_default().trim());
        let format = |name: &str| match name {
            "application/json" | "application/*" | "*/*" => Some(Self::Json),
            "text/csv" | "text/*" => Some(Self::Csv),
            _ => None,
        };
        types.filter_map(format).next().ok_or_else(|| {
            let detail = format!("accept: {accept:?}; expected application/json or text/csv");
            Problem::new(StatusCode::NOT_ACCEPTABLE, detail)
        })
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Csv => "text/csv; charset=utf-8; header=present",
        }
    }

    /// Adds a row: as CSV its fields, as JSON `value`. `is_first` is whether it has none before it.
    pub(super) fn write(
        self,
        out: &mut Vec<u8>,
        is_first: bool,
        fields: impl FnOnce() -> Vec<String>,
        value: impl FnOnce() -> serde_json::Value,
    ) {
        match self {
            Self::Json => {
                out.extend_from_slice(if is_first { b"\n" } else { b",\n" });
                serde_json::to_writer(out, &value()).expect("texts and numbers");
            }
            Self::Csv => csv_line(out, &fields()),
        }
    }
}

/// Adds a line of CSV that a spreadsheet reads as texts and numbers, never as formulas (OWASP, CSV Injection): a text that
/// begins as a formula gets a single quote before it. Numbers stay as they are.
pub(super) fn csv_line(out: &mut Vec<u8>, fields: &[impl AsRef<str>]) {
    for (index, field) in fields.iter().map(AsRef::as_ref).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let quote = if is_formula(field) { "'" } else { "" };
        // Spreadsheets of some countries separate at these too, and the text behind would be a field of its own.
        let is_quoted = !quote.is_empty() || field.contains([',', ';', '\t', '"', '\r', '\n']);
        let field = match is_quoted {
            true => format!("\"{quote}{}\"", field.replace('"', "\"\"")),
            false => field.to_owned(),
        };
        out.extend_from_slice(field.as_bytes());
    }
    out.push(b'\n');
}

/// Whether a spreadsheet computes a text. The last four characters are full-width forms of the first.
fn is_formula(text: &str) -> bool {
    let begins = text
        .trim_start_matches(' ')
        .starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}']);
    begins && !text.parse().is_ok_and(f64::is_finite)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spreadsheet_computes_no_field() {
        let line = |fields: &[&str]| {
            let mut out = Vec::new();
            csv_line(&mut out, fields);
            String::from_utf8(out).unwrap()
        };
        for (field, expected) in [
            ("=1+1", "\"'=1+1\""),
            ("+cmd|' /C calc'!A0", "\"'+cmd|' /C calc'!A0\""),
            ("-2+3", "\"'-2+3\""),
            ("@SUM(A1)", "\"'@SUM(A1)\""),
            (" =1", "\"' =1\""),
            ("\u{ff1d}1", "\"'\u{ff1d}1\""),
            ("=HYPERLINK(\"x\")", "\"'=HYPERLINK(\"\"x\"\")\""),
            ("a;=1", "\"a;=1\""),
            ("a,b", "\"a,b\""),
            ("a\"b", "\"a\"\"b\""),
            ("-inf", "\"'-inf\""),
            ("-5.25", "-5.25"),
            ("-1e-30", "-1e-30"),
            ("21.5", "21.5"),
            ("hall/rack-2", "hall/rack-2"),
            ("2026-11-24T09:15:30Z", "2026-11-24T09:15:30Z"),
            ("%RH", "%RH"),
            ("/100", "/100"),
            ("", ""),
        ] {
            assert_eq!(line(&[field, "x"]), format!("{expected},x\n"), "{field}");
        }
    }

    #[test]
    fn the_parameter_takes_precedence_over_the_header() {
        let format = |given, accept: &str| {
            let headers = [(header::ACCEPT, accept.parse().unwrap())].into_iter().collect();
            Format::of(given, &headers).map_err(|problem| problem.status())
        };
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        assert_eq!(format(None, browser), Ok(Format::Json));
        assert_eq!(format(None, "text/csv;q=1, */*"), Ok(Format::Csv));
        assert_eq!(format(Some(Format::Csv), "application/json"), Ok(Format::Csv));
        assert_eq!(format(None, "image/png"), Err(StatusCode::NOT_ACCEPTABLE));
        assert_eq!(Format::of(None, &HeaderMap::new()).ok(), Some(Format::Json));
    }
}
