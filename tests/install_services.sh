#!/bin/sh
# Install what the tests start by themselves: Redis, PostgreSQL, PgBouncer, nginx, Caddy, haproxy, Chromium, curl,
# bubblewrap, fish, and npm, which gets them the clients that a package.json under tests/ names. With CLUSTER=on also what only `make test-cluster` needs.
# Nothing is left running.
set -eu
missing=""
command -v redis-server >/dev/null || missing="$missing redis-server"
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
PATH="$PATH:/usr/sbin" command -v nginx >/dev/null || missing="$missing nginx-light"
PATH="$PATH:/usr/sbin" command -v pgbouncer >/dev/null || missing="$missing pgbouncer"
PATH="$PATH:/usr/sbin" command -v haproxy >/dev/null || missing="$missing haproxy"
command -v caddy >/dev/null || missing="$missing caddy"
command -v node >/dev/null || missing="$missing nodejs"
command -v npm >/dev/null || missing="$missing npm"
command -v chromium-headless-shell >/dev/null || missing="$missing chromium-headless-shell"
command -v curl >/dev/null || missing="$missing curl"
command -v bwrap >/dev/null || missing="$missing bubblewrap"
command -v fish >/dev/null || missing="$missing fish"
if [ -n "${CLUSTER:-}" ]; then
    command -v cc >/dev/null || missing="$missing gcc libc6-dev"
fi
[ -z "$missing" ] && exit 0
echo "installing$missing"
if [ "$(id -u)" -eq 0 ]; then sudo=""; else sudo="sudo"; fi
# Debian starts services at their installation; a policy that says no keeps them off.
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
$sudo env RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $missing >/dev/null
