# shellcheck shell=bash
# shellcheck disable=SC2154  # variables are shared between the parts that ./dev sources
# Mutation tests: does a test fail if the code is wrong? .cargo/mutants.toml lists the files. This file is only sourced.

mutants_version=27.1.0
# The minimum share of viable mutants that the tests must catch, in percent.
mutants_least=90
# Every nth mutant is tested, always the same ones, distributed over all files. The pool has three times as many mutants.
mutants_settlement_every=2
mutants_pool_every=8

# mutants [all] [A…]: A… goes to cargo-mutants. With `all` every mutant is tested, else a sample.
mutants() {
    local settlement=(--sharding round-robin --shard "0/$mutants_settlement_every")
    local pool=(--sharding round-robin --shard "0/$mutants_pool_every") rc=0
    if [ "${1:-}" = all ]; then settlement=() pool=() && shift; fi
    require_rust
    cargo mutants --version >/dev/null 2>&1 ||
        cargo install --quiet --locked --debug --target-dir target/tools "cargo-mutants@$mutants_version"
    mutants_copy
    # Only the tests of these modules, because others do not test the mutated code.
    local modules=(consumer:: settlement:: redelivery:: budget:: fleet:: pipeline:: handler:: attempt:: batch::)
    rm -rf "$log_dir/mutants"
    mutate settlement garenne "${settlement[@]}" --cargo-arg=--lib "$@" -- -- "${modules[@]}"
    mutate settlement garenne-protocol "${settlement[@]}" --cargo-arg=--lib "$@" -- -- task::
    mutate pool garenne-pool "${pool[@]}" --cargo-arg={--lib,--test=behavior,--test=model} "$@"
    mutants_caught settlement || rc=1
    mutants_caught pool || rc=1
    return $rc
}

# Copies the sources to a separate folder with its own build directory. Each mutant is built there in seconds, and the
# checkout is not changed. Files keep their times, so that the next run compiles only changed files.
mutants_copy() {
    tree=${CARGO_TARGET_DIR:-$root/target}/mutants
    mkdir -p "$tree"
    find "$tree" -mindepth 1 -maxdepth 1 ! -name target -exec rm -rf {} +
    git ls-files -z --cached --others --exclude-standard |
        tar --null --files-from=- --ignore-failed-read --warning=no-failed-read -cf - | tar -xf - -C "$tree"
}

# mutate GROUP PACKAGE A…
mutate() {
    local group=$1 package=$2 rc=0
    shift 2
    local out=$log_dir/mutants/$group-$package
    mkdir -p "$out"
    say "mutants of $package; see $out"
    # Without debug information, because linking takes most of the time.
    (
        cd "$tree"
        env -u CARGO_TARGET_DIR CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_DEBUG=none \
            cargo mutants --in-place --package "$package" --output "$out" --minimum-test-timeout 30 "$@"
    ) || rc=$?
    # 2: some mutants were missed. 3: some timed out, which counts as caught. The share is checked later.
    case $rc in
        0 | 2 | 3) ;;
        *) die "cargo-mutants of $package: exit code $rc" ;;
    esac
}

# mutants_caught GROUP: whether enough mutants of the group were caught.
mutants_caught() {
    local group=$1 caught missed unviable
    caught=$(mutants_count caught "$group") missed=$(mutants_count missed "$group")
    unviable=$(mutants_count unviable "$group")
    caught=$((caught + $(mutants_count timeout "$group")))
    # A selection may contain no mutant of the group.
    [ $((caught + missed)) -gt 0 ] || return 0
    local share=$((caught * 100 / (caught + missed)))
    echo "[dev] mutants of $group: $caught of $((caught + missed)) caught ($share %), $unviable did not compile" >&2
    cat "$log_dir/mutants/$group-"*/mutants.out/missed.txt 2>/dev/null | sed 's/^/[dev]   missed: /' >&2
    [ "$share" -ge "$mutants_least" ] || {
        warn "at least $mutants_least % must be caught"
        return 1
    }
}
mutants_count() { cat "$log_dir/mutants/$2-"*/mutants.out/"$1.txt" 2>/dev/null | wc -l; }

# The faults that only a unit test finds, with its name; those of the pool begin with `pool::`. The others must be found by
# histories.
declare -A mutants_of_unit_tests=(
    [backoff-grows-too-late]=handler::retry::tests::back_offs_grow_up_to_the_cap
    [batch-ends-in-reverse-order]=settlement::tests::records::each_record_of_a_batch_is_settled_by_its_own_end
    [batch-of-long-tasks-runs]=pipeline::checks::tests::a_batch_of_a_long_kind_is_divided_and_a_task_of_it_runs
    [cap-of-a-key-ends-too-early]=pipeline::key_limits::tests::a_key_keeps_its_cap_while_one_of_its_tasks_runs
    [clean-stop-is-a-crash]=fleet::lifecycle::tests::clean_restarts_are_no_crashes
    [closed-before-the-last-completions]=pool::shutdown::the_pool_closes_after_its_last_completion
    [confirmed-messages-are-published-again]=settlement::tests::follow_ups::follow_ups_are_confirmed_before_their_parent_is_acked
    [copies-of-sharded-lanes-are-not-believed]=pipeline::checks::tests::the_attempts_of_a_copy_are_believed_in_a_lane_with_several_queues_and_those_of_a_publisher_are_not
    [enqueue-errors-swapped]=client::error::tests::a_refusal_is_no_doubt
    [escalated-stop-still-waits]=worker::drain::tests::a_stop_that_is_escalated_to_hard_gives_up_what_waits_for_a_sink_or_a_broker
    [expired-in-the-pool-starts]=attempt::tests::a_task_does_not_start_if_its_channel_died_it_expired_or_its_handler_stopped_being_ready
    [first-checkpoint-stays]=handler::checkpoint::tests::the_next_attempt_reads_the_checkpoint_of_an_attempt_that_did_not_succeed
    [follow-up-ids-are-random]=handler::follow_up::tests::a_task_that_runs_again_requests_the_same_follow_ups
    [forged-returns-are-believed]=pipeline::checks::tests::only_redeliveries_that_no_look_of_an_operator_explains_count_as_returns
    [freed-group-calls-no-worker]=pool::engine::finish::tests::the_end_of_a_task_that_is_given_up_wakes_a_worker_for_the_next_task_of_its_group
    [group-stop-misses-running-tasks]=pipeline::dispatched::tests::a_stop_of_a_group_finds_a_task_from_before_it_enters_the_pool_until_it_has_ended
    [grouped-tasks-escape-the-key-limit]=pipeline::dispatched::tests::a_task_with_a_key_enters_the_pool_in_the_group_of_its_key_also_if_it_has_a_group
    [hand-back-before-cancel]=consumer::ack_writer::tests::a_requeue_for_a_pause_or_a_stop_is_sent_after_the_consumer_is_cancelled
    [hanging-record-is-no-attempt]=batch::tests::a_record_that_hangs_spends_an_attempt_and_the_others_keep_their_ends
    [hanging-record-loses-its-deadline]=settlement::tests::records::a_record_that_hung_until_the_deadline_of_its_batch_continues_with_that_deadline
    [later-runs-hide-crashes]=fleet::member::tests::each_crash_counts_though_other_messages_with_the_id_began_to_run_since
    [long-batch-runs-alone]=pipeline::quarantine::tests::a_batch_of_a_long_kind_is_divided_and_its_records_keep_their_lane
    [looks-are-returns]=pipeline::checks::tests::only_redeliveries_that_no_look_of_an_operator_explains_count_as_returns
    [new-stream-is-read-from-the-old-offset]=consumer::stream_reader::tests::a_stream_that_was_deleted_and_declared_again_is_read_from_its_beginning
    [no-backoff-reset]=consumer::subscriber::tests::only_a_settlement_resets_the_pause_before_the_next_channel
    [no-backoff-reset-of-a-sink]=sink::sink_buffer::tests::a_success_resets_the_pause_before_the_next_attempt
    [not-ready-is-handed-back]=pipeline::life::tests::a_task_whose_handler_is_not_ready_is_deferred_while_its_lane_is_consumed_and_else_handed_back
    [older-directives-win]=fleet::directives::tests::a_resume_outlasts_an_older_pause_that_arrives_late
    [one-frame-for-acks-and-requeues]=consumer::ledger::tests::acks_and_requeues_get_frames_of_their_own
    [one-unready-kind-quiets-the-lane]=worker::lane_readiness::tests::a_lane_is_quiet_only_while_none_of_its_handlers_is_ready
    [orphans-are-dropped]=settlement::tests::reclaim::only_messages_that_the_broker_does_not_deliver_again_are_published_again
    [orphans-are-kept-after-the-version]=consumer::subscriber::tests::a_message_that_is_handed_back_as_soon_as_its_queue_is_deleted_is_kept
    [overdue-tasks-stay]=worker::lane::tests::a_task_that_waits_too_long_for_the_consumer_timeout_is_requeued_until_its_pool_closes
    [own-attempts-are-a-minimum]=settlement::tests::the_attempts_of_a_kind_replace_those_of_the_worker
    [paused-quarantine-hands-back]=pipeline::checks::tests::a_quarantined_task_of_a_paused_lane_is_deferred_and_a_task_in_the_lane_is_handed_back
    [place-of-a-key-not-freed]=pipeline::key_limits::tests::a_key_has_a_cap_while_it_has_tasks_and_at_most_half_of_the_prefetch
    [publisher-extends-the-deadline]=attempt::tests::a_publisher_can_shorten_the_deadline_of_a_kind_and_not_extend_it
    [quarantine-after-one-crash]=pipeline::quarantine::tests::a_task_that_came_back_twice_runs_after_one_crash_and_is_quarantined_after_two
    [quarantined-records-forget-their-lane]=pipeline::quarantine::tests::a_batch_of_a_long_kind_is_divided_and_its_records_keep_their_lane
    [reconnect-skips-a-record]=consumer::stream_reader::tests::a_stream_is_read_across_reconnects_without_gaps_and_without_records_twice
    [record-leaves-with-the-whole-batch]=in_flight::tests::a_record_leaves_its_batch_with_its_own_id_and_payload
    [record-that-panics-is-read-again]=consumer::stream_reader::tests::a_record_over_which_the_reader_panicked_is_not_read_again
    [redelivered-batch-keeps-what-succeeded]=pipeline::tests::a_redelivered_batch_is_admitted_without_the_records_that_succeeded_here
    [refused-part-without-follow-ups-is-dropped]=settlement::tests::follow_ups::what_a_handler_refuses_is_a_dead_letter_also_without_follow_ups
    [reply-before-the-ack]=settlement::tests::replies::a_reply_follows_the_ack_and_is_counted_if_its_queue_does_not_exist
    [requeued-part-is-forgotten]=consumer::delivery::tests::a_split_message_is_settled_once_and_requeued_if_any_part_is
    [resume-undoes-a-stop]=worker::drain::tests::a_resume_ends_the_quiet_of_a_worker_and_not_its_stop
    [run-that-ended-counts]=fleet::member::tests::a_run_does_not_count_if_it_ended_while_its_worker_was_looked_for
    [same-crash-counts-twice]=fleet::member::tests::a_run_does_not_count_if_it_is_counted_ended_or_our_own
    [settled-before-the-run-ends]=pipeline::quarantine::tests::a_task_goes_back_only_after_its_run_is_recorded_as_ended_or_a_second_has_passed
    [soft-timeout-counts-twice]=worker::drain::tests::a_stop_with_a_timeout_waits_for_sinks_and_copies_in_the_time_that_its_tasks_have_left
    [space-is-awaited-for-ever]=pipeline::life::tests::a_task_that_waits_for_a_place_in_the_pool_is_dropped_soon_after_its_channel_died
    [stop-of-a-batch-takes-all-records]=pipeline::checks::tests::the_stop_of_a_group_ends_a_task_before_it_starts_and_leaves_a_batch_to_its_records
    [stopped-task-starts]=attempt::tests::a_task_that_is_stopped_while_it_waits_in_the_pool_does_not_start
    [success-not-remembered]=settlement::tests::a_redelivered_task_is_remembered_as_done
    [suspicious-tasks-escape-the-key-limit]=pipeline::quarantine::tests::a_task_that_came_back_twice_counts_among_those_of_its_key
    [task-of-a-dead-channel-starts]=attempt::tests::a_task_does_not_start_if_its_channel_died_it_expired_or_its_handler_stopped_being_ready
    [tasks-of-a-group-change-places]=pool::groups::a_task_that_was_submitted_before_a_pause_starts_before_those_that_came_during_it
    [tasks-with-a-timeout-are-not-tracked]=pipeline::dispatched::tests::the_redelivery_of_a_task_with_a_timeout_of_its_publisher_does_not_run_beside_it
    [unready-in-the-pool-starts]=attempt::tests::a_task_does_not_start_if_its_channel_died_it_expired_or_its_handler_stopped_being_ready
    [unstored-results-change-their-order]=sink::sink_buffer::tests::results_are_offered_again_in_the_order_in_which_their_tasks_ended
)

# history_mutants [NAME…]: applies each patch of tests/simulation/mutations to a copy of the sources, and runs histories until
# one breaks a rule, for a minute at most. A patch that does not apply fails the run.
history_mutants() {
    local patch name test tested rc=0 missed=() found=0
    require_rust
    mutants_copy
    mkdir -p "$log_dir/mutants"
    for patch in tests/simulation/mutations/*.patch; do
        name=$(basename "$patch" .patch)
        case " $* " in "  " | *" $name "*) ;; *) continue ;; esac
        (cd "$tree" && patch --quiet --strip=1 <"$root/$patch") || die "$patch does not apply"
        test=${mutants_of_unit_tests[$name]:-} rc=0
        (
            cd "$tree"
            unset CARGO_TARGET_DIR
            if [ -n "$test" ]; then
                tested=(-p garenne --lib)
                # The pool is also tested from outside.
                [ "$test" = "${test#pool::}" ] || tested=(-p garenne-pool --lib --test behavior)
                # A fault that does not compile is not found.
                cargo test --quiet "${tested[@]}" --no-run || exit 2
                cargo test --quiet "${tested[@]}" -- "${test#pool::}"
            else
                CARGO_PROFILE_RELEASE_LTO=off cargo build --quiet --release -p garenne-simulation --bin histories || exit 2
                target/release/histories --for 1m --no-shrink
            fi
        ) >"$log_dir/mutants/$name.log" 2>&1 || rc=$?
        (cd "$tree" && patch --quiet --strip=1 --reverse <"$root/$patch")
        case $rc in
            0) missed+=("$name") && warn "$name: not found" ;;
            2) die "$name: see $log_dir/mutants/$name.log" ;;
            *) found=$((found + 1)) && say "$name: found by ${test:-histories, $(grep -m1 "histories," "$log_dir/mutants/$name.log")}" ;;
        esac
    done
    echo "[dev] $found faults found, ${#missed[@]} not found: ${missed[*]}" >&2
    [ ${#missed[@]} -eq 0 ]
}
