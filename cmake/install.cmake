# cmake/install.cmake - what `cmake --install` puts where, and the Debian package that `cpack` makes of it.
#
# The tree can be moved: the CMake package and the pkg-config file find their neighbours from where they lie themselves.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(LUA_MODULE_DIR lib/lua/5.4 CACHE STRING "Folder below the prefix for gibbous.so, the module for a stock lua5.4")
set(PLUGIN_DIR lib/gibbous) # where runtime/plugin.c looks

install(TARGETS gibbous_module LIBRARY DESTINATION ${LUA_MODULE_DIR})
if(GIBBOUS_MODULE_ONLY)
  return()
endif()

# {==== Programs, recipes, documents ====

install(TARGETS gibbous RUNTIME)
install(DIRECTORY recipes/ DESTINATION ${CMAKE_INSTALL_DATADIR}/gibbous/recipes FILES_MATCHING PATTERN "*.lua")
if(TYPES)
  install(FILES ${TYPES} DESTINATION ${CMAKE_INSTALL_DATADIR}/gibbous/meta)
endif()
install(FILES doc/gibbous.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)
install(FILES doc/gibbous.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME gibbous)
install(FILES doc/_gibbous DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
install(DIRECTORY DESTINATION ${PLUGIN_DIR}) # backends that the engine opens at run time
if(TARGET gibbous_cuda AND NOT GIBBOUS_CUDA STREQUAL emulate)
  set_target_properties(gibbous_cuda PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON) # libraries of NVIDIA's may lie where the loader does not look
  install(TARGETS gibbous_cuda LIBRARY DESTINATION ${PLUGIN_DIR} COMPONENT cuda)
  set(PACKAGE_CUDA ON)
endif()
if(TARGET gibbous_mpi)
  install(TARGETS gibbous_mpi LIBRARY DESTINATION ${PLUGIN_DIR} COMPONENT mpi EXCLUDE_FROM_ALL) # cmake --install --component mpi
endif()
set(GIBBOUS_CUDA_PLUGIN "" CACHE FILEPATH "A gibbous_cuda.so that was built elsewhere, to be installed and packaged with this build")
if(GIBBOUS_CUDA_PLUGIN)
  if(PACKAGE_CUDA)
    message(FATAL_ERROR "GIBBOUS_CUDA_PLUGIN goes with GIBBOUS_CUDA=off: this build makes a plugin of its own")
  endif()
  install(PROGRAMS ${GIBBOUS_CUDA_PLUGIN} DESTINATION ${PLUGIN_DIR} RENAME gibbous_cuda.so COMPONENT cuda)
  set(PACKAGE_CUDA ON)
endif()

# ====}

# {==== For programs that embed it ====

if(TARGET gibbous_shared)
  set(PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/Gibbous)
  install(FILES ${PUBLIC_HEADERS} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(TARGETS gibbous_shared gibbous_static EXPORT Gibbous)
  install(EXPORT Gibbous NAMESPACE Gibbous:: FILE GibbousTargets.cmake DESTINATION ${PACKAGE_DIR})
  configure_package_config_file(cmake/GibbousConfig.cmake.in ${CMAKE_BINARY_DIR}/GibbousConfig.cmake INSTALL_DESTINATION ${PACKAGE_DIR}
                                NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/GibbousConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/GibbousConfig.cmake ${CMAKE_BINARY_DIR}/GibbousConfigVersion.cmake DESTINATION ${PACKAGE_DIR})

  set(PC_PRIVATE "-lm -ldl -lpthread")
  if(ONEDNN_LINKED)
    set(PC_PRIVATE "-ldnnl ${PC_PRIVATE}")
  endif()
  foreach(name ${IMAGE_NAMES})
    set(PC_PRIVATE "-l${name} ${PC_PRIVATE}")
  endforeach()
  file(RELATIVE_PATH PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" PC_PREFIX ${PC_PREFIX})
  configure_file(cmake/gibbous.pc.in ${CMAKE_BINARY_DIR}/gibbous.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/gibbous.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

# ====}

# {==== The Debian package ====

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME gibbous)
set(CPACK_PACKAGE_CONTACT "Gibbous developers <developers@gibbous.invalid>") # a name that can belong to nobody (RFC 2606)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "embeddable scripting runtime for training recipes")
set(CPACK_PACKAGE_DESCRIPTION "Models and training loops are Lua scripts that run on a native mixed-precision engine.\n\
This package holds the gibbous program, libgibbous with its headers for programs that embed it, and the module for lua5.4.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION devel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "liblapack3") # loaded when gb.linalg is first used, as oneDNN is by the first convolution
if(HAVE_ONEDNN AND NOT ONEDNN_LINKED)
  string(APPEND CPACK_DEBIAN_PACKAGE_RECOMMENDS ", libdnnl${ONEDNN_MAJOR}")
endif()
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "lua5.4, zlib1g-dev, libjpeg62-turbo-dev, libpng-dev")
if(PACKAGE_CUDA) # a package of its own, for machines with a GPU; what it links to comes from NVIDIA, by packages of many names
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_COMPONENTS_GROUPING IGNORE)
  set(CPACK_COMPONENTS_ALL Unspecified cuda)
  set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_NAME gibbous)
  set(CPACK_COMPONENT_UNSPECIFIED_DESCRIPTION "${CPACK_PACKAGE_DESCRIPTION}")
  set(CPACK_DEBIAN_CUDA_PACKAGE_NAME gibbous-cuda)
  set(CPACK_COMPONENT_CUDA_DESCRIPTION "Models and training loops are Lua scripts that run on a native mixed-precision engine.\n\
This package holds its CUDA backend. The CUDA runtime, cuBLASLt and cuDNN come from NVIDIA; gibbous --doctor says what is missing.")
  set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "gibbous (= ${PROJECT_VERSION})")
  set(CPACK_DEBIAN_CUDA_PACKAGE_SUGGESTS "")
  set(CPACK_DEBIAN_CUDA_PACKAGE_RECOMMENDS "")
  set(CPACK_DEBIAN_CUDA_PACKAGE_SHLIBDEPS OFF)
endif()
include(CPack)

# ====}
