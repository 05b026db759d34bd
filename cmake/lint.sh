#!/bin/sh
# cmake/lint.sh - what a machine can check of how the code reads. Prints every finding; fails if there is one.
set -u
bad=0
report() { echo "lint: $1"; echo "$2" | sed 's/^/  /'; bad=1; }
find_in() { pattern=$1; shift; grep -nE "$pattern" "$@" 2>/dev/null; }

# What git tracks or would track; where there is no git (or it declines to answer), what lies here.
sources=$(git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' '*.cc' 2>/dev/null)
[ -n "$sources" ] || sources=$(find . \( -path './build*' -o -path ./.git \) -prune -o \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \) -print)

# The floors of the house: what each folder's files may include of ours.
floor() {
  folder=$1; allowed=$2
  rows=$(grep -nE '^#include "[a-z_]+/' runtime/"$folder"/*.[ch] 2>/dev/null | grep -vE "#include \"($allowed)/")
  [ -z "$rows" ] || report "runtime/$folder may include only $allowed:" "$rows"
}
floor base 'base'
floor tensor 'base|tensor'
floor graph 'base|tensor|graph'
floor ops 'base|tensor|graph|ops'
floor cpu 'base|tensor|graph|ops|cpu'
floor step 'base|tensor|graph|step'
floor dist 'base|tensor|graph|step|dist'
floor watch 'base|tensor|graph|ops|step|watch'
floor io 'base|tensor|graph|io'
floor data 'base|tensor|graph|data|io'
rows=$(grep -nE '^#include "[a-z_]+/' cuda/*.cu cuda/*.cuh | grep -vE '#include "(cuda|base)/'); [ -z "$rows" ] || report 'kernel files know cuda/ and base/ only:' "$rows"
# Behind device.cuh, which every .cuh includes: before it, nvcc makes no loads of 16 bytes of those in norm.cu.
rows=$(awk 'FNR == 1 { seen = 0 } /^#include "cuda\/[a-z_]+\.cuh"/ { seen = 1 }
            /^#include "base\/numerics\.h"/ && !seen { print FILENAME ":" FNR ": " $0 }' cuda/*.cu cuda/*.cuh)
[ -z "$rows" ] || report 'base/numerics.h before device.cuh:' "$rows"
rows=$(grep -nE '^#include "[a-z_]+/' cuda/*.c cuda/*.h | grep -vE '#include "((cuda|base|tensor|graph|ops)/|dist/transport.h")'); [ -z "$rows" ] || report 'cuda/ may include only cuda|base|tensor|graph|ops and dist/transport.h:' "$rows"
rows=$(grep -nE '^#include "[a-z_]+/' mpi/*.c | grep -vE '#include "dist/transport.h"'); [ -z "$rows" ] || report 'mpi/ may include only dist/transport.h:' "$rows"
rows=$(grep -lE '#include *<mpi' runtime/*/*.[ch] runtime/*.[ch] bindings/*.[ch] repl/*.[ch] cuda/*); [ -z "$rows" ] || report 'MPI headers outside mpi/:' "$rows"
rows=$(grep -lE '#include *<(cuda|cudnn|cublas)' runtime/*/*.[ch] runtime/*.[ch] bindings/*.[ch] repl/*.[ch]); [ -z "$rows" ] || report 'CUDA headers outside cuda/:' "$rows"

rows=$(find_in '#include *[<"](lua|lauxlib|lualib)\.h' runtime/*/*.[ch] runtime/*.[ch]); [ -z "$rows" ] || report 'Lua below the bindings:' "$rows"
rows=$(find_in '#include *[<"](cblas|dnnl)' runtime/[!c]*/*.[ch] bindings/*.[ch] repl/*.[ch]); [ -z "$rows" ] || report 'BLAS or oneDNN outside runtime/cpu:' "$rows"
rows=$(find_in '(^|[^_a-z.>])(exit|abort|_Exit|quick_exit|assert)\(' runtime/*/*.[ch] runtime/*.[ch] bindings/*.[ch] cuda/* mpi/*.c); [ -z "$rows" ] || report 'calls that would kill a host:' "$rows"
# Arguments of an op have names (graph/ops.h, cuda/call.h): a row that is reordered changes no kernel. Dispatch serves
# every row; the first input, which an op in place writes, has no one name there.
numbered='\b(call|grad|c|r|node|job)->(in|out|attrs|saved|need|original|want)\[[0-9]|GB_SAVED_OUT\([^,()]+, *[0-9]'
rows=$(find_in "$numbered" runtime/ops/*.[ch] runtime/cpu/*.[ch] runtime/graph/*.[ch] cuda/*.[ch] cuda/*.cu cuda/*.cuh |
       grep -vE '^runtime/graph/(dispatch\.c|ops\.h):')
[ -z "$rows" ] || report 'arguments by number:' "$rows"
# shellcheck disable=SC2086
rows=$(find_in '\b(TO''DO|FIX''ME|XX''X|HA''CK)\b' $sources); [ -z "$rows" ] || report 'notes to nobody:' "$rows"
# shellcheck disable=SC2086
rows=$(awk 'length > 120 { print FILENAME ":" FNR ": " length " columns" }' $(echo $sources | tr ' ' '\n' | grep -v '\.def$')); [ -z "$rows" ] || report 'lines over 120 columns:' "$rows"
# The same for Lua, but for a file of scripts whose dense lines are what is tested.
scripts=$(git ls-files '*.lua' 2>/dev/null | grep -v '^tests/lua/stock_scripts.lua$')
# shellcheck disable=SC2086
[ -z "$scripts" ] || rows=$(awk 'length > 120 { print FILENAME ":" FNR ": " length " columns" }' $scripts)
[ -z "$rows" ] || report 'lines of Lua over 120 columns:' "$rows"
# shellcheck disable=SC2086
rows=$(grep -nP '\t| +$' $sources); [ -z "$rows" ] || report 'tabs or trailing blanks:' "$rows"
for file in $sources; do
  head -1 "$file" | grep -q '^/\*' || report "$file does not open with what it is for" ""
done
# Documents: lines of 120 columns outside tables and blocks of code; README has 200 lines at most, that of a folder 20.
pages=$(git ls-files '*.md' 2>/dev/null | grep -v '^docs/reference.md$')
rows=""
# shellcheck disable=SC2086
[ -z "$pages" ] || rows=$(awk 'FNR == 1 { code = 0 } /^ *```/ { code = !code }
                               !code && !/^\|/ && length > 120 { print FILENAME ":" FNR ": " length " columns" }' $pages)
[ -z "$rows" ] || report 'documents with lines over 120 columns:' "$rows"
rows=$(for page in $(echo "$pages" | grep 'README.md$'); do
  most=20; [ "$page" != README.md ] || most=200
  lines=$(wc -l <"$page"); [ "$lines" -le $most ] || echo "$page: $lines lines, $most are allowed"
done)
[ -z "$rows" ] || report 'pages that are too long:' "$rows"


# Nothing of a recipe's is reached through metamethods: tables are read and set raw. But for the calls that these rows name, which say why.
raw_only='lua_getfield|lua_setfield|lua_geti|lua_seti|lua_gettable|lua_settable|luaL_len|lua_len|lua_getglobal|luaL_getsubtable'
# pattern.c: gsub reads a table of replacements as stock Lua does.
exceptions='^bindings/pattern\.c:'
rows=$(find_in "\\b($raw_only)\\(" bindings/*.c | grep -vE "$exceptions"); [ -z "$rows" ] || report 'tables that are read through metamethods:' "$rows"
# A recipe owns the table that methods of strings are found in: the Lua half calls string.format and its like.
methods='(^|[^\\])"\):[a-z]+\(|[])A-Za-z0-9_]:(format|match|gsub|find|sub|rep|lower|upper|byte|reverse|gmatch|len)\('
rows=$(find_in "$methods" bindings/gibbous/*.lua bindings/gibbous/*/*.lua); [ -z "$rows" ] || report 'methods of strings:' "$rows"
for script in dev .ci/run cmake/lint.sh tests/host/*.sh tests/dist/*.sh; do
  sh -n "$script" || bad=1
done
if command -v luacheck >/dev/null 2>&1; then
  luacheck --quiet --no-color --config .luacheckrc bindings/gibbous cmake/reference.lua repl/lua recipes tests/lua tests/host tests/dist || bad=1
else
  echo 'lint: luacheck is not installed, Lua was not checked'
fi
[ $bad = 0 ] && echo 'lint: nothing found'
exit $bad
