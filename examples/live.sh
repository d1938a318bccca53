#!/usr/bin/env bash
# Four real commands, scheduled on this machine: a controller on two virtual nodes of two slots, in a home of its own.
# Ends with 0 if all four jobs completed. Needs `headway` on the PATH; takes about ten seconds.
set -euo pipefail

home=$(mktemp -d "${TMPDIR:-/tmp}/headway-live.XXXXXX")
export HEADWAY_HOME="$home/home"
unset HEADWAY_URL HEADWAY_TOKEN
controller=""

finish() {
  if [ -n "$controller" ] && kill -TERM "$controller" 2>/dev/null; then
    wait "$controller" || true
  fi
  rm -rf "$home"
}
trap finish EXIT

step() { printf '\n%s\n' "$1"; }
run() {
  printf '  $'
  for word in "$@"; do
    case $word in *[!A-Za-z0-9=.,/-]*) word="'$word'" ;; esac
    printf ' %s' "$word"
  done
  printf '\n'
  "$@" | sed 's/^/    /'
}

step "1. Start a controller: two virtual nodes, two slots each, first come first served."
echo "  \$ headway up --nodes 2x2 &"
headway up --nodes 2x2 >"$home/up.out" 2>"$home/up.err" &
controller=$!
for _ in $(seq 3000); do
  grep -q listening "$home/up.out" && break
  if ! kill -0 "$controller" 2>/dev/null; then
    controller=""
    cat "$home/up.err" >&2
    exit 1
  fi
  sleep 0.1
done
grep -q listening "$home/up.out" || { echo "the controller did not start" >&2; exit 1; }
sed 's/^headway: /    /' "$home/up.out"

step "2. Hand in four jobs. The gang wants all four slots at once, so it waits for the first two, and 'last' waits behind it."
# shellcheck disable=SC2016
run headway submit --name hello -- sh -c 'echo "hello from $HEADWAY_NODE, slot $HEADWAY_SLOTS"; sleep 1'
# shellcheck disable=SC2016
run headway submit --name train -- sh -c 'for step in 1 2 3 4 5; do echo "step=$step loss=0.$((9 - step))"; sleep 1; done'
# shellcheck disable=SC2016
run headway submit --name gang --workers 2 --gpus 2 -- sh -c 'echo "worker $RANK of $WORLD_SIZE, on $HEADWAY_NODE"; sleep 1'
run headway submit --name last -- sh -c 'echo "all done"'
run headway queue

step "3. Follow the one that trains until it has ended."
run headway logs --follow train-1

step "4. Wait for the others. The two workers of the gang started together, each on a node of its own:"
headway logs --follow last-1 >"$home/last"
run headway logs gang-1 --rank 0
run headway logs gang-1 --rank 1
run headway queue --all
completed=$(headway queue --all --state completed | tail -n +2 | wc -l)

step "5. Stop the controller. (Jobs that still ran would go on, and the next 'headway up' would go on with them.)"
kill -TERM "$controller"
wait "$controller"
controller=""
sed 's/^headway: /    /' "$home/up.err"


if [ "$completed" -ne 4 ]; then
  echo "only $completed of 4 jobs completed" >&2
  exit 1
fi
