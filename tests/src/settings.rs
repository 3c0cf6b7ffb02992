//! The settings of all programs: a fleet can share one file and one environment.

use std::{collections::BTreeSet, fs, path::Path};

use garenne_common::config::{Settings, Sources, load_with};
use garenne_console::settings::ConsoleConfig;
use garenne_drill::settings::DrillConfig;
use garenne_producer::settings::ProducerSettings;
use garenne_worker::StockConfig;

/// The names of the top-level settings.
fn names<T: Settings>() -> BTreeSet<String> {
    let defaults = serde_json::to_value(T::default()).unwrap();
    let names = defaults.as_object().unwrap().keys().cloned();
    names.chain(T::PER_LANE.iter().map(|&name| name.to_owned())).collect()
}

fn all_names() -> BTreeSet<String> {
    let names = [
        names::<StockConfig>(),
        names::<ProducerSettings>(),
        names::<ConsoleConfig>(),
        names::<DrillConfig>(),
    ];
    names.into_iter().flatten().collect()
}

fn ignores_the_settings_of_other_programs<T: Settings>(program: &str) {
    let own = names::<T>();
    for name in all_names().difference(&own) {
        for variable in [format!("GARENNE_{name}"), format!("GARENNE_{name}_FILE")] {
            let variable = variable.to_uppercase();
            let environment = [(variable.clone().into(), "x".into())];
            let mut settings: T = load_with(Sources::default(), environment)
                .unwrap_or_else(|error| panic!("{program} refuses {variable}: {error}"));
            assert_eq!(settings.common_mut().ignored.len(), 1, "{program}: {variable}");
        }
    }
}

#[test]
fn no_program_refuses_a_setting_of_another_program_as_a_typo() {
    ignores_the_settings_of_other_programs::<StockConfig>("worker");
    ignores_the_settings_of_other_programs::<ProducerSettings>("producer");
    ignores_the_settings_of_other_programs::<ConsoleConfig>("console");
    ignores_the_settings_of_other_programs::<DrillConfig>("drill");
}

/// `deploy/checks/manifests.py` reads the names from these tables.
#[test]
fn every_setting_is_in_a_table_of_settings() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let pages = ["settings.md", "ingest.md"].map(|page| fs::read_to_string(docs.join(page)).unwrap());
    let rows = pages.iter().flat_map(|page| page.lines()).filter(|line| line.starts_with("| `"));
    let cells: String = rows.map(|row| row.split('|').nth(1).unwrap()).collect();
    let is_listed = |name: &String| {
        [".", "`"].iter().any(|after| cells.contains(&format!("`{name}{after}")))
            || cells.contains(&format!("`lanes.<name>.{name}`"))
            || pages[0].contains(&format!("`{name}.*`"))
    };
    let missing: Vec<_> = all_names().into_iter().filter(|name| !is_listed(name)).collect();
    assert_eq!(missing, Vec::<String>::new());
}
