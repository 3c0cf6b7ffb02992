# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034  # variables are shared between the parts that ./dev sources
# Common functions of all parts of ./dev: messages, state, waiting. This file is only sourced.

# State of the servers that ./dev started, and logs. They are below the build directory. After `cargo clean`, running
# containers can still be found, because their names are derived from the path of the checkout.
dev_dir=${CARGO_TARGET_DIR:-$root/target}/dev
state_dir=$dev_dir/state
log_dir=$dev_dir/log
mkdir -p "$state_dir" "$log_dir"

# Part of container names and labels: unique per checkout and constant within it.
checkout_id=$(printf %s "$root" | cksum | cut -d' ' -f1)

say() { printf '\033[2m[dev %4ds]\033[0m %s\n' "$SECONDS" "$*" >&2; }
warn() { printf '[dev] %s: %s\n' "${severity:-note}" "$*" >&2; }
die() {
    printf '[dev] error: %s\n' "$*" >&2
    exit 1
}
[ -t 2 ] || say() { printf '[dev %4ds] %s\n' "$SECONDS" "$*" >&2; }

is_root() { [ "$(id -u)" = 0 ]; }
have() { command -v "$1" >/dev/null 2>&1; }

# A TCP port of the loopback interface that nothing listens on, from $1 upwards. It is below the kernel's ephemeral
# range, so that no outgoing connection takes the port of a stopped server.
free_port() {
    local port=$1
    while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
    echo "$port"
}

# wait_until SECONDS WHAT COMMAND…: polls until COMMAND succeeds. `alive` (a pid) ends the wait early.
wait_until() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        if [ -n "${alive:-}" ] && ! kill -0 "$alive" 2>/dev/null; then return 1; fi
        [ "$SECONDS" -lt "$deadline" ] || { warn "$what took too long"; return 1; }
        sleep 0.2
    done
}

# State files are KEY=VALUE lines written by `remember` and read back by `recall`.
remember() {
    local name=$1
    shift
    printf '%s\n' "$@" > "$state_dir/$name.new"
    mv "$state_dir/$name.new" "$state_dir/$name"
}
recall() { sed -n "s/^$2=//p" "$state_dir/$1" 2>/dev/null; }
