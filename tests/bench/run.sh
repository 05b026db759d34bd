#!/bin/sh
# run.sh - what was measured on this machine: the step of char_gpt in each precision, alternating, medians, and ratios to 32-true. Never a test.
set -eu
cd "$(dirname "$0")/../.."
text=build/bench.txt
cat README.md runtime/*/*.c bindings/*.c >"$text"
echo "$(uname -m), $(nproc) cores, $(date -u +%F)"
exec build/gibbous tests/bench/steps.lua --data "$text"
