/* graph/parts.h - gradients of parts of a result, put side by side into the gradient of the whole.
 *
 * A part is what narrow, select or a slice takes: of every `row` elements, in row-major order, the same ones next to
 * each other. As long as parts do not overlap each is written into its place, and what no part has is cleared at the
 * end: nothing is cleared to be written over, and no sum is taken of a gradient and zeros. */
#ifndef GB_GRAPH_PARTS_H
#define GB_GRAPH_PARTS_H

#include "tensor/tensor.h"

/* Of each of `rows` rows of `row` elements `count` next to each other. One row: its length is not known, and `row` is
 * 0. */
typedef struct gb_row_part { int64_t rows, row, count; } gb_row_part;

/* Does a layout, its dims in any order, take such a part of evenly spaced rows? */
bool gb_find_row_part(int ndim, const int64_t *shape, const int64_t *strides, gb_row_part *part);

/* The parts of one gradient that are in their places; begins as zeros but for output and row. */
typedef struct gb_span { int64_t from, to; } gb_span;
typedef struct gb_parts {
  struct gb_parts *next;
  int output;                /* of the node whose result the whole is */
  int64_t row;
  gb_span *spans;            /* of a row, in order, with room between them */
  size_t n_spans, room;
} gb_parts;

typedef enum gb_meeting { GB_APART, GB_WITHIN, GB_ACROSS } gb_meeting;
/* Does a span lie beside all that is there, within it, or partly in it? */
gb_meeting gb_parts_meet(const gb_parts *parts, gb_span span);
/* A span that lies apart is there from now on. */
gb_status gb_parts_put(gb_context *context, gb_parts *parts, gb_span span);
/* Before something is written to *whole: memory that nobody else sees, with the parts that are there. */
gb_status gb_parts_own(const gb_parts *parts, gb_tensor **whole);
/* Clear what no part has. */
gb_status gb_parts_finish(const gb_parts *parts, gb_tensor **whole);
void gb_parts_free(gb_parts *parts); /* the whole list */

#endif
