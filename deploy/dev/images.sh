# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034  # variables are shared between the parts that ./dev sources
# Container images, with or without a registry. This file is only sourced; it needs an engine.

# The RabbitMQ series of Debian's stable release. 3.10 is out of support, and 4.3 is in Debian's testing suite, which
# changes.
default_rabbitmq=4.0
# Those that Debian's packages provide, too.
supported_rabbitmq=3.10,4.0,4.3

# RabbitMQ series → the Debian suite that packages it.
suite_of() {
    case $1 in
        3.10) echo bookworm ;;
        4.0) echo trixie ;;
        4.3) echo forky ;;
        *) return 1 ;;
    esac
}

have_image() { docker image inspect "$1" >/dev/null 2>&1; }

# rabbitmq_image VERSION, postgres_image, prometheus_image, mosquitto_image: set `image` to a name that exists locally.
rabbitmq_image() {
    image=garenne/rabbitmq:$1-management
    have_image "$image" && return
    official_image "rabbitmq:$1-management" && return
    image=garenne/rabbitmq:$1-management
    local suite
    suite=$(suite_of "$1") ||
        die "RabbitMQ $1: no registry answers, and only 3.10, 4.0 and 4.3 can be built from Debian's packages"
    build_image rabbitmq "$image" "$suite"
    local got
    got=$(docker run --rm --entrypoint dpkg-query "$image" -W -f '${Version}' rabbitmq-server)
    case $got in
        "$1".*) say "built $image (RabbitMQ $got)" ;;
        *)
            docker image rm "$image" >/dev/null
            die "Debian $suite now carries RabbitMQ $got instead of $1: change suite_of in deploy/dev/images.sh"
            ;;
    esac
}
postgres_image() {
    image=garenne/postgres:17
    have_image "$image" && return
    official_image postgres:17 && return
    image=garenne/postgres:17
    build_image postgres "$image" trixie
    say "built $image"
}

prometheus_image() {
    image=garenne/prometheus:trixie
    have_image "$image" && return
    official_image prom/prometheus:v3.5.0 && return
    image=garenne/prometheus:trixie
    build_image prometheus "$image" trixie
    say "built $image"
}

mosquitto_image() {
    image=garenne/mosquitto:trixie
    have_image "$image" && return
    official_image eclipse-mosquitto:2 && return
    image=garenne/mosquitto:trixie
    build_image mosquitto "$image" trixie
    say "built $image"
}

# rust_image, base_image: for deploy/Dockerfile's stages.
rust_image() {
    local version sysroot container
    version=$(rustc --version | sed -E 's/^rustc ([0-9]+\.[0-9]+).*/\1/')
    image=garenne/rust:$version-trixie
    have_image "$image" && return
    official_image "rust:$version-trixie" && return
    image=garenne/rust:$version-trixie
    sysroot=$(rustc --print sysroot)
    [ "$sysroot" != /usr ] || die "no registry, and Rust is not from rustup: its toolchain cannot be copied into an image"
    build_image rust "$image.cc" trixie
    say "copying Rust $version into $image"
    container=$(docker create "$image.cc")
    tar -C "$sysroot" --exclude ./share --exclude ./lib/rustlib/src --owner 0 --group 0 -c . |
        docker cp - "$container:/usr/local"
    docker commit "$container" "$image" >/dev/null
    docker rm "$container" >/dev/null
    docker rmi "$image.cc" >/dev/null
}
base_image() {
    image=garenne/debian:trixie-slim
    have_image "$image" && return
    official_image debian:trixie-slim && return
    image=garenne/debian:trixie-slim
    debian_image trixie
}

# Whether programs that this machine links run in the base image: its glibc is not older.
runs_in_base_image() {
    local here there
    base_image || return 1
    here=$(getconf GNU_LIBC_VERSION) there=$(docker run --rm "$image" getconf GNU_LIBC_VERSION) || return 1
    [ "$(printf '%s\n' "$here" "$there" | sort -V | tail -1)" = "$there" ]
}

# official_image NAME: sets `image` if the official image exists locally or can be pulled. A registry that does not
# answer within ten seconds is considered unavailable for the rest of this run.
official_image() {
    image=$1
    have_image "$image" && return
    [ -z "${no_registry:-}" ] || return 1
    local log=$log_dir/pull.log pull
    say "pulling $image"
    timeout 600 docker pull "$image" >"$log" 2>&1 </dev/null &
    pull=$!
    if alive=$pull wait_until 10 "the registry's answer" grep -qE 'Pulling (from|fs layer)|Downloaded|up to date' "$log"; then
        wait "$pull" && return
    else
        kill "$pull" 2>/dev/null || true
        wait "$pull" 2>/dev/null || true
    fi
    ! have_image "$image" || return 0
    no_registry=1
    say "no registry ($(tail -1 "$log" | cut -c1-120)): building images from Debian's packages"
    return 1
}

# build_image FOLDER NAME SUITE
build_image() {
    debian_image "$3"
    say "building $2 on Debian $3"
    # With the host's network, so that a mirror behind a local proxy or host name can be reached.
    docker build --network host --build-arg "BASE=garenne/debian:$3-slim" -t "$2" "$root/deploy/images/$1" \
        >"$log_dir/build-$1.log" 2>&1 ||
        die "building $2 failed: $(grep -E '^(E:|ERROR|failed)|returned a non-zero' "$log_dir/build-$1.log" | tail -1); see $log_dir/build-$1.log"
}

# The Debian mirror that apt uses on this machine.
debian_mirror() {
    local mirror
    # shellcheck disable=SC2016  # apt's own placeholders
    # Labels are only known after package lists were downloaded; otherwise the address is sufficient.
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(LABEL)' 'Created-By: Packages' 2>/dev/null |
        awk '$2 == "Debian" || (NF == 1 && $1 ~ "/debian/?$") { print $1; exit }')
    echo "${mirror:-http://deb.debian.org/debian}"
}

# debian_image SUITE: builds a minimal base image from apt's mirror and proxy on this machine, with this machine's CA
# certificates. The image contains the mirror's address, so it must not be published.
debian_image() {
    local suite=$1 name=garenne/debian:$1-slim log=$log_dir/debian-$1.log mirror proxy bundle options=()
    have_image "$name" && return
    demand "building images without a registry" mmdebstrap
    mirror=$(debian_mirror)
    for proxy in http https; do
        local value
        value=$(apt-config shell value "Acquire::$proxy::Proxy" | sed "s/^value='\(.*\)'$/\1/")
        [ -z "$value" ] || options+=("--aptopt=Acquire::$proxy::Proxy \"$value\"")
    done
    bundle=/etc/ssl/certs/ca-certificates.crt
    [ ! -s "$bundle" ] || options+=("--customize-hook=upload $bundle $bundle")
    is_root || options+=(--mode=unshare)
    # The index of testing is valid for a week, and some mirrors are updated less often. Three months are acceptable for
    # a test image; signatures are still checked.
    options+=('--aptopt=Acquire::Min-ValidTime "7776000"')
    # As in Debian's official images: packages are installed without waiting for the disk, and without translations.
    options+=(--dpkgopt=force-unsafe-io '--aptopt=Acquire::Languages "none"')
    say "making a Debian $suite base image from $mirror"
    mmdebstrap --variant=minbase --include=ca-certificates "${options[@]}" \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        "$suite" - "$mirror" 2>"$log" | docker import -c 'CMD ["bash"]' - "$name.new" >>"$log" 2>&1 || {
        docker rmi "$name.new" >/dev/null 2>&1 || true
        die "cannot bootstrap Debian $suite from $mirror: $(grep -E '^E:' "$log" | head -1); see $log"
    }
    # Tagged only when complete, so that an interrupted run leaves no broken base image.
    docker tag "$name.new" "$name"
    docker rmi "$name.new" >/dev/null
}
