#!/bin/sh
# dist.sh [ROUNDS [SAMPLES]] - two processes with one thread each beside one process with two, on a model of 10 MB
# (dist.lua): turn by turn, since the machine is seldom quiet. Prints each pair and the ratios' median: above 1, two
# processes are faster. By the fixed tree, with Sharded, and with order = "free".
set -u
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cd "$(dirname "$0")/../.."
rounds=${1:-5} samples=${2:-256} gibbous=build/gibbous
time_of() { sed -n "s/^$1 *median *\([0-9.]*\) ms.*/\1/p"; }
echo "load: $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) cores"
for round in $(seq "$rounds"); do
  one=$("$gibbous" --threads 2 tests/bench/dist.lua "$samples" 9 | time_of "no exchange")
  two=$(mpirun --oversubscribe --bind-to none -n 2 "$gibbous" --threads 1 tests/bench/dist.lua "$samples" 9)
  for kind in "fixed, after backward" "fixed, overlapped" "fixed, Sharded" "free, after backward"; do
    echo "$one $(echo "$two" | time_of "$kind")" | awk -v kind="$kind" \
      '{ printf "%s: one process %.1f ms, two %.1f ms, ratio %.3f\n", kind, $1, $2, $1 / $2 }'
  done
done >"/tmp/dist.$$"
cat "/tmp/dist.$$"
for kind in "fixed, after backward" "fixed, overlapped" "fixed, Sharded" "free, after backward"; do
  grep "^$kind" "/tmp/dist.$$" | awk '{ print $NF }' | sort -n |
    awk -v kind="$kind" '{ v[NR] = $1 } END { print kind ": median ratio " v[int((NR + 1) / 2)] }'
done
rm -f "/tmp/dist.$$"
echo "load: $(cut -d' ' -f1-3 /proc/loadavg)"
