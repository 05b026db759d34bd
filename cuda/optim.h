/* cuda/optim.h - what optim.c, which knows the engine's slabs, hands to the kernels of optim.cu. */
#ifndef GB_CUDA_OPTIM_H
#define GB_CUDA_OPTIM_H

#include "cuda/call.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GB_PASS_SEGMENTS 128 /* so that a launch's arguments stay below 4 KB; longer tables take several launches */

/* As gb_scale_record and gb_found_record of tensor/step_state.h, which optim.c checks. */
typedef struct gb_pass_scale {
  float scale, inverse, growth_tracker, found_inf;
  int64_t steps, skipped, skipped_in_a_row;
} gb_pass_scale;
typedef struct gb_pass_found {
  float found_inf;
  double norm;
} gb_pass_found;

typedef struct gb_pass_segment { int64_t offset, size, index; } gb_pass_segment; /* index: in the slab's counters */

/* The numbers of a step that a schedule may change: in a captured graph they are read from device memory. */
typedef struct gb_pass_rates { double lr, weight_decay; } gb_pass_rates;

/* One pass over segments of a slab. Pointers are device memory; NULL where the slab has no such thing. */
typedef struct gb_pass {
  int count;
  gb_pass_segment segment[GB_PASS_SEGMENTS];
  int64_t start;                         /* of the slab's first segment with a gradient: chunks are counted from here */
  char *gradients, *parameters, *weights, *copy[2], *state[2]; /* weights: what a step updates, the masters where there are some */
  int gradient_dtype, dtype;             /* dtype: of the parameters */
  bool is_f64, has_masters;              /* the precision of a step */
  int64_t *steps, *blame;                /* per segment: steps taken; the update at which a gradient was last not finite */
  gb_pass_scale *scale;
  gb_pass_found *found, *owner;          /* owner: the flag that goes up where a norm is not finite */
  const gb_pass_found *norm;             /* clip by the norm in there; NULL: not by norm */
  bool spares;                           /* where it is not finite, gradients stay as they are */
  bool scaled, maximize;
  double norm_type, max_norm, clip_factor, clip_value;
  double *norms;                         /* per chunk */
  double beta1, beta2, eps, momentum, dampening;
  bool nesterov, decoupled;
  gb_pass_rates rates;
  const gb_pass_rates *live;             /* NULL: rates */
} gb_pass;

typedef struct gb_pass_update {
  gb_pass_scale *scale;
  double growth_factor, backoff_factor, min_scale, max_scale;
  int64_t growth_interval, hysteresis;
} gb_pass_update;

typedef enum gb_pass_kind { GB_PASS_CHECK, GB_PASS_UNSCALE, GB_PASS_CLIP, GB_PASS_SGD, GB_PASS_ADAM } gb_pass_kind;

int64_t gb_pass_chunks(int64_t elements);                    /* chunks that so many elements are cut into */
void gb_pass_run(gb_stream stream, gb_pass_kind kind, const gb_pass *pass);
void gb_pass_norm(gb_stream stream, const gb_pass *pass, int64_t chunks);  /* join the chunks' norms into the record */
void gb_pass_count(gb_stream stream, const gb_pass *pass);   /* count a step for the segments, unless it was skipped */
void gb_pass_update_scale(gb_stream stream, const gb_pass_update *update);

#ifdef __cplusplus
}
#endif
#endif
