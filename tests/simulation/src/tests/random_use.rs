//! A correct client among random faults: the ledger reports nothing, and everything ends.

use std::time::Duration;

use super::kit::*;
use crate::*;

/// A worker that does everything right.
struct Worker {
    owner: OwnerId,
    consuming: Option<ChannelId>,
    publishing: Option<ChannelId>,
    /// Copies without an answer: number, tag of the original, id.
    copies: Vec<(u64, u64, String)>,
}

impl Worker {
    fn connect(&mut self, broker: &mut SimBroker) {
        let mut open =
            |prefetch| broker.connect(self.owner).ok().and_then(|it| broker.open_channel(it, prefetch));
        if self.consuming.is_none() {
            self.consuming = open(5);
            self.copies.clear();
            if let Some(channel) = self.consuming {
                broker.consume(channel, "work", ConsumeOptions::default());
            }
        }
        if self.publishing.is_none() {
            self.publishing = broker.connect(self.owner).ok().and_then(|it| broker.open_channel(it, 0));
            for copy in &mut self.copies {
                if let Some(channel) = self.publishing {
                    copy.0 = broker.publish(channel, message("", "retry", &copy.2));
                }
            }
        }
    }

    fn lost(&mut self, broker: &SimBroker) {
        self.consuming = self.consuming.filter(|it| broker.is_open(*it));
        self.publishing = self.publishing.filter(|it| broker.is_open(*it));
    }

    fn read(&mut self, broker: &mut SimBroker, random: &mut Random, event: &Event) {
        match event {
            Event::Delivery { channel, delivery } if self.consuming == Some(*channel) => {
                match random.below(10) {
                    0 => broker.nack(*channel, delivery.tag, false, true),
                    1..4 if self.publishing.is_some() => {
                        let id = delivery.message.id().to_owned();
                        let number = broker.publish(self.publishing.unwrap(), message("", "retry", &id));
                        self.copies.push((number, delivery.tag, id));
                    }
                    _ => {
                        broker.effect(delivery.message.id());
                        broker.ack(*channel, delivery.tag, false);
                    }
                }
            }
            Event::Confirm { channel, sequence, acked } if self.publishing == Some(*channel) => {
                let Some(at) = self.copies.iter().position(|it| it.0 == *sequence) else { return };
                let (_, tag, id) = self.copies.remove(at);
                let Some(consuming) = self.consuming else { return };
                if *acked {
                    broker.ack(consuming, tag, false);
                } else {
                    let number = broker.publish(*channel, message("", "retry", &id));
                    self.copies.push((number, tag, id));
                }
            }
            _ => {}
        }
    }
}

fn prepared(version: &str) -> SimBroker {
    use garenne_protocol::topology::Arg;
    let retry = [
        ("x-message-ttl", Arg::Number(200)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text("work")),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ];
    let limit = version.starts_with('4').then_some(("x-delivery-limit", Arg::Number(-1)));
    let queues = vec![queue("work", limit.as_slice()), queue("retry", &retry)];
    let mut broker = SimBroker::new(version.parse().unwrap(), 0, Timings::default());
    broker.declare(&topology(queues, Vec::new(), Vec::new()));
    broker
}

/// Runs 100 tasks through three workers with a dozen faults, and returns the broker at the end.
fn history(template: &SimBroker, seed: u64, is_traced: bool) -> SimBroker {
    let mut random = Random::new(seed);
    let mut broker = template.clone();
    broker.reseed(random.next_u64());
    if is_traced {
        broker.start_trace();
    }
    let publisher = broker.add_owner("publisher", Role::Publisher);
    let mut workers: Vec<_> = (0..3)
        .map(|n| {
            let owner = broker.add_owner(&format!("worker {n}"), Role::Worker);
            Worker { owner, consuming: None, publishing: None, copies: Vec::new() }
        })
        .collect();
    let connection = broker.connect(publisher).unwrap();
    let channel = broker.open_channel(connection, 0).unwrap();
    for n in 0..100 {
        broker.publish(channel, message("", "work", &format!("task-{n}")));
    }
    let mut faults: Vec<Duration> = (0..12).map(|_| ms(random.below(300))).collect();
    faults.sort_unstable();
    let (mut now, mut faults) = (Duration::ZERO, faults.into_iter().peekable());
    for _ in 0..20_000 {
        let tick = now + ms(20);
        let due = [broker.next_due(), faults.peek().copied()].into_iter().flatten().min().unwrap_or(tick);
        now = due.clamp(now, tick);
        if faults.next_if(|it| *it <= now).is_some() {
            strike(broker.at(now), &mut random, &workers);
        }
        let events = broker.poll(now);
        read_confirms(&mut broker, &events);
        for worker in &mut workers {
            worker.lost(&broker);
            for event in &events {
                worker.read(&mut broker, &mut random, event);
            }
            if due >= tick || !events.is_empty() {
                worker.connect(&mut broker);
            }
        }
        if faults.peek().is_none() && broker.unfinished().is_empty() {
            break;
        }
    }
    broker
}

fn strike(broker: &mut SimBroker, random: &mut Random, workers: &[Worker]) {
    let worker = random.choose(workers);
    match random.below(8) {
        0 => broker.restart(ms(50)),
        1 => broker.crash(worker.owner),
        2 => worker.consuming.into_iter().for_each(|it| broker.kill_channel(it)),
        3 => worker.publishing.into_iter().for_each(|it| broker.kill_channel(it)),
        4 => broker.decide_fates(worker.owner, [Fate::Refused, Fate::RefusedButStored, Fate::Late(ms(40))]),
        5 => broker.decide_fates(worker.owner, [Fate::LostWithConnection]),
        6 => {
            let kinds = [FrameKind::Settle, FrameKind::Publish, FrameKind::Consume];
            let (on, skip) = (Some(*random.choose(&kinds)), random.below(4) as u32);
            let moment = *random.choose(&[Moment::Before, Moment::After]);
            let target = *random.choose(&[Target::Channel, Target::Connection]);
            broker.arm(worker.owner, ArmedFault { on, skip, moment, target });
        }
        _ => {
            broker.freeze();
            broker.thaw();
        }
    }
}

#[test]
fn a_correct_client_breaks_no_rule_and_everything_ends() {
    for version in ["3.10", "4.0", "4.3"] {
        let template = prepared(version);
        for seed in 0..60 {
            let broker = history(&template, seed, false);
            let violations = broker.violations();
            assert!(violations.is_empty(), "{version} seed {seed}: {}", violations[0]);
            assert_eq!(broker.audit(), Vec::<String>::new(), "{version} seed {seed}");
            assert!(broker.unfinished().is_empty(), "{version} seed {seed}: {:?}", broker.unfinished());
        }
    }
}

#[test]
fn histories_repeat_exactly() {
    let template = prepared("4.0");
    assert_eq!(history(&template, 7, true).trace(), history(&template, 7, true).trace());
}
