//! Pauses and resumes groups, lanes and kinds on every worker.

use std::time::SystemTime;

use clap::Subcommand;
use garenne_common::{
    exit::{Exit, Failure},
    stdout,
};
use garenne_operator::{operator::Operator, output};
use garenne_protocol::{
    task::{Directive, epoch_ms},
    topology::Names,
};
use serde_json::{Value, json};

use crate::{
    audit_log::{audited, command_line},
    directives::{check_name, known_workers, publish_directive},
    fleet::{MemberView, unseen_group, unseen_kind, unseen_lane},
};

/// `garenne group …`, `garenne lane …` and `garenne kind …`.
#[derive(Clone, Debug, Subcommand)]
pub enum PauseVerb {
    /// Start none of its tasks until it is resumed, on every worker; running tasks continue
    Pause {
        /// Its name
        name: String,
    },
    /// Start its tasks again
    Resume {
        /// Its name
        name: String,
    },
}

/// The paused object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paused {
    /// The tasks with this group. Workers defer them.
    Group,
    /// A lane. Workers do not consume its queues.
    Lane,
    /// The tasks of this kind. Workers defer them.
    Kind,
}

impl Paused {
    /// Its name in commands, routes and records.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Lane => "lane",
            Self::Kind => "kind",
        }
    }

    /// Pauses or resumes one of this name on every worker, including workers that start later.
    pub async fn set(self, operator: &Operator, name: &str, paused: bool) -> Result<(), Failure> {
        self.check(name)?;
        publish_directive(operator, &self.directive(name.to_owned(), paused, epoch_ms(SystemTime::now())))
            .await
    }

    /// A remark if no worker that is heard knows the name.
    pub fn unseen(self, workers: &[MemberView], name: &str) -> Option<String> {
        match self {
            Self::Group => unseen_group(workers, name),
            Self::Lane => unseen_lane(workers, name),
            Self::Kind => unseen_kind(workers, name),
        }
    }

    /// Refuses a name that none of its kind can have.
    pub fn check(self, name: &str) -> Result<(), Failure> {
        check_name(self.noun(), name)?;
        if self == Self::Lane && name == Names::QUARANTINE {
            let problem = "the quarantine is not a lane: pause the lane that its tasks are from";
            return Err(Failure::new(Exit::Usage, problem));
        }
        Ok(())
    }

    fn directive(self, name: String, paused: bool, at: i64) -> Directive {
        match (self, paused) {
            (Self::Group, true) => Directive::PauseGroup { pause: name, at },
            (Self::Group, false) => Directive::ResumeGroup { resume: name, at },
            (Self::Lane, true) => Directive::PauseLane { pause_lane: name, at },
            (Self::Lane, false) => Directive::ResumeLane { resume_lane: name, at },
            (Self::Kind, true) => Directive::PauseKind { pause_kind: name, at },
            (Self::Kind, false) => Directive::ResumeKind { resume_kind: name, at },
        }
    }

    /// The effect on tasks from now on.
    fn effect(self, paused: bool) -> &'static str {
        match (self, paused) {
            (Self::Lane, true) => "running tasks continue, other tasks wait in its queue until it is resumed",
            (Self::Lane, false) => "workers take its tasks again",
            (_, true) => "running tasks continue, other tasks are deferred until it is resumed",
            (_, false) => "deferred tasks return when their delay ends",
        }
    }
}

/// Runs `garenne group …`, `garenne lane …` and `garenne kind …`.
pub async fn run(operator: &Operator, what: Paused, verb: PauseVerb) -> Result<Exit, Failure> {
    let (name, paused) = match verb {
        PauseVerb::Pause { name } => (name, true),
        PauseVerb::Resume { name } => (name, false),
    };
    what.check(&name)?;
    let fleet = known_workers(operator).await;
    let (noun, verb) = (what.noun(), if paused { "pause" } else { "resume" });
    let changing = what.set(operator, &name, paused);
    let (command, arguments) = (format!("{noun}.{verb}"), json!({ noun: name }));
    audited(operator, command_line(), &command, arguments, changing, |()| Value::Null).await?;
    if let Some(remark) = fleet.and_then(|workers| what.unseen(&workers, &name)) {
        output::note(remark);
    }
    stdout::print_line(format_args!("{noun} {name} is {verb}d: {}", what.effect(paused)))?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_directive_has_its_own_field() {
        let json =
            |what: Paused, paused| serde_json::to_string(&what.directive("n".into(), paused, 1)).unwrap();
        assert_eq!(json(Paused::Group, true), r#"{"pause":"n","at":1}"#);
        assert_eq!(json(Paused::Group, false), r#"{"resume":"n","at":1}"#);
        assert_eq!(json(Paused::Lane, true), r#"{"pause_lane":"n","at":1}"#);
        assert_eq!(json(Paused::Lane, false), r#"{"resume_lane":"n","at":1}"#);
        assert_eq!(json(Paused::Kind, true), r#"{"pause_kind":"n","at":1}"#);
        assert_eq!(json(Paused::Kind, false), r#"{"resume_kind":"n","at":1}"#);
    }

    #[test]
    fn a_name_that_cannot_exist_is_refused() {
        let refused = |what: Paused, name: &str| what.check(name).err().map(|it| (it.exit, it.line));
        let empty = "the name of the kind has 0 bytes, expected 1 to 255";
        assert_eq!(refused(Paused::Kind, ""), Some((Exit::Usage, empty.to_owned())));
        let quarantine = "the quarantine is not a lane: pause the lane that its tasks are from";
        assert_eq!(refused(Paused::Lane, "quarantine"), Some((Exit::Usage, quarantine.to_owned())));
        assert_eq!((refused(Paused::Group, "quarantine"), refused(Paused::Lane, "fast")), (None, None));
    }
}
