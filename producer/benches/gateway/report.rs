//! The rows all rounds end in.

use std::{collections::BTreeMap, io, path::Path};

use serde::Serialize;

use crate::load::Seen;

/// Values of each row, a value a round.
#[derive(Default)]
pub(crate) struct Rows(BTreeMap<(String, &'static str), Vec<f64>>);

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    unit: &'a str,
    median: f64,
    min: f64,
    max: f64,
    runs: usize,
}

#[derive(Serialize)]
struct Machine {
    cpus: usize,
    os: &'static str,
    arch: &'static str,
}

#[derive(Serialize)]
struct Report<'a> {
    machine: Machine,
    rows: Vec<Row<'a>>,
}

impl Rows {
    pub(crate) fn add(&mut self, name: &str, seen: &Seen) {
        let receipts = (seen.receipts as f64).max(1.0);
        let cpu = seen.cpu.as_secs_f64();
        for (what, unit, value) in [
            ("per_s", "readings/s", seen.receipts as f64 / seen.took.as_secs_f64()),
            ("p50_ms", "ms", seen.p50.as_secs_f64() * 1e3),
            ("p99_ms", "ms", seen.p99.as_secs_f64() * 1e3),
            ("cpu_us", "us/reading", cpu * 1e6 / receipts),
            ("per_cpu_s", "readings/cpu-s", seen.receipts as f64 / cpu.max(0.01)),
            ("rss_mb", "MB", seen.rss_mb),
            ("refused", "connections or lines", seen.refused as f64),
            ("silent", "lines", seen.silent as f64),
        ] {
            self.0.entry((format!("{name}/{what}"), unit)).or_default().push(value);
        }
    }

    pub(crate) fn one(&mut self, name: &str, unit: &'static str, value: f64) {
        self.0.entry((name.to_owned(), unit)).or_default().push(value);
    }

    /// Prints the rows, and writes them as JSON where asked.
    pub(crate) fn publish(mut self, json: Option<&Path>) -> io::Result<()> {
        for values in self.0.values_mut() {
            values.sort_by(f64::total_cmp);
        }
        let rows: Vec<Row<'_>> = self
            .0
            .iter()
            .map(|((name, unit), values)| Row {
                name,
                unit,
                median: values[values.len() / 2],
                min: values[0],
                max: values[values.len() - 1],
                runs: values.len(),
            })
            .collect();
        for row in &rows {
            println!(
                "{:<48} {:>12.3} {:<22} ({:.3} … {:.3})",
                row.name, row.median, row.unit, row.min, row.max
            );
        }
        if let Some(path) = json {
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            let machine = Machine { cpus, os: std::env::consts::OS, arch: std::env::consts::ARCH };
            std::fs::write(path, serde_json::to_vec_pretty(&Report { machine, rows })?)?;
        }
        Ok(())
    }
}
