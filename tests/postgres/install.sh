#!/usr/bin/env bash
# What the tests against a real PostgreSQL need, on Debian as root: `bash tests/postgres/install.sh`. Without it they are
# skipped. No service is started: the tests start a server of their own.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null && exit 0
apt-get update -qq
# No cluster of the system's own is made or started.
mkdir -p /etc/postgresql-common
[ -e /etc/postgresql-common/createcluster.conf ] || echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
apt-get install -y -qq --no-install-recommends postgresql >/dev/null
