use garenne_protocol::sensor::Reading;

use super::*;

/// The recording, as it is read from a pipe.
fn piped(text: impl AsRef<[u8]>, mapping: &Mapping) -> Recording {
    let source = Source::pipe(Box::new(io::Cursor::new(text.as_ref().to_vec()))).unwrap();
    Recording::new(source, mapping, "file").unwrap()
}

fn read(text: &str) -> Vec<(u64, usize, usize)> {
    let mut recording = piped(text, &Mapping::default());
    let mut rows = Vec::new();
    while let Some((line, row)) = recording.next().unwrap() {
        rows.push((line, row.readings.len(), row.faults.len()));
    }
    rows
}

#[test]
fn csv_ndjson_and_json_are_detected() {
    let reading = r#"{"device":"d","metric":"m","value":1,"time":"2026-01-01T00:00:00Z"}"#;
    assert_eq!(read("time,a,b\n2026-01-01T00:00:00Z,1,2\n"), [(2, 2, 0)]);
    assert_eq!(read(&format!("{reading}\n{{broken\n{reading}\n")), [(1, 1, 0), (2, 0, 1), (3, 1, 0)]);
    assert_eq!(read(&format!("[\n{reading},\n{reading}\n]\n")), [(1, 2, 0)]);
    assert_eq!(read("# made by hand\ntime,a\n2026-01-01T00:00:00Z,1\n"), [(1, 0, 0), (3, 1, 0)]);
}

fn notes_of_rows(text: &str, mapping: &Mapping) -> Vec<(u64, String)> {
    let mut recording = piped(text, mapping);
    std::iter::from_fn(|| recording.next().unwrap())
        .filter_map(|(line, row)| Some((line, row.note.or_else(|| row.faults.first().cloned())?)))
        .collect()
}

#[test]
fn ambiguous_dates_that_jump_are_noted_with_their_line() {
    let text = "date;v\n01/02/2020;1\n02/02/2020;2\n01/03/2020;2\n";
    let note = "the time jumps by 28 days to 2020-03-01T00:00:00Z; ambiguous dates are read day first \
                (--date-order decides)";
    assert_eq!(notes_of_rows(text, &Mapping::default()), [(4, note.to_owned())]);
    assert_eq!(notes_of_rows(&text.replace("02/02", "13/02"), &Mapping::default()), []);
}

#[test]
fn the_hours_of_a_clock_change_are_refused_with_their_lines() {
    let mapping = Mapping { zone: Some("Europe/Berlin".to_owned()), ..Mapping::default() };
    let text = "time,v\n2026-03-29 01:59,1\n2026-03-29 02:00,1\n2026-10-25 01:00,1\n2026-10-25 02:00,1\n";
    let missing =
        "\"2026-03-29 02:00\" does not exist in Europe/Berlin: the clock is set forward 60 min over it";
    let twice = "\"2026-10-25 02:00\" in Europe/Berlin occurs twice, and the order of the rows does not tell which \
                 is meant";
    assert_eq!(notes_of_rows(text, &mapping), [(3, missing.to_owned()), (5, twice.to_owned())]);
    let twice = format!("{text}2026-10-25 02:00,2\n");
    assert_eq!(notes_of_rows(&twice, &mapping), [(3, missing.to_owned())]);
}

#[test]
fn a_repeated_hour_is_decided_for_all_devices_of_a_wide_file() {
    let mapping = Mapping { zone: Some("Europe/Berlin".to_owned()), ..Mapping::default() };
    // The first device has no value in one row of each pass.
    let text = "time,roof/t,hall/t\n2026-10-25 02:00,,1\n2026-10-25 02:30,2,2\n2026-10-25 02:00,3,3\n\
                2026-10-25 02:30,,4\n2026-10-25 03:00,5,5\n";
    assert_eq!(notes_of_rows(text, &mapping), []);
    let mut recording = piped(text, &mapping);
    let times: Vec<_> = std::iter::from_fn(|| recording.next().unwrap())
        .map(|(_, row)| (row.readings.len(), row.time().unwrap().to_string()))
        .collect();
    let expected = [(1, "00:00"), (2, "00:30"), (2, "01:00"), (1, "01:30"), (2, "02:00")]
        .map(|(count, time)| (count, format!("2026-10-25T{time}:00Z")));
    assert_eq!(times, expected);
}

#[test]
fn compressed_recordings_are_refused() {
    let open = Source::pipe(Box::new(&b"\x1f\x8b\x08\0"[..]));
    assert!(open.err().unwrap().to_string().starts_with("the input is compressed (gzip)"));
}

/// The recording, as it is read from a file.
fn filed(text: impl AsRef<[u8]>) -> Recording {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let source = Source::open(file.path()).unwrap().0;
    Recording::new(source, &Mapping::default(), "file").unwrap()
}

/// The readings without their times, and what is wrong with the rows.
fn readings(recording: &mut Recording) -> Vec<String> {
    let rows = std::iter::from_fn(|| recording.next().unwrap());
    rows.flat_map(|(line, row)| {
        let reading = |it: Reading| {
            let unit = it.unit.map_or(String::new(), |unit| format!(" {unit}"));
            format!("{} {} {}{unit}", it.device, it.metric, it.value)
        };
        let faults = row.faults.into_iter().map(move |fault| format!("line {line}: {fault}"));
        row.readings.into_iter().map(reading).chain(faults).collect::<Vec<_>>()
    })
    .collect()
}

fn shown(text: impl AsRef<[u8]> + Clone) -> Vec<String> {
    let mut filed = filed(text.clone());
    let read = readings(&mut filed);
    filed.rewind().unwrap();
    assert_eq!(readings(&mut filed), read, "a file can be read again");
    assert_eq!(readings(&mut piped(text, &Mapping::default())), read, "a pipe is read as a file is");
    read
}

fn refused(text: impl AsRef<[u8]>) -> String {
    let source = Source::pipe(Box::new(io::Cursor::new(text.as_ref().to_vec()))).unwrap();
    Recording::new(source, &Mapping::default(), "file").err().unwrap()
}

#[test]
fn a_recording_has_one_encoding() {
    let latin = b"time,room,temp (\xb0C),note\n2026-01-01,K\xfcche,21,-\n2026-01-02,hall,22,-\n";
    assert_eq!(shown(latin), ["Küche temp 21 Cel", "hall temp 22 Cel"]);
    let utf_8 = "time,room,temp,note\n2026-01-01,Küche,21,x\n2026-01-02,Küche,22,";
    let with_latin_note = [utf_8.as_bytes(), b"ge\xf6ffnet\n"].concat();
    assert_eq!(shown(&with_latin_note), ["Küche temp 21", "Küche temp 22"]);
    assert_eq!(
        filed(&with_latin_note).notes()[0],
        "the file is UTF-8 but for 1 bytes, the first in line 3; names that have one are refused (--encoding decides)"
    );
    let with_latin_room = [utf_8.as_bytes(), b"\n2026-01-03,B\xfcro,23,\n"].concat();
    assert_eq!(
        shown(&with_latin_room)[2],
        "line 4: device \"B\u{fffd}ro\" has a byte that is not in the encoding of the file"
    );
    let given = Mapping { encoding: Some(Encoding::Windows1252), ..Mapping::default() };
    assert_eq!(readings(&mut piped(&with_latin_room, &given))[2], "Büro temp 23");
}

#[test]
fn headings_are_checked_as_cells_are() {
    assert_eq!(shown("time,\"inlet\ttemp\n(°C)\"\n2026-01-01,21\n"), ["file inlet temp 21 Cel"]);
    let long = "x".repeat(129);
    let error = refused(format!("time,{long}\n2026-01-01,21\n"));
    assert!(error.contains("is 129 bytes long; 128 are allowed; give it a name in a map"), "{error}");
    let error = refused([b"time,K\xfcche,caf\xc3\xa9,\xc2\xb0\n2026-01-01,21,1,1\n".as_slice()].concat());
    assert_eq!(
        error,
        "column \"K\u{fffd}che\": metric \"K\u{fffd}che\" has a byte that is not in the encoding of the file; give it a \
         name in a map: [columns.\"K\u{fffd}che\"] metric = \"NAME\""
    );
    let device = Mapping { device: Some("a\tb".to_owned()), ..Mapping::default() };
    let source = Source::pipe(Box::new(&b"time,v\n2026-01-01,1\n"[..])).unwrap();
    let error = Recording::new(source, &device, "file").err().unwrap();
    assert_eq!(error, "device \"a\\tb\": contains a control character");
}

#[test]
fn units_of_cells_have_the_spellings_of_headings() {
    let rows = "time,metric,value,unit\n2026-01-01,pm10,21,µg/m³\n2026-01-01,pm25,7,ug/m3\n";
    assert_eq!(shown(rows), ["file pm10 21 ug/m3", "file pm25 7 ug/m3"]);
}

#[test]
fn a_rule_of_dashes_is_no_row_and_says_nothing_about_dates() {
    let text = "time,v\n----------,---\n2026-01-02,1\n2026-01-03,2\n";
    assert_eq!(shown(text), ["file v 1", "file v 2"]);
    let quoted = "time,v\n--a--,1\n2026-01-02,1\n2026-01-02,1\n2026-01-02,1\n";
    assert_eq!((shown(text).len(), filed(text).notes().len(), filed(quoted).notes().len()), (2, 0, 0));
}

#[test]
fn one_code_of_a_missing_value_is_treated_as_several_are() {
    assert_eq!(shown("time,v\n2026-01-01,1\n2026-01-02,-999\n"), ["file v 1"]);
}

#[test]
fn all_rows_of_a_file_decide_about_its_columns_and_the_first_ones_of_a_pipe() {
    // More than the first 512 KiB.
    let (rows, remark) = (600, "x".repeat(1000));
    let mut text = String::from("time,a,b,remark\n");
    for minute in 0..rows {
        text += &format!("2026-01-01T{:02}:{:02}:00Z,1,,{remark}\n", minute / 60, minute % 60);
    }
    text += "2026-02-01T00:00:00Z,-999,7,x\n2026-02-01T00:01:00Z,2,8,y\n";
    let last = |mut recording: Recording| readings(&mut recording).split_off(rows);
    assert_eq!(last(filed(&text)), ["file b 7", "file a 2", "file b 8"]);
    let mut pipe = piped(&text, &Mapping::default());
    let notes: Vec<_> = std::iter::from_fn(|| pipe.next().unwrap()).filter_map(|(_, row)| row.note).collect();
    assert_eq!(
        notes,
        [
            "column \"b\" was empty up to here and is not read: the layout of a pipe is decided by its first 512 KiB, that \
         of a file by all of its rows"
        ]
    );
    let dates: String = (0..rows).map(|row| format!("0{}/02/2026;1;{remark}\n", row % 2 + 1)).collect();
    let notes = |end: &str| filed(format!("date;v;remark\n{dates}{end}")).notes().len() - 1;
    assert_eq!((notes(""), notes("02/13/2026;1;\n")), (1, 0), "the last date decides the order of all");
}

#[test]
fn a_number_among_remarks_does_not_make_a_metric() {
    let remarks = "ok\n".repeat(11);
    let rows: String = remarks.lines().map(|remark| format!("2026-01-01,1,{remark}\n")).collect();
    let text = format!("time,a,b\n{rows}2026-01-02,2,17\n");
    assert_eq!(shown(&text).len(), 12);
    assert_eq!(
        filed(&text).notes(),
        ["columns without numbers or without a heading are ignored: b (1 of 12 cells are numbers)"]
    );
}

#[test]
fn a_time_that_a_spreadsheet_has_shortened_is_refused() {
    let rows = shown("timestamp,v\n1709630000123,1\n1.70963E+12,2\n1.709630000123E+12,3\n");
    assert_eq!(
        rows,
        [
            "file v 1",
            "line 3: the time \"1.70963E+12\" was shortened, as spreadsheets do; export the column as a number with all \
             digits",
            "file v 3"
        ]
    );
}
