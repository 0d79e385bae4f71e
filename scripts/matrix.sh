#!/bin/sh
# The tests without Spark on every Python from 3.11 to 3.14 that this machine has, each in an
# environment of its own under .matrix/. A version that is missing is named and left out; the last
# lines give the result of each.
#
#   scripts/matrix.sh [pytest arguments]         default: tests/unit tests/model
#   VERSIONS="3.12 3.13" scripts/matrix.sh
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

: "${VERSIONS:=3.11 3.12 3.13 3.14}"
: "${TEST_PROCESSES:=2}"
[ $# -gt 0 ] || set -- tests/unit tests/model

is_version() {
    "$1" -c "import sys, venv; raise SystemExit('%d.%d' % sys.version_info[:2] != '$2')" >/dev/null 2>&1
}

# On the PATH, among pyenv's, or where uv keeps its own.
find_version() {
    for candidate in "python$1" python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python3; do
        if is_version "$candidate" "$1"; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    command -v uv >/dev/null 2>&1 && uv python find --no-python-downloads "$1" 2>/dev/null
}

report=
failed=0
for version in $VERSIONS; do
    if ! python=$(find_version "$version"); then
        report="$report$version  not on this machine
"
        continue
    fi
    venv=.matrix/$version
    "$python" -c 'import sys; print("quiverlog:", sys.version.split()[0], sys.executable)' >&2
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint constraints.txt --editable '.[dev]'; then
        report="$report$version  could not be installed
"
        failed=1
        continue
    fi
    if PATH="$PWD/$venv/bin:$PATH" "$venv/bin/python" -m pytest -q -n "$TEST_PROCESSES" --dist worksteal \
        -m "not spark" -p no:cacheprovider "$@"; then
        report="$report$version  passed
"
    else
        report="$report$version  FAILED
"
        failed=1
    fi
done
printf '\n%s' "$report"
exit $failed
