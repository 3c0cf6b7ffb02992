use proptest::prelude::*;

use super::*;

fn goal(min: u32, max: u32) -> Goal {
    Goal { min, max, ..Goal::default() }
}

fn load(arrival_rate: f64, backlog: u64, service: f64) -> Load {
    Load {
        arrival_rate,
        backlog,
        unhandled: 0,
        running: 0,
        hung: 0,
        overdue: 0,
        backlog_seconds: Some(0.0),
        service_seconds: Some(service),
        slots_per_replica: 4.0,
        replicas: 1,
        paused: false,
    }
}

#[test]
fn slots_of_tasks_that_hang_are_replaced_while_tasks_wait() {
    let hung = Load { running: 4, hung: 4, ..load(0.0, 40, 0.001) };
    assert_eq!(needed(&hung, &goal(1, 100)), 2, "one worker hangs, one does the work");
    assert_eq!(needed(&Load { backlog: 4, ..hung }, &goal(1, 100)), 1, "nothing waits");
}

/// No task hangs before it has run for a minute. Tasks that wait for longer than the objective need another worker before that.
#[test]
fn slots_of_overdue_tasks_are_replaced_once_the_wait_exceeds_the_objective() {
    let full = Load { running: 4, overdue: 4, backlog_seconds: Some(30.0), ..load(0.0, 40, 0.001) };
    assert_eq!(needed(&full, &goal(1, 100)), 1, "the objective is met");
    let late = Load { backlog_seconds: Some(30.1), ..full };
    assert_eq!(needed(&late, &goal(1, 100)), 2);
    assert_eq!(needed(&Load { overdue: 0, ..late }, &goal(1, 100)), 1, "every slot serves others soon");
    let first = Load { service_seconds: None, ..late };
    assert_eq!(needed(&first, &goal(1, 100)), 2, "no task has ended yet");
    assert_eq!(needed(&Load { backlog_seconds: None, ..late }, &goal(1, 100)), 1, "the wait is unknown");
}

#[test]
fn a_paused_lane_keeps_its_workers() {
    let paused = Load { paused: true, replicas: 3, ..load(40.0, 1_000_000, 0.5) };
    assert_eq!(needed(&paused, &goal(1, 100)), 3);
    assert_eq!(needed(&Load { backlog: 0, arrival_rate: 0.0, ..paused }, &goal(0, 100)), 3);
    assert_eq!((needed(&paused, &goal(5, 100)), needed(&paused, &goal(1, 2))), (5, 2));
}

#[test]
fn needed_follows_littles_law() {
    // 40/s × 0.5 s = 20 busy slots; at 80 % utilization 25 slots, so 7 workers with 4 slots.
    assert_eq!(needed(&load(40.0, 0, 0.5), &goal(1, 100)), 7);
    // 1,200 × 0.5 s in 30 s = 20 more slots; 45 slots, so 12 workers.
    assert_eq!(needed(&load(40.0, 1200, 0.5), &goal(1, 100)), 12);
    assert_eq!(needed(&load(40.0, 1200, 0.5), &goal(1, 9)), 9);
    assert_eq!(needed(&load(0.0, 0, 0.5), &goal(0, 9)), 0);
    assert_eq!(needed(&load(0.001, 0, 0.5), &goal(0, 9)), 1);
}

#[test]
fn tasks_that_wait_for_a_handler_wake_a_lane_that_was_scaled_to_zero() {
    let asleep = Load { replicas: 0, ..load(0.0, 0, 0.5) };
    assert_eq!(needed(&asleep, &goal(0, 9)), 0);
    assert_eq!(needed(&Load { unhandled: 1, ..asleep }, &goal(0, 9)), 1);
    let unknown = Load { service_seconds: None, ..asleep };
    assert_eq!(needed(&Load { unhandled: 1, ..unknown }, &goal(0, 9)), 1);
    let (waiting, queued) = (Load { unhandled: 1_200, ..asleep }, Load { backlog: 1_200, ..asleep });
    assert_eq!(needed(&waiting, &goal(0, 9)), needed(&queued, &goal(0, 9)));
}

#[test]
fn an_unknown_service_time_keeps_the_number_of_workers() {
    let unknown = Load { service_seconds: None, replicas: 3, ..load(10.0, 5, 0.0) };
    assert_eq!(needed(&unknown, &goal(1, 9)), 3);
    assert_eq!(needed(&Load { replicas: 0, ..unknown }, &goal(0, 9)), 1);
    let idle = Load { arrival_rate: 0.0, backlog: 0, ..unknown };
    assert_eq!(needed(&idle, &goal(0, 9)), 0);
}

#[test]
fn an_incomplete_window_never_scales_down() {
    let idle = Load { replicas: 8, ..load(0.0, 0, 0.5) };
    assert_eq!(settled(&[idle], false, &goal(1, 20)), 8);
    assert_eq!(settled(&[idle], true, &goal(1, 20)), 1);
    assert_eq!(settled(&[], true, &goal(2, 20)), 2);
}

#[test]
fn a_field_out_of_its_bounds_is_named() {
    let refused = |goal: Goal| goal.validate().unwrap_err();
    let both = |invalid: Invalid| (invalid.setting, invalid.problem);
    assert_eq!(
        both(refused(goal(9, 3))),
        ("scale.min".to_owned(), "expected at most scale.max = 3".to_owned())
    );
    let objective = Goal { objective: Duration::from_millis(5), ..Goal::default() };
    assert_eq!(both(refused(objective)).1, "expected 1s to 1h");
    let utilization = Goal { utilization: f64::NAN, ..Goal::default() };
    assert_eq!(both(refused(utilization)).1, "expected above 0, at most 1");
}

prop_compose! {
    fn any_goal()(
        objective in 1u64..3600, min in 0u32..50, more in 0u32..200, utilization in 0.05f64..=1.0,
    ) -> Goal {
        let objective = Duration::from_secs(objective);
        Goal { objective, min, max: min + more, utilization, ..Goal::default() }
    }
}

prop_compose! {
    fn any_load()(
        arrival_rate in prop_oneof![0.0f64..1e5, Just(0.0), Just(f64::NAN), Just(f64::INFINITY), Just(-1.0)],
        backlog in 0u64..10_000_000,
        unhandled in prop_oneof![Just(0), 0u64..10_000_000],
        running in 0u64..5_000,
        service_seconds in proptest::option::of(prop_oneof![0.0f64..600.0, Just(f64::NAN), Just(-3.0)]),
        slots_per_replica in prop_oneof![0.0f64..256.0, Just(f64::NAN)],
        replicas in 0u32..300,
        backlog_seconds in proptest::option::of(prop_oneof![0.0f64..4_000.0, Just(f64::NAN), Just(f64::INFINITY)]),
    ) -> Load {
        let (hung, overdue) = (running / 2, running * 3 / 4);
        let paused = false;
        Load { arrival_rate, backlog, unhandled, running, hung, overdue, backlog_seconds, service_seconds, slots_per_replica, replicas, paused }
    }
}

proptest! {
    #[test]
    fn needed_is_within_min_and_max(load in any_load(), goal in any_goal()) {
        let needed = needed(&load, &goal);
        prop_assert!(needed >= goal.min && needed <= goal.max);
    }

    #[test]
    fn running_tasks_keep_their_workers(load in any_load(), goal in any_goal()) {
        let slots = if load.slots_per_replica.is_finite() { load.slots_per_replica.max(1.0) } else { 1.0 };
        let workers = needed(&load, &goal);
        prop_assert!(workers == goal.max || f64::from(workers) * slots >= load.running as f64);
    }

    #[test]
    fn more_arrivals_never_need_fewer_workers(load in any_load(), goal in any_goal(), more in 0.0f64..1e4) {
        prop_assume!(load.arrival_rate.is_finite());
        let harder = Load { arrival_rate: load.arrival_rate.max(0.0) + more, ..load };
        prop_assert!(needed(&harder, &goal) >= needed(&load, &goal));
    }

    #[test]
    fn a_longer_queue_never_needs_fewer_workers(load in any_load(), goal in any_goal(), more in 0u64..1_000_000) {
        let harder = Load { backlog: load.backlog + more, ..load };
        prop_assert!(needed(&harder, &goal) >= needed(&load, &goal));
    }

    #[test]
    fn a_shorter_objective_never_needs_fewer_workers(load in any_load(), goal in any_goal(), by in 1u32..100) {
        let before = needed(&load, &goal);
        let tighter = Goal { objective: goal.objective / by, ..goal };
        prop_assert!(needed(&load, &tighter) >= before);
    }

    /// Over a sliding window the number decreases only if every load in the window needs fewer workers, and it never
    /// falls below the current need.
    #[test]
    fn the_number_decreases_only_if_the_whole_window_needs_fewer(
        loads in proptest::collection::vec(any_load(), 2..60), goal in any_goal(), window in 2usize..12,
    ) {
        let at = |end: usize| &loads[end.saturating_sub(window)..end];
        for end in 2..=loads.len() {
            let (before, now) = (settled(at(end - 1), true, &goal), settled(at(end), true, &goal));
            prop_assert!(now >= needed(&loads[end - 1], &goal));
            if now < before {
                prop_assert!(at(end).iter().all(|load| needed(load, &goal) < before));
            }
        }
    }

    /// A load that alternates between two values has a constant result.
    #[test]
    fn an_alternating_load_has_a_constant_result(
        high in any_load(), low in any_load(), goal in any_goal(), window in 2usize..12,
    ) {
        let loads: Vec<_> = (0..40).map(|n| if n % 2 == 0 { high } else { low }).collect();
        let answers: Vec<_> = (window..40).map(|end| settled(&loads[end - window..end], true, &goal)).collect();
        prop_assert!(answers.iter().all(|answer| *answer == answers[0]));
    }
}
