#!/bin/sh
# Find a Java that Spark can use (17 or newer) and print its home directory.
#
#   scripts/java.sh            print the home of a good Java, or fail with what to type
#   scripts/java.sh --install  the same, but install a headless JRE first where that is allowed
#                              (as root on Debian or Ubuntu); elsewhere stop at once
#
# JAVA_HOME is honoured when it points at a good Java and passed over, with a word, when it does not:
# Spark itself would follow a stale JAVA_HOME into an error that names neither.
set -eu
. "$(dirname "$0")/common.sh"

JAVA_MIN=17

# Prints "<major> <home>" of the java binary in $1, nothing when it cannot be run.
probe() {
    [ -x "$1" ] || return 0
    "$1" -XshowSettings:properties -version 2>&1 | awk -F' = ' '
        $1 ~ /java\.home$/ { home = $2 }
        $1 ~ /java\.specification\.version$/ { major = $2; sub(/^1\./, "", major) }
        END { if (home != "" && major != "") print major, home }' || true
}

# Prints the home of the first good Java among: JAVA_HOME, the PATH, the usual places.
find_java() {
    for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" \
        /usr/lib/jvm/*/bin/java /usr/java/*/bin/java /opt/java/*/bin/java \
        /opt/homebrew/opt/openjdk*/bin/java /usr/local/opt/openjdk*/bin/java \
        /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java; do
        found=$(probe "$candidate")
        [ -n "$found" ] || continue
        if [ "${found%% *}" -ge "$JAVA_MIN" ]; then
            if [ -n "${JAVA_HOME:-}" ] && [ "$candidate" != "$JAVA_HOME/bin/java" ]; then
                say "JAVA_HOME=$JAVA_HOME holds no Java $JAVA_MIN or newer; using ${found#* }"
            fi
            printf '%s\n' "${found#* }"
            return 0
        fi
    done
    return 1
}

# Prints the first package that gives Java 17 or newer. Ubuntu 22.04's default-jre-headless is 11, so
# the default is taken only when its version is new enough.
choose_package() {
    for package in openjdk-17-jre-headless openjdk-21-jre-headless openjdk-25-jre-headless; do
        if [ -n "$(apt-cache show "$package" 2>/dev/null)" ]; then
            printf '%s\n' "$package"
            return 0
        fi
    done
    major=$(apt-cache policy default-jre-headless 2>/dev/null |
        sed -n 's/.*Candidate: \(2:\)\{0,1\}1\.\([0-9]*\).*/\2/p')
    if [ -n "$major" ] && [ "$major" -ge "$JAVA_MIN" ]; then
        printf '%s\n' default-jre-headless
        return 0
    fi
    return 1
}

explain() {
    say "Spark needs Java $JAVA_MIN or newer and none was found. Install it with one line, then run this again:"
    package=$(choose_package || echo default-jre-headless)
    printf '  apt:   sudo apt-get update && sudo apt-get install -y %s\n' "$package" >&2
    printf '  dnf:   sudo dnf install -y java-21-openjdk-headless\n' >&2
    printf '  brew:  brew install openjdk@21\n' >&2
}

if find_java; then exit 0; fi
if [ "${1:-}" = --install ] && may_apt; then
    say "no Java $JAVA_MIN or newer here: installing a headless JRE for Spark"
    if apt_refresh_once && package=$(choose_package) && apt_install "$package" && find_java; then
        exit 0
    fi
    say "the installation did not give a Java $JAVA_MIN or newer"
fi
explain
exit 1
