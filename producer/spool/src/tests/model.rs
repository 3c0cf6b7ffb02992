//! Random sequences of appends, acknowledgements, failures, crashes and restarts, compared with a model.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{
    CONFIG,
    memory_disk::{Crash, EIO, ENOSPC, Fault, FaultKind, MemoryDisk},
    now, open, record, waiting,
};
use crate::log::Log;

#[derive(Clone, Debug)]
enum Step {
    Append { requests: Vec<usize>, fault: Option<(usize, i32)> },
    Read { records: usize, is_acknowledged: bool },
    Restart,
    Crash(Crash),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fault = prop_oneof![
        3 => Just(None),
        1 => (0usize..6, prop_oneof![Just(EIO), Just(ENOSPC)]).prop_map(Some),
    ];
    let append = (prop::collection::vec(1usize..4, 1..4), fault)
        .prop_map(|(requests, fault)| Step::Append { requests, fault });
    let read = (1usize..8, any::<bool>())
        .prop_map(|(records, is_acknowledged)| Step::Read { records, is_acknowledged });
    let crash =
        prop_oneof![Just(Crash::Process), Just(Crash::Power), (0usize..200).prop_map(Crash::TornPower)];
    let step =
        prop_oneof![4 => append, 3 => read, 1 => Just(Step::Restart), 1 => crash.prop_map(Step::Crash)];
    prop::collection::vec(step, 1..40)
}

/// The records that must be delivered, and those that may be.
#[derive(Default)]
struct Model {
    /// Accepted and not acknowledged, in order.
    due: Vec<String>,
    refused: BTreeSet<String>,
    next_id: usize,
}

impl Model {
    /// Checks that all due records are in `delivered`, in order, and that the rest was refused earlier.
    fn check(&self, delivered: &[String]) {
        let due: Vec<&String> = delivered.iter().filter(|id| !self.refused.contains(*id)).collect();
        assert_eq!(due, self.due.iter().collect::<Vec<_>>());
        assert_eq!(delivered.iter().collect::<BTreeSet<_>>().len(), delivered.len(), "delivered twice");
    }

    fn append(&mut self, log: &mut Log, requests: &[usize]) {
        let mut ids = || {
            self.next_id += 1;
            format!("r{}", self.next_id)
        };
        let requests: Vec<Vec<_>> =
            requests.iter().map(|&count| (0..count).map(|_| record(&ids())).collect()).collect();
        let outcomes = log.append(&requests, now());
        for (records, outcome) in requests.into_iter().zip(outcomes) {
            let ids = records.into_iter().map(|record| record.id);
            if outcome.is_ok() { self.due.extend(ids) } else { self.refused.extend(ids) }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]
    #[test]
    fn every_accepted_record_is_delivered_in_order_until_it_is_acknowledged(steps in steps()) {
        let mut disk = MemoryDisk::default();
        let mut log = open(&disk);
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Append { requests, fault } => {
                    let fault = fault.map(|(call, code)| Fault { call, calls: 2, kind: FaultKind::Error(code) });
                    disk.fail(fault);
                    model.append(&mut log, &requests);
                    disk.fail(None);
                }
                Step::Read { records, is_acknowledged } => {
                    let batch = log.read(0, records, 1000).unwrap();
                    if is_acknowledged {
                        log.ack(batch.end).unwrap();
                        let ids: BTreeSet<String> = batch.records.into_iter().map(|record| record.id).collect();
                        model.due.retain(|id| !ids.contains(id));
                    }
                }
                Step::Restart => {
                    drop(log);
                    log = open(&disk);
                }
                Step::Crash(crash) => {
                    drop(log);
                    disk = disk.crash(crash);
                    log = open(&disk);
                }
            }
            let delivered = waiting(&mut log);
            model.check(&delivered);
            let status = log.status();
            prop_assert_eq!((status.set_aside, status.unreadable), (0, 0));
            prop_assert_eq!(status.records() == 0, delivered.is_empty());
            prop_assert_eq!(status.oldest.is_some(), !delivered.is_empty());
            prop_assert!(status.bytes <= CONFIG.max_bytes.0);
        }
    }
}
