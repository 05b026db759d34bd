# Write OUTPUT: HEADER, in which the table of ops is named as it is installed.
file(READ ${HEADER} text)
string(REPLACE "#include \"graph/ops.def\"" "#include \"gibbous_ops.def\"" text "${text}")
file(WRITE ${OUTPUT} "${text}")
