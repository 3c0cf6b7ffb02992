//! Units of stored readings.
//!
//! Workers store a unit's symbol. Rows of earlier versions may have another spelling, such as `°C` for `Cel`, and keep it
//! until they are recalibrated. Who reads rows reads both as one unit.

use std::fmt::Write;

use garenne_protocol::sensor::Unit;

/// An SQL expression for the symbol of the unit in `column`, a column or an expression. Null stays null, and an unknown unit
/// stays as it is.
pub fn symbol(column: &str) -> String {
    let mut sql = format!("CASE {column}");
    for (spelling, symbol) in Unit::spellings() {
        // Writing to a string cannot fail.
        let _ = write!(sql, " WHEN '{spelling}' THEN '{symbol}'");
    }
    sql + &format!(" ELSE {column} END")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_has_its_symbol() {
        let sql = symbol("r.unit");
        assert!(sql.starts_with("CASE r.unit WHEN 'degC' THEN 'Cel' WHEN '°C' THEN 'Cel' "), "{sql}");
        assert!(sql.ends_with(" WHEN 'L/h' THEN 'l/h' ELSE r.unit END"), "{sql}");
        assert!(
            Unit::spellings().iter().flat_map(|(one, other)| [one, other]).all(|unit| !unit.contains('\''))
        );
    }
}
