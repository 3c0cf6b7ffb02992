//! Devices of columns.

use super::*;

const TIME: &str = "2026-01-01T00:00:00Z";

fn separated(separator: &str) -> Mapping {
    Mapping { device_separator: Some(separator.to_owned()), ..Mapping::default() }
}

/// The readings of a row of numbers from 1 under these headings, without their times.
fn read(headings: &str, mapping: &Mapping) -> Vec<String> {
    let text = text(headings);
    let row = &rows(&text, mapping)[0];
    assert_eq!(row.faults, Vec::<String>::new());
    shown(row).iter().map(|reading| reading.replace(&format!(" {TIME}"), "")).collect()
}

fn text(headings: &str) -> String {
    let values: Vec<_> = (1..=headings.split(',').count()).map(|value| value.to_string()).collect();
    format!("time,{headings}\n{TIME},{}\n", values.join(","))
}

fn refused(headings: &str, mapping: &Mapping) -> String {
    Layout::detect(sample(&text(headings)), mapping, "file").err().unwrap()
}

#[test]
fn each_column_has_the_device_of_its_heading() {
    let headings = "roof/temperature [°C],roof/wind m/s,north/hall 2/humidity_pct,roof/T";
    let read = read(headings, &Mapping::default());
    assert_eq!(
        read,
        ["roof temperature 1 Cel", "roof wind 2 m/s", "north/hall 2 humidity 3 %RH", "roof T 4 -"]
    );
    let notes = layout(&text(headings), &Mapping::default()).notes;
    assert_eq!(
        notes,
        ["headings name devices: north/hall 2, roof (--device-separator none reads them as metrics)"]
    );
    let notes = layout(&text("a/x,b/x,c/x,d/x,e/x"), &Mapping::default()).notes;
    assert!(notes[0].starts_with("headings name devices: a, b, c and 2 more ("), "{notes:?}");
}

#[test]
fn one_heading_without_a_device_makes_a_file_ambiguous() {
    let headings = "roof/temperature,battery";
    assert_eq!(
        refused(headings, &Mapping::default()),
        "the heading \"roof/temperature\" has a device and \"battery\" has none: give --device-separator / if the others are \
         metrics of one device, --device-separator none if all headings are metrics, or a map"
    );
    assert_eq!(read(headings, &separated("/")), ["roof temperature 1 -", "file battery 2 -"]);
    assert_eq!(read(headings, &separated("none")), ["file roof/temperature 1 -", "file battery 2 -"]);
    let error = refused("roof/temperature,kWh/day", &Mapping::default());
    assert!(error.contains("\"kWh/day\" has none"), "a rate has no device: {error}");
    assert_eq!(read("kWh/day,p/hPa,battery", &Mapping::default())[1], "file p/hPa 2 -");
}

#[test]
fn a_device_that_is_given_is_that_of_all_headings() {
    let text = "time,device,hall/temp,roof/temp\n2026-01-01,north,1,2\n2026-01-01,,3,4\n";
    let column = Mapping::default();
    assert_eq!(shown(&rows(text, &column)[0])[0], "north hall/temp 1 - 2026-01-01T00:00:00Z");
    assert_eq!(
        layout(text, &column).notes,
        [
            "headings such as \"hall/temp\" are metrics of the device in column \"device\" (--device-separator / reads \
          devices in them)"
        ]
    );
    let given = Mapping { device: Some("north".to_owned()), ..Mapping::default() };
    assert_eq!(read("hall/temp,roof/temp", &given), ["north hall/temp 1 -", "north roof/temp 2 -"]);
    let both = Mapping { device_separator: Some("/".to_owned()), ..given };
    assert_eq!(read("hall/temp,battery", &both), ["hall temp 1 -", "north battery 2 -"]);

    // The headings name all devices, so that an empty cell in the column is no fault.
    let (layout, rows) = (layout(text, &separated("/")), rows(text, &separated("/")));
    assert_eq!(shown(&rows[1]), ["hall temp 3 - 2026-01-01T00:00:00Z", "roof temp 4 - 2026-01-01T00:00:00Z"]);
    assert_eq!(layout.notes, ["column \"device\" is not read: every other column has its own device"]);
}

#[test]
fn another_separator_splits_where_it_is_last() {
    let read = read("site.roof.wind (m/s),battery", &separated("."));
    assert_eq!(read, ["site.roof wind 1 m/s", "file battery 2 -"]);
    assert_eq!(
        refused("roof/temperature", &separated(".")),
        "device_separator \".\": no column with values has it in its heading; their headings are roof/temperature"
    );
    for separator in ["", "//", "x", "1", " "] {
        assert_eq!(
            refused("roof/temperature", &separated(separator)),
            format!(
                "device_separator {separator:?}: expected one character that is not a letter, a digit or white space, or none"
            )
        );
    }
}

#[test]
fn names_in_headings_are_checked() {
    let plain = Mapping::default();
    assert_eq!(
        refused("/temperature", &plain),
        "column \"/temperature\": device \"\": must not be empty; give it a device in a map: \
         [columns.\"/temperature\"] device = \"NAME\""
    );
    let error = refused("roof/", &plain);
    assert!(error.starts_with("column \"roof/\": metric \"\": must not be empty; give it a name"), "{error}");
    let error = refused(&format!("{}/t", "x".repeat(129)), &plain);
    assert!(error.contains(" is 129 bytes long; 128 are allowed; give it a device in a map"), "{error}");
}

#[test]
fn a_map_gives_each_column_its_device() {
    let map = |text: &str| toml::from_str::<Mapping>(text).unwrap();
    let columns = r#"
        device = "site"
        columns.t1 = { device = "roof", metric = "temperature", unit = "Cel" }
        columns.t2 = { device = "cellar", metric = "temperature", unit = "Cel" }
        columns.battery = {}
        "#;
    let expected = ["roof temperature 1 Cel", "cellar temperature 2 Cel", "site battery 3 -"];
    assert_eq!(read("t1,t2,battery", &map(columns)), expected);
    let error = refused("t1", &map("columns.t1.device = \"\""));
    assert!(error.starts_with("column \"t1\": device \"\": must not be empty"), "{error}");
    assert_eq!(
        refused("a/b", &map("device_separator = \"/\"\ncolumns.\"a/b\" = {}")),
        "device_separator \"/\" and columns are both given, expected one of them; a column has a field device"
    );
    let error = toml::from_str::<Mapping>("columns.t1.devise = \"x\"").unwrap_err().to_string();
    assert!(error.contains("unknown field `devise`, expected one of `device`, `metric`"), "{error}");
}
