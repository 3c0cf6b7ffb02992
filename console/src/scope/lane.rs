//! A lane at one moment: its queue by the broker, its workers by their heartbeats.

use garenne_protocol::heartbeat::Program;
use serde::Serialize;

use super::{Known, ring::Ring};
use crate::{
    fleet::{KindTotals, Roster, State},
    operator::Operator,
    scale::Load,
    status::LaneStatus,
};

/// Rates are taken over so many milliseconds: long enough to even out the broker's own delay.
const RATES: i64 = 60_000;
/// Service times change slowly and need many tasks to be known.
const SERVICE: i64 = 600_000;

/// One lane.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LaneSample {
    /// Messages that no worker has.
    pub ready: u64,
    /// Messages that workers have; by the broker, else by the workers.
    pub unacked: u64,
    /// Consumers of the queue.
    pub consumers: u64,
    /// Tasks that wait in the retry ladder.
    pub retrying: u64,
    /// Tasks that end, per second.
    pub removal_rate: f64,
    /// What the workers are needed for.
    #[serde(flatten)]
    pub load: Load,
    /// Slots of all workers.
    pub slots: u64,
    /// What is there takes this long with all slots at work, seconds; not known without a measured
    /// service time, and endless without a slot.
    pub backlog_seconds: Option<f64>,
}

/// What the workers say of a lane.
#[derive(Default)]
struct Hands {
    slots: u64,
    running: u64,
    held: u64,
    replicas: u32,
}

fn hands(roster: &Roster, lane: &str, now: i64) -> Hands {
    let mut hands = Hands::default();
    for member in roster.members(Program::Worker, now) {
        let Some(beat) = member.beat.and_then(|beat| beat.lanes.get(lane)) else { continue };
        // What a silent one runs may well be running.
        if member.state == State::Stopped {
            continue;
        }
        hands.running += beat.busy as u64;
        hands.held += beat.held;
        if member.state == State::Open {
            hands.slots += beat.slots as u64;
            hands.replicas += 1;
        }
    }
    hands
}

impl Known {
    pub(super) fn lane(&self, operator: &Operator, status: &LaneStatus, now: i64) -> LaneSample {
        let hands = hands(&self.roster, &status.name, now);
        let queue = &status.queue;
        let unacked = queue.unacked.unwrap_or(hands.held);
        let backlog = queue.ready + unacked;
        let configured = operator.settings.lanes.defined().find(|(name, _)| *name == status.name);
        let configured = configured.map_or(1, |(_, lane)| lane.concurrency.max);
        let slots_per_replica = match hands.replicas {
            0 => configured as f64,
            replicas => hands.slots as f64 / f64::from(replicas),
        };
        let removed =
            |totals: &crate::fleet::Totals| totals.lanes.get(&status.name).map_or(0, |lane| lane.removed);
        let removed_now = removed(self.roster.totals());
        let (mut arrival_rate, mut removal_rate) = (0.0, 0.0);
        if let Some(then) = self.ring.at_or_after(now - RATES)
            && let Some(lane) = then.lanes.get(&status.name)
            && now > then.at
        {
            let seconds = (now - then.at) as f64 / 1e3;
            let done = removed_now.saturating_sub(removed(&then.totals)) as f64;
            removal_rate = done / seconds;
            // What came is what is there more than before, and what has left since.
            arrival_rate = ((backlog as f64 - lane.load.backlog as f64 + done) / seconds).max(0.0);
        }
        let service_seconds = self.service(operator, &status.name, now);
        let backlog_seconds = match (backlog, service_seconds) {
            (0, _) => Some(0.0),
            (_, Some(_)) if hands.slots == 0 => Some(f64::INFINITY),
            (backlog, Some(service)) => Some(backlog as f64 * service / hands.slots as f64),
            _ => None,
        };
        let (running, replicas) = (hands.running, hands.replicas);
        LaneSample {
            ready: queue.ready,
            unacked,
            consumers: queue.consumers,
            retrying: status.retrying,
            removal_rate,
            load: Load { arrival_rate, backlog, running, service_seconds, slots_per_replica, replicas },
            slots: hands.slots,
            backlog_seconds,
        }
    }

    /// Mean time in an attempt at the kinds that a lane takes, by the last minutes, else by all that is
    /// known.
    fn service(&self, operator: &Operator, lane: &str, now: i64) -> Option<f64> {
        let totals = self.roster.totals();
        let lanes = &operator.settings.lanes;
        let mean = |then: Option<&super::Sample>| {
            let taken = totals.kinds.iter().filter(|(kind, _)| lanes.taking(kind) == Some(lane));
            let since =
                |kind: &str, now: &KindTotals| now.since(then.and_then(|then| then.totals.kinds.get(kind)));
            let (ended, seconds) = taken
                .map(|(kind, now)| since(kind, now))
                .fold((0, 0.0), |sum, kind| (sum.0 + kind.ended(), sum.1 + kind.seconds));
            (ended > 0).then(|| seconds / ended as f64)
        };
        self.ring.at_or_after(now - SERVICE).and_then(|then| mean(Some(then))).or_else(|| mean(None))
    }
}

/// The samples of an hour are what rates are taken from.
const _: () = assert!(Ring::SPAN >= SERVICE);
