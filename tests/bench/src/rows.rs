//! The results of a benchmark, in the format of all of the project's benchmarks.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::{Machine, Ratio, option, ratio::median};

/// The values of each row, one per run.
#[derive(Debug, Default)]
pub struct Rows {
    values: BTreeMap<String, (&'static str, Vec<f64>)>,
    ratios: Vec<(String, Ratio)>,
    versions: BTreeMap<String, String>,
}

/// A line of the report.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    unit: &'a str,
    median: f64,
    min: f64,
    max: f64,
    runs: usize,
    /// For ratios: the 95 % confidence interval of the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    interval95: Option<(f64, f64)>,
}

#[derive(Serialize)]
struct Report<'a> {
    machine: Machine,
    rows: Vec<Row<'a>>,
}

impl Rows {
    /// Adds one run's value to a row.
    pub fn add(&mut self, name: impl Into<String>, unit: &'static str, value: f64) {
        self.values.entry(name.into()).or_insert_with(|| (unit, Vec::new())).1.push(value);
    }

    /// Records the version of a program that takes part.
    pub fn version(&mut self, name: impl Into<String>, version: impl Into<String>) {
        self.versions.insert(name.into(), version.into());
    }

    /// Adds a row with the ratio of two rows, run by run. Does nothing if one of them has no run.
    pub fn compare(&mut self, name: impl Into<String>, ours: &str, theirs: &str) {
        let of = |name: &str| self.values.get(name).map_or(&[][..], |(_, values)| values);
        if let Some(ratio) = Ratio::of(of(ours), of(theirs)) {
            self.ratios.push((name.into(), ratio));
        }
    }

    /// Prints the rows and, with `--json FILE` on the command line, writes them to that file.
    pub fn publish(self) -> io::Result<()> {
        self.publish_to(option("--json").map(PathBuf::from).as_deref())
    }

    /// Prints the rows and writes them to a file.
    pub fn publish_to(mut self, json: Option<&Path>) -> io::Result<()> {
        let machine = Machine::now().with_versions(std::mem::take(&mut self.versions));
        let rows = self.rows();
        println!("{machine}");
        rows.iter().for_each(show);
        let Some(path) = json else { return Ok(()) };
        fs::write(path, serde_json::to_vec_pretty(&Report { machine, rows })?)
    }

    fn rows(&mut self) -> Vec<Row<'_>> {
        let values = self.values.iter_mut().map(|(name, (unit, values))| {
            values.sort_by(f64::total_cmp);
            let (min, max) = (values[0], values[values.len() - 1]);
            Row { name, unit, median: median(values), min, max, runs: values.len(), interval95: None }
        });
        let ratios = self.ratios.iter().map(|(name, ratio)| Row {
            name,
            unit: "ratio",
            median: ratio.median,
            min: ratio.min,
            max: ratio.max,
            runs: ratio.runs,
            interval95: ratio.interval,
        });
        values.chain(ratios).collect()
    }
}

fn show(row: &Row<'_>) {
    let Row { name, unit, median, min, max, runs, interval95 } = row;
    let digits = if *median < 10.0 { 3 } else { 1 };
    let interval = interval95
        .map_or_else(String::new, |(low, high)| format!(", 95 % of {low:.digits$} … {high:.digits$}"));
    println!(
        "{name:<52} {median:>12.digits$} {unit:<14} ({min:.digits$} … {max:.digits$}, {runs} runs{interval})"
    );
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_report_has_the_documented_fields_and_a_ratio_of_paired_runs() {
        let mut rows = Rows::default();
        for run in 1..=6 {
            rows.add("worker/ours", "us", f64::from(run) * 3.0);
            rows.add("worker/theirs", "us", f64::from(run));
        }
        rows.version("broker", "4.0");
        rows.compare("worker/ours-to-theirs", "worker/ours", "worker/theirs");
        rows.compare("nothing", "worker/ours", "worker/absent");
        let path = std::env::temp_dir().join(format!("garenne-rows-{}.json", std::process::id()));
        rows.publish_to(Some(&path)).unwrap();
        let report: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        fs::remove_file(path).unwrap();
        assert_eq!(report["machine"]["versions"], json!({"broker": "4.0"}));
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 3);
        assert_eq!(
            rows[0],
            json!({"name": "worker/ours", "unit": "us", "median": 10.5, "min": 3.0, "max": 18.0, "runs": 6})
        );
        assert_eq!(rows[2]["interval95"], json!([3.0, 3.0]));
    }
}
