#!/bin/sh
# Run a command (`make test-fast`) on another Debian, in a copy of this checkout: tests/elsewhere.sh [COMMAND]
# ELSEWHERE names the release (trixie, which is Debian 13; forky has Python 3.14). Its tree is made by debootstrap in
# the cache folder, once; `rm -r` makes the next run begin afresh. Only Linux, and only root.
#
# The tree is entered with a mount namespace of its own and pivot_root: bubblewrap starts there, as it would not in a
# chroot. Processes end with the command. Packages come from where this machine has them from: apt's mirror, and the
# configuration of pip and npm, are read when this runs.
set -eu
release="${ELSEWHERE:-trixie}"
root="${ELSEWHERE_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/respsite-tests/elsewhere/$release}"
checkout="$(cd "$(dirname "$0")/.." && pwd)"
[ "$#" -gt 0 ] || set -- make test-fast
if [ "$(id -u)" -ne 0 ]; then
    echo "make test-elsewhere mounts file systems: only root can." >&2
    exit 1
fi

if [ "${1:-}" = "--inside" ]; then # the second half, in namespaces of its own
    shift
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    # Local indexes and certificates that the configuration names by a path are where it says.
    for path in $ELSEWHERE_PATHS; do
        if [ -d "$path" ]; then
            mkdir -p "$root$path"
            mount --bind -o ro "$path" "$root$path"
        else
            mkdir -p "$root$(dirname "$path")"
            cp --dereference "$path" "$root$path" # packages may write such a file, as they are installed
        fi
    done
    cd "$root"
    pivot_root . .
    umount -l .
    cd /srv/respsite
    unset ELSEWHERE_ROOT ELSEWHERE_PATHS
    "$@" # not by exec: this shell is process 1, and takes in what others leave behind, as an init does
    exit
fi

mirror="$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
    sed -nE 's/^(URIs:|deb) +(\[[^]]*\] +)?([^ ]*\/debian)\/?( .*)?$/\3/p' | head -n 1)"
export DEBIAN_FRONTEND=noninteractive
if [ ! -e "$root/etc/debian_version" ]; then
    [ -n "$mirror" ] || { echo "no mirror of Debian is among apt's sources." >&2; exit 1; }
    PATH="$PATH:/usr/sbin"
    if ! command -v debootstrap >/dev/null; then
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
    fi
    echo "making a tree of $release: a minute or two, once."
    rm -rf "$root.partial" && mkdir -p "$root.partial"
    # A release that debootstrap here is too old to know is made as the newest is.
    scripts=/usr/share/debootstrap/scripts
    script=""
    [ -e "$scripts/$release" ] || script="$scripts/sid"
    # What the README asks for, and no more: `make services` installs the rest.
    debootstrap --variant=minbase --include=ca-certificates,make,python3-venv "$release" "$root.partial" "$mirror" \
        $script >"$root.log" 2>&1 || { tail "$root.log" >&2; exit 1; }
    echo force-unsafe-io >"$root.partial/etc/dpkg/dpkg.cfg.d/elsewhere" # packages are not worth waiting for the disk
    mv "$root.partial" "$root"
fi

# A mirror may be a copy of some time ago, whose lists of a release that still changes have expired.
echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/elsewhere"

# The checkout as it is here, with what is not committed yet; the environment that an earlier run made stays.
mkdir -p "$root/srv/respsite"
find "$root/srv/respsite" -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
cd "$checkout"
git ls-files --cached --others --exclude-standard | while read -r file; do
    [ ! -e "$file" ] || echo "$file"
done | tar --create --files-from - | tar --extract --directory "$root/srv/respsite"

names='(PIP|pip|NPM|npm)_[A-Za-z_]*|[A-Za-z]*_(proxy|PROXY)|NODE_EXTRA_CA_CERTS|SSL_CERT_FILE|CI'
variables="$(env | grep -E "^($names)=[^ ]+$" || true)"
configured="$variables"
for file in /etc/pip.conf "$HOME/.pip/pip.conf" "$HOME/.config/pip/pip.conf" "$HOME/.npmrc"; do
    if [ -e "$file" ]; then
        case "$file" in "$HOME"/*) copy="$root/root/${file#"$HOME"/}" ;; *) copy="$root$file" ;; esac
        mkdir -p "$(dirname "$copy")"
        cp "$file" "$copy"
        configured="$configured $(cat "$file")"
    fi
done
paths="$(echo "$configured" | grep -oE '(file://|[= "])/[^ ,"]+' | sed -E 's/^(file:\/\/|[= "])//; s/\/simple\/?$//' | sort -u |
    while read -r path; do case "$path" in /usr | /usr/) ;; *) [ ! -e "$path" ] || echo "$path" ;; esac; done)"
cp --dereference /etc/resolv.conf /etc/hosts "$root/etc/"

# shellcheck disable=SC2086 # each variable is a word of its own
exec unshare --mount --propagation private --pid --fork --kill-child \
    env -i ELSEWHERE="$release" ELSEWHERE_ROOT="$root" ELSEWHERE_PATHS="$paths" DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
    $variables sh "$checkout/tests/elsewhere.sh" --inside "$@"
