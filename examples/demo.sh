#!/usr/bin/env bash
# The demo: one trace-like workload under four policies in the simulator, then four real commands on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "== 1. The same 3,000 jobs on 16 nodes with 8 GPUs each, under four policies (simulated)"
echo '$ headway simulate --workload poisson:jobs=3000,load=1.1,cluster=16x8 --cluster 16x8 --policy fifo --policy fifo-backfill --policy srtf --policy tiresias'
headway simulate --workload poisson:jobs=3000,load=1.1,cluster=16x8 --cluster 16x8 \
  --policy fifo --policy fifo-backfill --policy srtf --policy tiresias
echo
echo "== 2. Four real commands, scheduled on this machine (2 virtual nodes with 2 slots each)"
bash examples/live.sh
