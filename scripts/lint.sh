#!/bin/sh
# Every check that needs neither Java nor a running broker. All of them run; one failure fails the lot.
set -u
cd "$(dirname "$0")/.."
. scripts/common.sh

status=0
check() {
    say "$*"
    "$@" || status=1
}

check ruff check .
check ruff format --check .
check mypy
check lint-imports
check python -m pytest -q -p no:cacheprovider tests/unit/test_tidy.py
exit $status
