#!/bin/sh
# nccl_sharded.sh GIBBOUS [MOST] - gradients and states that GPUs share out, over NCCL, on the emulated device and its
# stand-in for the library: on two ranks, whose sums are halved, and on MOST (3), whose sums follow a plan.
gibbous=$1 most=${2:-3}
. "$(dirname "$0")/torchrun.sh"
for n in 2 $most; do
  GIBBOUS_TEST_DEVICE=cuda run "$n" "$gibbous" "$(dirname "$0")/sharded.lua"
  check "sharded.lua with parameters of $n GPUs" '[ $bad = 0 ]'
done
finish
