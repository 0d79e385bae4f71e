#!/bin/sh
# Make .venv ready: create it when it is missing, install into it when pyproject.toml's dependencies
# have changed since the last time. A run with nothing to do takes a fraction of a second.
#
#   scripts/setup.sh [--java] [demo | docs | dev]
#
# `demo` is what the demo runs on, `docs` what builds the site, `dev` all of it and what tests and
# checks need. With --java, see to Java first: no minutes of downloads before a refusal.
#
# Versions are those of constraints.txt, and uv installs them where it is there (docs/adr/0062).
# PYTHON=/path/to/python picks the interpreter; otherwise the first of python3, python3.14 ...
# python3.11 that runs, is 3.11 or newer, and can make virtual environments.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

VENV=.venv

# A name on the PATH proves nothing (a pyenv shim may stand for a version that is not active): run it.
is_new_enough() {
    "$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

can_make_venvs() {
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

candidates() {
    if [ -n "${PYTHON:-}" ]; then
        printf '%s\n' "$PYTHON"
    else
        printf '%s\n' python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3
    fi
}

find_python() {
    second_best=
    for candidate in $(candidates); do
        is_new_enough "$candidate" || continue
        if can_make_venvs "$candidate"; then
            printf '%s\n' "$candidate"
            return 0
        fi
        [ -n "$second_best" ] || second_best=$candidate
    done
    if [ -z "$second_best" ]; then
        say "no Python 3.11 or newer: looked for $(candidates | tr '\n' ' ')"
        say "install one (apt: python3, dnf: python3.12, brew: python@3.12) or name it: make PYTHON=/path/to/python ..."
        return 1
    fi
    package=$("$second_best" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if may_apt; then
        say "$second_best cannot make virtual environments yet"
        apt_refresh_once || true
        apt_install "$package" || apt_install python3-venv || true
        if can_make_venvs "$second_best"; then
            printf '%s\n' "$second_best"
            return 0
        fi
    fi
    say "$second_best cannot make virtual environments; on Debian or Ubuntu type: sudo apt-get install -y $package"
    return 1
}

# What an installation depends on: where it lies, all of pyproject.toml above the tools' settings, and
# the versions.
fingerprint() {
    pwd
    sed '/^\[tool\.ruff\]/,$d' pyproject.toml
    cat constraints.txt
}

is_installed() {
    [ -e "$VENV/.installed-$1" ] && fingerprint | cmp -s - "$VENV/.installed-$1"
}

install() {
    if command -v uv >/dev/null 2>&1; then
        uv pip install --quiet --python "$VENV/bin/python" --constraint constraints.txt --editable "$1"
    else
        "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
            --constraint constraints.txt --editable "$1"
    fi
}

if [ "${1:-}" = --java ]; then
    scripts/java.sh --install >/dev/null
    shift
fi
set=${1:-dev}
case $set in
demo) wanted='.[broker,spark,demo]' ;;
docs | dev) wanted=".[$set]" ;;
*)
    say "there is no set '$set': demo, docs or dev"
    exit 2
    ;;
esac

if is_new_enough "$VENV/bin/python" && { is_installed "$set" || is_installed dev; }; then
    exit 0
fi
if ! is_new_enough "$VENV/bin/python"; then
    python=$(find_python)
    say "creating $VENV with $("$python" --version 2>&1)"
    "$python" -m venv --clear "$VENV"
fi
say "installing $wanted into $VENV (the first time takes minutes where PySpark is wanted: over 400 MB)"
install "$wanted"
fingerprint >"$VENV/.installed-new"
mv "$VENV/.installed-new" "$VENV/.installed-$set"
say "ready"
