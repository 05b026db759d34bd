/* step/shaped.h - optimizers whose step looks at a parameter as a whole: what ops do between its two passes. */
#ifndef GB_STEP_SHAPED_H
#define GB_STEP_SHAPED_H

#include "step/optim.h"

/* Can this kind step the parameter? Text set where it cannot. label: the parameter's name for messages. */
gb_status gb_shaped_check(gb_context *context, gb_optimizer_kind kind, const gb_tensor *parameter, const char *label);
/* What ops see of one parameter. */
typedef struct gb_shaped_room {
  gb_tensor *directions;       /* of the parameter's shape; changed in place into what the step takes */
  gb_tensor *weights;          /* what the step updates, masters where there are some; only read */
  gb_tensor *steps;            /* 0-d int64: how many the parameter took before this one */
  gb_tensor *factors[GB_OPTIM_FACTORS]; /* a copy, changed in place into the next ones; NULL: this parameter has none */
} gb_shaped_room;
gb_status gb_shaped_apply(gb_context *context, gb_optimizer_kind kind, const gb_optim_numbers *numbers,
                          const gb_shaped_room *room);
/* The factors after the step: `old` where the 0-d tensor found is not 0, else `next`. found NULL: nothing skips. New
 * reference. */
gb_status gb_shaped_choose(gb_context *context, gb_tensor *found, gb_tensor *old, gb_tensor *next, gb_tensor **out);

#endif
