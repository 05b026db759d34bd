/* graph/rules.h - autocast's rules: from an op's class and its inputs' dtypes to casts. Pure: reads the call, changes
 * nothing. */
#ifndef GB_GRAPH_RULES_H
#define GB_GRAPH_RULES_H

#include "graph/ops.h"

typedef struct gb_autocast_plan {
  gb_dtype cast;     /* what eligible inputs are cast to; GB_DTYPE_NONE: they stay */
  gb_dtype result;   /* the dtype floating results have, for ops that read their inputs as they are; GB_DTYPE_NONE: the
                        natural one */
} gb_autocast_plan;

/* Floating, not float64, and no number of the calling language. */
bool gb_autocast_eligible(const gb_tensor *t);
/* lower: the scope's dtype. A banned op is GB_EAUTOCAST. */
gb_status gb_autocast_rule(const gb_op_call *call, gb_dtype lower, gb_autocast_plan *plan);

#endif
