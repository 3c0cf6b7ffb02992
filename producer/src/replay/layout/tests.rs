use super::*;
use crate::replay::{civil_time::DateOrder, row::Row};

mod devices;

fn sample(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn layout(text: &str, mapping: &Mapping) -> Layout {
    Layout::detect(sample(text), mapping, "file").unwrap()
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
    assert_eq!(rows[1].faults, ["device \"\": must not be empty"]);
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
    let order = |text: &str| layout(text, &Mapping::default()).time.order;
    assert_eq!(order("date,v\n01/02/2020 0:00,1\n01/13/2020 0:00,2\n"), DateOrder::Mdy);
    assert_eq!(order("date,v\n01/02/2020 0:00,1\n02/02/2020 0:00,2\n03/02/2020 0:00,2\n"), DateOrder::Dmy);
    let guessed = layout("date,v\n01/02/2020 0:00,1\n02/02/2020 0:00,2\n", &Mapping::default());
    assert_eq!(
        guessed.notes,
        [
            "dates are ambiguous and are read day first: \"01/02/2020 0:00\" is 2020-02-01 (--date-order decides)"
        ]
    );
}

#[test]
fn dates_with_a_year_of_two_digits_are_read_in_the_order_with_the_smallest_steps() {
    let detected = layout("date;v\n04/03/10;1\n04/03/11;2\n04/03/12;3\n", &Mapping::default());
    assert_eq!(detected.time.order, DateOrder::Ymd);
    assert_eq!(
        detected.notes,
        ["dates are ambiguous and are read year first: \"04/03/10\" is 2004-03-10 (--date-order decides)"]
    );
    let mapping = Mapping { date_order: Some(DateOrder::Dmy), ..Mapping::default() };
    let given = layout("date;v\n04/03/10;1\n04/03/11;2\n", &mapping);
    assert_eq!((given.time.order, given.notes.len()), (DateOrder::Dmy, 0));
}

#[test]
fn each_column_has_its_own_decimal_sign() {
    let text = "time;T;p_bar\n2026-01-01 00:00;13,6;1.013\n2026-01-01 00:01;13,7;1.012\n";
    let rows_of = |mapping: &Mapping| shown(&rows(text, mapping)[0]);
    assert_eq!(
        rows_of(&Mapping::default()),
        ["file T 13.6 - 2026-01-01T00:00:00Z", "file p 1.013 bar 2026-01-01T00:00:00Z"]
    );
    let commas = Mapping { comma_columns: vec!["p_bar".to_owned()], ..Mapping::default() };
    assert_eq!(rows_of(&commas)[1], "file p 1013 bar 2026-01-01T00:00:00Z");
    let text = "time;p\n2026-01-01 00:00;998,5\n2026-01-01 00:01;1.013\n";
    assert_eq!(
        rows(text, &Mapping::default())[1].faults,
        ["column \"p\": \"1.013\" is 1.013 or 1013 (--point-column or --comma-column decides)"]
    );
}

#[test]
fn fractions_of_seconds_in_a_column_are_part_of_the_time() {
    let first = |text: &str, mapping: &Mapping| shown(&rows(text, mapping)[0]);
    let text = "Date;Time;ms;T\n26.07.2026;12.01.00;250;21,5\n26.07.2026;12.01.01;5;21,6\n";
    assert_eq!(first(text, &Mapping::default()), ["file T 21.5 - 2026-07-26T12:01:00.25Z"]);
    assert_eq!(
        layout(text, &Mapping::default()).notes,
        ["column \"ms\" is read as the fraction of the second (--time-fraction none changes this)"]
    );
    let none = Mapping { time_fraction: Some("none".to_owned()), ..Mapping::default() };
    assert_eq!(first(text, &none)[0], "file ms 250 - 2026-07-26T12:01:00Z");
    let given = Mapping { time: ["Date", "Time", "ms"].map(str::to_owned).into(), ..Mapping::default() };
    assert_eq!(first(text, &given), ["file T 21.5 - 2026-07-26T12:01:00.25Z"]);
    for (heading, cell) in [("microseconds", "250000"), ("ns", "250000000"), ("fraction", "0.25")] {
        let text = format!("epoch,{heading},T\n1763600000,{cell},21.5\n");
        assert_eq!(first(&text, &Mapping::default()), ["file T 21.5 - 2025-11-20T00:53:20.25Z"], "{heading}");
    }
    let text = "year,month,day,hour,min,sec,msec,T\n2026,7,26,12,1,2,250,21.5\n";
    assert_eq!(first(text, &Mapping::default()), ["file T 21.5 - 2026-07-26T12:01:02.25Z"]);
    let text = "year,month,day,hour,minute,second,T\n2026,7,26,12,1,2.25,21.5\n2026,7,26,12.5,1,2,21.5\n";
    assert_eq!(first(text, &Mapping::default()), ["file T 21.5 - 2026-07-26T12:01:02.25Z"]);
    assert_eq!(rows(text, &Mapping::default())[1].faults, ["no time in \"2026 7 26 12.5 1 2\""]);
}

#[test]
fn a_column_with_milliseconds_that_is_not_part_of_the_time_is_a_metric() {
    let names = |text: &str| -> Vec<String> {
        rows(text, &Mapping::default())[0].readings.iter().map(|it| it.metric.to_string()).collect()
    };
    assert_eq!(names("time,ms\n2026-01-01T00:00:00Z,12\n"), ["ms"]);
    assert_eq!(names("time,hops,ms\n2026-01-01T00:00:00Z,3,12\n"), ["hops", "ms"]);
    assert_eq!(names("time,ms,hops\n2026-01-01T00:00:00.5Z,12,3\n"), ["ms", "hops"]);
    assert_eq!(names("time,ms,hops\n2026-01-01T00:00:00Z,1200,3\n"), ["ms", "hops"]);
    let text = "time,ms,hops\n2026-01-01T00:00:00Z,12,3\n2026-01-01T00:00:01Z,13,3\n";
    let row = layout(text, &Mapping::default()).row("2026-01-01T00:00:02Z,1200,3");
    assert_eq!(row.faults, ["column \"ms\": \"1200\" is not a fraction of a second"]);
}

#[test]
fn a_zone_gives_the_offset_of_each_time() {
    let mapping = Mapping { zone: Some("Europe/Berlin".to_owned()), ..Mapping::default() };
    let text = "time,T\n2026-07-01 12:00,1\n2026-12-01 12:00,2\n2026-12-01 12:00Z,3\n2026-03-29 02:30,4\n";
    let rows = rows(text, &mapping);
    assert_eq!(shown(&rows[0]), ["file T 1 - 2026-07-01T10:00:00Z"]);
    assert_eq!(shown(&rows[1]), ["file T 2 - 2026-12-01T11:00:00Z"]);
    assert_eq!(shown(&rows[2]), ["file T 3 - 2026-12-01T12:00:00Z"]);
    assert_eq!(
        rows[3].faults,
        ["\"2026-03-29 02:30\" does not exist in Europe/Berlin: the clock is set forward 60 min over it"]
    );
    let both = Mapping { utc_offset: Some("+01:00".to_owned()), ..mapping };
    let error = Layout::detect(sample(text), &both, "file").err().unwrap();
    assert_eq!(error, "utc_offset and zone are both given, expected one of them");
}

#[test]
fn a_unit_that_contradicts_the_metric_is_not_used() {
    let text =
        "time,metric,value,unit\n2026-01-01T00:00:00Z,temperature,21.5,C\n2026-01-01T00:00:00Z,charge,3,C\n";
    let rows = rows(text, &Mapping::default());
    assert_eq!(shown(&rows[0]), ["file temperature 21.5 Cel 2026-01-01T00:00:00Z"]);
    assert_eq!(shown(&rows[1]), ["file charge 3 C 2026-01-01T00:00:00Z"]);
    let mapping: Mapping = toml::from_str("columns.value = { metric = \"temp\", unit = \"F\" }").unwrap();
    let error = Layout::detect(sample(text), &mapping, "file").err().unwrap();
    assert_eq!(error, "column \"value\": unit \"F\" is the farad, did you mean \"degF\"?");
}

#[test]
fn the_line_of_a_spreadsheet_with_the_delimiter_is_skipped() {
    let text = "sep=;\ntime;T\n2026-01-01T00:00:00Z;21,5\n";
    let layout = layout(text, &Mapping::default());
    assert_eq!((layout.delimiter, &layout.headings[..]), (';', &["time".to_owned(), "T".to_owned()][..]));
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
    let error = |text: &str, mapping: &Mapping| Layout::detect(sample(text), mapping, "f").err().unwrap();
    assert_eq!(
        error("a,b\nx,1\n", &Mapping::default()),
        "no time column was found; the columns are a, b; give it with --time-column and its format with --time-format"
    );
    let mapping = Mapping { time: vec!["when".to_owned()], ..Mapping::default() };
    assert_eq!(error("a,b\nx,1\n", &mapping), "no column has the heading \"when\"; the columns are a, b");
    assert_eq!(error("", &Mapping::default()), "the file contains no rows");
    let header = "the file has a header (time, T) and no rows";
    assert_eq!(error("# made by hand\ntime,T\n", &Mapping::default()), header);
    let mapping = Mapping { time_fraction: Some("b".to_owned()), ..Mapping::default() };
    assert_eq!(
        error("time,b\n2026-01-01T00:00:00Z,1\n", &mapping),
        "the heading of the time fraction \"b\" does not name ms, us, ns or fraction"
    );
}
