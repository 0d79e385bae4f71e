#!/bin/sh
# Work constraints.txt out again: the versions of everything that pyproject.toml asks for, with every
# extra, on every Python and system that quiverlog supports. Needs uv; see docs/adr/0062.
#
#   scripts/lock.sh                  keep the versions that are there, add what is new
#   scripts/lock.sh --upgrade        take the newest of all
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

if ! command -v uv >/dev/null 2>&1; then
    say "this needs uv: pip install uv"
    exit 1
fi
HEAD='# The versions that quiverlog is tested with; made by scripts/lock.sh, read by pip and by uv.'
lock=$(mktemp)
trap 'rm -f "$lock"' EXIT
cp constraints.txt "$lock" 2>/dev/null || true
uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-annotate --no-header \
    --no-emit-index-url --no-emit-package quiverlog "$@" pyproject.toml --output-file "$lock" >/dev/null
{
    printf '%s\n' "$HEAD"
    grep -v '^#' "$lock"
} >constraints.txt
say "constraints.txt: $(grep -vc '^#' constraints.txt) packages"
