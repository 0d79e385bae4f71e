#!/bin/sh
# Work constraints.txt out again: the versions of everything that pyproject.toml asks for, with every
# extra, on every Python and system that quiverlog supports. And of these, with the hashes of their
# files, what the image installs (requirements-image.txt) and what builds the package in it
# (requirements-build.txt). Needs uv; see docs/adr/0062.
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
trap 'rm -f "$lock" "$lock.in" "$lock.hashes"' EXIT
cp constraints.txt "$lock" 2>/dev/null || true
uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-annotate --no-header \
    --no-emit-index-url --no-emit-package quiverlog "$@" pyproject.toml --output-file "$lock" >/dev/null
{
    printf '%s\n' "$HEAD"
    grep -v '^#' "$lock"
} >constraints.txt

# with_hashes FILE WHAT uv's arguments: versions are those of constraints.txt.
with_hashes() {
    file=$1 what=$2
    shift 2
    uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header \
        --no-emit-index-url --no-emit-package quiverlog --generate-hashes \
        --constraint constraints.txt "$@" --output-file "$lock.hashes" >/dev/null
    {
        printf '# %s, with hashes; made by scripts/lock.sh from constraints.txt.\n' "$what"
        cat "$lock.hashes"
    } >"$file"
    rm "$lock.hashes"
}
with_hashes requirements-image.txt "What the image has besides quiverlog" \
    --extra broker pyproject.toml
python3 -c 'import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' >"$lock.in"
with_hashes requirements-build.txt "What builds quiverlog's package in the image" "$lock.in"
say "constraints.txt: $(grep -vc '^#' constraints.txt) packages"
