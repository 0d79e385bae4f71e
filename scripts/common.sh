# Shared by the scripts: how to print a line, and how to find out what this machine is.
# POSIX sh only: a fresh machine has nothing else for certain.

say() { printf 'quiverlog: %s\n' "$*" >&2; }

# True as root on Debian, Ubuntu and their kin: only there a script may install packages by itself.
may_apt() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1
}

apt_refresh_once() {
    [ -n "${APT_REFRESHED:-}" ] && return 0
    say "apt-get update"
    apt-get update -qq >&2 || return 1
    APT_REFRESHED=1
}

apt_install() {
    say "apt-get install $*"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}
