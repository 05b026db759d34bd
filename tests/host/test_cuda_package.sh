#!/bin/sh
# test_cuda_package.sh SOURCE BUILD PLUGIN OUT - configure with PLUGIN in the place of the CUDA backend, install it, make its package, and look into
# both: it lies where the engine looks, and in no package but its own. Nothing is built, so the plugin may be any shared library.
set -u
source=$1 build=$2 plugin=$3 out=$4
. "$(dirname "$0")/check.sh"
rm -rf "$out"
mkdir -p "$out"
check "configure" cmake -S "$source" -B "$out/build" -DGIBBOUS_CUDA=off -DGIBBOUS_TESTS=OFF -DCMAKE_SKIP_INSTALL_ALL_DEPENDENCY=ON "-DGIBBOUS_CUDA_PLUGIN=$plugin"
check "install" cmake --install "$out/build" --component cuda --prefix "$out/installed"
same "the plugin alone is its component" "./lib/gibbous/gibbous_cuda.so" "$(cd "$out/installed" && find . -type f)"

check "cpack" cpack --config "$out/build/CPackConfig.cmake" -B "$out" -D CPACK_COMPONENTS_ALL=cuda
package=$(ls "$out"/gibbous-cuda_*.deb)
field() { dpkg-deb -f "$package" "$1"; }
version=$(sed -n 's/^#define GB_VERSION "\(.*\)"/\1/p' "$source/runtime/gibbous.h")
same "name" gibbous-cuda "$(field Package)"
same "it goes with the same version of the rest" "gibbous (= $version)" "$(field Depends)"
same "it holds the plugin" "/usr/lib/gibbous/gibbous_cuda.so" "$(dpkg-deb -c "$package" | awk '!/\/$/ { print $6 }' | sed 's/^\.//')"
same "the maintainer has a name and an address" 1 "$(field Maintainer | grep -cE '^[^<>]+ <[^@ ]+@[^@ ]+>$')"

# The program of the build, beside the plugin as the packages put it, finds it; what it says of this one does not matter.
mkdir -p "$out/installed/bin"
cp "$build/gibbous" "$out/installed/bin"
same "the program looks there" 1 "$("$out/installed/bin/gibbous" -e 'print((select(2, gb.cuda.is_available())))' | grep -c "$out/installed/bin/../lib/gibbous/gibbous_cuda.so")"
report
