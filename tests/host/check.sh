# check.sh - the counterpart of c/check.h for tests in shell: check counts, report prints the line that counts.
passed=0
failed=0

# check WHAT COMMAND...: the command must succeed; its output is shown where it does not.
check() {
  what=$1; shift
  if output=$("$@" 2>&1); then passed=$((passed + 1)); return 0; fi
  failed=$((failed + 1))
  printf 'failed: %s\n%s\n' "$what" "$output" >&2
}

# same WHAT EXPECTED FOUND: two texts must be equal; shows the lines that differ.
same() {
  if [ "$2" = "$3" ]; then passed=$((passed + 1)); return 0; fi
  failed=$((failed + 1))
  printf 'failed: %s\nexpected: %s\nfound: %s\n' "$1" "$2" "$3" >&2
}

report() {
  echo "$passed passed, $failed failed"
  [ $failed = 0 ]
}
