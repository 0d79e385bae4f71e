#!/bin/sh
# Build wheel and sdist into dist/, and try both as a user with only these files would: unit
# tests from the unpacked sdist, and a broker from the wheel in an environment of its own. About a
# minute; most of it is pip's.
#
#   scripts/package.sh [tests to run from the sdist; all unit tests are `tests/unit`]
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

work=$(mktemp -d)
broker=
cleanup() {
    [ -z "$broker" ] || kill "$broker" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

rm -f dist/quiverlog-*.whl dist/quiverlog-*.tar.gz
# Without isolation: the build's tools are those of constraints.txt, already in .venv.
python -m build --no-isolation --outdir dist . >"$work/build.log" 2>&1 || {
    cat "$work/build.log" >&2
    exit 1
}
wheel=$(ls dist/quiverlog-*.whl)
sdist=$(ls dist/quiverlog-*.tar.gz)
say "$wheel and $sdist"

say "tests from the sdist"
tar -xzf "$sdist" -C "$work"
tests=${*:-tests/unit/test_package.py tests/unit/test_docs.py tests/unit/test_limits_docs.py tests/unit/core/partition/test_partition.py tests/unit/test_vectors.py}
# The sdist's packages come before those of the clone, and pytest sees no other files.
(
    cd "$work/$(basename "$sdist" .tar.gz)"
    # shellcheck disable=SC2086
    PYTHONPATH=broker:connector:demo python -m pytest -q -p no:cacheprovider $tests
)

say "a broker from the wheel"
python -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt "$wheel[broker]"
PATH=$work/venv/bin:$PATH
export PATH
cd "$work"  # nothing of the clone is in reach
quiverlog broker --data-dir data --listen 127.0.0.1:0 --http-listen 127.0.0.1:0 >ready 2>broker.log &
broker=$!
tries=0
until grep -q ready: ready; do
    tries=$((tries + 1))
    if [ "$tries" -gt 200 ] || ! kill -0 "$broker" 2>/dev/null; then
        cat broker.log >&2
        exit 1
    fi
    sleep 0.1
done
address=$(sed -n 's/.*clients \([0-9.:]*\).*/\1/p' ready)
printf 'carrier,delay\nUA,2.5\n' >rows.csv
quiverlog produce rows.csv --topic t --create --bootstrap-server "$address"
quiverlog consume t --format json --bootstrap-server "$address"
quiverlog docs getting-started | head -1
kill "$broker"
wait "$broker"
broker=
say "the package is whole"
