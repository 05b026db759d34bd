/* step/room.h - what the step keeps with a context, and the seam through which somebody above explains skipped
 * steps. */
#ifndef GB_STEP_ROOM_H
#define GB_STEP_ROOM_H

#include "graph/room.h"

struct gb_capture;
struct gb_scaler;

/* Looks for the op that made a step overflow, from a skip on to the next good step; for one scaler, its owner, at a
 * time. */
typedef struct gb_skip_tracer {
  /* id: of the scaler in the tags of gradients; 0: gradients of any scaler count. Another owner's trace ends. */
  void (*arm)(gb_context *context, const struct gb_scaler *owner, uint32_t id);
  void (*disarm)(gb_context *context, const struct gb_scaler *owner);
  void (*restart)(gb_context *context, const struct gb_scaler *owner); /* forget what was found: a new step begins */
  gb_status (*loss)(gb_context *context, uint32_t id, gb_tensor *loss); /* it is about to be scaled */
  const char *(*cause)(const gb_context *context, const struct gb_scaler *owner); /* "": not found */
} gb_skip_tracer;

typedef struct gb_step_room {
  struct gb_scaler *scalers;         /* every living one */
  uint32_t next_scaler;              /* the id of the last one */
  struct gb_capture *capture;        /* the graph that is being captured; NULL: none */
  uint64_t graph_turns;              /* captures begun, captures ended, and replays, which write memory without counting
                                        versions */
  const gb_skip_tracer *tracer;      /* NULL: nobody explains skips */
} gb_step_room;

gb_status gb_step_open(gb_context *context);
void gb_step_close(gb_context *context);

#endif
