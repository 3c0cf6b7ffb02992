//! Who paused what, and since when.

use std::{collections::BTreeMap, time::SystemTime};

use garenne_common::exit::Failure;
use garenne_operator::operator::Operator;
use garenne_protocol::{
    audit::{AuditRecord, AuditState},
    task::{epoch_ms, span_ms},
    topology::DIRECTIVES_KEPT,
};

use super::reader;

/// The last pause of an object that was not resumed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PausedBy {
    /// The person, and how the command was given.
    pub who: String,
    /// When, in milliseconds since 1970.
    pub at: i64,
}

/// The pauses by noun (`lane`, `kind` or `group`) and name.
pub type PauseRecords = BTreeMap<(String, String), PausedBy>;

/// Reads who paused lanes, kinds and groups. An object that was resumed last is left out.
pub async fn read_pauses(operator: &Operator) -> Result<PauseRecords, Failure> {
    // A pause ends by itself after a while.
    let after = epoch_ms(SystemTime::now()) - span_ms(DIRECTIVES_KEPT);
    Ok(pauses(&reader::read(operator, after).await?.0))
}

fn pauses(records: &[AuditRecord]) -> PauseRecords {
    let mut paused = BTreeMap::new();
    for record in records {
        let Some((noun, verb)) = record.command.split_once('.') else { continue };
        let Some(name) = record.arguments[noun].as_str() else { continue };
        let key = (noun.to_owned(), name.to_owned());
        match (verb, record.state) {
            ("pause", AuditState::Started) => {
                paused.entry(key).or_insert(record);
            }
            ("pause", AuditState::Failed)
                if paused.get(&key).is_some_and(|it: &&AuditRecord| it.id == record.id) =>
            {
                paused.remove(&key);
            }
            ("resume", AuditState::Done) => drop(paused.remove(&key)),
            _ => {}
        }
    }
    let by = |record: &AuditRecord| PausedBy { who: who(record), at: record.at };
    paused.into_iter().map(|(key, record)| (key, by(record))).collect()
}

fn who(AuditRecord { actor, .. }: &AuditRecord) -> String {
    let from = actor.address.as_ref().unwrap_or(&actor.host);
    format!("{} ({} {from})", actor.name, actor.via)
}

#[cfg(test)]
mod tests {
    use garenne_protocol::audit::AuditActor;
    use serde_json::{Value, json};

    use super::*;

    fn record(command: &str, name: &str, who: &str, at: i64, state: AuditState) -> AuditRecord {
        let actor = AuditActor {
            name: who.into(),
            via: "command-line".into(),
            host: "h".into(),
            ..AuditActor::default()
        };
        let noun = command.split_once('.').unwrap().0;
        let (arguments, result) = (json!({ noun: name }), Value::Null);
        // Each command has two records, one after the other.
        AuditRecord {
            id: ((at + 1) / 2).to_string(),
            at,
            command: command.into(),
            state,
            actor,
            arguments,
            result,
            error: None,
        }
    }

    #[test]
    fn a_pause_lasts_from_its_first_record_to_a_resume_that_succeeded() {
        use AuditState::{Done, Failed, Started};
        let by = |who: &str, at| Some((format!("{who} (command-line h)"), at));
        let mut records = vec![
            record("lane.pause", "fast", "anna", 1, Started),
            record("lane.pause", "fast", "anna", 2, Done),
            record("lane.pause", "fast", "bert", 3, Started),
            record("kind.pause", "fast", "carl", 4, Started),
            record("lane.resume", "fast", "bert", 5, Started),
            record("lane.resume", "fast", "bert", 6, Failed),
            record("dead.replay", "fast", "bert", 7, Started),
        ];
        let of = |records: &[AuditRecord], noun: &str| {
            pauses(records).remove(&(noun.into(), "fast".into())).map(|it| (it.who, it.at))
        };
        assert_eq!(
            of(&records, "lane"),
            by("anna", 1),
            "a second pause changes nothing, neither does a failed resume"
        );
        assert_eq!(of(&records, "kind"), by("carl", 4));
        records.push(record("lane.resume", "fast", "bert", 8, Done));
        assert_eq!(of(&records, "lane"), None);
        records.push(record("lane.pause", "fast", "dora", 9, Started));
        assert_eq!(of(&records, "lane"), by("dora", 9));
    }

    #[test]
    fn a_pause_that_failed_is_none() {
        let records = [
            record("lane.pause", "fast", "anna", 1, AuditState::Started),
            record("lane.pause", "fast", "anna", 2, AuditState::Failed),
        ];
        assert_eq!(pauses(&records), PauseRecords::new());
    }
}
