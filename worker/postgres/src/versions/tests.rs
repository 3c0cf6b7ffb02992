use std::mem::take;

use super::*;

/// The version of a task with this id and value, accepted at this second.
fn version(id: &str, at: i64, raw: f64) -> ReadingVersion {
    let at = OffsetDateTime::from_unix_timestamp(at).unwrap();
    ReadingVersion {
        accepted: Some((at, 0)),
        task_id: id.to_owned(),
        value: raw,
        unit: None,
        raw,
        raw_unit: None,
        calibration: None,
        quality: String::new(),
        worker: "w".to_owned(),
        start_time: None,
    }
}

/// The stored version after each batch in turn.
fn stored_after(batches: &[&[ReadingVersion]]) -> ReadingVersion {
    let (mut stored, mut kept): (Option<ReadingVersion>, BTreeMap<_, _>) = (None, BTreeMap::new());
    for batch in batches {
        let (first, rest) = batch.split_first().unwrap();
        let new = if stored.is_none() { rest } else { batch };
        let before = stored.take().unwrap_or_else(|| first.clone());
        let mut resolved = resolve(&before, kept.values().cloned().collect(), new.iter().cloned());
        kept.extend(take(&mut resolved.kept).into_iter().map(|it| (it.task_id.clone(), it)));
        stored = Some(resolved.latest.unwrap_or(before));
    }
    stored.unwrap()
}

#[test]
fn the_latest_version_is_stored_in_every_order_of_arrival_and_every_grouping() {
    // The first task is repeated, and so is the second one.
    let sent = [("a", 1, 20.0), ("b", 2, 40.0), ("a", 3, 20.0), ("c", 4, 10.0), ("b", 5, 40.0)];
    let cases = [(2, 40.0), (3, 40.0), (4, 10.0), (5, 10.0)];
    for (count, expected) in cases {
        let mut order: Vec<_> = (0..count).collect();
        // All orders, by Heap's algorithm, each in one batch, in pairs, and singly.
        let mut counters = vec![0; count];
        let mut place = 0;
        loop {
            let versions: Vec<_> =
                order.iter().map(|n| version(sent[*n].0, sent[*n].1, sent[*n].2)).collect();
            for size in [1, 2, count] {
                let batches: Vec<_> = versions.chunks(size).collect();
                assert_eq!(stored_after(&batches).raw, expected, "{order:?} by {size}");
            }
            while place < count && counters[place] >= place {
                counters[place] = 0;
                place += 1;
            }
            if place == count {
                break;
            }
            order.swap(if place % 2 == 0 { 0 } else { counters[place] }, place);
            counters[place] += 1;
            place = 0;
        }
    }
}

#[test]
fn an_earlier_value_returns_under_an_id_of_its_own() {
    let [first, second, third] = [version("a", 1, 20.0), version("b", 2, 40.0), version("c", 3, 20.0)];
    for batches in [
        [&first, &second, &third],
        [&third, &second, &first],
        [&first, &third, &second],
        [&second, &third, &first],
    ] {
        let batches = batches.map(std::slice::from_ref);
        let stored = stored_after(&batches);
        assert_eq!((stored.raw, &*stored.task_id), (20.0, "c"));
    }
}

#[test]
fn the_last_of_a_tasks_records_for_a_reading_is_stored_also_after_a_redelivery() {
    let task = [version("a", 1, 20.0), version("a", 1, 40.0)];
    assert_eq!(stored_after(&[&task]).raw, 40.0);
    assert_eq!(stored_after(&[&task, &task]).raw, 40.0);
    let resolved = resolve(&task[1], Vec::new(), task.iter().cloned());
    assert_eq!(resolved, Resolved::default(), "nothing is written");
}

#[test]
fn of_versions_accepted_at_the_same_moment_the_greater_id_is_stored() {
    let [one, other] = [version("a", 1, 20.0), version("b", 1, 40.0)];
    assert_eq!(stored_after(&[std::slice::from_ref(&other), std::slice::from_ref(&one)]), other);
    assert_eq!(stored_after(&[&[one, other.clone()]]), other);
}

#[test]
fn a_reading_from_before_there_were_versions_is_the_earliest() {
    let old = ReadingVersion { accepted: None, ..version("z", 0, 20.0) };
    let new = version("a", 1, 40.0);
    let resolved = resolve(&old, Vec::new(), [new.clone()].into_iter());
    assert_eq!(resolved, Resolved { latest: Some(new.clone()), kept: vec![new, old.clone()] });
    // Its own task again.
    let again = [version("z", 9, 20.0)];
    assert_eq!(resolve(&old, Vec::new(), again.into_iter()), Resolved::default());
}

#[test]
fn the_same_value_of_another_task_keeps_what_a_recalibration_made_of_it() {
    let stored = ReadingVersion { value: 21.0, ..version("a", 1, 20.0) };
    let resolved = resolve(&stored, Vec::new(), [version("b", 2, 20.0)].into_iter());
    let latest = resolved.latest.unwrap();
    assert_eq!((latest.value, &*latest.task_id), (21.0, "b"));
}
