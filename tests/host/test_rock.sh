#!/bin/sh
# test_rock.sh SOURCE OUT LUA - build the rock with luarocks into the empty folder OUT, use it from LUA (a stock lua5.4), and remove it again.
set -u
source=$1 out=$2 lua=$3
. "$(dirname "$0")/check.sh"
rm -rf "$out"
cd "$source" || exit 1
rock() { luarocks --lua-version 5.4 --tree "$out" "$@"; }
sum='print(require "gibbous".tensor{1, 2}:to("float32"):sum():item())'

check "luarocks make" rock make gibbous-*.rockspec
rm -rf build.luarocks
same "lua5.4 finds the rock" 3.0 "$(eval "$(rock path)" && cd / && "$lua" -e "$sum")"
same "the module and nothing else is installed" lib/lua/5.4/gibbous.so "$(cd "$out" && find lib/lua share/lua bin -type f 2>/dev/null)"
check "luarocks remove" rock remove gibbous
same "no file is left" "" "$(find "$out" -name '*.so')"
report
