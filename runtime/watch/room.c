/* watch/room.c - opens and closes what the watch keeps with a context, and tells the step who explains skips. */
#include "watch/room.h"

#include <stdlib.h>

gb_status gb_watch_open(gb_context *context) {
  context->watch = calloc(1, sizeof *context->watch);
  if (!context->watch) return GB_EMEMORY;
  context->step->tracer = &gb_trace_of_skips;
  return GB_OK;
}

void gb_watch_close(gb_context *context) {
  if (!context->watch) return;
  free(context->watch->trace.lines);
  free(context->watch);
  context->watch = NULL;
}
