/* tensor/slab.h - plain data that the scaler, the optimizers and their kernels share.
 *
 * A slab holds one kind of data (parameters, gradients, a moment, masters, 16-bit copies) of all parameters of one
 * optimizer group and dtype, one after another; every slab of a group has the same segment table. Padding between
 * segments is zero. */
#ifndef GB_TENSOR_SLAB_H
#define GB_TENSOR_SLAB_H

#include "base/optimizers.h"
#include "base/step_scalars.h"
#include "tensor/backend.h"
#include "tensor/tensor.h"

enum { GB_SLAB_ALIGNMENT = 64 };      /* in elements: a segment starts on a cache line in every dtype */
static inline int64_t gb_slab_room(int64_t elements) {
  return (elements + GB_SLAB_ALIGNMENT - 1) / GB_SLAB_ALIGNMENT * GB_SLAB_ALIGNMENT;
}

/* One parameter's place in a slab. Tied parameters are one segment. */
typedef struct gb_segment {
  int64_t offset, size;      /* in elements; offset is a multiple of GB_SLAB_ALIGNMENT */
  bool has_grad;             /* false: untouched since zero_grad, as a nil gradient: no decay, no step */
  int64_t steps;             /* optimizer steps this segment took; on a device they are counted in the slab's
                                counters */
  int64_t factors;           /* where its factors begin in the slab's, in elements */
  int64_t place;             /* its number in the slab, also where a list holds a copy of it */
  bool narrow;               /* of a slab that is shared out: its weights are brought together in 16 bits */
  uint64_t measured;         /* 1 above the gradient's version when the last unscale_ measured it; 0: it did not */
  uint64_t joined;           /* the same of what all processes have measured together (step/split.h) */
  gb_tensor *parameter;      /* not counted: the optimizer holds it */
  gb_tensor *grad;           /* counted: the tensor over its place in the gradient slab, float32 unless the parameter is
                                float64 */
} gb_segment;

typedef struct gb_slab {
  int64_t count, elements;   /* segments; elements in all, padding included */
  gb_segment *segments;
  gb_dtype dtype;            /* of the parameters */
  gb_tensor *parameters;     /* vectors of `elements`, counted; NULL where the optimizer has no such thing */
  gb_tensor *gradients;      /* float32, or float64 */
  gb_tensor *masters;        /* float32, for 16-bit parameters */
  gb_tensor *copy[GB_COPIES]; /* 16-bit copies of float32 parameters, once asked for */
  gb_tensor *state[GB_OPTIM_STATES]; /* in the order of the optimizer's declaration */
  gb_tensor *factors;        /* states of other shapes than the parameters': those of each segment, one after another */
  gb_tensor *measures;       /* float64, where the optimizer is measured: see gb_measures_of */
  gb_tensor *counters;       /* on a device, int64: the steps of each segment, then the update at which its gradient was
                                last not finite; else NULL */
} gb_slab;

/* A slab's measures: two sums of squares for each segment, of its weights and of its directions, and then those of the
 * parts of segments that they are added from. A part is what of segment s lies in chunk c of a backend; it is number c
 * + s, which no other part has, since going along the slab either c or s rises. */
static inline int64_t gb_measures_of(int64_t count, int64_t elements) {
  return 2 * (count + (elements / GB_LEAST_CHUNK + 1 + count));
}

/* Slabs that processes share out (step/split.h) are cut between the chunks that gradients are measured by. */
enum { GB_SPLIT_ALIGNMENT = GB_NORM_CHUNK };

/* What a step of a backend (gb_step) is asked to do. Which fields count is said at each kernel. Scalars lie in the
 * memory of the device. */
typedef struct gb_step_call gb_step_call;
struct gb_step_call {
  gb_context *context;       /* set on the way, with the two below; for GB_STEP_RESCALE the caller gives the device */
  gb_step step;
  gb_device device;          /* where it runs: the slab's, or the scalars' */
  gb_slab *slab;             /* NULL for GB_STEP_RESCALE */
  gb_scale_state *scale;    /* NULL: gradients are unscaled */
  gb_found_state *found;    /* NULL: nothing to check */
  bool scaled;               /* gradients still carry the scale: multiply by scale->inverse on reading */
  double norm_type;          /* p above 0, or infinity; 0 where no norm is to be put into found */
  /* Of a check: gradients are shared out between processes, and 0 elsewhere. What it measured becomes that of all: the
   * norms of `count` chunks of GB_NORM_CHUNK, after them so many flags of the slab's segments (a device has all, the
   * CPU none), and *bad: whether a gradient was not finite. NULL: they are whole. */
  gb_status (*share)(const gb_step_call *call, double *numbers, int64_t count, int64_t flags, bool *bad);
  void *sharer;
  bool known;                /* share knows all of them, and a check need not look; of a step: what it would measure
                                first is in the slab's measures */
  const gb_found_state *norm; /* clip by the norm in there, to max_norm; one that is not finite raises owner's flag
                                 (NULL: nobody's) too */
  bool spares;               /* where it is not finite, gradients stay as they are: a scaler will skip the step */
  double max_norm;
  gb_found_state *owner;
  double clip_factor, clip_value; /* multiply; or clamp to +- clip_value (a true size, whatever scale gradients carry)
                                     when above 0 */
  /* GB_STEP_UPDATE */
  gb_optimizer_kind kind;
  const gb_optim_numbers *numbers; /* hyperparameters of the group */
  const gb_optim_numbers *live;    /* the same in the device's memory, for a step that is captured; NULL: not there */
  bool maximize;
  bool uses[GB_OPTIM_STATES];      /* with these numbers the step reads and writes that state */
  gb_scale_rule rule;        /* of GB_STEP_RESCALE */
};

#endif
