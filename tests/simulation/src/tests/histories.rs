//! Histories of real engines.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use crate::*;

/// How long histories run at most.
const SPAN: Duration = Duration::from_secs(25);
/// How many histories the ordinary suite runs at most: a faster machine runs no others than those that are known.
const KNOWN: u64 = 120;
const VERSIONS: [&str; 3] = ["3.10", "4.0", "4.3"];

/// A hash of the engine's sources: each change runs other histories, and the same sources run the same ones.
fn hash_of_sources(folder: &Path, hash: &mut u64) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    entries.sort_unstable();
    for path in entries {
        if path.is_dir() {
            hash_of_sources(&path, hash);
        } else {
            // FNV-1a.
            for byte in fs::read(&path).unwrap() {
                *hash = (*hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
}

/// The ordinary suite runs the same seeds each time, so that no change fails because of a history that it did not cause. The
/// full suite and `./dev histories` run new ones.
#[test]
fn histories_of_engines_break_no_rule() {
    let is_full = std::env::var_os("GARENNE_TEST_FULL").is_some();
    let mut seed = 0;
    if is_full {
        seed = 0xcbf2_9ce4_8422_2325;
        let engine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../worker/engine/src");
        hash_of_sources(&engine, &mut seed);
    }
    let prepared = VERSIONS.map(|version| Prepared::new(version.parse().unwrap()));
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < SPAN && (is_full || count < KNOWN) {
        let version = VERSIONS[(seed % 3) as usize];
        let history = History::generate(seed, version.parse().unwrap(), Scale::default());
        let report = run(&prepared[(seed % 3) as usize], &history, false);
        let problems = report.problems.join("\n");
        assert!(!report.has_failed(), "replay it with: ./dev histories --seed {seed}\n{problems}");
        (seed, count) = (seed.wrapping_add(1), count + 1);
    }
    println!("{count} histories, the last seed is {}", seed.wrapping_sub(1));
    // A machine with other load runs few.
    assert!(count > 2, "only {count} histories in {SPAN:?}");
}
