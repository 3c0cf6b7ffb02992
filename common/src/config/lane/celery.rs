//! The settings of a lane that receives calls of Celery's senders.

use std::fmt::Display;

use garenne_protocol::task::CeleryZone;

use super::{Invalid, LONGEST_SHORT_STRING, Lane};

/// Checks what only lanes of Celery have, and what they do not have. `prefix` begins the names of Garenne's own queues.
pub(super) fn validate(name: &str, lane: &Lane, prefix: &str) -> Result<(), Invalid> {
    let refuse = |setting: &str, value: &dyn Display, problem: String| {
        Err(Invalid::new(format!("lanes.{name}.{setting}"), value, problem))
    };
    let queues = [("queue", &lane.queue), ("celery_pass_on", &lane.celery_pass_on)];
    let given = queues.into_iter().filter_map(|(setting, queue)| Some((setting, queue.as_deref()?)));
    for (setting, queue) in given {
        let value = format_args!("{queue:?}");
        if !lane.celery {
            let problem = format!("is for calls of Celery, expected lanes.{name}.celery = true too");
            return refuse(setting, &value, problem);
        }
        if !(1..=LONGEST_SHORT_STRING).contains(&queue.len()) {
            return refuse(setting, &value, format!("expected 1 to {LONGEST_SHORT_STRING} bytes"));
        }
        if queue.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.')) {
            let problem = format!("expected a queue of other programs; {prefix}.… are Garenne's own");
            return refuse(setting, &value, problem);
        }
    }
    if !lane.celery {
        return Ok(());
    }
    if !CeleryZone::IS_SUPPORTED {
        let problem = "this program is built without the feature `celery` of the crate garenne".to_owned();
        return refuse("celery", &true, problem);
    }
    if lane.is_mapped() {
        let problem = format!("expected false because lanes.{name}.maps is set");
        return refuse("celery", &true, problem);
    }
    let (prefetch, queues) = (lane.prefetch, lane.shards + u16::from(lane.queue.is_some()));
    if prefetch < queues {
        let problem = format!("expected at least {queues}, one for each queue that the lane consumes");
        return refuse("prefetch", &prefetch, problem);
    }
    Ok(())
}

/// Checks that no lane passes calls on to a queue that a lane consumes: they would go round without end.
pub(in crate::config) fn validate_queues<'a>(
    lanes: impl Iterator<Item = (&'a str, &'a Lane)> + Clone,
) -> Result<(), Invalid> {
    let consumed = |queue: &str| lanes.clone().find(|(_, lane)| lane.queue.as_deref() == Some(queue));
    for (name, lane) in lanes.clone() {
        let Some(queue) = &lane.celery_pass_on else { continue };
        if let Some((other, _)) = consumed(queue) {
            let problem = format!(
                "lane {other} consumes this queue, expected one that only Celery's workers consume, such as \"{queue}.python\""
            );
            return Err(Invalid::new(
                format!("lanes.{name}.celery_pass_on"),
                format_args!("{queue:?}"),
                problem,
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(lane: Lane) -> String {
        lane.validate("jobs", "garenne").unwrap_err().to_string()
    }

    #[test]
    fn the_settings_of_a_lane_of_celery_fit_together() {
        let celery = || Lane { celery: true, queue: Some("celery".into()), ..Lane::default() };
        assert!(celery().validate("jobs", "garenne").is_ok());
        assert!(celery().validate("jobs", "cel").is_ok(), "a name that only begins like the prefix");
        assert_eq!(
            refused(Lane { celery: false, ..celery() }),
            "setting lanes.jobs.queue = \"celery\" is refused: is for calls of Celery, expected lanes.jobs.celery = true too"
        );
        assert_eq!(
            refused(Lane { celery_pass_on: Some("garenne.dead".into()), ..celery() }),
            "setting lanes.jobs.celery_pass_on = \"garenne.dead\" is refused: expected a queue of other programs; garenne.… are Garenne's own"
        );
        assert_eq!(
            refused(Lane { queue: Some(String::new()), ..celery() }),
            "setting lanes.jobs.queue = \"\" is refused: expected 1 to 255 bytes"
        );
        assert_eq!(
            refused(Lane { maps: vec!["builtin:zigbee2mqtt".into()], ..celery() }),
            "setting lanes.jobs.celery = true is refused: expected false because lanes.jobs.maps is set"
        );
        let concurrency = "1".parse().unwrap();
        assert_eq!(
            refused(Lane { prefetch: 1, concurrency, ..celery() }),
            "setting lanes.jobs.prefetch = 1 is refused: expected at least 2, one for each queue that the lane consumes"
        );
    }

    #[test]
    fn calls_are_not_passed_on_to_a_queue_that_a_lane_consumes() {
        let lane = |queue: &str, pass_on: &str| Lane {
            celery: true,
            queue: Some(queue.into()),
            celery_pass_on: Some(pass_on.into()),
            ..Lane::default()
        };
        let check = |one: &Lane, other: &Lane| validate_queues([("a", one), ("b", other)].into_iter());
        assert!(check(&lane("x", "x.python"), &lane("y", "y.python")).is_ok());
        let error = check(&lane("x", "y"), &lane("y", "z")).unwrap_err().to_string();
        assert_eq!(
            error,
            "setting lanes.a.celery_pass_on = \"y\" is refused: lane b consumes this queue, expected one that only Celery's workers consume, such as \"y.python\""
        );
        assert!(check(&lane("x", "x"), &lane("y", "z")).is_err());
    }
}
