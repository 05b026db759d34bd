#!/bin/sh
# test_installed.sh BUILD PREFIX LUA - install into the empty folder PREFIX, and look at what is there: the files, their sense without the build
# tree, the executable and the module at work. LUA is a stock lua5.4, or "".
set -u
build=$1 prefix=$2 lua=$3
. "$(dirname "$0")/check.sh"
rm -rf "$prefix"
check "cmake --install" cmake --install "$build" --prefix "$prefix"
libraries=$(dirname "$(find "$prefix" -name libgibbous.a)")

for file in bin/gibbous include/gibbous.h include/gibbous_lua.h share/gibbous/recipes/char_gpt.lua share/gibbous/meta/gibbous.lua \
            share/man/man1/gibbous.1 share/bash-completion/completions/gibbous share/zsh/vendor-completions/_gibbous; do
  check "$file is installed" test -f "$prefix/$file"
done
for file in libgibbous.so libgibbous.a cmake/Gibbous/GibbousConfig.cmake cmake/Gibbous/GibbousConfigVersion.cmake pkgconfig/gibbous.pc; do
  check "$file is installed" test -f "$libraries/$file"
done
check "there is a folder for plugins" test -d "$prefix/lib/gibbous"
same "no installed text names the build tree" "" "$(grep -rlIF "$build" "$prefix")"
same "no installed binary looks for libraries in folders of its own" "" \
  "$(for file in "$prefix/bin/gibbous" "$libraries/libgibbous.so" "$(find "$prefix" -name gibbous.so)"; do readelf -d "$file" | grep -E 'RPATH|RUNPATH'; done)"

version=$(sed -n 's/^#define GB_VERSION "\(.*\)"/\1/p' "$prefix/include/gibbous.h")
same "pkg-config gives the version of the header" "$version" "$(PKG_CONFIG_PATH=$libraries/pkgconfig pkg-config --modversion gibbous)"
same "the executable has the version of the header" "$version" "$("$prefix/bin/gibbous" -e 'print(gb.version)')"
same "the executable finds the recipes in its tree" 1 "$("$prefix/bin/gibbous" --recipes | grep -c "$prefix/share/gibbous/recipes/char_gpt.lua")"
check "the rockspec has the version of the header" test -f "$(dirname "$0")/../../gibbous-$version-1.rockspec"
# A plugin that is none is found, and refused, by the executable and by the module.
echo "no library" >"$prefix/lib/gibbous/gibbous_cuda.so"
why='print((select(2, require "gibbous".cuda.is_available()):match("/gibbous_cuda.so: [^:]*")))'
refused="/gibbous_cuda.so: file too short"
same "the executable finds plugins in its tree" "$refused" "$("$prefix/bin/gibbous" -e "$why")"
[ -z "$lua" ] || same "the module finds plugins in its tree" "$refused" "$(LUA_CPATH="$prefix/lib/lua/5.4/?.so" "$lua" -e "$why")"
rm "$prefix/lib/gibbous/gibbous_cuda.so"

same "the header needs no other file of ours" "" "$(grep '#include "' "$prefix/include/gibbous.h")"
report
