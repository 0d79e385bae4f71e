#!/bin/sh
# The tests before a commit: everything without Spark on three processes (on two processors, as much of it is
# waiting), then the Spark tests on as many sessions as the machine bears, then what needs a Docker engine.
# With --long, the others: more of each kind (marked `long`). Together they are all.
# All parts run even if one fails; a part in which no test ran is a failure (pytest's status 5, and
# tests/conftest.py sees to runs in which every test was skipped). With arguments, which choose tests, one
# part with a test is enough. Where no engine can run, the last part is left out, and the last line reports it.
# In CI, a few tests that failed are tried once more alone (test_again.sh).
#
#   scripts/test.sh [--long] [pytest arguments]
set -u
cd "$(dirname "$0")/.."
. scripts/common.sh

tier="not long"
if [ "${1:-}" = --long ]; then
    tier=long
    shift
fi

: "${TEST_PROCESSES:=3}"
: "${SPARK_PROCESSES:=2}"
failed=
broken=
left_out=
chosen=$#    # how many arguments: with none of them, every part must have tests
some_ran=

# Tests create and fsync small files by the ten thousand: milliseconds each on a disk, microseconds
# in memory. What an fsync is worth is the matter of the simulated disks; tests that need a real one
# take it (tests/support/places.py). A file system in memory that is small (a container has 64 MB)
# is left alone.
MEMORY=/dev/shm
MEMORY_KB_MIN=4000000
in_memory() {
    df -Pk "$MEMORY" 2>/dev/null |
        awk -v at="$MEMORY" -v min="$MEMORY_KB_MIN" '$6 == at && $4 > min { yes = 1 } END { exit !yes }'
}
may_run_programs() {
    printf '#!/bin/sh\n' >"$1/program" && chmod +x "$1/program" && "$1/program" 2>/dev/null
}
files=
left=$(mktemp)    # how many tests of the other tier there are (tests/conftest.py)
trap 'rm -rf "$left" ${files:+"$files"}' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [ -z "${TMPDIR:-}" ] && [ -w "$MEMORY" ] && in_memory; then
    files=$(mktemp -d "$MEMORY/quiverlog-tests.XXXXXX")
    if may_run_programs "$files"; then
        export TMPDIR="$files"
    fi
fi

# pytest ends with 1 when tests failed, with 5 when there were none, and with another status when it could
# not do its work.
NO_TESTS=5
judge() {
    [ "$1" -eq $NO_TESTS ] || some_ran=1
    case $1 in
    0) ;;
    1) failed=1 ;;
    $NO_TESTS) [ "$chosen" -gt 0 ] || broken=1 ;;
    *) broken=1 ;;
    esac
}

part() {
    python -m pytest -q "$@"
    judge $?
}

# 69: there is no engine, and none can be started (containers.sh).
containers_part() {
    # Without an image and an engine, unless they are needed.
    if [ "$chosen" -gt 0 ]; then
        python -m pytest -q -m "$tier and containers" --collect-only "$@" >/dev/null
        status=$?
        if [ "$status" -eq $NO_TESTS ]; then
            judge $NO_TESTS
            return
        fi
    fi
    # An engine has its own ways with disks: nothing of it belongs into memory.
    [ -z "$files" ] || unset TMPDIR
    scripts/containers.sh python -m pytest -q -m "$tier and containers" "${@:-tests/containers}"
    status=$?
    if [ "$status" = 69 ]; then
        left_out=1
    else
        judge "$status"
    fi
}

say "tests without Spark, $TEST_PROCESSES at a time"
export QUIVERLOG_TEST_LEFT="$left"
part -n "$TEST_PROCESSES" --dist worksteal -m "$tier and not spark and not containers" "$@"
unset QUIVERLOG_TEST_LEFT

# They are all in one place (test_tidy looks), so that nothing else has to be imported for them.
say "tests on a real Spark, $SPARK_PROCESSES sessions at a time"
# One by one, the long ones first: dealt out in halves, one session ends a minute before the other.
part -n "$SPARK_PROCESSES" --dist load --maxschedchunk 1 -m "$tier and spark" "${@:-tests/spark}"

say "tests on containers"
containers_part "$@"

[ "$tier" = long ] || [ ! -s "$left" ] || say "$(cat "$left") more tests are left to make test-long"
[ -z "$left_out" ] || say "LEFT OUT: all tests on containers, because no Docker engine can run here"
[ -n "$some_ran" ] || say "no test ran"
[ -n "$some_ran" ] && [ -z "$broken" ] || exit 2
[ -z "$failed" ] && exit 0
[ "${CI:-}" = true ] || exit 1
scripts/test_again.sh
