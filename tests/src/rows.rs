//! What a benchmark found, in the form that all benchmarks of the project share.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Result;
use serde::Serialize;

/// Values of each row, one a run.
#[derive(Debug, Default)]
pub struct Rows(BTreeMap<(String, &'static str), Vec<f64>>);

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    unit: &'a str,
    median: f64,
    min: f64,
    max: f64,
    runs: usize,
}

impl Rows {
    /// Adds one run's value to a row.
    pub fn add(&mut self, name: impl Into<String>, unit: &'static str, value: f64) {
        self.0.entry((name.into(), unit)).or_default().push(value);
    }

    /// Prints the rows, and writes them to the file that `--json FILE` on the command line names.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn publish(mut self) -> Result<()> {
        self.0.values_mut().for_each(|values| values.sort_by(f64::total_cmp));
        let row = |((name, unit), values): (&'_ (String, &'static str), &'_ Vec<f64>)| {
            let (median, min, max) = (values[values.len() / 2], values[0], values[values.len() - 1]);
            println!("{name:<40} {median:>10.1} {unit} ({min:.1} … {max:.1}, {} runs)", values.len());
            serde_json::json!(Row { name, unit, median, min, max, runs: values.len() })
        };
        let rows: Vec<_> = self.0.iter().map(row).collect();
        if let Some(path) = option("--json") {
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            let machine = serde_json::json!({
                "cpus": cpus, "os": std::env::consts::OS, "arch": std::env::consts::ARCH
            });
            let report = serde_json::json!({ "machine": machine, "rows": rows });
            std::fs::write(PathBuf::from(path), serde_json::to_vec_pretty(&report)?)?;
        }
        Ok(())
    }
}

/// The value of an option on the command line. Cargo adds words of its own there, such as `--bench`.
#[must_use]
pub fn option(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}
