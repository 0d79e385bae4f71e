#!/bin/sh
# Run the data source on the other versions of PySpark that it supports, by hand: each gets
# a virtual environment of its own (400 MB), one broker, and the program below.
#
#   scripts/pyspark_versions.sh [VERSION...]     by default the last of 4.0, 4.1 and 4.2
#
# The environments are kept in $PYSPARK_VENVS (by default a temporary directory, removed at the end).
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh
JAVA_HOME=$(scripts/java.sh)
export JAVA_HOME

if [ -z "${PYSPARK_VENVS:-}" ]; then
    PYSPARK_VENVS=$(mktemp -d)
    trap 'rm -rf "$PYSPARK_VENVS"' EXIT
fi
[ $# -gt 0 ] || set -- 4.0.5 4.1.4 4.2.1

status=0
for version in "$@"; do
    venv=$PYSPARK_VENVS/$version
    if [ ! -e "$venv/.ready" ]; then
        say "PySpark $version: installing into $venv"
        .venv/bin/python -m venv "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
            --editable '.[broker]' "pyspark==$version"
        : >"$venv/.ready"
    fi
    say "PySpark $version: running"
    PATH=$venv/bin:$PATH PYSPARK_PYTHON=$venv/bin/python PYSPARK_DRIVER_PYTHON=$venv/bin/python \
        timeout 300 "$venv/bin/python" -m tests.spark.version_check || status=1
done
exit $status
