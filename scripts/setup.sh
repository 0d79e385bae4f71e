#!/bin/sh
# Make .venv ready: create it when it is missing, install into it when pyproject.toml's dependencies
# have changed since the last time. A run with nothing to do takes a fraction of a second.
#
#   scripts/setup.sh [--java]    with --java, see to Java first: no minutes of downloads before a refusal
#
# PYTHON=/path/to/python picks the interpreter; otherwise the first of python3, python3.13, python3.12
# and python3.11 that runs, is 3.11 or newer, and can make virtual environments.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

VENV=.venv
STAMP=$VENV/.installed

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
        printf '%s\n' python3 python3.13 python3.12 python3.11 /usr/bin/python3
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

# What an installation depends on: where it lies, and all of pyproject.toml above the tools' settings.
fingerprint() {
    pwd
    sed '/^\[tool\.ruff\]/,$d' pyproject.toml
}

if [ "${1:-}" = --java ]; then
    scripts/java.sh --install >/dev/null
fi

if [ -e "$STAMP" ] && is_new_enough "$VENV/bin/python" && fingerprint | cmp -s - "$STAMP"; then
    exit 0
fi
if ! is_new_enough "$VENV/bin/python"; then
    python=$(find_python)
    say "creating $VENV with $("$python" --version 2>&1)"
    "$python" -m venv --clear "$VENV"
fi
say "installing into $VENV (the first time takes some minutes: PySpark alone is over 400 MB)"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
fingerprint >"$STAMP.new"
mv "$STAMP.new" "$STAMP"
say "ready"
