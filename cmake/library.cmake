# cmake/library.cmake - libgibbous, shared and static, for host programs; and the module gibbous.so for a stock lua5.4.
#
# libgibbous is one relocatable object that holds the engine, the bindings and all of Lua, in which every symbol outside gibbous.h and
# gibbous_lua.h has been made local. So a host may embed another Lua, linked in whatever order, and neither sees the other. The archives that
# distributions give are not position independent in one respect: Lua reads stdin, stdout and stderr directly. These three references are
# turned to variables of our own (bindings/streams.c), and then the object goes into a shared library too.

set(ENGINE_LIBRARIES ZLIB::ZLIB Threads::Threads m ${CMAKE_DL_LIBS})
if(ONEDNN_LINKED)
  list(APPEND ENGINE_LIBRARIES $<BUILD_INTERFACE:${ONEDNN_LINKED}> $<INSTALL_INTERFACE:dnnl>)
endif()
if(IMAGE_LIBRARIES)
  string(REPLACE ";" "$<SEMICOLON>" names "${IMAGE_NAMES}")
  list(APPEND ENGINE_LIBRARIES $<BUILD_INTERFACE:${IMAGE_LIBRARIES}> "$<INSTALL_INTERFACE:${names}>")
endif()

# The public headers as they are installed, and the table of ops that gibbous_ops.h reads.
set(PUBLIC_HEADERS)
foreach(pair runtime/gibbous.h:gibbous.h runtime/gibbous_ops.h:gibbous_ops.h runtime/graph/ops.def:gibbous_ops.def
             bindings/gibbous_lua.h:gibbous_lua.h)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 from)
  list(GET pair 1 to)
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/include/${to}
    COMMAND ${CMAKE_COMMAND} -DHEADER=${CMAKE_SOURCE_DIR}/${from} -DOUTPUT=${CMAKE_BINARY_DIR}/include/${to}
            -P ${CMAKE_SOURCE_DIR}/cmake/header.cmake
    DEPENDS ${from} cmake/header.cmake
    COMMENT "Writing ${to}")
  list(APPEND PUBLIC_HEADERS ${CMAKE_BINARY_DIR}/include/${to})
endforeach()
add_custom_target(headers ALL DEPENDS ${PUBLIC_HEADERS})

# {==== libgibbous ====

if(LUA_STATIC AND NOT GIBBOUS_MODULE_ONLY)
  set(WHOLE ${CMAKE_BINARY_DIR}/libgibbous.o)
  add_custom_command(OUTPUT ${WHOLE}
    COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -o ${CMAKE_BINARY_DIR}/lua.o -Wl,--whole-archive ${LUA_STATIC}
    COMMAND ${CMAKE_OBJCOPY} --redefine-sym stdin=gbl_stdin --redefine-sym stdout=gbl_stdout --redefine-sym stderr=gbl_stderr ${CMAKE_BINARY_DIR}/lua.o
    COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -o ${WHOLE} ${CMAKE_BINARY_DIR}/lua.o $<TARGET_OBJECTS:${CHUNKS}> $<TARGET_OBJECTS:${LATE}>
            -Wl,--whole-archive $<TARGET_FILE:bindings> $<TARGET_FILE:engine>
    COMMAND ${CMAKE_OBJCOPY} --localize-hidden --wildcard --localize-symbol=lua* ${WHOLE}
    DEPENDS bindings engine ${CHUNKS} $<TARGET_OBJECTS:${CHUNKS}> ${LATE} $<TARGET_OBJECTS:${LATE}> ${LUA_STATIC}
    COMMENT "Joining the engine, the bindings and Lua, and hiding what is not public")
  set_source_files_properties(${WHOLE} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  add_custom_target(whole DEPENDS ${WHOLE})

  add_library(gibbous_shared SHARED ${WHOLE})
  add_library(gibbous_static STATIC ${WHOLE})
  target_link_libraries(gibbous_shared PRIVATE ${ENGINE_LIBRARIES})
  target_link_libraries(gibbous_static PRIVATE ${ENGINE_LIBRARIES})
  # The numbers of the ops are part of the binary interface, and a minor version adds rows.
  set_target_properties(gibbous_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} EXPORT_NAME gibbous)
  if(NOT GIBBOUS_SANITIZE)
    target_link_options(gibbous_shared PRIVATE -Wl,-z,defs)
  endif()
  foreach(target gibbous_shared gibbous_static)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME gibbous LINKER_LANGUAGE C)
    target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${CMAKE_BINARY_DIR}/include> $<INSTALL_INTERFACE:include>)
    add_dependencies(${target} whole headers)
  endforeach()
elseif(NOT GIBBOUS_MODULE_ONLY)
  message(WARNING "libgibbous is left out: it contains Lua, and no static library of Lua 5.4 was found (liblua5.4.a)")
endif()

# ====}

# {==== The module ====

# It takes lua_* from the interpreter that loads it. The interpreter unloads modules when a state closes, while another state, or another
# thread that is about to end, may still run their code: so it stays in the process (nodelete).
add_library(gibbous_module MODULE $<TARGET_OBJECTS:bindings> $<TARGET_OBJECTS:chunks_text> $<TARGET_OBJECTS:${LATE}>)
set_target_properties(gibbous_module PROPERTIES PREFIX "" OUTPUT_NAME gibbous LINKER_LANGUAGE C LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lua)
target_link_options(gibbous_module PRIVATE -Wl,-z,nodelete -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/module.map)
set_target_properties(gibbous_module PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/module.map)
target_link_libraries(gibbous_module PRIVATE engine)

# ====}
