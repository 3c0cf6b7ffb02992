//! Rights on the broker that users lack, from the broker's refusals.

use std::collections::BTreeMap;

use garenne_protocol::{
    heartbeat::{Heartbeat, Program},
    rights::{BrokerUser, MissingRight},
};

use super::{
    Facts,
    problem::{
        Code::MissingRight as Code,
        Problem,
        Severity::{Critical, Warning},
        listed,
    },
};

/// What a user lacks, and which program has it.
struct Lacking {
    rights: Vec<MissingRight>,
    of: BrokerUser,
    /// Whether tasks are not done without it, or whether they are cannot be told.
    is_critical: bool,
}

/// One problem for each user that lacks rights. `heard` are the running processes.
pub(super) fn problems<'h>(facts: &Facts<'_>, heard: impl Iterator<Item = &'h Heartbeat>) -> Vec<Problem> {
    let own = if facts.operator.read_only { BrokerUser::Viewer } else { BrokerUser::Console };
    let mut users = BTreeMap::<String, Lacking>::new();
    let mut add = |refusal: Option<&str>, of, is_critical| {
        let Some(right) = refusal.and_then(MissingRight::of) else { return };
        let lacking = users.entry(right.user.clone());
        let lacking = lacking.or_insert(Lacking { rights: Vec::new(), of, is_critical });
        lacking.is_critical |= is_critical;
        if !lacking.rights.contains(&right) {
            lacking.rights.push(right);
        }
    };
    add(facts.queue_problem, own, true);
    add(facts.fleet_problem, own, true);
    add(facts.differences.err(), own, false);
    add(facts.pauses.err(), own, false);
    for beat in heard {
        let of = match beat.program {
            Program::Worker => BrokerUser::Worker,
            Program::Gateway => BrokerUser::Gateway,
            Program::Bridge => BrokerUser::Bridge,
        };
        let lanes = beat.lanes.values().map(|lane| lane.trouble.as_deref());
        let sinks = beat.sinks.values().map(|sink| sink.trouble.as_deref());
        let refusals = lanes.chain(sinks).chain([beat.denied.as_deref()]);
        refusals.for_each(|refusal| add(refusal, of, true));
    }
    let problem = |(user, Lacking { rights, of, is_critical }): (String, Lacking)| {
        let commands: Vec<_> =
            rights.iter().map(|right| right.command(of, &facts.operator.settings.common.prefix)).collect();
        let severity = if is_critical { Critical } else { Warning };
        let texts: Vec<_> = rights.iter().map(MissingRight::to_string).collect();
        let problem = Problem::new(Code, severity, format!("user {user}"));
        let first = commands.into_iter().next().unwrap_or_default();
        problem.detail(listed(&texts)).next(format!("`{first}` gives it all rights of a {of}"))
    };
    users.into_iter().map(problem).collect()
}
