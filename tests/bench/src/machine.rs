//! The machine on which a benchmark ran.

use std::{collections::BTreeMap, fmt, fs};

use serde::Serialize;

/// Part of every report, because figures of different machines are not comparable.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    cpus: usize,
    os: &'static str,
    arch: &'static str,
    /// The processor's name; empty if the system does not report it.
    model: String,
    kernel: String,
    memory_mb: u64,
    /// The load average of the last minute at the end of the benchmark, including its own processes.
    load: f64,
    /// Versions of the programs that took part.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    versions: BTreeMap<String, String>,
}

impl Machine {
    /// The current state of this machine.
    #[must_use]
    pub fn now() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let after = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = after(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kilobytes: u64 = memory.split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(0);
        Self {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            model: after(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_mb: kilobytes / 1024,
            load: read("/proc/loadavg").split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(0.0),
            versions: BTreeMap::new(),
        }
    }

    pub(crate) fn with_versions(self, versions: BTreeMap<String, String>) -> Self {
        Self { versions, ..self }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpus, os, arch, model, kernel, memory_mb, load, versions } = self;
        write!(f, "{cpus} CPUs ({model}), {memory_mb} MB, {os} {kernel} {arch}, load {load}")?;
        versions.iter().try_for_each(|(name, version)| write!(f, ", {name} {version}"))
    }
}
