#!/bin/sh
# test_outside.sh cmake|pkg-config PREFIX OUT - build the project in outside/ against the tree installed in PREFIX, in the empty folder OUT, and
# run each of its programs.
set -u
way=$1 prefix=$2 out=$3
here=$(cd "$(dirname "$0")" && pwd)
. "$here/check.sh"
rm -rf "$out"
mkdir -p "$out"

if [ "$way" = cmake ]; then
  check "configure" cmake -S "$here/outside" -B "$out" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF
  check "build" cmake --build "$out"
  programs="c_gibbous cpp_gibbous c_gibbous_static cpp_gibbous_static"
else
  PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name gibbous.pc)")
  export PKG_CONFIG_PATH
  programs="c_shared cpp_shared c_static"
  others=$(for lua in lua5.1 luajit; do pkg-config --exists $lua && echo $lua; done)
  check "there is another Lua to embed beside it" test -n "$others"
  for lua in $others; do programs="$programs beside_${lua}_shared beside_${lua}_static"; done
  check "build" make -C "$here/outside" OUT="$out" OTHER="$(echo $others)"
fi
for program in $programs; do
  check "$program" "$out/$program"
done
same "the shared library is found where it was installed" "$(find "$prefix" -name 'libgibbous.so.*' -type f | xargs readlink -f)" \
  "$(for program in $programs; do ldd "$out/$program"; done | sed -n 's/.*libgibbous.so[^ ]* => \([^ ]*\) .*/\1/p' | xargs readlink -f | sort -u)"
report
