/* cpu/optim.c - passes over a slab: check, unscale, clip, and steps; and the scaler's update.
 *
 * A pass is cut into chunks by where gradients lie alone, counted from the slab's first element; a chunk visits the
 * segments with a gradient that lie in it, tile by tile. Norms are of gradients in their true size, as unscaling rounds
 * them, summed in a fixed order: lanes, then tiles, then chunks; so every way to one gives the same bits. A step reads
 * and writes each element once: SGD moves 12 bytes per float32 element (20 with momentum), Adam 28, 4 more where it
 * clips, and 2 more per 16-bit copy that it refreshes on the way. Arithmetic is float32, or float64 for float64
 * parameters; the numbers that are the same for a whole segment are made in double, as PyTorch makes them on the
 * host. */
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/float.h"
#include "base/measures.h"
#include "cpu/cpu.h"
#include "tensor/slab.h"

#define CHUNK ((int)GB_NORM_CHUNK)
_Static_assert(CHUNK >= GB_LEAST_CHUNK, "there is room for the parts of segments");
_Static_assert(CHUNK % GB_TILE == 0, "a chunk is some tiles");
#define LANES 32

typedef struct pass pass;
/* Handle elements at .. at + n - 1 of the slab, all of one segment and one chunk. */
typedef void (*run_fn)(pass *p, int64_t chunk, const gb_segment *segment, int64_t at, int64_t n);

/* One pass: where the slab's data lie, and what to do with a run of them. */
struct pass {
  const gb_step_call *call;
  const gb_slab *slab;
  run_fn run;
  int64_t start, end;                   /* elements of the slab that segments with a gradient span; start is where a
                                           chunk begins */
  gb_dtype dtype;                       /* of the gradients */
  /* weights: what a step updates, the masters where there are some */
  char *gradients, *parameters, *weights, *copy[GB_COPIES], *state[GB_OPTIM_STATES];
  double factor;                        /* of a gradient on reading */
  bool writes;                          /* gradients are written: unscaled by a check; by a step, in their true size and
                                           clipped */
  double inverse, clip;                 /* what a step that writes gradients multiplies them by, one after the other */
  double *norms;                        /* of each chunk; NULL: not wanted */
  double *measures;                     /* of segments, and from `parts` on of parts of them: see gb_measures_of */
  double *parts;
  atomic_bool bad;                      /* a gradient was not finite */
};

/* {==== The pass ==== */

static char *data_of(const gb_tensor *t) { return t ? gb_data(t) : NULL; }

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* A pass over the call's slab that reads gradients unscaled where they carry a scale. */
static pass pass_over(const gb_step_call *call, run_fn run) {
  const gb_slab *slab = call->slab;
  pass p = { .call = call, .slab = slab, .run = run, .dtype = (gb_dtype)slab->gradients->dtype,
             .gradients = gb_data(slab->gradients) };
  p.parameters = data_of(slab->parameters);
  p.weights = slab->masters ? gb_data(slab->masters) : p.parameters;
  for (int k = 0; k < GB_COPIES; k++) p.copy[k] = data_of(slab->copy[k]);
  p.measures = slab->measures ? (double *)(void *)gb_data(slab->measures) : NULL;
  p.parts = p.measures ? p.measures + 2 * slab->count : NULL;
  for (int i = 0; i < GB_OPTIM_STATES; i++) p.state[i] = call->uses[i] ? data_of(slab->state[i]) : NULL;
  int64_t first = 0, last = slab->count - 1;
  while (first <= last && !slab->segments[first].has_grad) first++;
  while (last > first && !slab->segments[last].has_grad) last--;
  if (first <= last) {
    p.start = slab->segments[first].offset / CHUNK * CHUNK;
    p.end = slab->segments[last].offset + slab->segments[last].size;
  }
  p.factor = (call->scaled ? call->scale->inverse : 1.0) * (call->maximize ? -1.0 : 1.0);
  atomic_init(&p.bad, false);
  return p;
}

/* The first segment that ends after element `at`. */
static int64_t segment_at(const gb_slab *slab, int64_t at) {
  int64_t low = 0, high = slab->count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    const gb_segment *segment = &slab->segments[middle];
    if (segment->offset + segment->size > at) high = middle;
    else low = middle + 1;
  }
  return low;
}

/* Hand each run of one chunk to the pass. */
static void visit_chunk(void *arg, int64_t chunk) {
  pass *p = arg;
  int64_t from = p->start + chunk * CHUNK, end = least(from + CHUNK, p->end);
  for (int64_t s = segment_at(p->slab, from); s < p->slab->count && p->slab->segments[s].offset < end; s++) {
    const gb_segment *segment = &p->slab->segments[s];
    int64_t first = segment->offset > from ? segment->offset : from, last = least(segment->offset + segment->size, end);
    if (segment->has_grad && first < last) p->run(p, chunk, segment, first, last - first);
  }
}

static int64_t count_chunks(const pass *p) { return (p->end - p->start + CHUNK - 1) / CHUNK; }

/* A step is taken or not: a stop half way would leave some weights a step ahead of the others. */
static void run_pass(pass *p) { gb_threads_run(p->call->context->threads, count_chunks(p), visit_chunk, p); }

/* ====} */

/* {==== Checking ==== */

static bool all_finite_f32(const float *g, int64_t n) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < n; i++) bad |= (gb_float_bits(g[i]) & 0x7f800000u) == 0x7f800000u;
  return !bad;
}

static bool all_finite_f64(const double *g, int64_t n) {
  uint64_t bad = 0;
  for (int64_t i = 0; i < n; i++) bad |= !(fabs(g[i]) <= DBL_MAX);
  return !bad;
}

/* Lanes added as a tree. */
static double sum_lanes(double *lane) {
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int k = 0; k < width; k++) lane[k] += lane[k + width];
  return lane[0];
}

/* In double, whose range holds the square of every float32. */
static double squares_f32(const float *g, int64_t n) {
  double lane[LANES] = { 0 };
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int k = 0; k < LANES; k++) lane[k] += (double)g[i + k] * (double)g[i + k];
  for (int k = 0; i + k < n; k++) lane[k] += (double)g[i + k] * (double)g[i + k];
  return sum_lanes(lane);
}

static double squares_f64(const double *g, int64_t n) {
  double lane[LANES] = { 0 };
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int k = 0; k < LANES; k++) lane[k] += g[i + k] * g[i + k];
  for (int k = 0; i + k < n; k++) lane[k] += g[i + k] * g[i + k];
  return sum_lanes(lane);
}

/* The larger of two norms; NaN wins. */
static double larger(double a, double b) { return a > b || a != a ? a : b; }

/* Join what two places add to the call's norm. */
static double join_norms(const gb_step_call *call, double a, double b) { return isinf(call->norm_type) ? larger(a, b)
                                                                         : a + b; }

/* The largest |g|, or the sum of |g|^p: the norms that are seldom asked for. */
static double other_norm(const gb_step_call *call, const float *f32, const double *f64, int64_t n) {
  double norm = 0;
  for (int64_t i = 0; i < n; i++) {
    double size = fabs(f32 ? (double)f32[i] : f64[i]);
    norm = isinf(call->norm_type) ? larger(norm, size) : norm + pow(size, call->norm_type);
  }
  return norm;
}

/* Gradients as float32: where they lie, or brought into a tile. */
static const float *gradient_tile(const pass *p, int64_t at, int64_t n, float *room) {
  if (p->dtype == GB_FLOAT32) return (const float *)p->gradients + at;
  gb_load_f32(room, p->gradients + at * (int64_t)gb_dtype_bytes(p->dtype), p->dtype, 1, n);
  return room;
}

/* to may be g. */
static void multiply_f32(float *to, const float *g, int64_t n, float factor) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) to[i] = g[i] * factor;
}

static void multiply_f64(double *to, const double *g, int64_t n, double factor) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) to[i] = g[i] * factor;
}

/* A tile is checked before it is multiplied, as PyTorch does, and measured after. */
static void check_f32(pass *p, int64_t chunk, int64_t at, int64_t n) {
  float room[GB_TILE], *to = p->writes ? (float *)p->gradients + at : room;
  const float *g = gradient_tile(p, at, n, room);
  if (!all_finite_f32(g, n)) atomic_store_explicit(&p->bad, true, memory_order_relaxed);
  if (p->writes || (p->norms && p->factor != 1)) multiply_f32(to, g, n, (float)p->factor), g = to;
  if (p->norms)
    p->norms[chunk] = join_norms(p->call, p->norms[chunk], p->call->norm_type == 2 ? squares_f32(g, n)
                                 : other_norm(p->call, g, NULL, n));
}

static void check_f64(pass *p, int64_t chunk, int64_t at, int64_t n) {
  double room[GB_TILE], *to = p->writes ? (double *)p->gradients + at : room;
  const double *g = (const double *)p->gradients + at;
  if (!all_finite_f64(g, n)) atomic_store_explicit(&p->bad, true, memory_order_relaxed);
  if (p->writes || (p->norms && p->factor != 1)) multiply_f64(to, g, n, p->factor), g = to;
  if (p->norms)
    p->norms[chunk] = join_norms(p->call, p->norms[chunk], p->call->norm_type == 2 ? squares_f64(g, n)
                                 : other_norm(p->call, NULL, g, n));
}

static void check_run(pass *p, int64_t chunk, const gb_segment *segment, int64_t at, int64_t n) {
  (void)segment;
  for (int64_t end = at + n; at < end; at += GB_TILE)
    (p->dtype == GB_FLOAT64 ? check_f64 : check_f32)(p, chunk, at, least(GB_TILE, end - at));
}

/* What other processes have measured, where gradients are shared out between them. */
static gb_status share(const gb_step_call *call, pass *p, int64_t chunks) {
  if (!call->share) return GB_OK;
  bool bad = atomic_load(&p->bad);
  GB_TRY(call->share(call, p->norms, p->norms ? chunks : 0, 0, &bad));
  atomic_store(&p->bad, bad);
  return GB_OK;
}

/* Non-finite gradients set the optimizer's flag, and the scaler's. */
static void note_bad(const gb_step_call *call, pass *p) {
  if (!atomic_load(&p->bad)) return;
  if (call->found) call->found->found_inf = 1;
  if (call->scale) call->scale->found_inf = 1;
}

/* The norm of the slab, joined to what the scalars hold, where there are some. */
static void note_norm(const gb_step_call *call, const pass *p, int64_t chunks) {
  double norm = 0;
  if (!call->found) return;
  for (int64_t i = 0; i < chunks; i++) norm = join_norms(call, norm, p->norms[i]);
  call->found->norm_squared = join_norms(call, call->found->norm_squared, norm);
}

static gb_status check(gb_step_call *c, bool writes) {
  pass p = pass_over(c, check_run);
  p.writes = writes;
  int64_t chunks = count_chunks(&p);
  bool looks = writes || !c->share || !c->known;
  if (!(c->norm_type > 0)) {
    if (looks) run_pass(&p);
    GB_TRY(share(c, &p, chunks));
    note_bad(c, &p);
    return GB_OK;
  }
  gb_block *scratch = gb_context_alloc(c->context, c->device, sizeof(double) * (size_t)chunks, GB_MEM_SCRATCH);
  if (!scratch) return GB_EMEMORY;
  p.norms = gb_block_data(scratch);
  for (int64_t i = 0; i < chunks; i++) p.norms[i] = 0;
  if (looks) run_pass(&p);
  gb_status status = share(c, &p, chunks);
  if (status == GB_OK) {
    note_bad(c, &p);
    note_norm(c, &p, chunks);
  }
  gb_pool_free(gb_context_pool(c->context, c->device), scratch);
  return status;
}

/* Reads slab, scale (its found_inf is set too), scaled, found, norm_type. Never clears a flag. */
static gb_status optim_check(gb_step_call *call) { return check(call, false); }

/* As above; gradients (float32 or float64) lose their scale. */
static gb_status optim_unscale(gb_step_call *call) { return check(call, true); }

/* ====} */

/* {==== Clipping ==== */

/* Multiply, or clamp where a limit is given; NaN stays NaN. */
static void clip_f32(float *g, int64_t n, float factor, float limit) {
  if (limit > 0)
    for (int64_t i = 0; i < n; i++) g[i] = g[i] > limit ? limit : g[i] < -limit ? -limit : g[i];
  else
    for (int64_t i = 0; i < n; i++) g[i] *= factor;
}

static void clip_f64(double *g, int64_t n, double factor, double limit) {
  if (limit > 0)
    for (int64_t i = 0; i < n; i++) g[i] = g[i] > limit ? limit : g[i] < -limit ? -limit : g[i];
  else
    for (int64_t i = 0; i < n; i++) g[i] *= factor;
}

static void clip_run(pass *p, int64_t chunk, const gb_segment *segment, int64_t at, int64_t n) {
  (void)chunk, (void)segment;
  double factor = p->call->clip_factor, limit = p->call->clip_value * (p->call->scaled ? p->call->scale->scale : 1);
  if (p->dtype == GB_FLOAT64) { clip_f64((double *)p->gradients + at, n, factor, limit); return; }
  if (p->dtype == GB_FLOAT32) { clip_f32((float *)p->gradients + at, n, (float)factor, (float)limit); return; }
  float room[GB_TILE];
  for (int64_t end = at + n; at < end; at += GB_TILE) {
    int64_t count = least(GB_TILE, end - at);
    gradient_tile(p, at, count, room);
    clip_f32(room, count, (float)factor, (float)limit);
    gb_store_f32(p->gradients + 2 * at, p->dtype, 1, room, count);
  }
}

/* The factor that brings the norm down to max_norm; 1: nothing to do. A norm that is not finite raises the owner's
 * flag, and gives 0 or NaN, as in PyTorch, unless a scaler will skip the step. */
static double factor_by_norm(const gb_step_call *call) {
  double norm = call->norm->norm_squared, total = isinf(call->norm_type) ? norm : call->norm_type == 2 ? sqrt(norm)
      : pow(norm, 1 / call->norm_type);
  if (!isfinite(total) && call->owner) call->owner->found_inf = 1;
  double factor = call->max_norm / (total + 1e-6);
  if (!isfinite(total)) return call->spares ? 1 : factor;
  return factor < 1 ? factor : 1;
}

/* Reads slab, clip_factor and clip_value, or norm, owner, max_norm and norm_type; with scaled also scale: gradients
 * keep the scale they carry. */
static gb_status optim_clip(gb_step_call *call) {
  gb_step_call c = *call;
  if (c.norm) c.clip_factor = factor_by_norm(&c), c.clip_value = 0;
  if (c.norm && c.clip_factor == 1) return GB_OK;
  pass p = pass_over(&c, clip_run);
  run_pass(&p);
  return GB_OK;
}

/* ====} */

/* {==== What steps share ==== */

/* Round the new weights into what is kept of them in 16 bits: the parameters that have masters, and the copies. */
static void write_16bit(const pass *p, int64_t at, int64_t n, const float *w) {
  if (p->slab->masters) gb_store_f32(p->parameters + 2 * at, p->slab->dtype, 1, w, n);
  for (int k = 0; k < GB_COPIES; k++)
    if (p->copy[k]) gb_store_f32(p->copy[k] + at * (int64_t)gb_bytes_of(gb_copy_dtype(k)), gb_copy_dtype(k), 1, w, n);
}

/* The flag was up: no step, and the scaler hears of it. */
static bool is_skipped(const gb_step_call *call) {
  if (!call->found || call->found->found_inf == 0) return false;
  if (call->scale) call->scale->found_inf = 1;
  return true;
}

/* By norm, as the call says. Where neither a scale nor a clip changes them, gradients are not written. */
static void clip_in_step(pass *p, double clip) {
  const gb_step_call *c = p->call;
  p->writes = c->scaled || clip != 1;
  p->inverse = c->scaled ? c->scale->inverse : 1;
  p->clip = clip;
  p->factor = c->maximize ? -1 : 1;
}

/* ====} */

/* {==== Steps ==== */

_Static_assert(GB_OPTIM_STATES <= 3, "cpu/steps.h has a loop for each choice among three states");

#define T float
#define M(name) name##_f32
#include "cpu/steps.h"
#undef T
#undef M

#define T double
#define M(name) name##_f64
#include "cpu/steps.h"
#undef T
#undef M

/* measure, direct: NULL where a step measures nothing first, or is not shaped. */
static const struct { run_fn step, measure, direct; } step_runs[][2] = {
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) \
  [GB_##NAME] = { { NAME##_run_f32, NULL, NULL }, { NAME##_run_f64, NULL, NULL } },
#define MEASURED(NAME, HYPERS, STATES, DOC)                                                                            \
  [GB_##NAME] = { { NAME##_run_f32, NAME##_measure_f32, NULL }, { NAME##_run_f64, NAME##_measure_f64, NULL } },
#define SHAPED(NAME, HYPERS, STATES, DOC)                                                                              \
  [GB_##NAME] = { { NAME##_run_f32, NULL, NAME##_direct_f32 }, { NAME##_run_f64, NULL, NAME##_direct_f64 } },
#include "base/optimizers.def"
};

/* Measure each part of a segment. */
static void measure_parts(pass *p, run_fn run) {
  run_fn step = p->run;
  p->run = run;
  run_pass(p);
  p->run = step;
}

/* Measure each segment: its parts are added in one order, whatever thread they came from. */
static void measure(pass *p, run_fn run) {
  measure_parts(p, run);
  for (int64_t s = 0; s < p->slab->count; s++) {
    const gb_segment *segment = &p->slab->segments[s];
    if (!segment->has_grad || segment->size == 0) continue;
    int64_t first = (segment->offset - p->start) / CHUNK,
        last = (segment->offset + segment->size - 1 - p->start) / CHUNK;
    gb_sum_parts(p->parts + 2 * (first + s), last - first + 1, p->measures + 2 * s);
  }
}

/* The directions of a step, which writes nothing else. */
static gb_status optim_direct(gb_step_call *c) {
  double clip = c->norm ? factor_by_norm(c) : 1;
  pass p = pass_over(c, step_runs[c->kind][c->slab->dtype == GB_FLOAT64].direct);
  if (c->norm) clip_in_step(&p, clip);
  run_pass(&p);
  return GB_OK;
}

/* What segments are measured by, of one that is a part of a slab (step/split.h). */
static gb_status optim_measure(gb_step_call *c) {
  run_fn run = step_runs[c->kind][c->slab->dtype == GB_FLOAT64].measure;
  double clip = c->norm ? factor_by_norm(c) : 1;
  pass p = pass_over(c, run);
  if (c->norm) clip_in_step(&p, clip);
  measure_parts(&p, run);
  return GB_OK;
}

/* Run a step in the slab's precision, and count it for every segment that took it. Where it clips, it reads norm,
 * owner, max_norm and norm_type too, and leaves the gradients clipped, in their true size. Reads slab, kind, numbers,
 * uses, scale, scaled, found, maximize. */
static gb_status optim_step(gb_step_call *c) {
  bool wide = c->slab->dtype == GB_FLOAT64;
  double clip = c->norm ? factor_by_norm(c) : 1; /* this comes first: it may raise the flag */
  bool skipped = is_skipped(c);
  run_fn step = step_runs[c->kind][wide].step, first = step_runs[c->kind][wide].measure;
  run_fn skip = wide ? skipped_run_f64 : skipped_run_f32;
  pass p = pass_over(c, skipped ? skip : step);
  if (c->norm) clip_in_step(&p, clip);
  if (skipped && !p.writes) return GB_OK;
  if (first && !skipped && !c->known) measure(&p, first);
  run_pass(&p);
  for (int64_t s = 0; !skipped && s < c->slab->count; s++) c->slab->segments[s].steps += c->slab->segments[s].has_grad;
  return GB_OK;
}

/* ====} */

/* Reads scale and rule. */
static gb_status scaler_update(gb_step_call *c) {
  gb_scale_update(c->scale, &c->rule);
  return GB_OK;
}

void GB_CPU_FILL(optim)(gb_backend *backend);
void GB_CPU_FILL(optim)(gb_backend *backend) {
  backend->step[GB_STEP_CHECK] = optim_check;
  backend->step[GB_STEP_UNSCALE] = optim_unscale;
  backend->step[GB_STEP_CLIP] = optim_clip;
  backend->step[GB_STEP_DIRECT] = optim_direct;
  backend->step[GB_STEP_MEASURE] = optim_measure;
  backend->step[GB_STEP_UPDATE] = optim_step;
  backend->step[GB_STEP_RESCALE] = scaler_update;
}
