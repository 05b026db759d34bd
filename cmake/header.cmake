# Write OUTPUT: HEADER with the rows of OPS, the table of ops, in the place where it includes the table. A row becomes an enumerator with its
# signature and what it does beside it.
file(READ ${HEADER} text)
set(include "#define GB_OP(name, family, kind, signature, where, autocast, derivative, doc) GB_OP_##name,\n#include \"graph/ops.def\"\n#undef GB_OP\n")
string(FIND "${text}" "${include}" at)
if(at EQUAL -1)
  message(FATAL_ERROR "${HEADER} does not include the table of ops in the lines that cmake/header.cmake looks for")
endif()

file(READ ${OPS} rows)
string(FIND "${rows}" "*/\n" at)
math(EXPR at "${at} + 3")
string(SUBSTRING "${rows}" ${at} -1 rows) # without the comment that opens the file
string(REGEX REPLACE "GB_OP\\(([a-z0-9_]+), [^\"\n]*\"([^\"\n]*)\",[^\"\n]*\"([^\n]*)\"\\)" "  GB_OP_\\1, /* \\2: \\3 */" enumerators "${rows}")
if(enumerators MATCHES "GB_OP\\(([a-z0-9_]+)")
  message(FATAL_ERROR "the row of '${CMAKE_MATCH_1}' in ${OPS} does not stand on one line")
endif()
string(REPLACE "${include}" "${enumerators}" text "${text}")
file(WRITE ${OUTPUT} "${text}")
