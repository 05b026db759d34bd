/* graph/gate.h - a gradient on its way through a ReLU. On a GPU nobody makes it at once: what comes before the ReLU, a
 * batch norm or the sum of one and a residual, makes it in the passes of its own gradient, which saves a pass over
 * memory; and so does the sum of the two gradients that reached the ReLU. Whoever else wants it takes what the batch
 * norm left, or makes it. Numbers are the same to the bit. */
#ifndef GB_GRAPH_GATE_H
#define GB_GRAPH_GATE_H

#include "graph/ops.h"

typedef struct gb_gate {
  int refs;
  gb_context *context;
  gb_tensor *grad, *more, *y;          /* of the result y: grad, or grad + more (NULL: none); NULL once it is made */
  uint64_t version;                    /* of y, when it was handed over */
  gb_tensor *made;                     /* of what went into the ReLU; NULL: nobody made it yet */
} gb_gate;

/* One reference, which has its own to the tensors. NULL: out of memory (text set). */
gb_gate *gb_gate_new(gb_context *context, gb_tensor *grad, gb_tensor *more, gb_tensor *y);
void gb_gate_release(gb_gate *gate);   /* NULL is allowed */
/* Is y as it was? Before it is read. */
gb_status gb_gate_check(const gb_gate *gate);
/* This is what comes out; takes the reference over. */
void gb_gate_put(gb_gate *gate, gb_tensor *made);
/* What comes out, made now where nobody did; a new reference. */
gb_status gb_gate_open(gb_gate *gate, gb_tensor **out);

#endif
