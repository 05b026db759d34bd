#!/bin/sh
# nccl.sh GIBBOUS [MOST] - jobs over NCCL, on the emulated device and its stand-in for the library: the scripts that also
# run on threads and under mpirun pass on two and on MOST ranks (3), training leaves what it leaves on one process, and
# what is missing or does not fit together is told.
gibbous=$1 most=${2:-3}
. "$(dirname "$0")/torchrun.sh"
dist=$(dirname "$0")

# training: one text for one process, and for jobs
"$gibbous" "$dist/device.lua" text >"$folder/one" 2>&1 || cat "$folder/one"
grep '^digest' "$folder/one" >"$folder/want"
for n in 2 $most; do
  run "$n" "$gibbous" "$dist/device.lua" text
  check "device.lua on $n ranks" '[ $bad = 0 ]'
  for r in $(seq 0 $((n - 1))); do
    grep '^digest' "$folder/log.$r" >"$folder/got"
    check "rank $r of $n leaves the bits of one process" '[ -s "$folder/want" ] && cmp -s "$folder/got" "$folder/want"'
  done
  for script in nccl collectives free; do
    run "$n" "$gibbous" "$dist/$script.lua"
    check "$script.lua on $n ranks" '[ $bad = 0 ]'
  done
done
"$gibbous" "$dist/digests.lua" 3 >"$folder/want"
run "$most" "$gibbous" "$dist/digests.lua" 3
check "digests.lua leaves on $most ranks what it leaves on one process" '[ $bad = 0 ] && cmp "$folder/log.0" "$folder/want"'
run 2 "$gibbous" "$dist/disagree.lua"
check "disagree.lua on 2 ranks" '[ $bad = 0 ]'

# every way to give the address
for master in 127.0.0.1 ::1 localhost; do
  run 2 "$gibbous" -e 'require("gibbous").dist.init { timeout = 60 }'
  check "MASTER_ADDR=$master" '[ $bad = 0 ]'
done
master=localhost

# a device of 100 MB, and what its driver is asked for
for n in 2 $most; do
  GIBBOUS_CUDA_MEMORY=100000000 run "$n" sh -c 'GIBBOUS_CUDA_ALLOCATION_FILE=$0.$RANK exec "$@"' "$folder/given" \
    "$gibbous" "$dist/near_memory.lua"
  check "near_memory.lua on $n ranks" '[ $bad = 0 ]'
  rm -f "$folder"/given.*
done

GIBBOUS_TEST_DEVICE=cuda run 2 "$gibbous" "$dist/optimizers.lua"
check "optimizers.lua with parameters of GPUs" '[ $bad = 0 ]'

GIBBOUS_NCCL=/nowhere/libnccl.so.2 run 2 "$gibbous" -e 'require("gibbous").dist.init { timeout = 5 }'
check "a library that is missing is named" '[ $bad = 2 ] && grep -q "needs NCCL.*/nowhere/libnccl.so.2.*install it" "$folder/log.0"'
GIBBOUS_PLUGINS=/nowhere run 2 "$gibbous" -e 'require("gibbous").dist.init { timeout = 5 }'
check "without a GPU the cure is told" '[ $bad = 2 ] && grep -q "torchrun.s.*between GPUs.*mpirun -n 4" "$folder/log.1"'
master=no.such.host.invalid
run 2 "$gibbous" -e 'require("gibbous").dist.init { timeout = 5 }'
check "a name that nobody has" '[ $bad = 2 ] && grep -q "cannot find the host of MASTER_ADDR=no.such.host.invalid" "$folder/log.1"'
master=localhost

# ranks that do not fit together
run 1 env WORLD_SIZE=2 "$gibbous" -e 'require("gibbous").dist.init { timeout = 1 }'
check "rank 0 says who did not come" '[ $bad = 1 ] && grep -q "1 of 2 processes did not come: rank 1" "$folder/log.0"'
run 1 env WORLD_SIZE=2 RANK=1 "$gibbous" -e 'require("gibbous").dist.init { timeout = 1 }'
check "the others say that rank 0 is not there" '[ $bad = 1 ] && grep -q "rank 1 waited 1 s for rank 0 at port" "$folder/log.0"'
run 2 sh -c '[ $RANK = 0 ] || export WORLD_SIZE=5; exec "$0" "$@"' "$gibbous" -e 'require("gibbous").dist.init { timeout = 3 }'
check "sizes are compared" '[ $bad = 2 ] && grep -q "it has WORLD_SIZE=5, and rank 0 has WORLD_SIZE=2" "$folder/log.1" && grep -q "rank 1 was sent away" "$folder/log.0"'
run 2 env LOCAL_RANK=7 "$gibbous" -e 'require("gibbous").dist.init { timeout = 3 }'
check "a local rank without a GPU" '[ $bad = 2 ] && grep -q "LOCAL_RANK=7, and this machine has 2 GPUs" "$folder/log.0"'
run 1 env WORLD_SIZE=2 MASTER_PORT=70000 "$gibbous" -e 'require("gibbous").dist.init { timeout = 3 }'
check "a port that is none" '[ $bad = 1 ] && grep -q "ports are 1 to 65535" "$folder/log.0"'

# a rank that fails, and one that comes to its end
cat >"$folder/fails.lua" <<'LUA'
local gb = require "gibbous"
gb.dist.init { timeout = 60 }
gb.dist.barrier()
if gb.dist.rank() == 1 then
  if arg[1] then return gb.dist.finalize() end
  error("of rank 1")
end
gb.dist.all_reduce(gb.ones(3000, { device = "cuda" }))
LUA
run 2 "$gibbous" "$folder/fails.lua"
check "a rank that fails is told" '[ $bad = 2 ] && grep -q "rank 1 has left the job by a failure" "$folder/log.0"'
run 2 "$gibbous" "$folder/fails.lua" leaves
check "a rank that leaves is told" '[ $bad = 1 ] && grep -q "rank 1 has left the job, by the end" "$folder/log.0"'

# ranks that are gone, or stopped
for end in KILL.0 KILL.1 STOP.1; do
  signal=${end%.*} lost=${end#*.} other=$((1 - ${end#*.}))
  start "$most" "$gibbous" "$dist/steps.lua" "$folder" cuda
  tries=0
  while [ ! -s "$folder/0" ] || [ ! -s "$folder/1" ]; do
    sleep 0.1
    tries=$((tries + 1))
    [ $tries -lt 600 ] || break
  done
  begin=$(now)
  victim=$(cat "$folder/$lost")
  kill -$signal "$victim"
  while ! grep -q "rank $lost \(is gone\|has given no sign of life\)" "$folder/log.$other" && [ $(($(now) - begin)) -lt 30000 ]; do
    sleep 0.05
  done
  echo "signal $signal: rank $lost is named after $(($(now) - begin)) ms"
  check "signal $signal: rank $lost is named within two seconds and a half" '[ $(($(now) - begin)) -lt 2500 ]'
  kill -KILL "$victim" 2>/dev/null
  ended
  check "signal $signal: all fail" '[ $bad = $most ]'
  rm -f "$folder"/[0-9]
done
finish
