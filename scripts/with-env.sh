#!/bin/sh
# Run a command inside .venv as an activated shell would, with the Java that Spark needs.
#
# PATH and PYSPARK_PYTHON matter: Spark finds Python data sources by asking the interpreter that its
# workers use, and that is plain `python3` from the PATH without PYSPARK_PYTHON.
#
#   scripts/with-env.sh COMMAND...            Java is required
#   scripts/with-env.sh --no-java COMMAND...
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
if [ "${1:-}" = --no-java ]; then
    shift
else
    JAVA_HOME=$("$root/scripts/java.sh")
    export JAVA_HOME
fi
export VIRTUAL_ENV="$root/.venv"
export PATH="$root/.venv/bin:$PATH"
export PYSPARK_PYTHON="$root/.venv/bin/python"
export PYSPARK_DRIVER_PYTHON="$root/.venv/bin/python"
# A Spark of its own elsewhere on the machine must not be taken for the one in .venv.
unset SPARK_HOME PYTHONPATH PYTHONHOME || true
# Images for containers like to set this. Every broker, command and Spark worker that starts would
# then compile its three hundred modules again, which is longer than all else of its start.
unset PYTHONDONTWRITEBYTECODE || true
exec "$@"
