/* step/capture.h - a training step captured as a graph of launches, and run again without the host.
 *
 * While a step is captured, memory comes from a pool of the graph's own, so that every replay finds what it needs at
 * its place; storages that the step reads are kept. What changes from step to step is brought to the device before a
 * replay: learning rates and weight decay of the optimizers that stepped, the place in the random stream, and 16-bit
 * copies of weights that were changed by hand. What the host counts in a step (versions of weights, updates of a
 * scaler) is counted again. Everything else is as it was when the step was captured. */
#ifndef GB_STEP_CAPTURE_H
#define GB_STEP_CAPTURE_H

#include "graph/ops.h"

struct gb_optimizer;
struct gb_scaler;
typedef struct gb_capture gb_capture;

/* From here on ops on this CUDA device are recorded and not run. */
gb_status gb_capture_begin(gb_context *context, gb_device device, gb_capture **out);
/* The step was recorded: make it a graph and run it once. After a failure the capture is useless and should be
 * closed. */
gb_status gb_capture_end(gb_capture *capture);
/* The step failed: forget what was recorded. */
void gb_capture_abandon(gb_capture *capture);
gb_status gb_capture_replay(gb_capture *capture);
void gb_capture_close(gb_capture *capture);

/* Called where work is done that a replay repeats. Does nothing outside a capture. */
gb_status gb_capture_note_weight(gb_context *context, gb_tensor *weight, gb_dtype dtype);
gb_status gb_capture_note_optimizer(gb_context *context, struct gb_optimizer *optimizer);
gb_status gb_capture_note_scaler(gb_context *context, struct gb_scaler *scaler);

#endif
