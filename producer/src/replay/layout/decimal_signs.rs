//! Decides what point and comma mean in the numbers of each column.
//!
//! The rule, for each column with values:
//! 1. A sign that the user gave for the column counts.
//! 2. Otherwise numbers with one possible value decide: `2,6`, `0.757` and `1.234.567` have one, `1.013` has two. If
//!    they prove both signs, the numbers with two values are refused.
//! 3. A column that has only numbers such as `1.013` and integers follows the sign that the user gave for the file,
//!    else the sign of the other columns, else a comma-delimited file has decimal points, and any other file the sign
//!    that the column has.
//! 4. If the column's sign is not that of the other columns, it is still the decimal sign if all of the column's
//!    numbers have it. Otherwise, and in a comma-delimited file, nothing tells, and the file is refused.
//!
//! Everything that is not certain is noted.

use std::collections::BTreeSet;

use super::{Mapping, Rows};
use crate::replay::{
    missing_codes::CODES,
    number::{self, Notation, NumberFormat, Sign},
};

/// Evidence of the numbers of a column about its signs.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// The decimal signs that numbers with one value prove.
    proved: BTreeSet<Sign>,
    /// Whether a sign separates thousands for certain.
    grouped: bool,
    /// The signs of the numbers with two values.
    either: BTreeSet<Sign>,
    /// The first number with two values.
    example: Option<String>,
    /// Whether there are integers besides 0 and codes of missing values.
    integers: bool,
}

impl Evidence {
    /// Takes a cell and its number.
    pub(super) fn add(&mut self, cell: &str, number: Notation) {
        match number {
            Notation::Certain { sign: Some(sign), grouped, .. } => {
                self.proved.insert(sign);
                self.grouped |= grouped;
            }
            Notation::Certain { value, .. } => self.integers |= value != 0.0 && !CODES.contains(&value),
            Notation::Either { sign, .. } => {
                self.either.insert(sign);
                self.example.get_or_insert_with(|| cell.to_owned());
            }
        }
    }

    /// The only sign that certain numbers prove.
    fn decided(&self) -> Option<Sign> {
        only(&self.proved)
    }
}

/// The element of a set with one element.
fn only(signs: &BTreeSet<Sign>) -> Option<Sign> {
    signs.first().copied().filter(|_| signs.len() == 1)
}

/// Decides the formats of these columns, and returns a format for every column of the file. Fails for a column whose
/// numbers have two values if nothing tells which.
pub(super) fn formats(
    rows: &Rows,
    evidence: &[(usize, &Evidence)],
    mapping: &Mapping,
    delimiter: char,
    notes: &mut Vec<String>,
) -> Result<Vec<NumberFormat>, String> {
    let mut formats = vec![NumberFormat::default(); rows.headings.len()];
    let given = given(rows, mapping)?;
    let of_columns: BTreeSet<Sign> = evidence.iter().filter_map(|(_, evidence)| evidence.decided()).collect();
    let of_file = match mapping.decimal_comma {
        Some(comma) => Some(if comma { Sign::Comma } else { Sign::Point }),
        None if delimiter == ',' && of_columns.is_empty() => Some(Sign::Point),
        None => only(&of_columns),
    };
    for (index, evidence) in evidence {
        let heading = &rows.headings[*index];
        let stated = given.iter().find(|(column, _)| column == index).map(|(_, sign)| *sign);
        formats[*index] = match stated {
            Some(sign) => NumberFormat::known(sign),
            None => format(heading, evidence, of_file, mapping, delimiter, notes)?,
        };
    }
    if of_columns.len() > 1 {
        let named = |sign: Sign| {
            let is = |(_, evidence): &&(usize, &Evidence)| evidence.decided() == Some(sign);
            let names = evidence.iter().filter(is).map(|(index, _)| rows.headings[*index].as_str());
            names.collect::<Vec<_>>().join(", ")
        };
        let (points, commas) = (named(Sign::Point), named(Sign::Comma));
        notes.push(format!("the decimal sign is a point in the columns {points} and a comma in {commas}"));
    }
    Ok(formats)
}

/// The signs that the user gave for columns.
fn given(rows: &Rows, mapping: &Mapping) -> Result<Vec<(usize, Sign)>, String> {
    let points = mapping.point_columns.iter().map(|heading| (heading, Sign::Point));
    let commas = mapping.comma_columns.iter().map(|heading| (heading, Sign::Comma));
    points.chain(commas).map(|(heading, sign)| Ok((rows.exactly(heading)?, sign))).collect()
}

fn format(
    heading: &str,
    evidence: &Evidence,
    of_file: Option<Sign>,
    mapping: &Mapping,
    delimiter: char,
    notes: &mut Vec<String>,
) -> Result<NumberFormat, String> {
    if let Some(sign) = evidence.decided() {
        // The user's statement about the file makes the other sign a separator of thousands.
        let grouped = evidence.grouped || mapping.decimal_comma.is_some() && of_file == Some(sign);
        return Ok(NumberFormat { sign: Some(sign), grouped });
    }
    let Some(example) = evidence.example.as_deref() else {
        return Ok(NumberFormat { sign: of_file.filter(|_| evidence.proved.is_empty()), grouped: false });
    };
    let sign = match only(&evidence.either) {
        Some(sign) if evidence.proved.is_empty() => sign,
        _ => {
            notes.push(format!(
                "column {heading:?} has decimal points and decimal commas: numbers such as {example:?} are refused"
            ));
            return Ok(NumberFormat::default());
        }
    };
    if mapping.decimal_comma.is_some() {
        let decimal = of_file == Some(sign);
        if !decimal {
            let word = if sign == Sign::Point { "point" } else { "comma" };
            notes.push(format!("column {heading:?}: the {word} in {example:?} separates thousands"));
        }
        return Ok(NumberFormat::known(if decimal { sign } else { sign.other() }));
    }
    if of_file.is_some_and(|file| file != sign) {
        if evidence.integers || delimiter == ',' {
            let values = readings(example);
            return Err(format!(
                "column {heading:?}: {example:?} is {values}, and no other number tells; --point-column or \
                 --comma-column gives the column's decimal sign"
            ));
        }
        let (word, flag) = match sign {
            Sign::Point => ("point", "--comma-column"),
            Sign::Comma => ("comma", "--point-column"),
        };
        notes.push(format!(
            "column {heading:?}: {example:?} is read with a decimal {word}, unlike the other columns ({flag} changes \
             this)"
        ));
    } else if of_file.is_none() {
        notes.push(format!(
            "column {heading:?}: {example:?} is {}, and is read as the first (--point-column or --comma-column \
             changes this)",
            readings(example)
        ));
    }
    Ok(NumberFormat { sign: Some(sign), grouped: false })
}

/// Both values of a number such as `1.013`, for a message.
fn readings(example: &str) -> String {
    match number::notation(example) {
        Some(Notation::Either { decimal, thousands, .. }) => format!("{decimal} or {thousands}"),
        _ => example.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of the column p in a file with the column t, and the notes.
    fn column(
        t: &[&str],
        p: &[&str],
        mapping: &Mapping,
        delimiter: char,
    ) -> Result<(Vec<String>, Vec<String>), String> {
        let rows = t.iter().zip(p).map(|(t, p)| vec![(*t).to_owned(), (*p).to_owned()]).collect();
        let rows = Rows { headings: vec!["t".to_owned(), "p".to_owned()], rows };
        let mut evidence = [Evidence::default(), Evidence::default()];
        for (index, evidence) in evidence.iter_mut().enumerate() {
            rows.cells(index).for_each(|cell| evidence.add(cell, number::notation(cell).unwrap()));
        }
        let mut notes = Vec::new();
        let evidence = [(0, &evidence[0]), (1, &evidence[1])];
        let formats = formats(&rows, &evidence, mapping, delimiter, &mut notes)?;
        let shown = |cell: &&str| {
            let value = formats[1].value(number::notation(cell).unwrap());
            value.map_or("refused".to_owned(), |value| value.to_string())
        };
        Ok((p.iter().map(shown).collect(), notes))
    }

    fn values(t: &[&str], p: &[&str], delimiter: char) -> Vec<String> {
        column(t, p, &Mapping::default(), delimiter).unwrap().0
    }

    #[test]
    fn each_column_has_its_own_decimal_sign() {
        let (values, notes) =
            column(&["13,6", "2,25"], &["1.013", "0.998"], &Mapping::default(), ';').unwrap();
        assert_eq!(values, ["1.013", "0.998"]);
        assert_eq!(notes, ["the decimal sign is a point in the columns p and a comma in t"]);
    }

    #[test]
    fn a_column_of_ambiguous_numbers_has_the_sign_that_all_of_them_have() {
        let (values, notes) =
            column(&["13,6", "2,2", "1,0"], &["1.013", "1.014", "-999"], &Mapping::default(), ';').unwrap();
        assert_eq!(values, ["1.013", "1.014", "-999"]);
        assert_eq!(
            notes,
            [
                "column \"p\": \"1.013\" is read with a decimal point, unlike the other columns (--comma-column \
                changes this)"
            ]
        );
        let (values, _) = column(&["13.6", "2.2"], &["1,013", "1,014"], &Mapping::default(), '\t').unwrap();
        assert_eq!(values, ["1.013", "1.014"]);
    }

    #[test]
    fn a_column_of_ambiguous_numbers_and_integers_is_refused_by_name() {
        let refused =
            |t: &[&str], p: &[&str], delimiter| column(t, p, &Mapping::default(), delimiter).unwrap_err();
        let text = "column \"p\": \"1.013\" is 1.013 or 1013, and no other number tells; --point-column or \
                    --comma-column gives the column's decimal sign";
        assert_eq!(refused(&["13,6", "2,2"], &["998", "1.013"], ';'), text);
        assert_eq!(refused(&["13.6"], &["1,013"], ','), text.replace("1.013\"", "1,013\""));
    }

    #[test]
    fn the_sign_of_the_other_columns_confirms_that_of_a_column() {
        let (values, notes) = column(&["13.6"], &["1.013"], &Mapping::default(), ';').unwrap();
        assert_eq!((values, notes.len()), (vec!["1.013".to_owned()], 0));
        let (values, notes) = column(&["13"], &["1.013"], &Mapping::default(), ',').unwrap();
        assert_eq!((values, notes.len()), (vec!["1.013".to_owned()], 0));
        let (values, notes) = column(&["13"], &["1,013"], &Mapping::default(), ';').unwrap();
        assert_eq!(values, ["1.013"]);
        assert_eq!(
            notes,
            [
                "column \"p\": \"1,013\" is 1.013 or 1013, and is read as the first (--point-column or --comma-column \
                changes this)"
            ]
        );
    }

    #[test]
    fn thousands_are_read_where_a_number_proves_them() {
        assert_eq!(values(&["1,5", "1,5"], &["1.013,25", "1.013"], ';'), ["1013.25", "1013"]);
        assert_eq!(values(&["1.5", "1.5"], &["1,234,567", "1,013"], ','), ["1234567", "1013"]);
        assert_eq!(values(&["1,5", "1,5"], &["998,5", "1.013"], ';'), ["998.5", "refused"]);
    }

    #[test]
    fn a_column_with_both_signs_refuses_only_ambiguous_numbers() {
        let (values, notes) =
            column(&["1", "1", "1"], &["2,6", "12.5", "1.013"], &Mapping::default(), ';').unwrap();
        assert_eq!(values, ["2.6", "12.5", "refused"]);
        assert_eq!(
            notes,
            ["column \"p\" has decimal points and decimal commas: numbers such as \"1.013\" are refused"]
        );
    }

    #[test]
    fn the_user_decides() {
        let commas = Mapping { comma_columns: vec!["p".to_owned()], ..Mapping::default() };
        assert_eq!(column(&["1,5"], &["1.013"], &commas, ';').unwrap(), (vec!["1013".to_owned()], vec![]));
        let points = Mapping { point_columns: vec!["p".to_owned()], ..Mapping::default() };
        assert_eq!(column(&["1,5"], &["1.013"], &points, ';').unwrap(), (vec!["1.013".to_owned()], vec![]));
        let file = Mapping { decimal_comma: Some(true), ..Mapping::default() };
        let noted = vec!["column \"p\": the point in \"1.013\" separates thousands".to_owned()];
        assert_eq!(column(&["1,5"], &["1.013"], &file, ';').unwrap(), (vec!["1013".to_owned()], noted));
        let own = column(&["1,5", "1,5"], &["1.013", "0.998"], &file, ';').unwrap().0;
        assert_eq!(own, ["1.013", "0.998"]);
    }
}
