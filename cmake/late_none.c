/* late_none.c - the table of late names of a build that cannot run what it builds, and of the program that makes the
 * table: empty, so that all chunks run when the library opens. */
#include "embedded.h"

const gbl_late_row gbl_late_rows[] = { { 0, 0, 0, 0 } };
const int gbl_late_count = 0;
