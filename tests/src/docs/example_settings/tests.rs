use std::fs;

use garenne_common::config::{Settings, Sources, load_with};

use super::*;
use crate::docs::repository;

fn load<T: Settings>(text: &str) -> T {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let sources = Sources { file: Some(file.path().to_owned()), ..Sources::default() };
    load_with(sources, []).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_kept_file_equals_the_generated_one() {
    let generated = generate(&repository()).unwrap_or_else(|problems| panic!("{}", problems.join("\n")));
    let kept = fs::read_to_string(repository().join(PATH)).unwrap_or_default();
    assert!(kept == generated, "{PATH} is not what `./dev docs` writes");
}

#[test]
fn the_file_has_the_defaults_of_every_program() {
    fn check<T: Settings>(text: &str) {
        let json = |settings: &T| serde_json::to_value(settings).unwrap();
        assert_eq!(json(&load(text)), json(&T::default()));
    }
    let text = generate(&repository()).unwrap();
    check::<StockConfig>(&text);
    check::<ProducerSettings>(&text);
    check::<ConsoleConfig>(&text);
    check::<DrillConfig>(&text);
    let amqp_url = load::<StockConfig>(&text).worker.common.amqp_url;
    assert_eq!(amqp_url, Common::default().amqp_url);
}

#[test]
fn the_examples_in_comments_are_valid_together() {
    let text = generate(&repository()).unwrap();
    let lines = text.lines().map(|line| match line.strip_prefix('#') {
        Some(example) if !example.is_empty() && !example.starts_with(' ') => example,
        _ => line,
    });
    // Requirements of the certificates, `rules` and `postgres_url` on settings that have defaults.
    let text = lines.collect::<Vec<_>>().join("\n");
    let text = text.replace("amqp_url = \"amqp://guest", "amqp_url = \"amqps://guest");
    let text = text.replace("sinks = []", "sinks = [\"postgres\"]");
    // The lanes of the file receive tasks.
    let text = text.replace("\nexchange = ", "\n#exchange = ");
    let text =
        text.replace("\nqueue = ", "\n#queue = ").replace("\ncelery_pass_on = ", "\n#celery_pass_on = ");
    let worker: StockConfig = load(&text);
    assert_eq!(worker.alert.webhooks.len(), 1);
    assert_eq!(worker.worker.lanes.iter().count(), 1);
    let gateway: ProducerSettings = load(&text);
    assert!(gateway.gateway.tls_client_ca.is_some());
    let console: ConsoleConfig = load(&text);
    assert!(console.fleet.postgres_url.is_some());
    let drill: DrillConfig = load(&text);
    assert!(drill.worker_amqp_url.is_some());
}

#[test]
fn a_setting_without_a_row_and_a_row_with_another_default_are_named() {
    let row = |setting: &str, default: &str| Row {
        setting: setting.to_owned(),
        section: "Worker".to_owned(),
        default: default.to_owned(),
        comment: String::new(),
    };
    let defaults = BTreeMap::from([
        ("lanes.fast.prefetch".to_owned(), Value::from(200)),
        ("prefix".to_owned(), Value::from("garenne")),
    ]);
    assert_eq!(
        undocumented(&[row("lanes.<name>.prefetch", "200")], &defaults),
        ["setting prefix is in no table of the documentation"]
    );
    let problem = |setting, default| entries(&row(setting, default), &defaults).err();
    assert_eq!(problem("lanes.<name>.prefetch", "200"), None);
    assert_eq!(
        problem("lanes.<name>.prefetch", "100").as_deref(),
        Some("the default of lanes.fast.prefetch is 200 and not 100")
    );
    assert_eq!(
        problem("prefixes", "garenne").as_deref(),
        Some("setting prefixes (Worker) does not exist, or needs an example value")
    );
}
