-- The Lua module as a rock: `luarocks make` in this folder builds it with CMake and installs it for lua5.4.
rockspec_format = "3.0"
package = "gibbous"
version = "0.1.0-1"
source = { url = "." } -- the tree that this file lies in
description = {
  summary = "Training recipes in Lua on a native mixed-precision engine",
  detailed = "Tensors, layers, autocast scopes and a gradient scaler; models and training loops are Lua scripts.",
  license = "MIT",
}
supported_platforms = { "linux" }
dependencies = { "lua >= 5.4, < 5.5" }
external_dependencies = { ZLIB = { header = "zlib.h" } }
build = {
  type = "cmake",
  variables = {
    CMAKE_BUILD_TYPE = "Release",
    CMAKE_INSTALL_PREFIX = "$(PREFIX)",
    LUA_MODULE_DIR = "$(LIBDIR)",
    GIBBOUS_MODULE_ONLY = "ON",
    GIBBOUS_CUDA = "off",
  },
}
