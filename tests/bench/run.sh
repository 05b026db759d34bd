#!/bin/sh
# run.sh - what was measured on this machine, ours beside PyTorch's if GIBBOUS_PEER names a Python that has it. Never a test. Words: groups to
# measure (start step threads small recurrent matmul memory clip layers models optimizers sorting rows host hosts images), all of them without words; GIBBOUS_RUNS: how many runs the medians are of;
# GIBBOUS_DATA: where images finds cifar10/test, without it only a large one is read;
# GIBBOUS_CLOCK=cpu: processor time of one thread, for a machine with other work;
# GIBBOUS_PEER_SECONDS: after how many a case of the peer is given up (20), which the table says.
set -eu
cd "$(dirname "$0")/../.."
text=build/bench.txt
cat README.md runtime/*/*.c bindings/*.c >"$text"
processor=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -1)
echo "$(uname -m) ${processor:-unknown processor}, $(nproc) cores, $(date -u +%F)"
tables=""
for group in "$@"; do
  case "$group" in
    host | hosts | images) ;;
    start | step | threads | small | recurrent | matmul | memory | clip | layers | models | optimizers | sorting | rows) tables="$tables $group" ;;
    *) echo "bench: there is no group '$group'; there are start step threads small recurrent matmul memory clip layers models optimizers sorting rows host hosts images" >&2; exit 2 ;;
  esac
done
case " $* " in "  " | *" host "*) build/tests/bench_host ;; esac
case " $* " in "  " | *" hosts "*) build/tests/host/bench_hosts ;; esac
case " $* " in "  " | *" images "*) build/tests/bench_images ${GIBBOUS_DATA:+"$GIBBOUS_DATA/cifar10/test"} ;; esac
# shellcheck disable=SC2086
[ $# -gt 0 ] && [ -z "$tables" ] || exec build/gibbous tests/bench/table.lua "$text" "$(nproc)" $tables
