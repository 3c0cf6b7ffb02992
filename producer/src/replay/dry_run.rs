//! `replay --dry-run`: shows how a recording is read.

use std::{fmt::Write, path::Path};

use anyhow::Context;
use garenne_common::text::printable;
use garenne_protocol::sensor::Limits;

use super::{
    civil_time::DateOrder,
    encoding::Encoding,
    layout::{Layout, Notation, Shape},
    mapping::Mapping,
    reader::{ReadCounts, read},
    recording::Recording,
};
use crate::progress::Progress;

/// Readings that are shown.
const SHOWN: usize = 10;

/// Reads the whole recording. Returns its layout as a map, which `--map` accepts, with the first readings as comments,
/// and the counts of its rows.
pub(super) fn run(
    mut recording: Recording,
    limits: &Limits,
    file: &Path,
    progress: &Progress,
) -> anyhow::Result<(String, ReadCounts)> {
    let file = file.display().to_string();
    let mut text =
        format!("# How {} is read. Save this, change it, and give it with --map.\n", printable(&file));
    match recording.layout() {
        Some(layout) => {
            let encoding = recording.encoding().filter(|encoding| *encoding != Encoding::Utf8);
            text.push_str(&describe(layout, &Mapping { encoding, ..layout.mapping() }));
        }
        None => text.push_str("# JSON: the records name device, metric, unit and time.\n"),
    }
    let mut first = Vec::new();
    let read = read(&mut recording, limits, Some(progress), |row| {
        let left = SHOWN - first.len();
        first.extend(row.readings.into_iter().take(left));
        true
    });
    let read = read.context(file)?;
    text.push_str("\n# The first readings:\n");
    for reading in first {
        let reading = serde_json::to_string(&reading).context("a reading")?;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# {}", printable(&reading));
    }
    let ReadCounts { rows, readings, missing, malformed, malformed_values, .. } = &read;
    let _ = writeln!(
        text,
        "# Rows: {rows}, readings: {readings}, missing values: {missing}, malformed rows: {malformed}, malformed values \
         of other rows: {malformed_values}"
    );
    for note in read.notes() {
        let _ = writeln!(text, "# {note}");
    }
    Ok((text, read))
}

/// The layout as a map. What a map cannot express are comments.
fn describe(layout: &Layout, mapping: &Mapping) -> String {
    let mut text = toml::to_string(mapping).expect("a mapping has only texts, numbers and tables");
    let how = match layout.time.notation {
        Notation::Epoch => "Unix times",
        Notation::Parts => "parts of a time",
        Notation::Text if layout.format.is_some() => "text in time_format",
        Notation::Text => layout.date_order().map_or("text", DateOrder::words),
    };
    let columns = layout.headings_of(&layout.time.indexes).join(", ");
    let _ = writeln!(text, "\n# Times are in the columns {} ({how}).", printable(&columns));
    if let Some((example, time)) = layout.example() {
        let _ = writeln!(text, "# {example:?} is {time}.");
    }
    if let Shape::Long { metric, value, unit } = &layout.shape {
        let indexes: Vec<usize> = [*metric, *value].into_iter().chain(*unit).collect();
        let columns = layout.headings_of(&indexes).join(", ");
        let _ = writeln!(text, "# Each row is one reading, in the columns {}.", printable(&columns));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use crate::replay::source::Source;

    use super::*;

    fn shown(recording: impl AsRef<[u8]>, mapping: &Mapping) -> String {
        let input = Source::pipe(Box::new(Cursor::new(recording.as_ref().to_vec()))).unwrap();
        let recording = Recording::new(input, mapping, "roof").unwrap();
        run(recording, &Limits::default(), Path::new("roof.csv"), &Progress::new("replay", None)).unwrap().0
    }

    const ROOF: &str = "Date;Time;ms;T (C);p_bar\n\
        26/07/2026;12.00.00;250;21,5;1.013\n\
        26/07/2026;12.01.00;500;-999;0.998\n\
        26/07/2026;12.02.00;750;-999;x\n";

    const ROOF_MAP: &str = r##"# How roof.csv is read. Save this, change it, and give it with --map.
delimiter = ";"
point_columns = ["p_bar"]
comma_columns = ["T (C)"]
missing = ["-999"]
time = ["Date", "Time"]
time_fraction = "ms"
date_order = "dmy"
zone = "Europe/Berlin"
device = "roof"

[columns."T (C)"]
metric = "T"
unit = "Cel"

[columns.p_bar]
metric = "p"
unit = "bar"

# Times are in the columns Date, Time (day first).
# "26/07/2026 12.00.00" is 2026-07-26T10:00:00.25Z.

# The first readings:
# {"device":"roof","metric":"T","value":21.5,"unit":"Cel","time":"2026-07-26T10:00:00.25Z"}
# {"device":"roof","metric":"p","value":1.013,"unit":"bar","time":"2026-07-26T10:00:00.25Z"}
# {"device":"roof","metric":"p","value":0.998,"unit":"bar","time":"2026-07-26T10:01:00.5Z"}
# Rows: 3, readings: 3, missing values: 2, malformed rows: 1, malformed values of other rows: 0
"##;

    #[test]
    fn the_layout_is_printed_as_a_map_with_the_first_readings() {
        let mapping = Mapping { zone: Some("Europe/Berlin".to_owned()), ..Mapping::default() };
        assert_eq!(shown(ROOF, &mapping), ROOF_MAP);
    }

    #[test]
    fn the_printed_map_gives_the_same_layout() {
        for recording in [
            ROOF,
            "ts|sensor_id|metric|value|unit\n1763600000|s1|power|12|kW\n",
            "year,month,day,hour,t\n2026,1,2,3,4.5\n",
            "2026-01-02 03:04,7.5\n2026-01-02 03:05,7.6\n",
            "time,room,site/a/t [°C],site/b/t [°C]\n2026-01-02 03:04,,7.5,7.6\n",
        ] {
            let first = shown(recording, &Mapping::default());
            let map: Mapping = toml::from_str(&first).unwrap();
            assert_eq!(shown(recording, &map), first);
        }
    }

    #[test]
    fn the_printed_map_has_the_devices_of_headings() {
        let recording = "time,north/roof/wind [m/s],hall/T\n2026-01-02 03:04,7.5,20\n";
        let shown = shown(recording, &Mapping::default());
        let columns = "utc_offset = \"Z\"\n\n[columns.\"hall/T\"]\ndevice = \"hall\"\nmetric = \"T\"\n\n\
            [columns.\"north/roof/wind [m/s]\"]\ndevice = \"north/roof\"\nmetric = \"wind\"\nunit = \"m/s\"\n";
        assert!(shown.contains(columns), "{shown}");
        assert!(shown.contains("# {\"device\":\"north/roof\",\"metric\":\"wind\",\"value\":7.5,"), "{shown}");
    }

    #[test]
    fn json_needs_no_map() {
        let reading = r#"{"device":"d","metric":"m","value":1.0,"time":"2026-01-01T00:00:00Z"}"#;
        let text = shown(reading, &Mapping::default());
        assert!(text.contains(&format!("# {reading}\n# Rows: 1, readings: 1,")), "{text}");
    }
}
