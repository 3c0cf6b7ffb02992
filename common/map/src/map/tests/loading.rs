//! Files of rules: what is refused, and with which error.

use super::*;

#[test]
fn every_invalid_rule_is_refused_with_file_rule_and_field() {
    let rule = |fields: &str| format!("[[map]]\ntopic = \"a/+\"\n{fields}\n");
    let good = "device = \"d\"\nmetric = \"m\"";
    for (rules, expected) in [
        (String::new(), "map: there is no rule, [[map]]"),
        ("map = 3".to_owned(), "map: expected a list of tables, [[map]]"),
        ("[[map]]\nx".to_owned(), "line 2: "),
        (
            format!("{}\n[other]\n", rule(good)),
            "unknown field \"other\"; a file has only parameters and [[map]]",
        ),
        (
            format!("parameters = \"event\"\n{}", rule(good)),
            "parameters: expected a list of at most 16 names",
        ),
        (rule(&format!("{good}\ndevcie = 1")), "rule 1: unknown field `devcie`, expected one of `topic`,"),
        (format!("{}{}", rule(good), rule("device = {}")), "rule 2: "),
        (rule("metric = \"m\""), "rule 1: device: required field is missing"),
        (rule("device = \"d\""), "rule 1: metric: required field is missing"),
        (rule("device = \" d\"\nmetric = \"m\""), "rule 1: device: \" d\": starts or ends with white space"),
        (rule("device = \"{2}\"\nmetric = \"m\""), "rule 1: device: {2}: the pattern has 1 wildcards"),
        (
            rule(&format!("{good}\nunit = \"celsius\"")),
            "rule 1: unit: \"celsius\" is not a SenML unit; the nearest is \"Cel\"",
        ),
        (
            rule("device = \"d\"\nmetric = \"temperature\"\nunit = \"C\""),
            "rule 1: \"C\" is the coulomb, which does not fit",
        ),
        (
            rule(&format!("{good}\nscale = \"x\"")),
            "rule 1: scale: invalid type: string \"x\", expected a number",
        ),
        (
            rule(&format!("{good}\n[map.fields]\na = {{ scale = true }}")),
            "rule 1: fields.a.scale: invalid type: boolean `true`, expected a number",
        ),
        (rule(&format!("{good}\nscale = inf")), "rule 1: scale: inf is not a finite number"),
        (
            rule(&format!("{good}\nvalue = \"/a\"")),
            "rule 1: value: \"/a\" is not a number; a placeholder is in braces",
        ),
        (rule(&format!("{good}\nvalue = 1\nvalues = \"\"")), "rule 1: value: not allowed with `values`"),
        (rule(&format!("{good}\nvalues = \"a\"")), "rule 1: values: \"a\" is not a JSON pointer"),
        (
            rule(&format!("{good}\nvalues = \".\"")),
            "rule 1: values: \".\" begins with a dot, which needs `each`",
        ),
        (rule(&format!("{good}\neach = \"./a\"")), "rule 1: each: \"./a\" begins with a dot"),
        (rule(&format!("{good}\nskip = true")), "rule 1: device: has no effect with skip = true"),
        (rule(&format!("{good}\nzone = \"Z\"")), "rule 1: zone: has no effect without `time`"),
        (rule(&format!("{good}\ntime = \"{{/t}}\"\nzone = \"X\"")), "rule 1: zone: \"X\" is unknown"),
        (rule(&format!("{good}\nignore = [\"a\"]")), "rule 1: ignore: has no effect without `values`"),
        (rule(&format!("{good}\n[map.fields]\na = {{}}")), "rule 1: fields: has no effect without `values`"),
        (
            rule("device = \"d\"\nmetric = \"m\"\n[[map.reading]]\nmetric = \"x\""),
            "rule 1: metric: has no effect without `value` or `values`",
        ),
        (
            rule("device = \"d\"\n[[map.reading]]\nvalue = 1"),
            "rule 1: reading 1: metric: required field is missing",
        ),
        (rule("device = \"d\"\n[[map.reading]]\nfoo = 1"), "rule 1: reading: unknown field `foo`"),
        (
            rule("device = \"d\"\nvalues = \"\"\nignore = [\"a\"]\n[map.fields]\na = {}"),
            "rule 1: fields: \"a\" is given twice",
        ),
        (
            rule("device = \"d\"\nvalues = \"\"\n[map.fields]\na = { unit = \"x y\" }"),
            "rule 1: fields: \"a\": unit: ",
        ),
        (rule(&format!("{good}\nhas = [\"./a\"]")), "rule 1: has: \"./a\" must not begin with a dot"),
        (
            rule(&format!("{good}\nequals = {{ \"/a\" = [1] }}")),
            "rule 1: equals: the value of \"/a\" is not a text",
        ),
        (rule(&format!("{good}\nenum = {{ a = nan }}")), "rule 1: enum: NaN is not a finite number"),
        (rule(&format!("{good}\nunits = {{ a = \"b c\" }}")), "rule 1: units: \"b c\" is not a SenML unit"),
        (
            rule(&format!("{good}\nformat = \"xml\"")),
            "rule 1: format: unknown variant `xml`, expected `json` or `sparkplug-b`",
        ),
        (rule("format = \"sparkplug-b\""), "rule 1: topic: a Sparkplug rule has only a topic"),
        (rule("format = \"sparkplug-b\"\ntime = \"{1}\""), "rule 1: time: has no effect with format"),
        (
            rule("format = \"sparkplug-b\"\nhas = [\"/a\"]"),
            "rule 1: has, has_any, equals: not allowed with format",
        ),
        (format!("[[map]]\n{good}\n{}", rule(good)), "rule 2: is never reached: rule 1 takes every payload"),
        ("[[map]]\ntopic = \"a/#/b\"".to_owned(), "rule 1: topic: \"a/#/b\": # must be the last level"),
        (
            "[[map]]\nrouting_key = \"a.b+\"".to_owned(),
            "rule 1: routing_key: \"b+\": + and # must be whole levels",
        ),
    ] {
        let error = invalid(&rules);
        assert!(error.starts_with(&format!("map rules.toml: {expected}")), "{rules}\n{error}\n{expected}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn a_file_is_loaded_and_a_large_or_missing_one_is_refused() {
    let missing = Map::load("/nonexistent/rules.toml").unwrap_err().to_string();
    assert!(missing.starts_with("map /nonexistent/rules.toml: No such file"), "{missing}");
    let unknown = Map::load("builtin:zigbee").unwrap_err().to_string();
    assert!(
        unknown.starts_with("map builtin:zigbee: no such map; there are chirpstack, homeassistant,"),
        "{unknown}"
    );
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/maps/ttn.toml");
    assert!(Map::load(manifest).is_ok());
}
