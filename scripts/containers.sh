#!/bin/sh
# Run a command beside a Docker engine, with the project's image built: the tests on containers need both.
#
#   scripts/containers.sh COMMAND...    e.g. scripts/containers.sh python -m pytest -m containers
#
# COMMAND finds the image's id in QUIVERLOG_TEST_IMAGE, and the engine in DOCKER_HOST or at its usual
# socket. An engine that runs already is used and left alone. Elsewhere, as root on Debian, the engine is
# installed and started here, and ended when the last command that uses it is done.
#
# The base is what the Dockerfile names, where that image is here or QUIVERLOG_TEST_BASE names another.
# On Debian one is made from the machine's own mirror instead, so that no registry is needed; it stays
# for the next time. Status 69 (EX_UNAVAILABLE): no engine can run here, and COMMAND was not run.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

UNAVAILABLE=69
ENGINE_S_MAX=60
STATE=/run/quiverlog-engine    # of the engine that this script has started, for all checkouts
WHEELS=build/wheels

unavailable() {
    say "$*"
    exit $UNAVAILABLE
}

engine_answers() {
    command -v docker >/dev/null 2>&1 && docker version >/dev/null 2>&1
}

install_missing() {
    set -- docker.io:dockerd mmdebstrap:mmdebstrap docker-compose:docker-compose
    packages=
    for pair in "$@"; do
        command -v "${pair#*:}" >/dev/null 2>&1 || packages="$packages ${pair%%:*}"
    done
    [ -n "$packages" ] || return 0
    # shellcheck disable=SC2086 # a list of names
    apt_refresh_once && apt_install $packages
}

# --- the engine ------------------------------------------------------------------------------------
# Whoever uses the engine holds the lock shared; the one that gets it alone may start or end it.
start_engine() {
    may_apt || unavailable "no Docker engine answers, and only root on Debian can start one here"
    install_missing || unavailable "Debian's docker.io could not be installed"
    mkdir -p "$STATE"
    exec 9>"$STATE/lock"
    flock 9
    if ! engine_answers; then
        say "starting dockerd (its log: $STATE/log)"
        setsid dockerd --pidfile "$STATE/pid" >"$STATE/log" 2>&1 9>&- </dev/null &
        engine=$!
        waited=0
        until engine_answers; do
            if ! kill -0 "$engine" 2>/dev/null || [ "$waited" -ge $((ENGINE_S_MAX * 10)) ]; then
                tail -5 "$STATE/log" >&2
                kill "$engine" 2>/dev/null || true
                unavailable "dockerd does not start"
            fi
            sleep 0.1
            waited=$((waited + 1))
        done
    fi
    flock -s 9
}

# Only the engine that this script has started, and only when no other program uses it.
end_engine() {
    [ -e "$STATE/pid" ] || return 0
    flock -u 9
    flock -n 9 || return 0
    left=$(docker ps -aq --filter label=quiverlog.test)
    # shellcheck disable=SC2086 # a list of ids
    [ -z "$left" ] || docker rm -f -v $left >/dev/null
    engine=$(cat "$STATE/pid")
    kill "$engine" 2>/dev/null || return 0
    waited=0
    while kill -0 "$engine" 2>/dev/null && [ "$waited" -lt $((ENGINE_S_MAX * 10)) ]; do
        sleep 0.1
        waited=$((waited + 1))
    done
    rm -f "$STATE/pid"
}

# --- the image -------------------------------------------------------------------------------------
has_image() {
    docker image inspect "$1" >/dev/null 2>&1
}

# Debian's own Python and what wheels link to, of the release and from the mirror of this machine.
make_base() {
    has_image "$1" && return 0
    mirror=$(apt-get indextargets --format '$(REPO_URI)' \
        'Created-By: Packages' 'Component: main' "Codename: $2" | head -n 1)
    [ -n "$mirror" ] || unavailable "apt knows no mirror of $2 (run apt-get update)"
    say "making the base image $1"
    scratch=$(mktemp -d)
    # Not in a directory of this user alone: apt fetches as another one.
    env -u TMPDIR mmdebstrap --quiet --variant=essential --include=python3-venv,libstdc++6,tzdata \
        --aptopt='Acquire::Retries "3"' --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        "$2" "$scratch/base.tar" "$mirror" >&2 || unavailable "mmdebstrap has failed"
    docker import "$scratch/base.tar" "$1" >/dev/null
    rm -r "$scratch"
}

build_image() {
    set -- --quiet --label quiverlog.test=image --tag "quiverlog:test-$(pwd | cksum | cut -d ' ' -f 1)"
    if [ -n "${QUIVERLOG_TEST_BASE:-}" ]; then
        set -- "$@" --build-arg BASE="$QUIVERLOG_TEST_BASE"
    elif may_apt && [ "$(. /etc/os-release && echo "$ID")" = debian ] &&
        ! has_image "$(sed -n 's/^ARG BASE=//p' Dockerfile)"; then
        install_missing || unavailable "Debian's mmdebstrap could not be installed"
        release=$(. /etc/os-release && echo "$VERSION_CODENAME")
        base=quiverlog-base:$release-1
        make_base "$base" "$release"
        # pip in a container may have no way out: it takes what the host has downloaded.
        python scripts/download_wheels.py "$WHEELS" "$(docker run --rm "$base" python3 -c \
            'import sys; print("%d.%d" % sys.version_info[:2])')" >&2
        set -- "$@" --build-arg BASE="$base" \
            --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels
    fi
    say "building the image"
    docker build "$@" .
}

# --- all of it -------------------------------------------------------------------------------------
if [ -e "$STATE/pid" ] || ! engine_answers; then
    trap end_engine EXIT
    trap 'exit 130' INT TERM HUP
    start_engine
fi
QUIVERLOG_TEST_IMAGE=$(build_image)
export QUIVERLOG_TEST_IMAGE TESTCONTAINERS_RYUK_DISABLED=true
"$@" 9>&-
