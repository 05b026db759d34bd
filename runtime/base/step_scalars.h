/* base/step_scalars.h - numbers of a step that kernels read and write in the memory of their device, and how the scale
 * follows from what was found. The same for the engine, the CPU and CUDA. */
#ifndef GB_BASE_STEP_SCALARS_H
#define GB_BASE_STEP_SCALARS_H

#include <float.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/float.h"

/* The scaler's numbers, on the device that steps (a gb_scalars). One per scaler. */
typedef struct gb_scale_state {
  float scale, inverse;      /* inverse = (float)(1.0 / (double)scale) */
  float growth_tracker;      /* good steps since the last change */
  float found_inf;           /* of all optimizers since the last update, ORed */
  int64_t steps, skipped, skipped_in_a_row;
} gb_scale_state;

/* What one optimizer found since the last update, on its device. One per optimizer. */
typedef struct gb_found_state {
  float found_inf;           /* 1 when a gradient was not finite */
  double norm_squared;       /* of gradients in their true size, when asked: the sum of |g|^p, or the largest |g| for
                                the infinite norm */
} gb_found_state;

/* {==== the scale's rule ==== */

typedef struct gb_scale_rule {
  double growth_factor, backoff_factor, min_scale, max_scale;
  int64_t growth_interval, hysteresis; /* hysteresis: the scale shrinks from that many skips in a row on */
} gb_scale_rule;

/* Smaller, but not below the floor; never so small that its inverse is not finite. */
GB_INLINE float gb_scale_backed_off(const gb_scale_rule *rule, float scale) {
  float next = (float)(scale * rule->backoff_factor), least = rule->min_scale > FLT_MIN ? (float)rule->min_scale
      : FLT_MIN;
  return next >= least ? next : scale < least ? scale : least;
}

/* Larger, but not above the ceiling; a scale that would be infinite stays. */
GB_INLINE float gb_scale_grown(const gb_scale_rule *rule, float scale) {
  float next = (float)(scale * rule->growth_factor);
  if (!(next <= FLT_MAX)) return scale;
  if (rule->max_scale <= 0 || next <= (float)rule->max_scale) return next;
  return scale > (float)rule->max_scale ? scale : (float)rule->max_scale;
}

/* Count the step or the skip, change the scale by it, and clear the flag. */
GB_INLINE void gb_scale_update(gb_scale_state *r, const gb_scale_rule *rule) {
  if (r->found_inf != 0) {
    r->growth_tracker = 0;
    r->skipped++;
    r->skipped_in_a_row++;
    if (r->skipped_in_a_row >= rule->hysteresis) r->scale = gb_scale_backed_off(rule, r->scale);
  } else {
    bool grows = r->growth_tracker + 1 >= (float)rule->growth_interval;
    if (grows) r->scale = gb_scale_grown(rule, r->scale);
    r->growth_tracker = grows ? 0 : r->growth_tracker + 1;
    r->steps++;
    r->skipped_in_a_row = 0;
  }
  r->inverse = (float)(1.0 / (double)r->scale);
  r->found_inf = 0;
}

/* ====} */

#endif
