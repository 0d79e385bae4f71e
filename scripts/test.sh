#!/bin/sh
# The whole test suite: everything without Spark on two processes, then the Spark tests on as many
# sessions as the machine bears. Both parts run even if the first fails; a part in which no test ran
# is a failure (pytest's status 5, and tests/conftest.py sees to runs in which every test was skipped).
#
#   scripts/test.sh [pytest arguments]
set -u
cd "$(dirname "$0")/.."
. scripts/common.sh

: "${TEST_PROCESSES:=2}"
: "${SPARK_PROCESSES:=2}"
status=0

say "tests without Spark, $TEST_PROCESSES at a time"
python -m pytest -n "$TEST_PROCESSES" --dist worksteal -q -m "not spark" "$@" || status=1

say "tests on a real Spark, $SPARK_PROCESSES sessions at a time"
python -m pytest -n "$SPARK_PROCESSES" --dist loadfile -q -m spark "$@" || status=1

exit $status
