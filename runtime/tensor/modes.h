/* tensor/modes.h - what an op reads of its surroundings: gradients, autocast. One per coroutine of the bindings; the
 * context points at the one that counts now. */
#ifndef GB_TENSOR_MODES_H
#define GB_TENSOR_MODES_H

#include "gibbous.h"

typedef struct gb_modes {
  bool grad;            /* record a graph */
  bool autocast;        /* an enabled autocast scope is open */
  gb_dtype lower;       /* the scope's dtype, float16 or bfloat16 */
  bool anomaly;         /* devices wait after every op; backward stops at the first gradient that has NaN */
  bool recompute;       /* ops run again for backward: what forward counted (running statistics) is not counted twice */
} gb_modes;

#endif
