#!/usr/bin/env bash
# What the tests against a real Slurm need, on Debian as root: `bash tests/slurm/install.sh`. Without it they are skipped.
# No service is started: the tests start daemons of their own.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive PATH="$PATH:/usr/sbin:/sbin"
for program in slurmctld slurmd slurmdbd mariadbd sacct; do
  command -v "$program" >/dev/null && continue
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends slurm-wlm slurmdbd mariadb-server >/dev/null
  break
done
