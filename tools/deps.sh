#!/bin/sh
# deps.sh SET...: installs the Debian packages of the named sets: build, test, fetch, arm64. Does nothing, and needs no network, when
# all are there. With root or sudo it installs; otherwise it says what to do and fails. arm64 is optional: without it the
# aarch64 part of `make test` is skipped by name.
set -eu
build="gcc make libc6-dev libjansson-dev libpcre2-dev libutf8proc-dev libedit-dev"
test="libcmocka-dev binutils g++"
fetch="curl unzip ca-certificates"
arm64="gcc-aarch64-linux-gnu qemu-user libc6-dev:arm64 libjansson-dev:arm64 libpcre2-dev:arm64 libutf8proc-dev:arm64 libcmocka-dev:arm64"

have() { # is every package of the list installed?
    missing=
    for p in "$@"; do
        s=$(dpkg-query -W -f '${Status}\n' "$p" 2>/dev/null | grep -c ' installed$' || true)
        [ "$s" -gt 0 ] || missing="$missing $p"
    done
    [ -z "$missing" ]
}

install() { # install LIST...; fails quietly when it cannot
    sudo=
    if [ "$(id -u)" != 0 ]; then
        sudo="sudo -n"
        $sudo true 2>/dev/null || return 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    if [ -n "$arch" ] && ! dpkg --print-foreign-architectures | grep -qx "$arch"; then $sudo dpkg --add-architecture "$arch"; fi
    $sudo apt-get -q update >/dev/null && $sudo apt-get -q -y install --no-install-recommends "$@" >/dev/null
}

for set in "$@"; do
    arch=
    case $set in
    build) list=$build ;;
    test) list=$test ;;
    fetch) list=$fetch ;;
    arm64) list=$arm64 arch=arm64 ;;
    *) echo "deps.sh: no set named $set" >&2; exit 2 ;;
    esac
    if ! command -v dpkg-query >/dev/null 2>&1; then
        echo "deps: not a Debian system; the packages needed are called there: $list" >&2
        continue
    fi
    # shellcheck disable=SC2086
    have $list && continue
    echo "deps: installing$missing" >&2
    # shellcheck disable=SC2086
    if install $missing; then continue; fi
    if [ "$set" = arm64 ]; then
        echo "deps: no aarch64 tools here; those tests will be skipped" >&2
        continue
    fi
    echo "deps: cannot install; as root: apt-get install$missing" >&2
    exit 1
done
