//! `spool verify`: checks every byte of a spool.

use garenne_common::{
    exit::{Exit, Failure},
    stdout::print_line,
};
use garenne_spool::Inspection;

/// Prints the problems and a summary.
pub(super) fn run(inspection: &Inspection) -> Result<Exit, Failure> {
    let (lines, exit) = check(inspection);
    lines.iter().try_for_each(print_line)?;
    Ok(exit)
}

/// The problems and a summary, and the exit code. A torn tail is no corruption.
pub(super) fn check(inspection: &Inspection) -> (Vec<String>, Exit) {
    let mut lines = Vec::new();
    let (mut segments, mut records, mut corrupt) = (0, 0, 0);
    for (name, segment) in inspection.segments() {
        segments += 1;
        let segment = match segment {
            Ok(segment) => segment,
            Err(error) => {
                corrupt += 1;
                lines.push(format!("{name}: cannot be read: {error}"));
                continue;
            }
        };
        records += segment.readable();
        corrupt += usize::from(segment.is_corrupt());
        lines.extend(
            segment.damaged().iter().map(|offset| format!("{name}: offset {offset}: unreadable or missing")),
        );
        if segment.missing() > 0 {
            lines.push(format!("{name}: its last {} records are missing", segment.missing()));
        }
        if segment.overlapped() > 0 {
            let overlapped = segment.overlapped();
            lines.push(format!(
                "{name}: the next segment begins before its last {overlapped} records, and may be a foreign file"
            ));
        }
        if segment.is_detached() {
            lines.push(format!(
                "{name}: its records end before the acknowledged position, and it may be a foreign file"
            ));
        }
        if let Some(offset) = segment.torn() {
            lines.push(format!("{name}: offset {offset}: an append that did not end, or goes on now"));
        }
    }
    for (name, is_unfinished) in inspection.without_records() {
        corrupt += usize::from(!is_unfinished);
        let what = if is_unfinished { "an append that did not end" } else { "a foreign file" };
        lines.push(format!("{name}: no record: {what}"));
    }
    let missing = inspection.missing();
    if missing > 0 {
        corrupt += 1;
        lines.push(format!("at least {missing} records were not published, and their segments are missing"));
    }
    lines.push(format!("{segments} segments, {records} readable records, {corrupt} corrupt segments"));
    (lines, if corrupt == 0 { Exit::Done } else { Exit::Failed })
}
