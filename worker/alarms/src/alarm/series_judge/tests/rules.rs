//! Rules with every condition that is judged.

use crate::alarm::{Condition, Hold, Rule, Rules};

/// `per`, `duration` and steps are short, so that histories of a few readings exceed them.
pub(super) fn rules() -> Vec<Rule> {
    let conditions = [
        "above = 6\nclear = 3",
        "above = 5",
        "below = 3\nclear = 6",
        "faster_than = 0\nper = \"1s\"",
        "faster_than = 40\nper = \"1s\"",
        "stuck_for = \"1s\"",
        "above = 5\nclear = 3\nfor = \"1s\"",
        "below = 5\nfor = \"1s\"",
        "more_than = 4\nin = \"1s\"",
        "more_than = 20\nin = \"10s\"",
    ];
    let rule = |condition| {
        let text = format!("[[rule]]\nname = \"r\"\nmetric = \"m\"\nunit = \"Cel\"\n{condition}");
        let mut rule = Rules::parse(&text).unwrap().matching("d", "m").next().unwrap().clone();
        if let Condition::Stuck { readings, .. }
        | Condition::Above { hold: Some(Hold { readings, .. }), .. }
        | Condition::Below { hold: Some(Hold { readings, .. }), .. } = &mut rule.condition
        {
            *readings = 7;
        }
        rule
    };
    conditions.into_iter().map(rule).collect()
}

pub(super) fn rule(condition: Condition) -> Rule {
    let mut rule = rules().remove(0);
    rule.condition = condition;
    rule
}
