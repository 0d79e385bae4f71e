#!/bin/sh
# Build the web site of docs/ into site/; see mkdocs.yml. tests/unit/test_site.py holds the docstrings
# of its reference to what their parser reads without a warning.
#
#   scripts/site.sh            build; fails where a page or an anchor that is linked does not exist
#   scripts/site.sh serve      build, serve on this machine, and read every change in build/site-docs
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

python scripts/site.py build/site-docs
case "${1:-build}" in
serve) exec zensical serve ;;
build) ;;
*)
    say "site.sh takes build or serve"
    exit 2
    ;;
esac
NO_COLOR=1 zensical build --clean --strict
say "site/index.html: $(find site -name '*.html' | wc -l) pages"
