//! A directive: an operator's command that holds until a later one replaces it, stored in the directives stream.

use serde::{Deserialize, Serialize};

/// A directive. The operator's tool publishes it; every worker reads it, also one that starts later.
///
/// Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Directive {
    /// Stop one task, queued or running.
    StopTask {
        /// The task's id.
        task: String,
        /// When the directive was issued.
        at: i64,
    },
    /// Stop all tasks of a group that were published before the directive.
    StopGroup {
        /// The group.
        group: String,
        /// When the directive was issued.
        at: i64,
    },
    /// Start no task of a group.
    PauseGroup {
        /// The group.
        pause: String,
        /// When the directive was issued.
        at: i64,
    },
    /// Start tasks of a paused group again.
    ResumeGroup {
        /// The group.
        resume: String,
        /// When the directive was issued.
        at: i64,
    },
    /// Take no task of a lane.
    PauseLane {
        /// The lane.
        pause_lane: String,
        /// When the directive was issued.
        at: i64,
    },
    /// Take tasks of a paused lane again.
    ResumeLane {
        /// The lane.
        resume_lane: String,
        /// When the directive was issued.
        at: i64,
    },
    /// Start no task of a kind.
    PauseKind {
        /// The kind.
        pause_kind: String,
        /// When the directive was issued.
        at: i64,
    },
    /// Start tasks of a paused kind again.
    ResumeKind {
        /// The kind.
        resume_kind: String,
        /// When the directive was issued.
        at: i64,
    },
    /// An operator looks at the messages of a lane and returns them, which a broker before 4.3 counts as one redelivery
    /// of each.
    Look {
        /// The lane.
        look: String,
        /// When the look began.
        at: i64,
    },
}

impl Directive {
    /// The routing key of directives on the control exchange, which routes them to the stream.
    pub const ROUTING_KEY: &'static str = "stop.order";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_round_trip() {
        for (directive, json) in [
            (Directive::StopTask { task: "t".into(), at: 1 }, r#"{"task":"t","at":1}"#),
            (Directive::StopGroup { group: "g".into(), at: 2 }, r#"{"group":"g","at":2}"#),
            (Directive::PauseGroup { pause: "g".into(), at: 3 }, r#"{"pause":"g","at":3}"#),
            (Directive::ResumeGroup { resume: "g".into(), at: 4 }, r#"{"resume":"g","at":4}"#),
            (Directive::PauseLane { pause_lane: "l".into(), at: 5 }, r#"{"pause_lane":"l","at":5}"#),
            (Directive::ResumeLane { resume_lane: "l".into(), at: 6 }, r#"{"resume_lane":"l","at":6}"#),
            (Directive::PauseKind { pause_kind: "k".into(), at: 7 }, r#"{"pause_kind":"k","at":7}"#),
            (Directive::ResumeKind { resume_kind: "k".into(), at: 8 }, r#"{"resume_kind":"k","at":8}"#),
            (Directive::Look { look: "l".into(), at: 9 }, r#"{"look":"l","at":9}"#),
        ] {
            assert_eq!(serde_json::to_string(&directive).unwrap(), json);
            assert_eq!(serde_json::from_str::<Directive>(json).unwrap(), directive);
        }
    }
}
