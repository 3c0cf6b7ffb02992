//! Histories of real engines.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use crate::*;

/// How long histories run at most.
const SPAN: Duration = Duration::from_secs(30);
const VERSIONS: [&str; 3] = ["3.10", "4.0", "4.3"];
/// The sources that histories depend on.
const SOURCES: [&str; 3] = ["../../worker/engine/src", "../../common/pool/src", "src"];

/// A hash of sources: each change runs other histories, and the same sources run the same ones.
fn hash_of_sources(folder: &Path, hash: &mut u64) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    entries.sort_unstable();
    for path in entries {
        if path.is_dir() {
            hash_of_sources(&path, hash);
        } else if path.extension().is_some_and(|it| it == "rs") {
            // FNV-1a.
            for byte in fs::read(&path).unwrap() {
                *hash = (*hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
}

fn prepared() -> [Prepared; 3] {
    VERSIONS.map(|version| Prepared::new(version.parse().unwrap()))
}

fn history(seed: u64) -> History {
    History::generate(seed, VERSIONS[(seed % 3) as usize].parse().unwrap(), Scale::default())
}

fn run_history(prepared: &[Prepared; 3], seed: u64, history: &History) -> Report {
    run(&prepared[(seed % 3) as usize], history, false)
}

/// A machine that is faster or has less other load runs more of the histories that follow from the sources.
#[test]
fn histories_of_engines_break_no_rule() {
    let mut first = 0xcbf2_9ce4_8422_2325;
    for folder in SOURCES {
        hash_of_sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut first);
    }
    let (prepared, began, mut count) = (prepared(), Instant::now(), 0);
    while began.elapsed() < SPAN {
        let seed = first.wrapping_add(count);
        count += 1;
        let report = run_history(&prepared, seed, &history(seed));
        let problems = report.problems.join("\n");
        assert!(
            !report.has_failed(),
            "the history of seed {seed} breaks a rule; to see it: ./dev histories --seed {seed}\n{problems}"
        );
    }
    println!("{count} histories from seed {first}");
    // A machine with other load runs few.
    assert!(count > 2, "only {count} histories from seed {first} in {SPAN:?}");
}

/// How many histories are searched for what is rare.
const SEARCHED: u64 = 300;

#[test]
fn what_is_rare_happens_in_some_of_the_first_histories() {
    let prepared = prepared();
    let mut missing = Mishap::ALL.to_vec();
    for seed in 0..SEARCHED {
        let happened = run_history(&prepared, seed, &history(seed)).mishaps;
        missing.retain(|it| !happened.contains_key(it));
        if missing.is_empty() {
            return;
        }
    }
    panic!("in {SEARCHED} histories these never happened: {missing:?}");
}
