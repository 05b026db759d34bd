#!/bin/sh
# test_package.sh BUILD OUT [install] - make the Debian package in the empty folder OUT and look into it. With `install`, which needs root: put
# it on this machine, use it as its users would, and remove it again.
set -u
build=$1 out=$2 install=${3:-}
. "$(dirname "$0")/check.sh"

if [ "$install" ] && { [ "$(id -u)" != 0 ] || dpkg -s gibbous >/dev/null 2>&1; }; then
  echo "skipped: installing needs root, and a machine without a package of that name"
  exit 77
fi
rm -rf "$out"
mkdir -p "$out/tree"
check "cpack" cpack --config "$build/CPackConfig.cmake" -B "$out"
package=$(ls "$out"/gibbous_*.deb)
files() { dpkg-deb -c "$package" | awk '{ print $6 }' | sed 's/^\.//'; }
field() { dpkg-deb -f "$package" "$1"; }

same "name" gibbous "$(field Package)"
same "version" "$("$build/gibbous" -e 'print(gb.version)')" "$(field Version)"
for library in libc6 zlib1g; do
  same "depends on $library" "$library" "$(field Depends | tr ',' '\n' | sed 's/^ *//; s/ .*//' | grep -x "$library")"
done
same "the maintainer has a name and an address" 1 "$(field Maintainer | grep -cE '^[^<>]+ <[^@ ]+@[^@ ]+>$')"
same "it holds no backend for GPUs" 0 "$(files | grep -c gibbous_cuda)"
same "everything lies below /usr" "" "$(files | grep -v '^/usr/')"
same "files belong to root" "root/root" "$(dpkg-deb -c "$package" | awk '{ print $2 }' | sort -u)"
same "the loader is told of the library" 1 "$(dpkg-deb --ctrl-tarfile "$package" | tar -xO ./postinst | grep -c '^[[:space:]]*ldconfig')"
check "extract" dpkg-deb -x "$package" "$out/tree"
same "the program runs" 3.0 "$("$out/tree/usr/bin/gibbous" -e 'print(gb.tensor{1, 2}:to("float32"):sum():item())')"

if [ "$install" ]; then
  check "dpkg -i" dpkg -i "$package"
  same "gibbous runs" 3.0 "$(cd / && gibbous -e 'print(gb.tensor{1, 2}:to("float32"):sum():item())')"
  same "lua5.4 finds the module" 3.0 "$(cd / && lua5.4 -e 'print(require "gibbous".tensor{1, 2}:to("float32"):sum():item())')"
  same "pkg-config finds it" "$(field Version)" "$(pkg-config --modversion gibbous)"
  same "the loader finds the library" 1 "$(ldconfig -p | grep -c 'libgibbous\.so\.[0-9.]* ')"
  check "dpkg -r" dpkg -r gibbous
  same "no file is left" "" "$(files | grep -v '/$' | while read -r file; do ls -d "$file" 2>/dev/null; done)"
  check "dpkg --purge" dpkg --purge gibbous
  same "the loader forgets the library" 0 "$(ldconfig -p | grep -c libgibbous)"
fi
report
