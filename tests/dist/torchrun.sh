#!/bin/sh
# torchrun.sh - jobs of processes that are started as torchrun starts them, by the variables that it sets; for the tests
# that source this. gibbous names the program; logs of ranks are $folder/log.RANK.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
passed=0 failed=0
# check WHAT CONDITION
check() {
  if eval "$2"; then passed=$((passed + 1)); return; fi
  failed=$((failed + 1))
  echo "failed: $1"
  for log in "$folder"/log.*; do echo "-- $log"; cat "$log"; done
}
now() { date +%s%N | cut -c1-13; }

# A port below those that are given to whoever calls; another job of this machine has another one.
port=$((10000 + $$ % 20000))
# start SIZE COMMAND... - the ranks of a job, each in the background; their process ids are in $pids.
start() {
  size=$1
  shift
  port=$((port + 1))
  pids="" rank=0
  rm -f "$folder"/log.*
  while [ $rank -lt "$size" ]; do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$size MASTER_ADDR=${master:-localhost} MASTER_PORT=$port \
      GIBBOUS_CUDA_DEVICES=$size "$@" >"$folder/log.$rank" 2>&1 &
    pids="$pids $!"
    rank=$((rank + 1))
  done
}
# Wait for them; $bad is how many failed.
ended() {
  bad=0
  for pid in $pids; do wait "$pid" || bad=$((bad + 1)); done
}
# run SIZE COMMAND... - start and wait; $bad is how many failed.
run() { start "$@"; ended; }
finish() {
  echo "$passed passed, $failed failed"
  [ $failed = 0 ]
}
