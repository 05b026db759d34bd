#!/bin/sh
# lost.sh MPIRUN GIBBOUS - a rank that is stopped is named by the others within two seconds and a half, by their clocks
# and this script's; they end with a failure, and so does the job. So does that of a rank that is killed, or fails.
set -u
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # containers run tests as root
mpirun=$1 gibbous=$2
passed=0 failed=0
check() { if eval "$2"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "failed: $1"; cat "$folder/log"; fi; }
now() { date +%s%N | cut -c1-13; }

steps=tests/dist/steps.lua            # what the job runs
# lose SIGNAL RANK - start three ranks, send the signal once all have made a step; how long the job then took, in ms.
lose() {
  rm -f "$folder"/[0-9] "$folder/log"
  "$mpirun" --oversubscribe -n 3 "$gibbous" "$steps" "$folder" >"$folder/log" 2>&1 &
  job=$!
  tries=0
  while [ ! -s "$folder/0" ] || [ ! -s "$folder/1" ] || [ ! -s "$folder/2" ]; do
    sleep 0.1
    tries=$((tries + 1))
    [ $tries -lt 300 ] || break
  done
  begin=$(now)
  kill -"$1" "$(cat "$folder/$2")"
  while ! grep -q "sign of life" "$folder/log" && kill -0 $job 2>/dev/null; do sleep 0.05; done
  named=$(($(now) - begin))
  wait $job
  code=$?
  echo "rank $2, signal $1: $named ms"
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for rank in 0 1 2; do
  lose STOP $rank
  check "rank $rank stopped: it is named" 'grep -q "rank $rank has given no sign of life" "$folder/log"'
  check "rank $rank stopped: after $named ms" '[ $named -lt 2500 ]'
  check "rank $rank stopped: the job fails" '[ $code -ne 0 ]'
  lose KILL $rank
  check "rank $rank killed: the job fails" '[ $code -ne 0 ]'
  check "rank $rank killed: after $named ms" '[ $named -lt 5000 ]'
done
echo 'local gb = require "gibbous" gb.dist.init() if gb.dist.rank() == 1 then error("of rank 1") end gb.dist.barrier()' \
  >"$folder/fails.lua"
"$mpirun" --oversubscribe -n 3 "$gibbous" "$folder/fails.lua" >"$folder/log" 2>&1
code=$?
check "a recipe that fails on one rank ends the job" '[ $code -ne 0 ] && grep -q "of rank 1" "$folder/log"'
echo 'local gb = require "gibbous" gb.dist.init() if gb.dist.rank() == 1 then pcall(error, "caught") return end
  gb.dist.all_reduce(gb.ones(3))' >"$folder/leaves.lua"
begin=$(now)
"$mpirun" --oversubscribe -n 2 "$gibbous" "$folder/leaves.lua" >"$folder/log" 2>&1
code=$?
check "a rank that comes to its end is named, after $(($(now) - begin)) ms" \
  '[ $code -ne 0 ] && grep -q "rank 1 has left the job" "$folder/log" && [ $(($(now) - begin)) -lt 20000 ]'
echo 'local gb = require "gibbous" gb.dist.init() if gb.dist.rank() == 1 then gb.dist.finalize() return end
  local ok, text = pcall(gb.dist.barrier)
  print(ok, text)' >"$folder/barrier.lua"
"$mpirun" --oversubscribe -n 2 "$gibbous" "$folder/barrier.lua" >"$folder/log" 2>&1
check "a rank that leaves answers no barrier" 'grep -q "^false.*dist.barrier: rank 1 has left the job" "$folder/log"'
echo 'local gb = require "gibbous" gb.dist.init() local ddp = gb.nn.parallel.DataParallel(gb.nn.Linear(2, 2))
  local function run() for xs in ddp:shards(gb.ones(16, 2)) do ddp(xs):sum():backward() end end
  if gb.dist.rank() == 1 then ddp:no_sync(run) else run() end' >"$folder/holds.lua"
begin=$(now)
"$mpirun" --oversubscribe -n 2 "$gibbous" "$folder/holds.lua" >"$folder/log" 2>&1
code=$?
check "no_sync on one rank alone ends the job, after $(($(now) - begin)) ms" \
  '[ $code -ne 0 ] && grep -q "every rank must make the same calls" "$folder/log" && [ $(($(now) - begin)) -lt 20000 ]'
echo 'local gb = require "gibbous" local dist = gb.dist dist.init()
  local file = assert(io.open(arg[1] .. "/" .. dist.rank(), "w"))
  gb.on_stop(function() print("at the stop") io.stdout:flush() dist.barrier() end, { grace = 1 })
  local ddp = gb.nn.parallel.DataParallel(gb.nn.Linear(2, 2))
  local opt = gb.optim.SGD(ddp:parameters())
  for step = 1, 1000000 do
    opt:zero_grad()
    for xs in ddp:shards(gb.ones(16, 2)) do ddp(xs):sum():backward() end
    opt:step()
    if step == 3 then file:write(assert(io.open("/proc/self/stat")):read("a"):match("^%d+")) file:close() end
  end' >"$folder/stops.lua"
steps=$folder/stops.lua
lose TERM 1
check "a barrier at the stop of one rank keeps nobody" \
  '[ $code -ne 0 ] && grep -q "at the stop" "$folder/log" && [ $named -lt 15000 ]'
echo "$passed passed, $failed failed"
[ $failed = 0 ]
