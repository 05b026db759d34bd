/* step/room.c - opens and closes what the step keeps with a context, and tells the graph who keeps the weights. */
#include "step/room.h"

#include <stdlib.h>

#include "step/scaler.h"
#include "step/weights.h"

gb_status gb_step_open(gb_context *context) {
  static const gb_weight_keeper keeper = { gb_weight_is_cached, gb_weight_get, gb_scaler_receives, gb_scaler_receive };
  context->step = calloc(1, sizeof *context->step);
  if (!context->step) return GB_EMEMORY;
  context->graph->weights = &keeper;
  return GB_OK;
}

void gb_step_close(gb_context *context) {
  free(context->step);
  context->step = NULL;
}
