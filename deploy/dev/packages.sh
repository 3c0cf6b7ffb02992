# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034  # variables are shared between the parts that ./dev sources
# Installs the Debian packages that a step needs, as root, or names them. This file is only sourced.

# require WHY PACKAGE…: makes sure that the packages are installed. `demand` exits if they are not.
demand() { severity=error require "$@" || exit 1; }
require() {
    local why=$1 missing=() package
    shift
    for package in "$@"; do installed "$package" || missing+=("$package"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! have apt-get; then
        warn "$why needs the equivalent of Debian's packages: ${missing[*]}"
        return 1
    fi
    if ! is_root; then
        warn "$why needs packages: run 'sudo apt-get install --no-install-recommends ${missing[*]}', or ./dev as root"
        return 1
    fi
    say "installing for $why: ${missing[*]}"
    apt_install "${missing[@]}"
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

apt_install() {
    local log=$log_dir/apt.log policy=/usr/sbin/policy-rc.d own_policy="" rc=0
    # Packages must not start services, because ./dev runs the servers with its own ports and folders.
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' > "$policy"
        chmod +x "$policy"
        own_policy=1
    fi
    # An update may fail because of another repository of this machine that is not needed here.
    {
        apt_get install "$@" || { apt_get update || true; apt_get install "$@"; }
    } >"$log" 2>&1 || rc=$?
    [ -z "$own_policy" ] || rm -f "$policy"
    if [ $rc != 0 ]; then
        warn "apt could not install $*: $(grep -E '^E:' "$log" | head -1); the whole output is in $log"
        return 1
    fi
    # The services must not start at the next boot either.
    if have systemctl; then
        local service
        for service in rabbitmq-server postgresql docker containerd; do
            case " $* " in
                *" $service"*) systemctl --quiet disable "$service.service" "$service.socket" >/dev/null 2>&1 || true ;;
            esac
        done
    fi
}

apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -y -q --no-install-recommends \
        -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" </dev/null
}

require_rust() {
    have cargo || die "cargo is missing: install Rust from https://rustup.rs, then run this again"
    # rustc links with cc, and the TLS library compiles C.
    have cc || demand "linking" gcc libc6-dev
}
