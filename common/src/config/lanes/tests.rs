use std::time::Duration;

use clap::Parser;
use serde::{Deserialize, Serialize};

use garenne_protocol::{task::FOREIGN_KIND, topology::LaneExchange};

use super::*;
use crate::config::{Common, Concurrency, ConfigError, Settings, Sources, load_with};

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Config {
    #[serde(flatten)]
    common: Common,
    lanes: Lanes,
}

impl Settings for Config {
    const PER_LANE: &'static [&'static str] = &["prefetch", "concurrency"];

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn validate(&self) -> Result<(), Invalid> {
        self.lanes.validate(&self.common.prefix)
    }
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    lanes: LaneArgs,
}

fn resolve(flags: &[&str], env: &[(&str, &str)], file: &str) -> Result<Lanes, ConfigError> {
    let cli = Cli::parse_from(["test"].iter().chain(flags));
    let mut sources = Sources::default();
    cli.lanes.add_to(&mut sources.flags)?;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lanes.toml");
    std::fs::write(&path, file).unwrap();
    sources.file = Some(path);
    let env = env.iter().map(|(name, value)| (name.into(), value.into()));
    load_with::<Config>(sources, env).map(|config| config.lanes)
}

fn names(lanes: &Lanes) -> Vec<&str> {
    lanes.iter().map(|(name, _)| name).collect()
}

fn refusal(flags: &[&str], env: &[(&str, &str)]) -> String {
    resolve(flags, env, "").unwrap_err().to_string()
}

#[test]
fn the_default_lanes_are_the_documented_ones() {
    let lanes = resolve(&[], &[], "").unwrap();
    assert_eq!(lanes, Lanes::default());
    assert_eq!(names(&lanes), ["default", "fast", "slow"]);
    assert_eq!(lanes.catch_all(), Some("default"));
    assert_eq!(lanes.get("default").unwrap().bindings, [""; 0]);
    assert_eq!(lanes.get("fast").unwrap().bindings, ["reading.#", "window.#", "bench.#"]);
    assert_eq!(lanes.get("slow").unwrap().bindings, ["spectrum.#", "alert.#"]);
    assert_eq!(lanes.get("slow").unwrap().prefetch, 200);
}

#[test]
fn a_partial_lane_keeps_its_other_settings() {
    let lanes = resolve(&[], &[("GARENNE_LANES__FAST__PREFETCH", "7")], "").unwrap();
    let expected = Lane { prefetch: 7, ..Lanes::default().get("fast").unwrap().clone() };
    assert_eq!(lanes.get("fast"), Some(&expected));
    assert_eq!(lanes.get("slow"), Lanes::default().get("slow"));
}

#[test]
fn one_variable_can_carry_a_list_and_a_duration() {
    let env = [
        ("GARENNE_LANES__GPU__BINDINGS", "image.#, video.#"),
        ("GARENNE_LANES__GPU__CONSUMER_TIMEOUT", "2m"),
    ];
    let lanes = resolve(&[], &env, "").unwrap();
    assert_eq!(names(&lanes), ["default", "fast", "gpu", "slow"]);
    assert_eq!(lanes.get("gpu").unwrap().bindings, ["image.#", "video.#"]);
    assert_eq!(lanes.get("gpu").unwrap().consumer_timeout, Some(Duration::from_secs(120)));
}

#[test]
fn the_lane_flag_selects_lanes_and_keeps_the_others_defined() {
    let lanes = resolve(&["--lane", "slow:prefetch=9,concurrency=2..3"], &[], "").unwrap();
    assert_eq!(names(&lanes), ["slow"]);
    assert_eq!(lanes.iter().count(), 1);
    assert_eq!(lanes.get("fast"), None);
    assert_eq!(lanes.get("slow").unwrap().prefetch, 9);
    assert_eq!(lanes.get("slow").unwrap().concurrency, Concurrency { min: 2, max: 3 });
    assert_eq!(lanes.defined().count(), 3);
    let again = serde_json::from_value(serde_json::to_value(&lanes).unwrap()).unwrap();
    assert_eq!(lanes, again);
}

#[test]
fn a_worker_serves_the_lanes_that_give_it_its_kinds() {
    let file = "[lanes.mail]\nbindings = [\"email.#\"]\n[lanes.gps]\nbindings = [\"gps.#\"]\n\
                default_kind = \"position.store\"\n[lanes.direct]\nbindings = []\n\
                [lanes.plant]\nmaps = [\"builtin:zigbee2mqtt\"]\n";
    let serving = |flags: &[&str], kinds: &[&str]| {
        let lanes = resolve(flags, &[], file).unwrap().serving(kinds.iter().copied());
        assert_eq!(lanes.defined().count(), 7, "the topology has all of them");
        names(&lanes).join(" ")
    };
    assert_eq!(serving(&[], &["email.send"]), "default direct mail");
    assert_eq!(serving(&[], &["image.resize"]), "default direct");
    assert_eq!(serving(&[], &["position.store"]), "default direct gps");
    assert_eq!(serving(&[], &["reading.process", "alert.notify"]), "default direct fast slow");
    assert_eq!(serving(&[], &["message.map"]), "default direct plant");
    assert_eq!(
        serving(&["--lane", "slow"], &["email.send"]),
        "slow",
        "a named lane is served whatever it holds"
    );
    let without_catch_all = [("GARENNE_LANES__DEFAULT__CATCH_ALL", "false")];
    let lanes = resolve(&[], &without_catch_all, "").unwrap().serving(["reading.process"]);
    assert_eq!(names(&lanes), ["default", "fast"], "it has no bindings, so any kind may be published to it");
}

#[test]
fn a_lanes_own_setting_overrides_one_for_all_lanes_of_the_same_source() {
    let flags = ["--prefetch", "50", "--lane", "fast:prefetch=60", "--lane", "slow"];
    let lanes = resolve(&flags, &[], "").unwrap();
    assert_eq!(lanes.get("fast").unwrap().prefetch, 60);
    assert_eq!(lanes.get("slow").unwrap().prefetch, 50);
}

#[test]
fn a_setting_for_all_lanes_overrides_a_lanes_own_of_a_weaker_source() {
    let file = "prefetch = 10\n[lanes.slow]\nprefetch = 20\n[lanes.gpu]\nbindings = []\n";
    let lanes = resolve(&[], &[], file).unwrap();
    let prefetches = |lanes: &Lanes| lanes.iter().map(|(_, lane)| lane.prefetch).collect::<Vec<_>>();
    assert_eq!(prefetches(&lanes), [10, 10, 10, 20]);
    assert_eq!(prefetches(&resolve(&["--prefetch", "30"], &[], file).unwrap()), [30, 30, 30, 30]);
    let env = [("GARENNE_LANES__GPU__PREFETCH", "40")];
    assert_eq!(prefetches(&resolve(&[], &env, file).unwrap()), [10, 10, 40, 20]);
}

#[test]
fn prefetch_has_bounds() {
    let fast = |value| refusal(&[], &[("GARENNE_LANES__FAST__PREFETCH", value)]);
    assert_eq!(
        fast("2001"),
        "setting lanes.fast.prefetch = 2001 (environment GARENNE_LANES__FAST__PREFETCH) is refused: \
         expected 1 to 2000"
    );
    assert_eq!(
        fast("0"),
        "setting lanes.fast.prefetch = 0 (environment GARENNE_LANES__FAST__PREFETCH) is refused: \
         expected 1 to 2000"
    );
    assert_eq!(
        fast("70000"),
        "setting lanes.fast.prefetch = 70000 (environment GARENNE_LANES__FAST__PREFETCH) is refused: \
         expected 1 to 2000"
    );
    assert_eq!(
        fast("many"),
        "setting lanes.fast.prefetch = \"many\" (environment GARENNE_LANES__FAST__PREFETCH) is refused: \
         expected 1 to 2000"
    );
    assert_eq!(
        refusal(&["--prefetch", "2001"], &[]),
        "setting lanes.default.prefetch = 2001 (flag --prefetch) is refused: expected 1 to 2000"
    );
}

#[test]
fn prefetch_is_at_least_the_number_of_workers() {
    assert_eq!(
        refusal(&["--lane", "slow:prefetch=3,concurrency=1..4"], &[]),
        "setting lanes.slow.prefetch = 3 (flag --lane) is refused: \
         expected at least 4, the maximum of lanes.slow.concurrency = 1..4"
    );
    assert_eq!(
        refusal(&["--concurrency", "1..300"], &[]),
        "setting lanes.default.prefetch = 200 (the default) is refused: \
         expected at least 300, the maximum of lanes.default.concurrency = 1..300"
    );
}

#[test]
fn shards_have_bounds_and_need_a_prefetch_of_one_each() {
    let fast = |value| refusal(&[], &[("GARENNE_LANES__FAST__SHARDS", value)]);
    for value in ["0", "17", "70000"] {
        assert_eq!(
            fast(value),
            format!(
                "setting lanes.fast.shards = {value} (environment GARENNE_LANES__FAST__SHARDS) is refused: \
                 expected 1 to 16"
            )
        );
    }
    assert_eq!(
        refusal(&["--prefetch", "5"], &[("GARENNE_LANES__FAST__SHARDS", "6")]),
        "setting lanes.fast.prefetch = 5 (flag --prefetch) is refused: \
         expected at least 6, one for each queue of lanes.fast.shards = 6"
    );
    let lanes = resolve(&["--lane", "slow"], &[("GARENNE_LANES__FAST__SHARDS", "4")], "").unwrap();
    assert_eq!((lanes.shards("fast"), lanes.shards("slow"), lanes.shards("none")), (4, 1, 1));
    assert_eq!(
        (lanes.spread("reading.process"), lanes.spread("alert.notify"), lanes.spread("odd")),
        (true, false, false)
    );
}

#[test]
fn an_invalid_range_names_the_lane() {
    assert_eq!(
        refusal(&["--lane", "fast:concurrency=4..1"], &[]),
        "setting lanes.fast.concurrency = \"4..1\" (flag --lane) is refused: \
         expected MIN..MAX with 1 <= MIN <= MAX, such as 1..4"
    );
}

#[test]
fn a_misspelt_lane_is_not_a_new_one() {
    assert_eq!(
        refusal(&["--lane", "fsat"], &[]),
        "setting lanes.only = \"fsat\" (flag --lane) is refused: no such lane, \
         expected some of default, fast, slow; a new one needs lanes.fsat.bindings"
    );
    assert_eq!(
        refusal(&[], &[("GARENNE_LANES__GPU__PREFETCH", "5")]),
        "setting lanes.gpu = a lane without bindings (environment GARENNE_LANES__GPU__PREFETCH) is refused: \
         expected lanes.gpu.bindings, a list of routing keys ([] where it is only published to directly), \
         or one of the lanes default, fast, slow"
    );
    assert_eq!(
        refusal(&[], &[("GARENNE_LANES__ONLY", "fast,sloww")]),
        "setting lanes.only = \"sloww\" (environment GARENNE_LANES__ONLY) is refused: \
         no such lane, expected some of default, fast, slow; a new one needs lanes.sloww.bindings"
    );
}

#[test]
fn the_error_for_a_misspelt_field_suggests_the_nearest() {
    assert_eq!(
        refusal(&[], &[("GARENNE_LANES__FAST__PREFECTH", "7")]),
        "setting lanes.fast.prefecth (environment GARENNE_LANES__FAST__PREFECTH) is unknown: \
         did you mean prefetch?"
    );
    assert_eq!(
        refusal(&["--lane", "fast:prefecth=7"], &[]),
        "setting lanes = \"fast:prefecth=7\" (flag --lane) is refused: \
         prefecth is unknown, expected one of prefetch, concurrency, default_kind, consumer_timeout"
    );
    assert_eq!(
        refusal(&["--lane", "fast:prefetch"], &[]),
        "setting lanes = \"fast:prefetch\" (flag --lane) is refused: \
         \"prefetch\" has no value, expected NAME[:prefetch=N,concurrency=MIN..MAX]"
    );
    assert_eq!(
        refusal(&["--lane", "fast", "--lane", "fast"], &[]),
        "setting lanes = \"fast\" (flag --lane) is refused: lane fast is given twice"
    );
}

#[test]
fn invalid_names_and_duplicate_bindings_are_refused() {
    let refused =
        |file: &str| resolve(&[], &[], file).unwrap_err().to_string().replace(char::is_whitespace, " ");
    for none in ["a b", "image#", "a*.b", "é", "image/#", ""] {
        let file = format!("[lanes.gpu]\nbindings = [\"image.#\", {none:?}]\n");
        let problem = refused(&file);
        let start = format!("setting lanes.gpu.bindings = {none:?}");
        assert!(problem.starts_with(&start) && problem.contains("no kind matches it"), "{problem}");
    }
    let name = refused("[lanes.\"a b\"]\nbindings = []\n");
    assert!(name.starts_with("setting lanes.a b = \"a b\" (file "), "{name}");
    assert!(name.ends_with(") is refused: expected a lane name of 1 to 32 of a-z 0-9 - _"), "{name}");
    let reserved = refused("[lanes.quarantine]\nbindings = []\n");
    assert!(reserved.ends_with("the name is reserved, expected another one"), "{reserved}");
    let twice = refused("[lanes.gpu]\nbindings = [\"reading.#\"]\n");
    assert!(twice.starts_with("setting lanes.gpu.bindings = \"reading.#\" (file "), "{twice}");
    assert!(
        twice.ends_with(
            ") is refused: lane fast has the routing key \"reading.#\", and a task that matches both would run twice"
        ),
        "{twice}"
    );
    for binding in ["reading.process", "*.process", "#", "#.bench.x"] {
        let file = format!("[lanes.gpu]\nbindings = [{binding:?}]\n");
        let meets = resolve(&[], &[], &file).unwrap_err().to_string();
        assert!(meets.contains("and a task that matches both would run twice"), "{meets}");
    }
    let apart = "[lanes.gpu]\nbindings = [\"image.#\", \"image.*.large\"]\n";
    assert!(resolve(&[], &[], apart).is_ok(), "one lane gets a task once, whatever its bindings are");
}

#[test]
fn the_catch_all_lane_receives_the_kinds_that_no_binding_matches() {
    let lanes = Lanes::default();
    assert_eq!(
        (lanes.taking("reading.process"), lanes.taking("image.resize")),
        (Some("fast"), Some("default"))
    );
    assert_eq!((lanes.bound_to("reading.process"), lanes.bound_to("image.resize")), (Some("fast"), None));
    let without = resolve(&[], &[("GARENNE_LANES__DEFAULT__CATCH_ALL", "false")], "").unwrap();
    assert_eq!((without.taking("image.resize"), without.catch_all()), (None, None));
}

#[test]
fn another_lane_can_be_the_catch_all_lane_but_only_one() {
    let file = "[lanes.default]\ncatch_all = false\n[lanes.other]\ncatch_all = true\n";
    assert_eq!(resolve(&[], &[], file).unwrap().catch_all(), Some("other"));
    let variables =
        [("GARENNE_LANES__DEFAULT__CATCH_ALL", "false"), ("GARENNE_LANES__OTHER__CATCH_ALL", "true")];
    assert_eq!(resolve(&[], &variables, "").unwrap().catch_all(), Some("other"));
    assert_eq!(
        refusal(&[], &[("GARENNE_LANES__SLOW__CATCH_ALL", "true")]),
        "setting lanes.slow.catch_all = true (environment GARENNE_LANES__SLOW__CATCH_ALL) is refused: \
         lane default is the catch-all lane, expected lanes.default.catch_all = false"
    );
}

#[test]
fn a_lane_with_maps_receives_everything_from_the_exchange_of_the_mqtt_plugin() {
    let lanes = resolve(&[], &[("GARENNE_LANES__MQTT__MAPS", "builtin:zigbee2mqtt,/etc/site.toml")], "");
    let lanes = lanes.unwrap();
    assert_eq!(lanes.get("mqtt").unwrap().maps, ["builtin:zigbee2mqtt", "/etc/site.toml"]);
    let spec = lanes.specs().into_iter().find(|lane| lane.name == "mqtt").unwrap();
    assert_eq!((spec.exchange, spec.bindings), (LaneExchange::Mqtt, vec!["#".to_owned()]));
    // Its binding is none of kinds: everything would match.
    assert_eq!((lanes.bound_to("odd"), lanes.taking("odd")), (None, Some("default")));
    assert_eq!(lanes.bound_to(FOREIGN_KIND), Some("mqtt"));
    assert!(lanes.defined().all(|(name, lane)| name != "mqtt" || lane.task_bindings().is_empty()));
}

#[test]
fn a_lane_with_maps_may_have_another_exchange_and_its_bindings() {
    let file = "[lanes.plant]\nmaps = [\"site.toml\"]\nexchange = \"plant\"\nbindings = [\"a.#\", \"b.*\"]\n\
                [lanes.other]\nmaps = [\"site.toml\"]\nexchange = \"plant\"\nbindings = [\"c\"]";
    let lanes = resolve(&[], &[], file).unwrap();
    let spec = lanes.specs().into_iter().find(|lane| lane.name == "plant").unwrap();
    assert_eq!(spec.exchange, LaneExchange::Foreign("plant".to_owned()));
    assert_eq!(spec.bindings, ["a.#", "b.*"]);
}

#[test]
fn settings_of_a_lane_with_maps_that_lose_or_double_messages_are_refused() {
    let refused = |lane: &str| resolve(&[], &[], lane).unwrap_err().to_string();
    for (settings, expected) in [
        ("shards = 2", "setting lanes.mqtt.shards = 2 (file"),
        ("catch_all = true", "setting lanes.mqtt.catch_all = true (file"),
        ("default_kind = \"x.y\"", "setting lanes.mqtt.default_kind = \"x.y\" (file"),
        ("bindings = [\"a.#\"]", "setting lanes.mqtt.bindings = [\"a.#\"] (file"),
        ("exchange = \"\"", "setting lanes.mqtt.exchange = \"\" (file"),
        ("exchange = \"garenne.tasks\"", "setting lanes.mqtt.exchange = \"garenne.tasks\" (file"),
    ] {
        let error = refused(&format!(
            "[lanes.mqtt]\nmaps = [\"m.toml\"]\n{settings}\n[lanes.default]\ncatch_all = false"
        ));
        assert!(error.starts_with(expected), "{error}");
    }
    let error = refused("[lanes.slow]\nexchange = \"plant\"");
    assert!(error.ends_with("is for foreign messages, expected lanes.slow.maps too"), "{error}");
    let error = refused("[lanes.a]\nmaps = [\"m\"]\n[lanes.b]\nmaps = [\"m\"]");
    assert!(error.contains("lane a has the routing key \"#\""), "{error}");
}

#[test]
fn lanes_that_are_built_in_code_are_validated_like_those_of_a_file() {
    let mail = Lane::bound_to(["email.#"]).concurrency(1..=8).prefetch(50);
    let lanes = Lanes::new()
        .lane("mail", mail.clone())
        .lane("jobs", Lane::direct().shards(2).max_per_key(3).concurrency(2))
        .lane("default", Lane::default().catch_all());
    assert_eq!(lanes.validate("garenne"), Ok(()));
    let file = "[lanes]\n[lanes.mail]\nbindings = [\"email.#\"]\nconcurrency = \"1..8\"\nprefetch = 50\n";
    assert_eq!(resolve(&[], &[], file).unwrap().get("mail"), Some(&mail));
    assert_eq!(lanes.get("jobs").unwrap().concurrency, Concurrency { min: 2, max: 2 });
    let only: Vec<_> = lanes.only(["mail"]).iter().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(only, ["mail"]);
    let refused = |lane| Lanes::new().lane("mail", lane).validate("garenne").unwrap_err().to_string();
    for (min, max, shown) in [(4, 1, "4..1"), (0, 3, "0..3")] {
        assert_eq!(
            refused(mail.clone().concurrency(min..=max)),
            format!(
                "setting lanes.mail.concurrency = {shown} is refused: expected MIN..MAX with 1 <= MIN <= MAX, such as 1..4"
            )
        );
    }
    assert!(refused(Lane::default()).contains("a lane without bindings"));
}

#[test]
fn a_pattern_of_kinds_belongs_to_each_lane_that_receives_some_of_them() {
    let lanes = Lanes::new()
        .lane("default", Lane::default().catch_all())
        .lane("images", Lane::bound_to(["image.#"]))
        .lane("urgent", Lane::bound_to(["mail.urgent.#"]))
        .lane("mapped", Lane { maps: vec!["builtin:zigbee2mqtt".to_owned()], ..Lane::default() });
    let receiving = |kinds: &str| lanes.receiving(kinds).map(|(name, _)| name).collect::<Vec<_>>();
    for (kinds, expected) in [
        ("image.*", &["images"][..]),
        ("mail.#", &["default", "urgent"]),
        ("mail.*", &["default", "urgent"]),
        ("mail.urgent.*", &["urgent"]),
        ("mail.urgent.now", &["urgent"]),
        ("other", &["default"]),
        ("#", &["default", "images", "urgent"]),
        (FOREIGN_KIND, &["mapped"]),
    ] {
        assert_eq!(receiving(kinds), expected, "{kinds}");
    }
    let with_queue = Lane { queue: Some("celery".to_owned()), ..Lane::bound_to(["call.#"]) };
    let more = lanes.clone().lane("direct", Lane::default()).lane("shop", with_queue);
    let giving = |kinds: &str| more.giving(kinds).map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(
        giving("image.*"),
        ["direct", "images", "shop"],
        "calls in a queue of others may be of any kind"
    );
    assert_eq!(giving("other"), ["default", "direct", "shop"]);
    assert_eq!(
        names(&lanes.clone().serving(["image.*"])),
        ["default", "images"],
        "a catch-all lane may hold any kind"
    );
}
