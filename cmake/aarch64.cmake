# cmake/aarch64.cmake - toolchain file: compile for 64-bit ARM Linux with Debian's cross compiler. Lua and zlib for arm64 lie below the
# sysroot that `./dev cross` unpacks; with qemu-user installed, the tests can be run too.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

get_filename_component(SYSROOT "${CMAKE_CURRENT_LIST_DIR}/../build-aarch64/sysroot" ABSOLUTE)
if(NOT EXISTS "${SYSROOT}/complete")
  message(FATAL_ERROR "There is no Lua and zlib for arm64 in ${SYSROOT}; ./dev cross fetches them and compiles")
endif()
set(CMAKE_C_STANDARD_INCLUDE_DIRECTORIES "${SYSROOT}/usr/include/aarch64-linux-gnu")
set(CMAKE_FIND_ROOT_PATH "${SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} "${SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${SYSROOT}")
set(ZLIB_LIBRARY "${SYSROOT}/usr/lib/aarch64-linux-gnu/libz.a" CACHE FILEPATH "zlib for arm64")

find_program(QEMU_AARCH64 NAMES qemu-aarch64 qemu-aarch64-static NO_CMAKE_FIND_ROOT_PATH)
if(QEMU_AARCH64)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${QEMU_AARCH64};-L;/usr/aarch64-linux-gnu")
endif()
