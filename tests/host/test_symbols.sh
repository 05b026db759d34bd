#!/bin/sh
# test_symbols.sh BUILD LUA - what each artefact shows: libgibbous the functions of the public headers and nothing else, the executable all of
# Lua, the module its entrance alone. LUA is the static library of Lua that was built in.
set -u
build=$1 lua=$2
. "$(dirname "$0")/check.sh"

# The functions that the installed headers declare, one a line.
declared() { cat "$build"/include/*.h | grep -oE '^GB_API [^;(]*\(' | grep -oE 'gb_[a-z0-9_]+\(' | tr -d '(' | sort -u; }
# What a linked object shows, and what an archive shows.
shown() { nm -D --defined-only "$1" | awk '{ print $3 }' | sort; }
shown_static() { nm --defined-only --extern-only "$1" | awk 'NF == 3 { print $3 }' | sort; }
taken() { nm -D --undefined-only "$1" | awk '{ print $NF }' | sort; }
lua_functions() { nm --defined-only --extern-only "$lua" | awk '$2 == "T" && $3 ~ /^(lua_|luaL_|luaopen_)/ { print $3 }' | sort; }
# Lines of the first text that the second does not have.
without() { printf '%s\n' "$1" | grep -vxF "$2"; }

shared=$build/libgibbous.so module=$build/lua/gibbous.so
same "the headers declare what a host needs" gb_context_open "$(declared | grep -x gb_context_open)"
same "libgibbous.so shows what the headers declare" "$(declared)" "$(shown "$shared")"
same "libgibbous.a shows what the headers declare" "$(declared)" "$(shown_static "$build/libgibbous.a")"
same "libgibbous.so takes no Lua from its host" "" "$(taken "$shared" | grep '^lua')"
same "libgibbous.so has its soname" 1 "$(readelf -d "$shared" | grep -c 'soname: \[libgibbous\.so\.[0-9.]*\]')"
same "libgibbous.so is position independent" 0 "$(readelf -d "$shared" | grep -c TEXTREL)"
same "the module shows its entrance" luaopen_gibbous "$(shown "$module")"
same "the module takes Lua from its interpreter" lua_pcallk "$(taken "$module" | grep -x lua_pcallk)"
same "the module links no Lua" "" "$(readelf -d "$module" | grep NEEDED | grep -i lua)"
same "the module holds no bytecode, which another patch release may not read" 0 "$(grep -caF "$(printf '\033Lua')" "$module")"
same "the module stays in the process" 1 "$(readelf -d "$module" | grep -c NODELETE)"
same "the executable shows all of Lua" "" "$(without "$(lua_functions)" "$(shown "$build/gibbous")")"
report
