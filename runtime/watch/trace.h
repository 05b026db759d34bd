/* watch/trace.h - the armed half of the skip report: which op made the first value that is not finite.
 *
 * A trace costs checks of every tensor, so a scaler arms it by a skip and disarms it by the next good step. It is an
 * observer: of forward ops, where it notes the recipe's lines too, and of gradients, node by node, where it asks
 * whether the node's gradient is finite at half the scale. In the forward pass minus infinity is what masks are made
 * of: there only plus infinity and NaN are findings, and only if the loss has them. */
#ifndef GB_WATCH_TRACE_H
#define GB_WATCH_TRACE_H

#include "step/room.h"

/* From the node with number `first` on, nodes were made by this line of the recipe. */
typedef struct gb_trace_line { uint64_t first; char text[96]; } gb_trace_line;

/* A context has one. */
typedef struct gb_trace {
  gb_context *context;
  const struct gb_scaler *owner; /* NULL: not armed */
  gb_observer observer;
  uint32_t scaler;           /* whose gradients; 0: anybody's */
  gb_status failure;         /* failure of a check that waited and met another fault on the device; the op's or
                                backward's failure then */
  gb_trace_line *lines;
  size_t n_lines, capacity;
  char forward[160];         /* the first finding of the forward pass */
  char cause[256];           /* "": not found yet */
} gb_trace;

extern const gb_skip_tracer gb_trace_of_skips;

#endif
