#!/bin/sh
# signals.sh MPIRUN GIBBOUS - SIGTERM to one rank of a Trainer's job, and SIGUSR1 to mpirun, which forwards it: all ranks
# save at the same step, and the run goes on, there or with another number of processes, to the bits of one that was
# left alone.
set -u
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # containers run tests as root
mpirun=$1 gibbous=$2
passed=0 failed=0
check() { if eval "$2"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "failed: $1"; cat "$folder/log"; fi; }
run() { size=$1; shift; "$mpirun" --oversubscribe -n "$size" "$gibbous" "$@"; }

# start SIZE - begin a job anew and wait until all of its ranks train.
start() {
  rm -rf "$folder"/[0-9] "$folder/files"
  "$mpirun" --oversubscribe -n "$1" "$gibbous" tests/dist/signals.lua "$folder" >"$folder/log" 2>&1 &
  job=$!
  tries=0
  while [ ! -s "$folder/$(($1 - 1))" ] || [ ! -s "$folder/0" ]; do
    sleep 0.1
    tries=$((tries + 1))
    [ $tries -lt 200 ] || break
  done
  sleep 0.4
}
# What ranks said, also within a line of another's.
saves() { grep -o "rank [0-9] saved at step [0-9]*" "$folder/log"; }
# How many ranks said that they saved at the one step at which any did; 0 where steps differ.
savers() { saves | sort -u | awk '{ steps[$6]; n++ } END { k = 0; for (s in steps) k++; print k == 1 ? n : 0 }'; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
whole=$("$gibbous" tests/dist/signals.lua "$folder" | grep digest)
echo "$whole"

for rank in 0 2; do
  start 3
  kill -TERM "$(cat "$folder/$rank")"
  wait $job
  code=$?
  check "SIGTERM to rank $rank: the job ends" '[ $code -ne 0 ] && ! grep -q digest "$folder/log"'
  check "SIGTERM to rank $rank: $(savers) of 3 ranks saved at one step" '[ "$(savers)" = 3 ]'
  check "SIGTERM to rank $rank: rank 0 says how to go on" 'grep -q "run the same with resume = true" "$folder/log"'
  run $((rank + 1)) tests/dist/signals.lua "$folder" >"$folder/log" 2>&1
  check "it goes on with $((rank + 1)) processes" 'grep -q "goes on after step" "$folder/log"'
  check "and to the same bits" '[ "$(grep digest "$folder/log")" = "$whole" ]'
done

start 2
kill -USR1 $job
wait $job
check "SIGUSR1 to mpirun: saved, and it went on" 'grep -q "^saved after step [0-9]*, in epoch" "$folder/log"'
check "SIGUSR1 to mpirun: to the same bits" '[ "$(grep digest "$folder/log")" = "$whole" ]'
steps=$(saves | awk '{ print $6 }' | sort -u | wc -l)
check "SIGUSR1 to mpirun: both ranks saved at each step" '[ "$(saves | wc -l)" = $((2 * steps)) ]'
echo "$passed passed, $failed failed"
[ $failed = 0 ]
