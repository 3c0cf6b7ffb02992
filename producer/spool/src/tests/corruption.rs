//! Truncated and flipped bytes: every intact record is still delivered, whichever byte is hit.

use std::{collections::BTreeMap, ops::Range};

use super::{CONFIG, append, memory_disk::MemoryDisk, open, waiting};
use crate::{
    frame::{FILE_HEADER, frame_len},
    log::Log,
    segment::SET_ASIDE,
};

const IDS: [&str; 9] = ["a1", "a2", "a3", "b1", "b2", "b3", "c1", "c2", "c3"];

type Files = BTreeMap<String, Vec<u8>>;
type Places = BTreeMap<&'static str, (String, Range<usize>)>;

/// Three segments with three records each, and the place of each record in its file.
fn filled() -> (Files, Places) {
    let disk = MemoryDisk::default();
    let mut log = open(&disk);
    for id in IDS {
        append(&mut log, &[id]).unwrap();
    }
    let files = disk.files();
    let segments: Vec<&String> = files.keys().filter(|name| name.ends_with(".seg")).collect();
    assert_eq!(segments.len(), 3, "{segments:?}");
    let len = frame_len(&super::record("a1")) as usize;
    let places = IDS.iter().enumerate().map(|(index, id)| {
        let start = FILE_HEADER + index % 3 * len;
        (*id, (segments[index / 3].clone(), start..start + len))
    });
    let places = places.collect();
    (files, places)
}

/// Opens the files, checks that exactly `expected` is delivered, that the spool goes on accepting, and that the same is
/// delivered after a restart and nothing after acknowledging.
fn check(files: Files, expected: &[&str], what: &str) -> (Log, MemoryDisk) {
    let disk = MemoryDisk::with(files);
    let mut log = open(&disk);
    assert_eq!(waiting(&mut log), expected, "{what}");
    append(&mut log, &["d1"]).unwrap();
    let expected: Vec<&str> = expected.iter().copied().chain(["d1"]).collect();
    assert_eq!(waiting(&mut log), expected, "{what}, after an append");
    drop(log);
    let mut log = open(&disk);
    assert_eq!(waiting(&mut log), expected, "{what}, after a restart");
    log.ack(u64::MAX).unwrap();
    assert_eq!(waiting(&mut log), Vec::<String>::new(), "{what}, after acknowledging");
    append(&mut log, &["d2"]).unwrap();
    drop(log);
    let mut log = open(&disk);
    assert_eq!(waiting(&mut log), ["d2"], "{what}, a new record after acknowledging");
    (log, disk)
}

#[test]
fn a_flipped_bit_in_any_byte_loses_no_other_record() {
    let (files, places) = filled();
    for (name, bytes) in files.iter().filter(|(name, _)| name.ends_with(".seg")) {
        for offset in 0..bytes.len() {
            for mask in [0x01, 0x80, 0xff] {
                let mut files = files.clone();
                files.get_mut(name).unwrap()[offset] ^= mask;
                let is_intact = |id: &&str| {
                    let (file, range) = &places[id];
                    file != name || !range.contains(&offset)
                };
                let expected: Vec<&str> = IDS.into_iter().filter(is_intact).collect();
                let what = format!("{name} byte {offset} mask {mask:#x}");
                let (log, disk) = check(files, &expected, &what);
                assert_eq!(log.status().set_aside, 1, "{what}");
                assert!(disk.files().contains_key(&format!("{name}{SET_ASIDE}")), "{what}: the file is kept");
            }
        }
    }
}

#[test]
fn truncation_at_any_byte_loses_no_record_before_it_and_none_of_other_segments() {
    let (files, places) = filled();
    for (name, bytes) in files.iter().filter(|(name, _)| name.ends_with(".seg")) {
        for len in 0..bytes.len() {
            let mut files = files.clone();
            files.get_mut(name).unwrap().truncate(len);
            let is_intact = |id: &&str| {
                let (file, range) = &places[id];
                file != name || range.end <= len
            };
            let expected: Vec<&str> = IDS.into_iter().filter(is_intact).collect();
            let what = format!("{name} cut to {len}");
            let (log, _) = check(files, &expected, &what);
            // The next segment or the cursor shows what is missing.
            assert_eq!(log.status().set_aside, 1, "{what}");
        }
    }
}

#[test]
fn zeros_after_the_last_record_are_a_torn_tail() {
    let (mut files, _) = filled();
    let last = files.keys().rfind(|name| name.ends_with(".seg")).unwrap().clone();
    files.get_mut(&last).unwrap().extend([0; 300]);
    let (log, _) = check(files, &IDS, "zeros");
    assert_eq!(log.status().set_aside, 0);
}

#[test]
fn any_byte_of_the_cursor_may_be_corrupt_and_no_record_is_lost() {
    let (mut files, _) = filled();
    let disk = MemoryDisk::with(files);
    let mut log = open(&disk);
    log.ack(1).unwrap();
    log.ack(2).unwrap();
    drop(log);
    files = disk.files();
    for offset in 0..files["cursor"].len() {
        let mut files = files.clone();
        files.get_mut("cursor").unwrap()[offset] ^= 0x80;
        let disk = MemoryDisk::with(files);
        let mut log = open(&disk);
        let acknowledged = log.status().acknowledged as usize;
        assert!(acknowledged == 2 || acknowledged == 1, "byte {offset}: the other slot counts");
        assert_eq!(waiting(&mut log), IDS[acknowledged..]);
    }
}

#[test]
fn a_new_record_never_gets_an_acknowledged_position() {
    let (files, places) = filled();
    let disk = MemoryDisk::with(files);
    open(&disk).ack(8).unwrap();
    let mut files = disk.files();
    let (name, _) = &places["c1"];
    files.get_mut(name).unwrap().truncate(FILE_HEADER);
    check(files, &[], "a segment that lost acknowledged records");
}

#[test]
fn what_a_corrupt_segment_lost_is_counted() {
    let (mut files, places) = filled();
    let (name, range) = &places["b2"];
    files.get_mut(name).unwrap()[range.end - 1] ^= 1;
    let disk = MemoryDisk::with(files);
    let mut log = open(&disk);
    let status = log.status();
    assert_eq!((status.unreadable, status.set_aside, status.records()), (1, 0, 9));
    log.ack(6).unwrap();
    assert_eq!((log.status().set_aside, log.status().segments), (1, 1));
}

#[test]
fn a_segment_that_rots_while_the_spool_is_open_does_not_stop_the_others() {
    let disk = MemoryDisk::default();
    let mut log = open(&disk);
    for id in IDS {
        append(&mut log, &[id]).unwrap();
    }
    let (_, places) = filled();
    let (name, range) = &places["a2"];
    let file = crate::storage::Storage::open(&disk, name).unwrap();
    file.write_at(b"?", range.start as u64).unwrap();
    assert_eq!(waiting(&mut log), ["a1", "a3", "b1", "b2", "b3", "c1", "c2", "c3"]);
    assert_eq!(log.status().unreadable, 1);
    log.ack(u64::MAX).unwrap();
    assert_eq!((log.status().set_aside, log.status().bytes), (1, 0));
}

#[test]
fn a_segment_of_a_newer_format_is_named_and_left_alone() {
    let (mut files, places) = filled();
    let (name, _) = &places["c1"];
    let header = files.get_mut(name).unwrap();
    header[8] = 2;
    let crc = crc32fast::hash(&header[..20]).to_le_bytes();
    header[20..24].copy_from_slice(&crc);
    let before = files.clone();
    let disk = MemoryDisk::with(files);
    let Err(error) = Log::open(disk.storage(), std::path::Path::new("memory"), CONFIG) else {
        panic!("opened");
    };
    assert_eq!(error.to_string(), format!("spool segment {name} has format version 2, expected 1"));
    assert_eq!(disk.files(), before);
}

#[test]
fn a_corrupt_end_of_the_last_segment_is_counted_and_a_torn_one_is_not() {
    let (files, places) = filled();
    let (name, range) = &places["c3"];
    let header_and_body = [range.start, range.end - 1];
    for offset in header_and_body {
        let mut files = files.clone();
        files.get_mut(name).unwrap()[offset] ^= 1;
        let disk = MemoryDisk::with(files);
        let mut log = open(&disk);
        let status = log.status();
        assert_eq!((status.corrupt, status.unreadable), (1, 1), "byte {offset}");
        assert_eq!(waiting(&mut log), IDS[..8], "byte {offset}");
        log.ack(u64::MAX).unwrap();
        let status = log.status();
        assert_eq!((status.corrupt, status.unreadable, status.set_aside), (1, 1, 1), "byte {offset}");
    }
    let mut torn = files;
    torn.get_mut(name).unwrap().extend(b"\xffR\xfeS");
    let status = open(&MemoryDisk::with(torn)).status();
    assert_eq!((status.corrupt, status.unreadable), (0, 0));
}

#[test]
fn records_that_were_cut_off_the_newest_segment_are_counted_and_nothing_more_is_cut() {
    let (files, places) = filled();
    let (name, _) = &places["c3"];
    for len in 0..files[name].len() {
        let mut files = files.clone();
        files.get_mut(name).unwrap().truncate(len);
        let rest = files[name].clone();
        let left: Vec<&str> =
            IDS.into_iter().filter(|id| &places[id].0 != name || places[id].1.end <= len).collect();
        let disk = MemoryDisk::with(files);
        let mut log = open(&disk);
        let status = log.status();
        assert_eq!((status.corrupt, status.unreadable), (1, 9 - left.len() as u64), "{len}");
        assert_eq!(waiting(&mut log), left, "{len}");
        append(&mut log, &["d1"]).unwrap();
        log.ack(u64::MAX).unwrap();
        let name = format!("{name}{SET_ASIDE}");
        assert_eq!((&disk.files()[&name], log.status().set_aside), (&rest, 1), "{len}");
        let status = open(&disk).status();
        assert_eq!((status.corrupt, status.unreadable), (0, 0), "{len}: reported once");
    }
}

#[test]
fn records_that_were_acknowledged_are_not_missed() {
    let (files, places) = filled();
    let (name, range) = &places["c2"];
    let disk = MemoryDisk::with(files);
    open(&disk).ack(8).unwrap();
    let mut files = disk.files();
    files.get_mut(name).unwrap().truncate(range.end);
    let status = open(&MemoryDisk::with(files)).status();
    assert_eq!((status.corrupt, status.unreadable), (1, 1));
    let mut log = open(&disk);
    log.ack(9).unwrap();
    let status = open(&disk).status();
    assert_eq!((status.corrupt, status.unreadable), (0, 0));
}
