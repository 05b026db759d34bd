#!/bin/sh
# run.sh - what was measured on this machine, ours beside PyTorch's if GIBBOUS_PEER names a Python that has it. Never a test. Words: groups to
# measure (start step threads small matmul memory hosts), all of them without words; GIBBOUS_RUNS: how many runs the medians are of.
set -eu
cd "$(dirname "$0")/../.."
text=build/bench.txt
cat README.md runtime/*/*.c bindings/*.c >"$text"
processor=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -1)
echo "$(uname -m) ${processor:-unknown processor}, $(nproc) cores, $(date -u +%F)"
case " $* " in "  " | *" hosts "*) build/tests/host/bench_hosts ;; esac
[ "$*" = hosts ] || exec build/gibbous tests/bench/table.lua "$text" "$(nproc)" "$@"
