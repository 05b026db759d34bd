#!/bin/sh
# compare.sh MPIRUN GIBBOUS - what training leaves is one text on 1, 2, 3, 4 and 8 processes (digests.lua), where a run
# that was stopped on four goes on with another number of them (resume.lua), and in two jobs at once.
set -u
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # containers run tests as root
mpirun=$1 gibbous=$2
passed=0 failed=0
# check WHAT WANTED GOT
check() {
  if [ "$3" = "$2" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); printf '%s:\n%s\n' "$1" "$3"; fi
}
run() { size=$1; shift; "$mpirun" --oversubscribe -n "$size" "$gibbous" "$@"; }

one=$("$gibbous" tests/dist/digests.lua) || exit 1
echo "$one"
for size in 1 2 3 4 8; do check "$size processes" "$one" "$(run $size tests/dist/digests.lua)"; done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
whole=$("$gibbous" tests/dist/resume.lua 0 20 "$folder/whole")
echo "$whole"
run 4 tests/dist/resume.lua 0 11 "$folder/half" >"$folder/log" || cat "$folder/log"
for size in 1 2 3 8; do
  cp "$folder/half" "$folder/copy"
  check "resumed on $size" "$whole" "$(run $size tests/dist/resume.lua 11 20 "$folder/copy")"
done
run 2 tests/dist/resume.lua 0 20 "$folder/first" >"$folder/first.log" &
run 3 tests/dist/resume.lua 0 20 "$folder/second" >"$folder/second.log"
wait $!
check "one of two jobs" "$whole" "$(cat "$folder/first.log")"
check "the other" "$whole" "$(cat "$folder/second.log")"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
