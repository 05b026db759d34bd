/* step/shaped.h - optimizers whose step looks at a parameter as a whole: what ops do between its two passes. */
#ifndef GB_STEP_SHAPED_H
#define GB_STEP_SHAPED_H

#include "step/optim.h"

/* Can this kind step the parameter? Text set where it cannot. label: the parameter's name for messages. */
gb_status gb_shaped_check(gb_context *context, gb_optimizer_kind kind, const gb_tensor *parameter, const char *label);
/* Change directions in place into what the step takes. `directions` has the parameter's shape. */
gb_status gb_shaped_apply(gb_context *context, gb_optimizer_kind kind, const gb_optim_numbers *numbers,
                          gb_tensor *directions);

#endif
