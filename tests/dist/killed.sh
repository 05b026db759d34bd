#!/bin/sh
# killed.sh MPIRUN GIBBOUS [KILLS] - ranks of a Trainer's job are killed at random moments, again and again: each job
# ends with a failure and leaves no process, the next one, of another number of ranks, goes on from the last checkpoint
# that was written, and the weights in the end have the bits of a run that was left alone.
set -u
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # containers run tests as root
mpirun=$1 gibbous=$2 kills=${3:-4}
passed=0 failed=0 done=0 whole_runs=0 saved=0
check() { if eval "$2"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "failed: $1"; cat "$folder/log"; fi; }
# Does the process run? One that nobody waits for does not.
lives() { state=$(sed 's/.*) \(.\).*/\1/' "/proc/$1/stat" 2>/dev/null) && [ -n "$state" ] && [ "$state" != Z ]; }
# A number below $1, from the last one.
random=7
pick() { random=$(((random * 1103515245 + 12345) % 2147483648)); picked=$((random / 65536 % $1)); }

# begin SIZE - start a job of so many ranks, and wait until all of them train.
begin() {
  rm -f "$folder"/[0-9]
  "$mpirun" --oversubscribe -n "$1" "$gibbous" --threads 1 tests/dist/killed.lua "$folder" >"$folder/log" 2>&1 &
  job=$!
  tries=0
  for rank in $(seq 0 $(($1 - 1))); do
    while [ ! -s "$folder/$rank" ] && [ $tries -lt 600 ] && kill -0 $job 2>/dev/null; do sleep 0.05; tries=$((tries + 1)); done
  done
}
# The run came to its end, or was killed after step $saved or later: what its log says of both.
look() {
  from=$(sed -n 's/^goes on after step //p' "$folder/log")
  check "goes on from ${from:-the beginning}, saved was $saved" '[ "${from:-0}" -ge $saved ]'
  last=$(sed -n 's/^saved at step //p' "$folder/log" | tail -n 1)
  saved=${last:-${from:-0}}
  if grep -q "^digest" "$folder/log"; then
    check "the same bits" '[ "$(grep "^digest" "$folder/log")" = "$whole" ]'
    whole_runs=$((whole_runs + 1)) saved=0
    rm -rf "$folder/files"
  fi
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
whole=$("$gibbous" --threads 1 tests/dist/killed.lua "$folder" | grep "^digest")
rm -rf "$folder/files"
while [ $done -lt "$kills" ]; do
  pick 3
  size=$((picked + 2))
  begin $size
  pick $size
  victim=$picked
  pick 60
  sleep "$(printf '0.%03d' $((picked * 10)))"
  numbers=$(cat "$folder"/[0-9])
  kill -KILL "$(cat "$folder/$victim")" 2>/dev/null && done=$((done + 1))
  wait $job
  code=$?
  check "the job of $size ranks fails where rank $victim is killed" '[ $code -ne 0 ] || grep -q "^digest" "$folder/log"'
  sleep 0.2
  for number in $numbers; do
    check "process $number has ended" '! lives $number'
  done
  look
done
begin 3
wait $job
look
check "a run came to its end" '[ $whole_runs -gt 0 ]'
echo "$done kills, $whole_runs runs to the end"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
