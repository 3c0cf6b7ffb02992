//! The examples of RFC 8428 §5.1, each with its resolved form.

use serde_json::{Value as Json, json};

use super::*;
use crate::sensor::{parse::tests::resolved, readings_from};

/// The current time for examples without a time.
const NOW: f64 = 1_498_780_179.0;

fn now() -> Timestamp {
    Timestamp::from_unix_seconds(NOW).unwrap()
}

fn check(pack: Json, expected: Json) {
    let resolved = |pack: &Json| resolved(pack.as_array().unwrap(), now()).unwrap();
    assert_eq!(resolved(&pack), expected);
    // A resolved pack resolves to itself.
    assert_eq!(resolved(&expected), expected);
}

fn error(pack: &Json) -> String {
    let body = pack.to_string();
    readings_from("application/senml+json", body.as_bytes(), now()).unwrap_err().to_string()
}

#[test]
fn single_data_point() {
    check(
        json!([{"n":"urn:dev:ow:10e2073a01080063","u":"Cel","v":23.1}]),
        json!([{"n":"urn:dev:ow:10e2073a01080063","u":"Cel","t":NOW,"v":23.1}]),
    );
}

#[test]
fn multiple_data_points() {
    check(
        json!([
            {"bn":"urn:dev:ow:10e2073a01080063:","n":"voltage","u":"V","v":120.1},
            {"n":"current","u":"A","v":1.2}
        ]),
        json!([
            {"n":"urn:dev:ow:10e2073a01080063:voltage","u":"V","t":NOW,"v":120.1},
            {"n":"urn:dev:ow:10e2073a01080063:current","u":"A","t":NOW,"v":1.2}
        ]),
    );
}

#[test]
fn multiple_data_points_relative_to_a_base_time() {
    let pack = json!([
        {"bn":"urn:dev:ow:10e2073a0108006:","bt":1.276020076001e+09,"bu":"A","bver":5,"n":"voltage","u":"V","v":120.1},
        {"n":"current","t":-5,"v":1.2},
        {"n":"current","t":-4,"v":1.3},
        {"n":"current","t":-3,"v":1.4},
        {"n":"current","t":-2,"v":1.5},
        {"n":"current","t":-1,"v":1.6},
        {"n":"current","v":1.7}
    ]);
    let name = "urn:dev:ow:10e2073a0108006:current";
    check(
        pack,
        json!([
            {"n":name,"u":"A","t":1.276020071001e+09,"v":1.2},
            {"n":name,"u":"A","t":1.276020072001e+09,"v":1.3},
            {"n":name,"u":"A","t":1.276020073001e+09,"v":1.4},
            {"n":name,"u":"A","t":1.276020074001e+09,"v":1.5},
            {"n":name,"u":"A","t":1.276020075001e+09,"v":1.6},
            {"n":"urn:dev:ow:10e2073a0108006:voltage","u":"V","t":1.276020076001e+09,"v":120.1},
            {"n":name,"u":"A","t":1.276020076001e+09,"v":1.7}
        ]),
    );
}

#[test]
fn a_stream_of_one_sensor() {
    let name = "urn:dev:ow:10e2073a01080063";
    let values = [21.2, 21.3, 21.4, 21.4, 21.5, 21.5, 21.5, 21.6, 21.7];
    let mut pack = vec![json!({"bn":name,"bt":1.320067464e+09,"bu":"%RH","v":values[0]})];
    pack.extend((1..values.len()).map(|i| json!({"t":i * 10,"v":values[i]})));
    let expected = (0..values.len())
        .map(|i| json!({"n":name,"u":"%RH","t":1_320_067_464.0 + i as f64 * 10.0,"v":values[i]}))
        .collect();
    check(Json::Array(pack), Json::Array(expected));
}

#[test]
fn multiple_measurements_and_their_resolved_form() {
    let name = "urn:dev:ow:10e2073a01080063";
    check(
        json!([
            {"bn":name,"bt":1.320067464e+09,"bu":"%RH","v":20},
            {"u":"lon","v":24.30621},
            {"u":"lat","v":60.07965},
            {"t":60,"v":20.3},
            {"u":"lon","t":60,"v":24.30622},
            {"u":"lat","t":60,"v":60.07965},
            {"t":120,"v":20.7},
            {"u":"lon","t":120,"v":24.30623},
            {"u":"lat","t":120,"v":60.07966},
            {"u":"%EL","t":150,"v":98},
            {"t":180,"v":21.2},
            {"u":"lon","t":180,"v":24.30628},
            {"u":"lat","t":180,"v":60.07967}
        ]),
        json!([
            {"n":name,"u":"%RH","t":1.320067464e+09,"v":20.0},
            {"n":name,"u":"lon","t":1.320067464e+09,"v":24.30621},
            {"n":name,"u":"lat","t":1.320067464e+09,"v":60.07965},
            {"n":name,"u":"%RH","t":1.320067524e+09,"v":20.3},
            {"n":name,"u":"lon","t":1.320067524e+09,"v":24.30622},
            {"n":name,"u":"lat","t":1.320067524e+09,"v":60.07965},
            {"n":name,"u":"%RH","t":1.320067584e+09,"v":20.7},
            {"n":name,"u":"lon","t":1.320067584e+09,"v":24.30623},
            {"n":name,"u":"lat","t":1.320067584e+09,"v":60.07966},
            {"n":name,"u":"%EL","t":1.320067614e+09,"v":98.0},
            {"n":name,"u":"%RH","t":1.320067644e+09,"v":21.2},
            {"n":name,"u":"lon","t":1.320067644e+09,"v":24.30628},
            {"n":name,"u":"lat","t":1.320067644e+09,"v":60.07967}
        ]),
    );
}

#[test]
fn multiple_data_types() {
    check(
        json!([
            {"bn":"urn:dev:ow:10e2073a01080063:","n":"temp","u":"Cel","v":23.1},
            {"n":"label","vs":"Machine Room"},
            {"n":"open","vb":false},
            {"n":"nfv-reader","vd":"aGkgCg"}
        ]),
        json!([
            {"n":"urn:dev:ow:10e2073a01080063:temp","u":"Cel","t":NOW,"v":23.1},
            {"n":"urn:dev:ow:10e2073a01080063:label","t":NOW,"vs":"Machine Room"},
            {"n":"urn:dev:ow:10e2073a01080063:open","t":NOW,"vb":false},
            {"n":"urn:dev:ow:10e2073a01080063:nfv-reader","t":NOW,"vd":"aGkgCg"}
        ]),
    );
}

#[test]
fn collection_of_resources() {
    check(
        json!([
            {"bn":"2001:db8::2/","bt":1.320078429e+09,"n":"temperature","u":"Cel","v":25.2},
            {"n":"humidity","u":"%RH","v":30},
            {"bn":"2001:db8::1/","n":"temperature","u":"Cel","v":12.3},
            {"n":"humidity","u":"%RH","v":67}
        ]),
        json!([
            {"n":"2001:db8::2/temperature","u":"Cel","t":1.320078429e+09,"v":25.2},
            {"n":"2001:db8::2/humidity","u":"%RH","t":1.320078429e+09,"v":30.0},
            {"n":"2001:db8::1/temperature","u":"Cel","t":1.320078429e+09,"v":12.3},
            {"n":"2001:db8::1/humidity","u":"%RH","t":1.320078429e+09,"v":67.0}
        ]),
    );
}

#[test]
fn setting_actuators() {
    check(
        json!([
            {"bn":"urn:dev:ow:10e2073a01080063:"},
            {"n":"temp","u":"Cel","v":23.1},
            {"n":"heat","u":"/","v":1},
            {"n":"fan","u":"/","v":0}
        ]),
        json!([
            {"n":"urn:dev:ow:10e2073a01080063:temp","u":"Cel","t":NOW,"v":23.1},
            {"n":"urn:dev:ow:10e2073a01080063:heat","u":"/","t":NOW,"v":1.0},
            {"n":"urn:dev:ow:10e2073a01080063:fan","u":"/","t":NOW,"v":0.0}
        ]),
    );
    check(
        json!([
            {"bt":1.320078429e+09,"bu":"/","n":"2001:db8::3","v":1},
            {"n":"2001:db8::4","v":1}
        ]),
        json!([
            {"n":"2001:db8::3","u":"/","t":1.320078429e+09,"v":1.0},
            {"n":"2001:db8::4","u":"/","t":1.320078429e+09,"v":1.0}
        ]),
    );
    check(
        json!([
            {"bt":1.320078429e+09,"bu":"/","n":"2001:db8::3","v":0.5},
            {"n":"2001:db8::4","v":0.5},
            {"n":"2001:db8::3","t":0.1,"v":0},
            {"n":"2001:db8::4","t":0.1,"v":0}
        ]),
        json!([
            {"n":"2001:db8::3","u":"/","t":1.320078429e+09,"v":0.5},
            {"n":"2001:db8::4","u":"/","t":1.320078429e+09,"v":0.5},
            {"n":"2001:db8::3","u":"/","t":1.3200784291e+09,"v":0.0},
            {"n":"2001:db8::4","u":"/","t":1.3200784291e+09,"v":0.0}
        ]),
    );
}

#[test]
fn base_value_and_base_sum_are_added() {
    check(
        json!([
            {"bn":"m:","bv":20,"bs":100,"bt":1.3e9,"n":"a","v":1.5,"s":3},
            {"n":"b"},
            {"n":"c","s":4,"ut":60}
        ]),
        json!([
            {"n":"m:a","t":1.3e9,"v":21.5,"s":103.0},
            {"n":"m:b","t":1.3e9,"v":20.0,"s":100.0},
            {"n":"m:c","t":1.3e9,"s":104.0,"ut":60.0}
        ]),
    );
}

#[test]
fn times_below_2_to_the_28_are_relative() {
    let resolved_time = |record: Json| resolved(&[record], now()).unwrap()[0]["t"].as_f64().unwrap();
    let time = |t: Json| resolved_time(json!({"n":"a","v":1,"t":t}));
    assert_eq!(time(json!(0)), NOW);
    assert_eq!(time(json!(-60.25)), NOW - 60.25);
    assert_eq!(time(json!(268_435_455)), NOW + 268_435_455.0);
    assert_eq!(time(json!(268_435_456)), 268_435_456.0);
    assert_eq!(resolved_time(json!({"n":"a","v":1,"bt":268_435_450,"t":6})), 268_435_456.0);
}

#[test]
fn unknown_fields_are_ignored_unless_they_must_be_understood() {
    check(
        json!([{"bn":"d:","l":"[{\"href\":\"humidity\"}]","x":{"deep":[1,{"v":2}]},"device":5,"n":"a","v":1,"bt":1.3e9}]),
        json!([{"n":"d:a","t":1.3e9,"v":1.0}]),
    );
    let pack = json!([{"n":"a","v":1},{"n":"b","v":1,"secure_":1}]);
    assert_eq!(error(&pack), "record 1: secure_: unknown field that must be understood (RFC 8428, 4.4)");
}

#[test]
fn invalid_records_are_refused_with_the_reason() {
    for (pack, message) in [
        (json!([{"bver":11,"n":"a","v":1}]), "record 0: bver: 11 is not a version from 1 to 10"),
        (json!([{"bver":0,"n":"a","v":1}]), "record 0: bver: 0 is not a version from 1 to 10"),
        (json!([{"bver":-1,"n":"a","v":1}]), "record 0: bver: -1 is negative or too large"),
        (json!([{"bver":9.5,"n":"a","v":1}]), "record 0: bver: the number 9.5 is not a whole number"),
        (
            json!([{"n":"a","v":1},{"bver":5,"n":"b","v":1}]),
            "record 1: bver: 5 differs from 10, the version of earlier records",
        ),
        (json!([{"v":1}]), "record 0: bn: \"\": base name and name are both empty"),
        (
            json!([{"bn":"d:","n":"a b","v":1}]),
            "record 0: n: \"d:a b\": a name may contain only A-Z, a-z, 0-9 and - : . / _, not ' '",
        ),
        (json!([{"n":"_a","v":1}]), "record 0: n: \"_a\": a name must start with a letter or a digit"),
        (json!([{"n":"a"}]), "record 0: v: one of v, vb, vs, vd or s is required"),
        (json!([{"n":"a","v":1,"vb":true}]), "record 0: v: only one of v, vb, vs and vd may be given"),
        (json!([{"n":"a","vd":"a+b/"}]), "record 0: vd: \"a+b/\": not base64url without padding"),
        (json!([{"n":"a","v":"23.1"}]), "record 0: v: the string \"23.1\" is not a number"),
        (json!([{"n":"a","vb":1}]), "record 0: vb: the number 1 is not true or false"),
        (json!([{"n":"a","v":1,"bv":[1]}]), "record 0: bv: an array is not a number"),
        (
            json!([{"bv":1.7e308,"n":"a","v":1.7e308}]),
            "record 0: v: exceeds the range of a double after adding its base field",
        ),
        (
            json!([{"n":"a","v":1,"t":1e13}]),
            "record 0: t: 10000000000000: outside the years 0000 to 9999; a number is Unix seconds, not milliseconds",
        ),
        (
            json!({"n":"a","v":1}),
            "record 0: body: an object is not a valid body; expected a SenML pack, an array of records",
        ),
        (json!([[]]), "record 0: body: an array is not a record; expected an object"),
    ] {
        assert_eq!(error(&pack), message, "{pack}");
    }
}
