/* watch/trace.h - the armed half of the skip report: which op made the first value that is not finite.
 *
 * A trace costs checks of every tensor, so a scaler arms it by a skip and disarms it by the next good step. Forward ops are watched by an
 * observer, which notes the recipe's lines too; backward asks node by node, and whether the node's gradient is finite at half the scale. In
 * the forward pass minus infinity is what masks are made of: there only plus infinity and NaN are findings, and only if the loss has them. */
#ifndef GB_WATCH_TRACE_H
#define GB_WATCH_TRACE_H

#include "graph/ops.h"

/* From the node with number `first` on, nodes were made by this line of the recipe. */
typedef struct gb_trace_line { uint64_t first; char text[96]; } gb_trace_line;

typedef struct gb_trace {
  gb_context *context;       /* NULL: not armed */
  gb_observer observer;
  uint32_t scaler;           /* whose gradients; 0: anybody's */
  gb_status failure;         /* failure of a check that waited and met another fault on the device; the op's or
                                backward's failure then */
  gb_trace_line *lines;
  size_t n_lines, capacity;
  char forward[160];         /* the first finding of the forward pass */
  char cause[256];           /* "": not found yet */
} gb_trace;

/* Watch what runs from now on, and gradients that carry this scaler's tag (0: any). A context has one trace: another one is disarmed. */
void gb_trace_arm(gb_trace *trace, gb_context *context, uint32_t scaler);
static inline bool gb_trace_follows(const gb_trace *trace, uint32_t scaler) { return trace && (!trace->scaler || trace->scaler == scaler); }
void gb_trace_disarm(gb_trace *trace);
/* What a check found, reported once; its text is the context's. */
gb_status gb_trace_failure(gb_trace *trace);
/* Forget what was found: a new step begins. */
void gb_trace_restart(gb_trace *trace);
/* A loss is about to be scaled: if it is not finite, that is the cause. */
void gb_trace_loss(gb_trace *trace, gb_tensor *loss);
/* True if every element is finite, and also if that could not be found out. */
bool gb_trace_finite(gb_trace *trace, gb_tensor *t);
/* Report a node of backward as the cause: `what` (such as "the gradient of"), the op's name, the node's number, and the
 * end of the text. */
void gb_trace_found(gb_trace *trace, const char *what, const char *op, uint64_t sequence, const char *end);

#endif
