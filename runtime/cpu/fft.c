/* cpu/fft.c - the Fourier transform of real rows, and back: base/fft.h has its steps.
 *
 * Rows are independent. Where there are enough short ones, several lie beside each other, so that every loop of a stage
 * is vector code; how many hangs on shapes alone. A long row is one thread's work, and looks for a stop between steps.
 * Traffic: a row is read once and written once; between, its stages run in a room of 4 m numbers per lane. */
#include "base/fft.h"
#include "cpu/scratch.h"
#include "cpu/walk.h"

enum {
  LANES = 8,             /* rows beside each other */
  LONGEST_BESIDE = 4096, /* numbers of a complex row, up to which rows lie beside each other */
  TABLE_CHUNK = 1024,    /* roots that one chunk finds */
  PER_LOOK = 64,         /* steps of a stage between two looks for a stop, at most */
  SPAN = 4096,           /* the same of numbers side by side */
};

/* One call as all its chunks see it. back: from the transform to real rows. */
typedef struct job {
  gb_op_call *call;
  const gb_tensor *x, *y;
  gb_lane lane;
  bool back, doubled;
  double scale;
  gb_fft_plan plan;
  int64_t rows, lanes, per_chunk, x_row, y_row;  /* x_row, y_row: numbers of a row */
  gb_scratch scratch;
} job;

#define REAL float
#define OF(name) name##_f32
#include "base/fft_of.h"
#include "cpu/fft_of.h"

#define REAL double
#define OF(name) name##_f64
#include "base/fft_of.h"
#include "cpu/fft_of.h"

/* Rows of n real numbers from x to y. */
static gb_status run(gb_op_call *call, const gb_tensor *x, const gb_tensor *y, int64_t n, bool back, bool doubled,
                     double scale) {
  if (y->numel == 0) return GB_OK;
  int64_t half = 2 * gb_fft_half(n);
  job j = { .call = call, .x = x, .y = y, .lane = gb_lane_of((gb_dtype)x->dtype, (gb_dtype)y->dtype), .back = back,
            .doubled = doubled, .scale = scale, .plan = gb_fft_plan_of(n), .lanes = 1,
            .x_row = back ? half : n, .y_row = back ? n : half };
  j.rows = y->numel / j.y_row;
  if (j.rows >= LANES && j.plan.m <= LONGEST_BESIDE) j.lanes = LANES;
  int64_t batch = j.plan.m * j.lanes;
  j.per_chunk = j.lanes * (batch < GB_CHUNK_ELEMENTS ? GB_CHUNK_ELEMENTS / batch : 1);
  return j.lane == GB_LANE_F64 ? run_f64(&j) : run_f32(&j);
}

static gb_status fft_real(gb_op_call *call) {
  const gb_attrs_fft_real *attrs = GB_ATTRS(call, fft_real);
  const gb_tensor *x = GB_IN(call, fft_real)->x;
  return run(call, x, GB_OUT(call, fft_real)->y, x->shape[x->ndim - 1], false, attrs->doubled.integer != 0,
             attrs->scale.number);
}

static gb_status fft_half(gb_op_call *call) {
  const gb_attrs_fft_half *attrs = GB_ATTRS(call, fft_half);
  return run(call, GB_IN(call, fft_half)->x, GB_OUT(call, fft_half)->y, attrs->n.integer, true,
             attrs->doubled.integer != 0, attrs->scale.number);
}

void GB_CPU_FILL(fft)(gb_backend *backend);
void GB_CPU_FILL(fft)(gb_backend *backend) {
  backend->run[GB_OP_fft_real] = fft_real;
  backend->run[GB_OP_fft_half] = fft_half;
}
