# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034  # variables are shared between the parts that ./dev sources
# Decides whether servers run in containers. This file is only sourced.

# Sets `mode` to docker or process. As root, it tries once to get an engine: it installs Debian's docker.io if there is
# none, and starts its daemon if it does not run.
choose_mode() {
    [ -z "${mode:-}" ] || return 0
    if [ -n "${GARENNE_NO_DOCKER:-}" ]; then
        mode=process mode_reason="GARENNE_NO_DOCKER is set"
    elif engine_answers; then
        mode=docker mode_reason="a Docker engine answers"
    elif get_engine; then
        mode=docker mode_reason="a Docker engine was started"
    else
        mode=process
        warn "no Docker engine ($mode_reason): using plain processes instead of containers"
    fi
}

engine_answers() { have docker && timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

get_engine() {
    mode_reason="none runs and this is not root"
    if ! is_root; then
        if have docker && [ -S /var/run/docker.sock ]; then
            mode_reason="this user may not use /var/run/docker.sock; 'sudo usermod -aG docker $USER' allows it"
        fi
        return 1
    fi
    if [ -n "${DOCKER_HOST:-}" ]; then
        mode_reason="nothing answers at DOCKER_HOST=$DOCKER_HOST"
        return 1
    fi
    mode_reason="docker.io could not be installed"
    have dockerd || require "containers" docker.io || return 1
    # Since trixie the client is a separate package.
    have docker || require "containers" docker-cli || return 1
    say "starting dockerd"
    # In a new session, so that Ctrl-C does not stop all containers of the machine.
    setsid nohup dockerd >"$log_dir/dockerd.log" 2>&1 </dev/null &
    if alive=$! wait_until 30 dockerd engine_answers; then return 0; fi
    mode_reason="dockerd does not start here, see $log_dir/dockerd.log"
    return 1
}

# Puts a docker client that can build with BuildKit first in PATH. Newer clients need a plugin for it, older ones have it
# built in, and a machine may have both.
need_buildkit() {
    export DOCKER_BUILDKIT=1 COMPOSE_DOCKER_CLI_BUILD=1
    local client probe
    while read -r client; do
        if probe=$(printf 'FROM scratch\nLABEL probe=buildkit\n' | "$client" build -q - 2>/dev/null); then
            docker rmi "$probe" >/dev/null 2>&1 || true
            PATH=$(dirname "$client"):$PATH
            return
        fi
    done < <(type -ap docker)
    demand "building with BuildKit" docker-buildx
}

# Sets `compose` to the command of Compose v2: the client's plugin or the program. If this machine has neither, the program
# is unpacked from Debian's stable release, because older releases have version 1 only.
get_compose() {
    local candidate unpacked=$dev_dir/compose
    for candidate in "docker compose" docker-compose "$unpacked/docker-compose"; do
        read -ra compose <<<"$candidate"
        case $("${compose[@]}" version --short 2>/dev/null) in
            "" | 1.*) ;;
            *) return 0 ;;
        esac
    done
    have apt-get && have dpkg-deb || return 1
    say "unpacking Compose v2 from Debian's packages"
    rm -rf "$unpacked"
    mkdir -p "$unpacked"/{lists,archives}/partial
    echo "deb $(debian_mirror) $(suite_of "$default_rabbitmq") main" >"$unpacked/sources.list"
    # Lists of its own, so that this system's packages stay at their release. As root, apt switches to its own user, which
    # may not write here.
    local options=(-o "Dir::Etc::SourceList=$unpacked/sources.list" -o Dir::Etc::SourceParts=- -o APT::Sandbox::User=root
        -o "Dir::State::Lists=$unpacked/lists" -o "Dir::Cache=$unpacked" -o Acquire::Languages=none
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false)
    (cd "$unpacked" && apt_get "${options[@]}" update && apt_get "${options[@]}" download docker-compose) \
        >"$log_dir/compose.log" 2>&1 || return 1
    dpkg-deb --fsys-tarfile "$unpacked"/docker-compose_*.deb |
        tar -x -C "$unpacked" --strip-components 5 ./usr/libexec/docker/cli-plugins/docker-compose || return 1
    rm -rf "$unpacked"/{lists,archives,sources.list} "$unpacked"/*.deb
    "${compose[@]}" version --short >/dev/null
}
