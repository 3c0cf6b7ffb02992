use super::*;
use crate::replay::row::Row;

fn sample(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn layout(text: &str, mapping: &Mapping) -> Layout {
    Layout::detect(&sample(text), mapping, "file").unwrap()
}

fn rows(text: &str, mapping: &Mapping) -> Vec<Row> {
    let layout = layout(text, mapping);
    text.lines().skip(usize::from(layout.has_header)).map(|line| layout.row(line)).collect()
}

fn shown(row: &Row) -> Vec<String> {
    let unit = |unit: Option<Unit>| unit.map_or("-", Unit::symbol);
    row.readings
        .iter()
        .map(|r| format!("{} {} {} {} {}", r.device, r.metric, r.value, unit(r.unit), r.time))
        .collect()
}

const AIR: &str = "Date;Time;CO(GT);T;RH;AH;;
10/03/2004;18.00.00;2,6;13,6;48,9;0,7578;;
10/03/2004;19.00.00;-200;13,3;47,7;-200;;
;;;;;;;
14/03/2004;20.00.00;2,2;x;54;0,7502;;
14/03/2004;99.00.00;2,2;11,9;54;0,7502;;
";

#[test]
fn the_air_quality_recording_is_understood() {
    let rows = rows(AIR, &Mapping::default());
    assert_eq!(
        shown(&rows[0]),
        [
            "file CO(GT) 2.6 - 2004-03-10T18:00:00Z",
            "file T 13.6 - 2004-03-10T18:00:00Z",
            "file RH 48.9 - 2004-03-10T18:00:00Z",
            "file AH 0.7578 - 2004-03-10T18:00:00Z",
        ]
    );
    assert_eq!((rows[1].readings.len(), rows[1].missing), (2, 2));
    assert!(rows[2].blank);
    assert_eq!(rows[3].faults, ["column \"T\": \"x\" is not a number"]);
    assert_eq!(rows[3].readings.len(), 3);
    assert_eq!(rows[4].faults, ["no time in \"14/03/2004 99.00.00\""]);
    let notes = layout(AIR, &Mapping::default()).notes;
    assert_eq!(notes, ["-200 is treated as a missing value (--missing none disables this)"]);
}

#[test]
fn devices_units_and_metrics_are_taken_from_the_headings() {
    let text = "time,device,temperature_C,humidity_pct\n2026-05-04T05:00:03Z,greenhouse-1,16.48,75.0\n2026-05-04T05:00:11Z,,17,72\n";
    let rows = rows(text, &Mapping::default());
    assert_eq!(
        shown(&rows[0]),
        [
            "greenhouse-1 temperature 16.48 Cel 2026-05-04T05:00:03Z",
            "greenhouse-1 humidity 75 %RH 2026-05-04T05:00:03Z"
        ]
    );
    assert_eq!(rows[1].faults, ["device is empty"]);
}

#[test]
fn files_with_one_metric_are_understood() {
    let rows_of = |text: &str| rows(text, &Mapping::default());
    let rows = rows_of("timestamp,value\n2013-07-04 00:00:00,69.88083514\n");
    assert_eq!(shown(&rows[0]), ["file value 69.88083514 - 2013-07-04T00:00:00Z"]);
    let rows = rows_of("date,temp\n2010/01/01 00:00,39.4\n");
    assert_eq!(shown(&rows[0]), ["file temp 39.4 - 2010-01-01T00:00:00Z"]);
    let rows = rows_of("day\tTmax [degC]\n01.02.2020\t4.5\n");
    assert_eq!(shown(&rows[0]), ["file Tmax 4.5 Cel 2020-02-01T00:00:00Z"]);
}

#[test]
fn long_format_unix_times_date_parts_and_missing_headings_are_understood() {
    let rows_of = |text: &str| rows(text, &Mapping::default());
    let rows =
        rows_of("ts|sensor_id|metric|value|unit\n1763600000|s1|power|12|kW\n1763600060|s1|power|1|kw\n");
    assert_eq!(shown(&rows[0]), ["s1 power 12 kW 2025-11-20T00:53:20Z"]);
    assert!(rows[1].faults[0].starts_with("\"kw\" is not a SenML unit"), "{:?}", rows[1].faults);
    let rows = rows_of("No,year,month,day,hour,pm2.5,station\n1,2013,3,1,23,4,Aoti\n");
    assert_eq!(shown(&rows[0]), ["Aoti No 1 - 2013-03-01T23:00:00Z", "Aoti pm2.5 4 - 2013-03-01T23:00:00Z"]);
    let rows = rows_of("2026-01-02 03:04,7.5\n2026-01-02 03:05,7.6\n");
    assert_eq!(shown(&rows[0]), ["file column2 7.5 - 2026-01-02T03:04:00Z"]);
    assert_eq!(rows.len(), 2);
}

#[test]
fn a_mapping_overrides_the_detection() {
    let mapping: Mapping = toml::from_str(
        r#"
        time = ["Date", "Time"]
        time_format = "%d/%m/%Y %H.%M.%S"
        utc_offset = "+01:00"
        device = "roadside"
        missing = ["-200"]
        [columns."CO(GT)"]
        metric = "co"
        unit = "mg/m3"
        [columns.T]
        unit = "K"
        offset = 273.15
        "#,
    )
    .unwrap();
    let rows = rows(AIR, &mapping);
    assert_eq!(
        shown(&rows[0]),
        ["roadside co 2.6 mg/m3 2004-03-10T17:00:00Z", "roadside T 286.75 K 2004-03-10T17:00:00Z"]
    );
}

#[test]
fn the_order_of_day_and_month_is_detected() {
    let order = |text: &str| layout(text, &Mapping::default()).order;
    assert_eq!(order("date,v\n01/02/2020 0:00,1\n01/13/2020 0:00,2\n"), DateOrder::Mdy);
    assert_eq!(order("date,v\n01/02/2020 0:00,1\n02/02/2020 0:00,2\n03/02/2020 0:00,2\n"), DateOrder::Dmy);
    let guessed = layout("date,v\n01/02/2020 0:00,1\n02/02/2020 0:00,2\n", &Mapping::default());
    assert_eq!(guessed.notes, ["dates are ambiguous and are read day first (--time-format decides)"]);
}

#[test]
fn invalid_rows_are_explained() {
    let text = "time,a,b\n2026-01-01T00:00:00Z,1,2\n2026-01-01T00:00:00Z,1\n2026-01-01T00:00:00Z,1,2,3\n2026-01-01T00:00:00Z,\"1,2\n# note\n";
    let rows = rows(text, &Mapping::default());
    assert_eq!(rows[1].faults, ["2 columns where 3 are expected"]);
    assert_eq!(rows[2].faults, ["4 columns where 3 are expected"]);
    assert_eq!(rows[3].faults, ["a quote is not closed"]);
    assert!(rows[4].blank);
}

#[test]
fn an_unknown_layout_is_refused_with_the_flags_to_give_it() {
    let error = |text: &str, mapping: &Mapping| Layout::detect(&sample(text), mapping, "f").err().unwrap();
    assert_eq!(
        error("a,b\nx,1\n", &Mapping::default()),
        "no time column was found; the columns are a, b; give it with --time-column and its format with --time-format"
    );
    let mapping = Mapping { time: vec!["when".to_owned()], ..Mapping::default() };
    assert_eq!(error("a,b\nx,1\n", &mapping), "no column has the heading \"when\"; the columns are a, b");
    assert_eq!(error("", &Mapping::default()), "the file contains no rows");
}
