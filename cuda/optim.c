/* cuda/optim.c - passes over a slab: brings what the engine's call says into the form of the kernels of optim.cu.
 *
 * The segments with a gradient travel with the launch, so nothing is uploaded and a captured graph keeps them. Counts
 * of steps, flags and the scale live on the device, and no pass waits for them; but where processes share gradients
 * out, a check waits for what it measured of this one's, which the others are to know. */
#include "cuda/optim.h"

#include <stdlib.h>

#include "cuda/cuda.h"
#include "tensor/slab.h"

_Static_assert(sizeof(gb_pass) < 4096, "a launch takes 4 KB of arguments");

static char *data_of(const gb_tensor *t) { return t ? gb_data(t) : NULL; }

/* Everything but the segments. */
static gb_pass pass_of(const gb_step_call *c) {
  const gb_slab *slab = c->slab;
  gb_pass p = { .gradients = gb_data(slab->gradients), .gradient_dtype = slab->gradients->dtype,
                .dtype = (int)slab->dtype,
                .is_f64 = slab->dtype == GB_FLOAT64, .has_masters = slab->masters != NULL, .scale = c->scale,
                    .found = c->found,
                .owner = c->owner, .scaled = c->scaled, .maximize = c->maximize, .norm = c->norm, .spares = c->spares,
                .norm_type = c->norm_type, .max_norm = c->max_norm, .clip_factor = c->clip_factor,
                    .clip_value = c->clip_value,
                .optimizer = c->kind, .live = c->live, .known = c->known };
  if (c->numbers) p.numbers = *c->numbers;
  p.parameters = data_of(slab->parameters);
  p.weights = slab->masters ? gb_data(slab->masters) : p.parameters;
  for (int k = 0; k < GB_COPIES; k++) p.copy[k] = data_of(slab->copy[k]);
  for (int i = 0; i < GB_OPTIM_STATES; i++) p.state[i] = c->uses[i] ? data_of(slab->state[i]) : NULL;
  if (slab->counters) {
    p.steps = (int64_t *)(void *)gb_data(slab->counters);
    p.blame = p.steps + slab->counters->numel / 2;
  }
  if (slab->measures) {
    p.measures = (double *)(void *)gb_data(slab->measures);
    p.parts = p.measures + 2 * slab->count;
  }
  int64_t first = 0;
  while (first < slab->count && !slab->segments[first].has_grad) first++;
  if (first < slab->count) p.start = slab->segments[first].offset / GB_NORM_CHUNK * GB_NORM_CHUNK;
  return p;
}

/* The next segment that has a gradient, from s on. */
static int64_t next_of(const gb_slab *slab, int64_t s) {
  while (s < slab->count && !(slab->segments[s].has_grad && slab->segments[s].size)) s++;
  return s;
}

/* A full launch ends where the chunk begins that segment *s lies in, which does not fit: so no two launches measure one
 * chunk, and what is measured does not depend on how segments fall into launches. What lies behind goes to the next
 * one, which begins with segment *s, without so many of its elements. */
static int64_t end_launch(gb_pass *p, const gb_slab *slab, int64_t *s) {
  int64_t border = p->start + (slab->segments[*s].offset - p->start) / GB_LEAST_CHUNK * GB_LEAST_CHUNK;
  while (p->count) {
    gb_pass_segment *last = &p->segment[p->count - 1];
    if (last->offset + last->size <= border) return 0;
    *s = last->place;
    if (last->offset < border) return last->size = border - last->offset, border - slab->segments[*s].offset;
    p->count--;
  }
  return 0;
}
_Static_assert(GB_LEAST_CHUNK / GB_SLAB_ALIGNMENT < GB_PASS_SEGMENTS, "a chunk's segments fit into a launch");

/* Launch the pass over the segments that have a gradient, and then `after` with the same ones (or NULL). */
static void run_segments(gb_cuda_call *call, const gb_slab *slab, gb_pass_kind kind, gb_pass *p,
                         void (*after)(gb_stream stream, const gb_pass *pass)) {
  int64_t from = 0; /* elements of segment s that went before */
  for (int64_t s = next_of(slab, 0); s < slab->count;) {
    p->count = 0;
    for (; s < slab->count && p->count < GB_PASS_SEGMENTS; s = next_of(slab, s + 1), from = 0) {
      const gb_segment *segment = &slab->segments[s];
      p->segment[p->count++] = (gb_pass_segment){ segment->offset + from, segment->size - from,
                                                  (int32_t)segment->place, (int32_t)s };
    }
    if (p->norms && s < slab->count) from = end_launch(p, slab, &s);
    gb_pass_run(call->stream, kind, p);
    if (after) after(call->stream, p);
  }
}

/* The chunks that segments with a gradient lie in. */
static int64_t count_chunks(const gb_slab *slab, const gb_pass *p) {
  int64_t last = slab->count - 1;
  while (last >= 0 && !slab->segments[last].has_grad) last--;
  return last < 0 ? 0 : gb_pass_chunks(slab->segments[last].offset + slab->segments[last].size - p->start);
}

/* So many numbers in scratch, all 0; NULL: none, text set. */
static double *zeros(gb_cuda_call *call, int64_t count) {
  size_t bytes = sizeof(double) * (size_t)count;
  double *numbers = gb_cuda_scratch(call, bytes);
  return numbers && gb_cuda_clear(call, numbers, bytes) == GB_OK ? numbers : NULL;
}

/* {---- gradients that processes share out ---- */

/* What a check measures of them: the norms of groups, and then a flag for each segment. */
typedef struct shares { double *numbers; int64_t groups, segments; } shares;

/* The numbers of all processes, in the host's memory. looked: this one has measured. */
static gb_status exchange(gb_cuda_call *call, const gb_step_call *c, const shares *s, bool looked, double *host,
                          bool *bad) {
  if (looked) GB_TRY(gb_cuda_read(call, host, s->numbers, sizeof *host * (size_t)(s->groups + s->segments)));
  for (int64_t i = 0; i < s->segments; i++) *bad |= host[s->groups + i] > 0;
  return c->share(c, host, s->groups, s->segments, bad);
}

/* And they become the scalars' flags and norm, where there are scalars. */
static gb_status share(gb_cuda_call *call, const gb_step_call *c, gb_pass *p, const shares *s, bool looked) {
  bool bad = false;
  size_t count = (size_t)(s->groups + s->segments);
  double *host = calloc(count + 1, sizeof *host);
  if (!host) return gb_cuda_fail(call, GB_EMEMORY, "out of memory for %zu numbers", count);
  gb_status status = exchange(call, c, s, looked, host, &bad);
  if (status == GB_OK && c->found) status = gb_cuda_write(call, s->numbers, host, sizeof *host * count);
  free(host);
  if (status != GB_OK || !c->found) return status;
  if (bad) gb_pass_raise(call->stream, p, s->segments);
  if (s->groups) gb_pass_norm_of(call->stream, p, s->numbers, s->groups);
  return GB_OK;
}

static gb_status check_shares(gb_cuda_call *call, const gb_step_call *c, gb_pass_kind kind) {
  gb_pass p = pass_of(c);
  int64_t chunks = c->norm_type > 0 ? count_chunks(c->slab, &p) : 0;
  shares s = { NULL, (chunks + GB_PASS_GROUP - 1) / GB_PASS_GROUP, c->slab->counters->numel / 2 };
  bool looks = kind == GB_PASS_UNSCALE || !c->known;
  s.numbers = zeros(call, s.groups + s.segments);
  if (!s.numbers) return GB_EMEMORY;
  p.flags = s.numbers + s.groups;
  if (looks && chunks && !(p.norms = zeros(call, chunks))) return GB_EMEMORY;
  if (looks) run_segments(call, c->slab, kind, &p, NULL);
  if (p.norms) gb_pass_join(call->stream, &p, chunks, s.numbers);
  return share(call, c, &p, &s, looks);
}

/* ----} */

static gb_status check(gb_cuda_call *call, const gb_step_call *c, gb_pass_kind kind) {
  if (c->share) return check_shares(call, c, kind);
  gb_pass p = pass_of(c);
  int64_t chunks = count_chunks(c->slab, &p);
  if (c->norm_type > 0 && chunks && !(p.norms = zeros(call, chunks))) return GB_EMEMORY;
  run_segments(call, c->slab, kind, &p, NULL);
  if (p.norms) gb_pass_norm(call->stream, &p, chunks);
  return GB_OK;
}

static gb_status run_one(gb_cuda_call *call, const gb_step_call *c, gb_pass_kind kind,
                         void (*after)(gb_stream stream, const gb_pass *pass)) {
  gb_pass p = pass_of(c);
  run_segments(call, c->slab, kind, &p, after);
  return GB_OK;
}

static gb_status check_pass(gb_cuda_call *call, const gb_step_call *c) { return check(call, c, GB_PASS_CHECK); }
static gb_status unscale_pass(gb_cuda_call *call, const gb_step_call *c) { return check(call, c, GB_PASS_UNSCALE); }
static gb_status clip_pass(gb_cuda_call *call, const gb_step_call *c) { return run_one(call, c, GB_PASS_CLIP, NULL); }
static gb_status direct_pass(gb_cuda_call *call,
                             const gb_step_call *c) { return run_one(call, c, GB_PASS_DIRECT, NULL); }

static gb_status measure_pass(gb_cuda_call *call,
                              const gb_step_call *c) { return run_one(call, c, GB_PASS_MEASURE, NULL); }

/* The launches of a step follow each other, and use one room. */
static gb_status update_pass(gb_cuda_call *call, const gb_step_call *c) {
  gb_pass p = pass_of(c);
  p.made = gb_cuda_scratch(call, (size_t)GB_PASS_SEGMENTS * GB_PASS_NUMBERS);
  if (!p.made) return GB_EMEMORY;
  run_segments(call, c->slab, GB_PASS_STEP, &p, gb_pass_count);
  return GB_OK;
}

static gb_status rescale(gb_cuda_call *call, const gb_step_call *c) {
  gb_pass_update_scale(call->stream, c->scale, &c->rule);
  return GB_OK;
}

const gb_cuda_step gb_cuda_steps[GB_STEP_COUNT] = {
  [GB_STEP_CHECK] = check_pass, [GB_STEP_UNSCALE] = unscale_pass, [GB_STEP_CLIP] = clip_pass,
  [GB_STEP_DIRECT] = direct_pass, [GB_STEP_MEASURE] = measure_pass, [GB_STEP_UPDATE] = update_pass,
  [GB_STEP_RESCALE] = rescale,
};
