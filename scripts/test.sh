#!/bin/sh
# The whole test suite: everything without Spark on two processes, then the Spark tests on as many
# sessions as the machine bears. Both parts run even if the first fails; a part in which no test ran
# is a failure (pytest's status 5, and tests/conftest.py sees to runs in which every test was skipped).
# In CI, a few tests that failed are tried once more alone (test_again.sh).
#
#   scripts/test.sh [pytest arguments]
set -u
cd "$(dirname "$0")/.."
. scripts/common.sh

: "${TEST_PROCESSES:=2}"
: "${SPARK_PROCESSES:=2}"
failed=
broken=

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
if [ -z "${TMPDIR:-}" ] && [ -w "$MEMORY" ] && in_memory; then
    TMPDIR=$(mktemp -d "$MEMORY/quiverlog-tests.XXXXXX")
    export TMPDIR
    trap 'rm -rf "$TMPDIR"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
fi

# pytest ends with 1 when tests failed, and with another status when it could not do its work.
part() {
    python -m pytest -q "$@"
    case $? in
    0) ;;
    1) failed=1 ;;
    *) broken=1 ;;
    esac
}

say "tests without Spark, $TEST_PROCESSES at a time"
part -n "$TEST_PROCESSES" --dist worksteal -m "not spark" "$@"

# They are all in one place (test_tidy looks), so that nothing else has to be imported for them.
say "tests on a real Spark, $SPARK_PROCESSES sessions at a time"
part -n "$SPARK_PROCESSES" --dist loadfile -m spark "${@:-tests/spark}"

[ -z "$broken" ] || exit 2
[ -z "$failed" ] && exit 0
[ "${CI:-}" = true ] || exit 1
scripts/test_again.sh
