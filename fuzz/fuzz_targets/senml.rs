//! Any pack: an answer, never a panic. A pack gives the same readings after its base fields are added to its records.

#![no_main]

use garenne_protocol::sensor::{Reading, Timestamp, readings_from};
use libfuzzer_sys::fuzz_target;
use serde::{Deserialize, Serialize};

/// The fields that a record of a reading can have. A field that is given twice is refused, as by the parser.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Record {
    bn: Option<String>,
    bt: Option<f64>,
    bu: Option<String>,
    bv: Option<f64>,
    bs: Option<f64>,
    bver: Option<f64>,
    n: Option<String>,
    u: Option<String>,
    v: Option<f64>,
    vb: Option<bool>,
    s: Option<f64>,
    t: Option<f64>,
    ut: Option<f64>,
}

impl Record {
    fn has_base(&self) -> bool {
        self.bn.is_some()
            || self.bu.is_some()
            || self.bver.is_some()
            || [self.bt, self.bv, self.bs].iter().any(Option::is_some)
    }

    fn has_regular(&self) -> bool {
        self.n.is_some()
            || self.u.is_some()
            || self.vb.is_some()
            || [self.v, self.s, self.t, self.ut].iter().any(Option::is_some)
    }
}

/// The records without base fields (RFC 8428 §4.6). Relative times stay relative.
fn resolved(records: Vec<Record>) -> Vec<Record> {
    let mut base = Record::default();
    let resolve = |record: Record| {
        let is_only_base = record.has_base() && !record.has_regular();
        base = Record {
            bn: record.bn.or(base.bn.take()),
            bt: record.bt.or(base.bt),
            bu: record.bu.or(base.bu.take()),
            bv: record.bv.or(base.bv),
            ..Record::default()
        };
        if is_only_base {
            return None;
        }
        let value = if record.vb.is_some() { None } else { Some(record.v.unwrap_or(0.0)) };
        Some(Record {
            n: Some(base.bn.clone().unwrap_or_default() + record.n.as_deref().unwrap_or_default()),
            u: record.u.or(base.bu.clone()),
            v: value.map(|value| base.bv.unwrap_or(0.0) + value),
            vb: record.vb,
            t: Some(base.bt.unwrap_or(0.0) + record.t.unwrap_or(0.0)),
            ..Record::default()
        })
    };
    records.into_iter().filter_map(resolve).collect()
}

fuzz_target!(|body: &[u8]| {
    let now = Timestamp::from_micros(1_795_132_800_000_000).expect("a time of this century");
    let readings = |pack: &[u8]| -> Option<Vec<Reading>> {
        let records = readings_from("application/senml+json", pack, now).ok()?;
        Some(records.into_iter().map(|record| record.reading).collect())
    };
    let Some(original) = readings(body) else { return };
    // The parser skips a byte-order mark.
    let Ok(records) = serde_json::from_slice(body) else { return };
    let written = serde_json::to_vec(&resolved(records)).expect("records are JSON");
    assert_eq!(readings(&written), Some(original));
});
