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
    local modules=(consumer:: settlement:: redelivery:: budget:: fleet:: pipeline:: handler:: execute:: batch::)
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

# The faults that only a unit test finds, with its name. The others must be found by histories.
declare -A mutants_of_unit_tests=()

# history_mutants [NAME…]: applies each patch of tests/simulation/mutations to a copy of the sources, and runs histories until
# one breaks a rule, for a minute at most. A patch that does not apply fails the run.
history_mutants() {
    local patch name test rc=0 missed=() found=0
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
                cargo test --quiet -p garenne --lib -- "$test"
            else
                cargo build --quiet --release -p garenne-simulation --bin histories || exit 2
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
