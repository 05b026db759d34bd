/* cuda/optim.h - what optim.c, which knows the engine's slabs, hands to the kernels of optim.cu. */
#ifndef GB_CUDA_OPTIM_H
#define GB_CUDA_OPTIM_H

#include "cuda/call.h" /* first: it says that functions of base/ are the device's too */

#include "base/optimizers.h"
#include "base/step_scalars.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GB_PASS_SEGMENTS 128 /* so that a launch's arguments stay below 4 KB; longer tables take several launches */

#define GB_PASS_NUMBERS 128  /* bytes that hold what is the same for all elements of a segment */

/* index: in the counters; place: in the slab, whose counters may be those of a larger one. */
typedef struct gb_pass_segment { int64_t offset, size; int32_t index, place; } gb_pass_segment;

/* One pass over segments of a slab. Pointers are device memory; NULL where the slab has no such thing. */
typedef struct gb_pass {
  int count;
  gb_pass_segment segment[GB_PASS_SEGMENTS];
  int64_t start;                         /* where chunks are counted from: of the slab, where the group of chunks begins
                                            that its first segment with a gradient lies in */
  char *gradients, *parameters, *weights, *copy[GB_COPIES]; /* weights: what a step updates, the masters where there are
                                                               some */
  char *state[GB_OPTIM_STATES];          /* those that the step uses */
  int gradient_dtype, dtype;             /* dtype: of the parameters */
  bool is_f64, has_masters;              /* the precision of a step */
  int64_t *steps, *blame;                /* per segment: steps taken; the update at which a gradient was last not
                                            finite */
  gb_scale_state *scale;
  gb_found_state *found, *owner;          /* owner: the flag that goes up where a norm is not finite */
  const gb_found_state *norm;             /* clip by the norm in there; NULL: not by norm */
  bool spares;                           /* where it is not finite, gradients stay as they are */
  bool scaled, maximize;
  double norm_type, max_norm, clip_factor, clip_value;
  double *norms;                         /* per chunk; NULL: not wanted */
  double *flags;                         /* per segment of a check: 1 where its gradient is not finite; NULL: the
                                            scalars' flags go up instead */
  double *measures, *parts;              /* of segments, and of parts of them: see gb_measures_of */
  bool known;                            /* a step need not measure them */
  gb_optimizer_kind optimizer;           /* of a step */
  gb_optim_numbers numbers;
  char *made;                            /* of a step: room for GB_PASS_NUMBERS bytes for each of its segments */
  const gb_optim_numbers *live;          /* in a captured graph the numbers are read from device memory; NULL: those
                                            above */
} gb_pass;

typedef enum gb_pass_kind { GB_PASS_CHECK, GB_PASS_UNSCALE, GB_PASS_CLIP, GB_PASS_DIRECT, GB_PASS_MEASURE,
               GB_PASS_STEP } gb_pass_kind;

int64_t gb_pass_chunks(int64_t elements);                    /* chunks that so many elements are cut into */
void gb_pass_run(gb_stream stream, gb_pass_kind kind, const gb_pass *pass);
/* Norms are joined by groups of GB_NORM_CHUNK elements first, as they are where processes share them out. */
enum { GB_PASS_GROUP = 4 };              /* chunks */
void gb_pass_norm(gb_stream stream, const gb_pass *pass, int64_t chunks); /* the chunks' norms into the scalars */
void gb_pass_join(gb_stream stream, const gb_pass *pass, int64_t chunks, double *groups); /* or into those of groups */
void gb_pass_norm_of(gb_stream stream, const gb_pass *pass, const double *groups, int64_t count); /* and these then */
void gb_pass_raise(gb_stream stream, const gb_pass *pass, int64_t segments); /* scalars' flags, as pass->flags say */
void gb_pass_count(gb_stream stream, const gb_pass *pass);   /* count a step for the segments, unless it was skipped */
void gb_pass_update_scale(gb_stream stream, gb_scale_state *scalars, const gb_scale_rule *rule);

#ifdef __cplusplus
}
#endif
#endif
