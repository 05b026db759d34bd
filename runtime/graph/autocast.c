/* graph/autocast.c - the five classes of docs/precision.md as a function from (class, dtypes) to casts. */
#include "graph/rules.h"

bool gb_autocast_eligible(const gb_tensor *t) {
  return t && !t->wrapped && t->dtype != GB_FLOAT64 && gb_dtype_is_float((gb_dtype)t->dtype);
}

/* The widest eligible dtype (float16 with bfloat16: float32), or none where no input is eligible. */
static gb_dtype widest(const gb_op_call *call) {
  gb_dtype dtype = GB_DTYPE_NONE;
  for (int i = 0; i < call->n_in; i++)
    if (gb_autocast_eligible(call->in[i])) dtype = gb_promote(dtype, (gb_dtype)call->in[i]->dtype);
  return dtype;
}

/* A float64 input keeps the whole op in float64. */
static bool any_float64(const gb_op_call *call) {
  for (int i = 0; i < call->n_in; i++)
    if (call->in[i] && !call->in[i]->wrapped && call->in[i]->dtype == GB_FLOAT64) return true;
  return false;
}

gb_status gb_autocast_rule(const gb_op_call *call, gb_dtype lower, gb_autocast_plan *plan) {
  *plan = (gb_autocast_plan){ GB_DTYPE_NONE, GB_DTYPE_NONE };
  switch (call->info->autocast) {
    case GB_CLASS_KEEP: return GB_OK;
    case GB_CLASS_LOWER: plan->cast = lower; return GB_OK;
    case GB_CLASS_WIDEST: plan->cast = widest(call); return GB_OK;
    case GB_CLASS_FLOAT32:
      if (widest(call) == GB_DTYPE_NONE || any_float64(call)) return GB_OK;
      if (call->composite) plan->cast = GB_FLOAT32;
      else plan->result = GB_FLOAT32;
      return GB_OK;
    case GB_CLASS_BANNED:
      return gb_fail(call->context, GB_EAUTOCAST,
                     "is unsafe under autocast: its gradient may not fit 16 bits; drop the sigmoid before it and use "
                     "binary_cross_entropy_with_logits, or wrap the call in amp.disable()");
  }
  return GB_OK;
}
