//! The resource usage of a process and its children, from `/proc`.

use std::{fs, time::Duration};

/// The usage of a process and its running descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU time of all threads, user and system.
    pub cpu: Duration,
    /// Current resident memory in 10^6 bytes. Shared pages count for each process.
    pub rss_mb: f64,
    /// The same, in which each of the processes that share a page has its part of it.
    pub pss_mb: f64,
    /// The sum of the processes' peaks of resident memory, which may be at different times.
    pub peak_mb: f64,
}

impl Usage {
    /// Reads the usage; zero for a process that has ended.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        children(pid).into_iter().map(Self::of).fold(Self::alone(pid), |sum, child| Self {
            cpu: sum.cpu + child.cpu,
            rss_mb: sum.rss_mb + child.rss_mb,
            pss_mb: sum.pss_mb + child.pss_mb,
            peak_mb: sum.peak_mb + child.peak_mb,
        })
    }

    /// Reads the usage without that of descendants.
    #[must_use]
    pub fn alone(pid: u32) -> Self {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let memory = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            let kilobytes: f64 = line.split_whitespace().nth(1).and_then(|it| it.parse().ok()).unwrap_or(0.0);
            kilobytes * 1024.0 / 1e6
        };
        let status = read("status");
        Self {
            cpu: ticks(pid).max(scheduled(pid)),
            rss_mb: memory(&status, "VmRSS:"),
            pss_mb: memory(&read("smaps_rollup"), "Pss:"),
            peak_mb: memory(&status, "VmHWM:"),
        }
    }
}

/// `utime` and `stime`: includes threads that have ended; the resolution is a clock tick.
fn ticks(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field is the name, which may contain spaces.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks =
        fields.split_whitespace().skip(11).take(2).filter_map(|it| it.parse::<u64>().ok()).sum::<u64>();
    Duration::from_nanos(ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1))
}

/// The scheduler's CPU time of the running threads: exact, without threads that have ended. Zero if the kernel does not
/// record it.
fn scheduled(pid: u32) -> Duration {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Duration::ZERO };
    let of = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(threads.flatten().filter_map(of).sum())
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let of = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap_or_default();
    let listed: String = threads.flatten().map(of).collect();
    listed.split_whitespace().filter_map(|it| it.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::{hint::black_box, process::Command, time::Instant};

    use super::*;

    #[test]
    fn cpu_time_and_memory_are_counted() {
        let before = Usage::of(std::process::id());
        let begun = Instant::now();
        while Usage::of(std::process::id()).cpu < before.cpu + Duration::from_millis(30) {
            assert!(begun.elapsed() < Duration::from_secs(60), "30 ms of CPU time were not counted");
            (0..100_000).for_each(|n| {
                black_box(n);
            });
        }
        assert!(before.rss_mb > 0.1 && before.peak_mb >= before.rss_mb * 0.9, "{before:?}");
    }

    #[test]
    fn children_are_included_and_an_ended_process_has_no_usage() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let alone = Usage::of(child.id());
        assert!(children(std::process::id()).contains(&child.id()));
        assert!(alone.rss_mb > 0.0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(Usage::of(child.id()), Usage::default());
    }
}
