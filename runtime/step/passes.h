/* step/passes.h - the road of a step of a backend: check, run, observe. */
#ifndef GB_STEP_PASSES_H
#define GB_STEP_PASSES_H

#include "tensor/slab.h"

/* Do `step` as the call says, on the device of its slab. No step has a gradient, or a result that is a tensor. */
gb_status gb_step_run(gb_context *context, gb_step step, gb_step_call *call);
/* As error texts, profilers and audits name it. */
const char *gb_step_name(gb_step step);

#endif
