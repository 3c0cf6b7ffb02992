# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034  # variables are shared between the parts that ./dev sources
# The broker and the database that ./dev starts, reuses and stops. This file is only sourced; it needs `mode`.
#
# Each server has a state file with MODE, with NAME (of a container) or GROUP and DIR (of a process group), and with its
# URLs. Only servers with a state file are stopped.

# `broker_start` and `postgres_start` return while the server may still be starting, so that both start at the same time;
# `…_ready` waits.
broker_start() {
    local amqp management
    if service_runs rabbitmq; then
        say "the broker of the last run is still up"
    elif [ "$mode" = docker ]; then
        local version=${RABBITMQ_VERSION:-$default_rabbitmq}
        rabbitmq_image "$version"
        service_down rabbitmq
        amqp=$(free_port 5672) management=$(free_port 15672)
        start_container rabbitmq "$image" \
            -p "127.0.0.1:$amqp:5672" -p "127.0.0.1:$management:15672" \
            --mount "type=bind,readonly,src=$root/deploy/rabbitmq/enabled_plugins,dst=/etc/rabbitmq/enabled_plugins" \
            -e RABBITMQ_DEFAULT_USER=guest -e RABBITMQ_DEFAULT_PASS=guest -- \
            "AMQP_URL=amqp://guest:guest@127.0.0.1:$amqp/%2f" "MANAGEMENT_URL=http://guest:guest@127.0.0.1:$management"
    else
        demand "the broker" rabbitmq-server
        service_down rabbitmq
        amqp=$(free_port 5672) management=$(free_port 15672)
        start_process rabbitmq "$amqp" "$management" -- \
            "AMQP_URL=amqp://guest:guest@127.0.0.1:$amqp/%2f" "MANAGEMENT_URL=http://guest:guest@127.0.0.1:$management"
    fi
}
broker_ready() {
    amqp_url=$(recall rabbitmq AMQP_URL) management_url=$(recall rabbitmq MANAGEMENT_URL)
    wait_for_log rabbitmq "Server startup complete" 90
}

# Uses the containers' own addresses for broker and database if they can be reached. A published port is served by a
# process that copies every byte, which would use CPU time during benchmarks.
without_proxy() {
    local address
    [ "$mode" = docker ] || return 0
    address=$(container_address rabbitmq)
    if reaches "$address" 5672; then
        amqp_url="amqp://guest:guest@$address:5672/%2f" management_url="http://guest:guest@$address:15672"
    fi
    [ -n "${postgres_url:-}" ] || return 0
    address=$(container_address postgres)
    if reaches "$address" 5432; then postgres_url="postgres://garenne:garenne@$address:5432/garenne"; fi
}
container_address() {
    docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$(recall "$1" NAME)"
}
reaches() { timeout 1 bash -c "exec 3<>/dev/tcp/$1/$2" 2>/dev/null; }

# The process ids of broker and database, separated by commas, if this machine can see the processes.
server_processes() {
    local service pid pids=()
    for service in rabbitmq postgres; do
        [ -e "$state_dir/$service" ] || continue
        if [ "$mode" = docker ]; then
            pid=$(docker inspect -f '{{.State.Pid}}' "$(recall "$service" NAME)")
        else
            pid=$(recall "$service" GROUP)
        fi
        [ -z "$pid" ] || [ ! -e "/proc/$pid" ] || pids+=("$pid")
    done
    (IFS=, && echo "${pids[*]}")
}

# If Postgres is not available, `postgres_url` is empty and the caller continues without it.
postgres_start() {
    local port
    if service_runs postgres; then return; fi
    service_down postgres
    if [ "$mode" = docker ]; then
        (postgres_image) || { warn "continuing without Postgres" && return; }
        postgres_image
        port=$(free_port 5432)
        start_container postgres "$image" -p "127.0.0.1:$port:5432" -e POSTGRES_USER=garenne \
            -e POSTGRES_PASSWORD=garenne -e POSTGRES_DB=garenne -- \
            "URL=postgres://garenne:garenne@127.0.0.1:$port/garenne"
    else
        have_postgres || require "the database" postgresql || { warn "continuing without Postgres" && return; }
        port=$(free_port 5432)
        start_process postgres "$port" -- "URL=postgres://garenne:garenne@127.0.0.1:$port/garenne"
    fi
}
postgres_ready() {
    postgres_url=
    [ -e "$state_dir/postgres" ] || return 0
    wait_for_log postgres "database system is ready to accept connections" 60
    postgres_url=$(recall postgres URL)
}

have_postgres() { have postgres || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; }

# start_container SERVICE IMAGE DOCKER_ARG… -- KEY=VALUE…
start_container() {
    local service=$1 image=$2 name=garenne-dev-$checkout_id-$1 args=()
    shift 2
    while [ "$1" != -- ]; do args+=("$1") && shift; done
    shift
    say "starting $image as $name"
    docker rm -f -v "$name" >/dev/null 2>&1 || true
    docker run -d --name "$name" --label garenne.dev="$checkout_id" "${args[@]}" "$image" >/dev/null
    remember "$service" MODE=docker "NAME=$name" "$@"
}

# start_process SERVICE ARG… -- KEY=VALUE…
start_process() {
    local service=$1 args=() dir
    shift
    while [ "$1" != -- ]; do args+=("$1") && shift; done
    shift
    # Outside of the checkout, because the service's user must be able to access it.
    dir=$(mktemp -d "${TMPDIR:-/tmp}/garenne-dev-$service-XXXXXX")
    chmod 755 "$dir"
    say "starting $service as a process in $dir"
    RABBITMQ_DEFAULT_USER=guest RABBITMQ_DEFAULT_PASS=guest \
        setsid "$root/deploy/process/$service" start "$dir" "${args[@]}" >"$log_dir/$service.log" 2>&1 </dev/null &
    remember "$service" MODE=process "GROUP=$!" "DIR=$dir" "$@"
}

service_runs() {
    [ -e "$state_dir/$1" ] || return 1
    [ "$(recall "$1" MODE)" = "$mode" ] || return 1
    if [ "$mode" = docker ]; then
        [ "$(docker inspect -f '{{.State.Running}}' "$(recall "$1" NAME)" 2>/dev/null)" = true ]
    else
        our_group "$1"
    fi
}

# Whether the recorded process group is still the server's; ids may be reused after a reboot. The arguments of the
# server's leader contain the folder.
our_group() {
    local group
    group=$(recall "$1" GROUP)
    [ -n "$group" ] && grep -qs "$(recall "$1" DIR)" "/proc/$group/cmdline"
}

service_down() {
    [ -e "$state_dir/$1" ] || return 0
    if [ "$(recall "$1" MODE)" = docker ]; then
        docker rm -f -v "$(recall "$1" NAME)" >/dev/null 2>&1 || true
    else
        if our_group "$1"; then kill -KILL -- "-$(recall "$1" GROUP)" 2>/dev/null || true; fi
        rm -rf "$(recall "$1" DIR)"
    fi
    rm -f "$state_dir/$1"
    say "stopped $1"
}

service_log() {
    if [ "$(recall "$1" MODE)" = docker ]; then docker logs "$(recall "$1" NAME)" 2>&1; else cat "$log_dir/$1.log"; fi
}
# grep -c reads to the end. With -q it would exit early, and the pipe would count as failed.
log_has() { service_log "$1" | grep -c "$2" >/dev/null; }

wait_for_log() {
    wait_until "$3" "$1" log_has "$1" "$2" || die "$1 did not start: $(service_log "$1" | tail -3 | tr '\n' ' ')"
}
