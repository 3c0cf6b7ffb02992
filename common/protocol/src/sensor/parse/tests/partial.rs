//! A record that is refused does not take the others with it.

use super::*;

/// The accepted records by position (`-` for none), and what is left out, as one line each.
fn sifted(content_type: &str, body: &[u8]) -> Result<(Vec<String>, Vec<String>), String> {
    let limits =
        Limits { records: 20, max_ahead: Some(std::time::Duration::from_secs(600)), ..Limits::default() };
    let form = Form::of(content_type).unwrap();
    let sifted =
        sift_readings(form, &mut body.to_vec(), now(), &limits).map_err(|error| error.to_string())?;
    let slots = sifted.slots.iter().map(|slot| slot.as_ref().map_or("-".to_owned(), brief));
    let left_out = sifted.refused.iter().chain(&sifted.notes);
    let left_out = left_out.map(|left| format!("{left} ({})", left.code.code()));
    Ok((slots.collect(), left_out.collect()))
}

fn case(content_type: &str, body: &[u8], slots: &[&str], left_out: &[&str]) {
    let (given, left) = sifted(content_type, body).unwrap();
    let text = String::from_utf8_lossy(body);
    assert_eq!(given, slots, "{text}");
    assert_eq!(left, left_out, "{text}");
}

#[test]
fn each_record_of_an_array_is_refused_by_itself() {
    case(
        "application/json",
        br#"[{"device":"a","metric":"m","value":1},7,{"device":7,"metric":"m","value":1},
            {"device":"a","metric":"temperature","value":2,"unit":"C"},{"n":"a:m","v":1},
            {"device":"a","metric":"m","value":3,"time":"2099-01-01T00:00:00Z"},{"device":"a","metric":"m","value":4}]"#,
        &["a m 1 - +0", "-", "-", "-", "-", "-", "a m 4 - +0"],
        &[
            "record 1: body: a number is not a record; expected an object (wrong-type)",
            "record 2: device: the number 7 is not a string (wrong-type)",
            "record 3: unit: \"C\" is the coulomb, which does not fit the metric \"temperature\"; did you mean \"Cel\" (degrees Celsius)? (wrong-unit)",
            "record 4: body: mixes fields of a plain reading and of SenML (unknown-field)",
            "record 5: time: 2099-01-01T00:00:00Z is more than 10m ahead of the local clock, 2025-11-20T00:53:20Z (clock-skew)",
        ],
    );
}

#[test]
fn numbers_that_are_not_finite_refuse_their_record_or_field() {
    for word in ["NaN", "nan", "-Infinity", "1e999"] {
        case(
            "application/json",
            format!(
                r#"[{{"device":"a","metric":"m","value":1}},{{"device":"a","metric":"m","value":{word}}}]"#
            )
            .as_bytes(),
            &["a m 1 - +0", "-"],
            &["record 1: value: not a finite number (not-finite)"],
        );
        case(
            "application/senml+json",
            format!(r#"[{{"bn":"a:","n":"m","v":1}},{{"n":"m","v":{word}}},{{"n":"m","v":2,"s":{word}}}]"#)
                .as_bytes(),
            &["a m 1 - +0", "-", "a m 2 - +0"],
            &[
                "record 1: v: not a finite number (not-finite)",
                "record 2: s: not a finite number (not-finite)",
            ],
        );
    }
    case(
        "application/x-ndjson",
        b"{\"device\":\"a\",\"metric\":\"m\",\"value\":nan}\n{\"device\":\"a\",\"metric\":\"m\",\"value\":2}\0",
        &["-", "a m 2 - +0"],
        &["record 0: value: not a finite number (not-finite)"],
    );
}

#[test]
fn bytes_that_are_not_utf_8_refuse_their_record_or_line() {
    case(
        "application/json",
        b"\xef\xbb\xbf[{\"device\":\"B\xf6iler\",\"metric\":\"m\",\"value\":1},{\"device\":\"a\",\"metric\":\"m\",\"value\":2}]\0",
        &["-", "a m 2 - +0"],
        &["record 0: device: \"B\\u{7f}iler\": contains a control character or a byte that is not UTF-8 (bad-name)"],
    );
    let marked = "\u{feff}{\"n\":\"a:m\",\"v\":1}\n\u{feff}\n\u{feff}{\"n\":\"a:m\",\"v\":2}\n\u{feff}{\"n\":\"a:m\",\"v\":nan}";
    case(
        "application/x-ndjson",
        marked.as_bytes(),
        &["a m 1 - +0", "a m 2 - +0", "-"],
        &["record 2: v: not a finite number (not-finite)"],
    );
    let tasks = "\u{feff}{\"n\":\"a:m\",\"v\":1}\n\u{feff}{\"n\":\"a:m\",\"v\":2}";
    assert_eq!(briefs("application/x-ndjson", tasks), ["a m 1 - +0", "a m 2 - +0"]);
    case(
        "application/x-ndjson",
        b"{\"device\":\"a\",\"metric\":\"m\",\"value\":1}\n\xff\n\n[{\"n\":\"b:m\",\"v\":2},{oops]\n{\"device\":\"c\",\"metric\":\"m\",\"value\":3}\n\0",
        &["a m 1 - +0", "-", "-", "c m 3 - +0"],
        &[
            "record 1: body: not UTF-8 from byte 0 on (malformed)",
            "record 2: body: line 4: not JSON: key must be a string at line 1 column 21 (malformed)",
        ],
    );
}

#[test]
fn senml_without_a_number_is_refused_by_itself_and_a_sum_is_a_counter_of_its_own() {
    case(
        "application/senml+json",
        br#"[{"bn":"a:","n":"m","v":1},{"n":"t","vs":"x"},{"n":"d","vd":"aGk"},{"n":"s","s":5},{"n":"b","vb":true},
            {"n":"m","v":1,"vs":"x"},{"n":"m","v":2,"s":3},{"bu":"Cel"}]"#,
        &["a m 1 - +0", "-", "-", "a s_sum 5 - +0", "a b 1 / +0", "-", "a m 2 - +0", "-", "a m_sum 3 - +0"],
        &[
            "record 1: vs: the string \"x\" is not a numeric value; send v or vb (not-numeric)",
            "record 2: vd: data is not a numeric value; send v or vb (not-numeric)",
            "record 5: v: only one of v, vb, vs and vd may be given (duplicate)",
        ],
    );
}

#[test]
fn a_base_field_that_is_invalid_refuses_the_records_that_it_applies_to() {
    case(
        "application/senml+json",
        br#"[{"bn":7,"n":"m","v":1},{"n":"b:m","v":2},{"bn":"c:","n":"m","v":3},{"bv":NaN},{"n":"m","v":4},
            {"bv":1,"n":"m","v":4},{"bt":true,"bn":"d:","n":"m","v":5},{"bt":0,"n":"m","v":6}]"#,
        &["-", "-", "c m 3 - +0", "-", "-", "c m 5 - +0", "-", "d m 7 - +0"],
        &[
            "record 0: bn: the number 7 is not a string (wrong-type)",
            "record 1: bn: the base field of an earlier record is invalid (missing-field)",
            "record 3: bv: not a finite number (not-finite)",
            "record 4: bv: the base field of an earlier record is invalid (missing-field)",
            "record 6: bt: true is not a number (wrong-type)",
        ],
    );
}

#[test]
fn a_sum_without_a_valid_sum_or_base_sum_is_not_stored() {
    let not_finite = "s: not a finite number (not-finite)";
    let earlier = "bs: the base field of an earlier record is invalid (missing-field)";
    for (pack, slots, left_out) in [
        (
            r#"[{"bn":"q:","bs":5,"n":"a","s":NaN,"v":4},{"n":"b","s":1e999},{"n":"c","s":1}]"#,
            &["q a 4 - +0", "-", "q c_sum 6 - +0"][..],
            vec![format!("record 1: {not_finite}"), format!("record 0: {not_finite}")],
        ),
        (
            r#"[{"bn":"q:","bs":NaN,"n":"a","s":1},{"n":"b","v":1},{"n":"c","v":1,"s":2},{"n":"d","s":3},{"bs":1,"n":"e","s":4}]"#,
            &["-", "q b 1 - +0", "q c 1 - +0", "-", "q e_sum 5 - +0"],
            vec![
                "record 0: bs: not a finite number (not-finite)".to_owned(),
                format!("record 3: {earlier}"),
                format!("record 1: {earlier}"),
                format!("record 2: {earlier}"),
            ],
        ),
        // The record is refused; the earlier base sum does not apply to later ones either.
        (
            r#"[{"bn":"q:","bs":5,"n":"a","v":1},{"bs":"x","n":"b","v":2},{"n":"c","v":3}]"#,
            &["q a 1 - +0", "-", "q c 3 - +0", "q a_sum 5 - +0"],
            vec![
                "record 1: bs: the string \"x\" is not a number (wrong-type)".to_owned(),
                format!("record 2: {earlier}"),
            ],
        ),
        (
            r#"[{"bn":"q:","bs":NaN},{"n":"a","v":1},{"n":"b","v":1e999}]"#,
            &["-", "q a 1 - +0", "-"],
            vec!["record 2: v: not a finite number (not-finite)".to_owned(), format!("record 1: {earlier}")],
        ),
        (
            r#"[{"bn":"q:","bs":1.7e308,"n":"a","v":1,"s":1.7e308,"ut":NaN},{"n":"b","s":1.7e308}]"#,
            &["q a 1 - +0", "-"],
            vec![
                "record 1: s: exceeds the range of a double after adding its base field (out-of-range)"
                    .to_owned(),
                "record 0: ut: not a finite number (not-finite)".to_owned(),
                "record 0: s: exceeds the range of a double after adding its base field (out-of-range)"
                    .to_owned(),
            ],
        ),
        // The base value is for records without a sum, also without a valid one.
        (
            r#"[{"bn":"q:","bv":20,"n":"a","s":NaN},{"n":"b"}]"#,
            &["-", "q b 20 - +0"],
            vec![format!("record 0: {not_finite}")],
        ),
    ] {
        let left_out: Vec<_> = left_out.iter().map(String::as_str).collect();
        case("application/senml+json", pack.as_bytes(), slots, &left_out);
    }
    let overflow = br#"[{"n":"a:m","bs":1.7e308,"v":1,"s":1.7e308}]"#;
    let refused = readings_from("application/senml+json", overflow, now()).unwrap_err();
    assert_eq!(
        (refused.code, refused.field.as_ref()),
        (Fault::OutOfRange, "s"),
        "a task is checked as a whole"
    );
}

#[test]
fn null_is_no_value_and_no_sum_so_that_no_base_field_takes_its_place() {
    let missing = "v: one of v, vb, vs, vd or s is required (missing-field)";
    case(
        "application/senml+json",
        br#"[{"bn":"q:","bs":5,"bv":7},{"n":"a","s":null},{"n":"b","v":null},{"n":"c","vb":null,"s":null},
            {"n":"d","v":null,"vb":true,"s":1},{"n":"e","v":null,"s":2},{"n":"f"},{"bu":"V","n":null,"v":null}]"#,
        &["-", "q a 7 - +0", "q b_sum 5 - +0", "-", "q d 1 / +0", "q e_sum 7 - +0", "q f 7 - +0", "-", "q d_sum 6 - +0", "q f_sum 5 - +0"],
        &[&format!("record 3: {missing}")],
    );
}

#[test]
fn what_cannot_be_parsed_as_a_whole_is_refused_as_a_whole() {
    for (body, expected) in [
        (
            "[{\"n\":\"a:m\",\"v\":1},{oops}]",
            "record 1: body: not JSON: key must be a string at line 1 column 21",
        ),
        (
            "[{\"n\":\"a:m\",\"v\":1}",
            "record 1: body: not JSON: EOF while parsing a list at line 1 column 18",
        ),
        ("", "record 0: body: not JSON: EOF while parsing a value at line 1 column 0"),
        ("[]", "record 0: body: no record with a value"),
        ("[{\"bn\":\"a\"}]", "record 0: body: no record with a value"),
        (
            "\"hi\"",
            "record 0: body: the string \"hi\" is not a valid body; expected an object or an array of objects",
        ),
    ] {
        assert!(
            sifted("", body.as_bytes()).unwrap_err().starts_with(&expected[..expected.len().min(60)]),
            "{body}"
        );
    }
    let many = format!("[{}1]", "1,".repeat(20));
    assert_eq!(sifted("", many.as_bytes()).unwrap_err(), "record 20: body: more than 20 records");
    let lines = "1\n".repeat(21);
    assert_eq!(
        sifted("application/x-ndjson", lines.as_bytes()).unwrap_err(),
        "record 20: body: more than 20 records"
    );
}
