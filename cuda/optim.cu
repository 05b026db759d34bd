/* cuda/optim.cu - passes over the segments of a slab: check, unscale, clip, steps, and the scaler's update.
 *
 * A block handles one chunk of the slab and visits the segments that lie in it, four elements to a thread. What is the
 * same for all elements is read from the scalars on the device, so nothing waits for the host. Norms are of gradients
 * in their true size, as unscaling rounds them, added in a fixed order: threads, chunks, groups. A step reads and
 * writes each element once: SGD moves 12 bytes per float32 element (20 with momentum), Adam 28, 4 more where it clips,
 * and 2 more per 16-bit copy that it refreshes on the way. Arithmetic is float32, or float64 for float64 parameters;
 * the numbers of a whole segment are made in double. What a step does to an element stands in base/updates.h. */
#include "cuda/optim.h"

#include <float.h>
#include <stddef.h>

#include "base/measures.h"
#include "cuda/block.cuh"
#include "cuda/lanes.cuh"

#define CHUNK 4096
static_assert(CHUNK == GB_LEAST_CHUNK, "there is room for the parts of segments, and processes know what they are");
static_assert(GB_THREADS == GB_SUM_LANES && GB_WARP == GB_SUM_WARP, "a block adds them as processes do");
static_assert(CHUNK * GB_PASS_GROUP == GB_NORM_CHUNK, "a group is what processes share out");

extern "C" int64_t gb_pass_chunks(int64_t elements) { return (elements + CHUNK - 1) / CHUNK; }

/* {==== the walk ==== */

/* The first segment that ends after element `at`. */
static __device__ __forceinline__ int segment_at(const gb_pass &p, int64_t at) {
  int low = 0, high = p.count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (p.segment[middle].offset + p.segment[middle].size > at) high = middle;
    else low = middle + 1;
  }
  return low;
}

/* visitor(segment's number, first, last) for every run of this block's chunk; all threads visit the same runs. */
template <class Visitor> static __device__ __forceinline__ void visit_chunk(const gb_pass &p, int64_t chunk,
                                                                            Visitor &visitor) {
  int64_t from = p.start + chunk * CHUNK, end = from + CHUNK;
  for (int s = segment_at(p, from); s < p.count && p.segment[s].offset < end; s++) {
    int64_t first = p.segment[s].offset > from ? p.segment[s].offset : from,
        stop = p.segment[s].offset + p.segment[s].size;
    visitor.run(p, s, first, stop < end ? stop : end);
  }
}

/* {---- four neighbouring elements to a thread ---- */

/* The first four of this thread in a run, and those of them that are in it: for (f = ...; f.at < last; next_four(&f,
 * last)). */
struct four { int64_t at; int first, end; };

static __device__ __forceinline__ void bound(four *f, int64_t first, int64_t last) {
  f->first = f->at < first ? (int)(first - f->at) : 0;
  f->end = last - f->at < GB_LANES ? (int)(last - f->at) : GB_LANES;
}
static __device__ __forceinline__ four first_four(int64_t first, int64_t last) {
  four f = { first / GB_LANES * GB_LANES + (int64_t)threadIdx.x * GB_LANES, 0, 0 };
  bound(&f, first, last);
  return f;
}
static __device__ __forceinline__ void next_four(four *f, int64_t last) {
  f->at += (int64_t)blockDim.x * GB_LANES;
  bound(f, f->at, last);
}
static __device__ __forceinline__ bool is_in(const four &f, int lane) { return lane >= f.first && lane < f.end; }

/* Four elements of a dtype; 0 for those that are not in the run. */
template <typename T> static __device__ __forceinline__ void load_four(const void *data, int dtype, const four &f,
                                                                       T *v) {
  if (gb_lane_bytes(dtype)) {
    gb_lanes_unpack<T, GB_LANES>(gb_lanes_load<GB_LANES>(data, gb_lane_bytes(dtype), f.at, f.first, f.end), dtype, v);
    return;
  }
  GB_UNROLL for (int l = 0; l < GB_LANES; l++) v[l] = is_in(f, l) ? gb_load<T>(data, dtype, f.at + l) : (T)0;
}

template <typename T> static __device__ __forceinline__ void store_four(void *data, int dtype, const four &f,
                                                                        const T *v) {
  if (gb_lane_bytes(dtype)) {
    gb_lanes_store<GB_LANES>(data, gb_lane_bytes(dtype), f.at, f.first, f.end, gb_lanes_pack<T, GB_LANES>(v, dtype));
    return;
  }
  GB_UNROLL for (int l = 0; l < GB_LANES; l++)
    if (is_in(f, l)) gb_store<T>(data, dtype, f.at + l, v[l]);
}

/* The dtype of numbers that a step computes in. */
static __device__ __forceinline__ int dtype_of(float) { return GB_FLOAT32; }
static __device__ __forceinline__ int dtype_of(double) { return GB_FLOAT64; }

/* ----} */

/* The chunk of this block: the first one that the launch's segments touch is block 0's. */
static __device__ __forceinline__ int64_t this_chunk(const gb_pass &p) { return (p.segment[0].offset - p.start) /
                                                                         CHUNK + blockIdx.x; }

static __device__ __forceinline__ double inverse_of(const gb_pass &p) { return p.scaled ? (double)p.scale->inverse
                                                                        : 1.0; }

static __device__ __forceinline__ bool is_skipped(const gb_pass &p) { return p.found && p.found->found_inf != 0; }

/* 1.0f, whoever writes it */
static __device__ __forceinline__ void raise_flag(float *flag) { atomicExch((int *)flag, 0x3f800000); }

/* ====} */

/* {==== checking ==== */

/* Join what two places add to a norm of a type: a sum, or the larger one; NaN wins. */
static __device__ __forceinline__ double join_norms(double type, double a,
                                                    double b) { return isinf(type) ? gb_most_of::of(a, b) : a + b; }

static __device__ __forceinline__ double norm_of(double type, double g) {
  double size = fabs(g);
  return type == 2 ? g * g : isinf(type) ? size : pow(size, type);
}

/* A gradient of that segment was not finite. */
static __device__ __forceinline__ void raise_all(const gb_pass &p, int64_t index) {
  if (p.found) raise_flag(&p.found->found_inf);
  if (p.scale) raise_flag(&p.scale->found_inf);
  if (p.blame && p.scale)
    atomicExch((unsigned long long *)&p.blame[index], (unsigned long long)(p.scale->steps + p.scale->skipped + 1));
}

static __global__ void raise_kernel(gb_pass p, int64_t segments) {
  for (int64_t s = threadIdx.x; s < segments; s += blockDim.x)
    if (p.flags[s] > 0) raise_all(p, s);
}

extern "C" void gb_pass_raise(gb_stream stream, const gb_pass *pass, int64_t segments) {
  GB_LAUNCH(stream, raise_kernel, 1, GB_THREADS, 0, *pass, segments);
}

/* Elements are checked before they are multiplied, as PyTorch does, and measured after. */
struct check_run {
  double norm;
  bool unscale;
  __device__ void run(const gb_pass &p, int s, int64_t first, int64_t last) {
    int bad = 0;
    double inverse = inverse_of(p);
    for (four f = first_four(first, last); f.at < last; next_four(&f, last)) {
      double g[GB_LANES];
      load_four<double>(p.gradients, p.gradient_dtype, f, g);
      /* those that are not in the run are 0 */
      GB_UNROLL for (int l = 0; l < GB_LANES; l++) bad |= !(fabs(g[l]) <= DBL_MAX);
      GB_UNROLL for (int l = 0; l < GB_LANES; l++) g[l] = p.gradient_dtype == GB_FLOAT64 ? g[l] * inverse
          : (double)((float)g[l] * (float)inverse);
      if (unscale) store_four<double>(p.gradients, p.gradient_dtype, f, g);
      if (!p.norms) continue;
      GB_UNROLL for (int l = 0; l < GB_LANES; l++)
        if (is_in(f, l)) norm = join_norms(p.norm_type, norm, norm_of(p.norm_type, g[l]));
    }
    if (!bad) return;
    if (p.flags) p.flags[p.segment[s].index] = 1; /* whoever writes it */
    else raise_all(p, p.segment[s].index);
  }
};

static __global__ void check_kernel(gb_pass p, bool unscale) {
  check_run visitor = { 0, unscale };
  int64_t chunk = this_chunk(p);
  visit_chunk(p, chunk, visitor);
  if (!p.norms) return;
  double norm = isinf(p.norm_type) ? gb_block_reduce<gb_most_of>(visitor.norm, 0.0)
      : gb_block_reduce<gb_sum_of>(visitor.norm, 0.0);
  if (threadIdx.x == 0) p.norms[chunk] = norm; /* no two launches share one */
}

/* Of the norms of so many chunks those of a group, in their order. */
static __device__ __forceinline__ double group_of(const gb_pass &p, int64_t chunks, int64_t group) {
  int64_t first = group * GB_PASS_GROUP, end = first + GB_PASS_GROUP < chunks ? first + GB_PASS_GROUP : chunks;
  double norm = 0;
  for (int64_t i = first; i < end; i++) norm = join_norms(p.norm_type, norm, p.norms[i]);
  return norm;
}

static __global__ void join_kernel(gb_pass p, int64_t chunks, double *groups) {
  int64_t group = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (group * GB_PASS_GROUP < chunks) groups[group] = group_of(p, chunks, group);
}

/* The norm of the slab, joined to what the scalars hold. groups: NULL where they are to be made of the chunks'. */
static __global__ void norm_kernel(gb_pass p, int64_t chunks, const double *groups) {
  double norm = 0;
  for (int64_t i = threadIdx.x; i * GB_PASS_GROUP < chunks; i += blockDim.x)
    norm = join_norms(p.norm_type, norm, groups ? groups[i] : group_of(p, chunks, i));
  norm = isinf(p.norm_type) ? gb_block_reduce<gb_most_of>(norm, 0.0) : gb_block_reduce<gb_sum_of>(norm, 0.0);
  if (threadIdx.x == 0) p.found->norm_squared = join_norms(p.norm_type, p.found->norm_squared, norm);
}

extern "C" void gb_pass_norm(gb_stream stream, const gb_pass *pass, int64_t chunks) {
  GB_LAUNCH(stream, norm_kernel, 1, GB_THREADS, 0, *pass, chunks, (const double *)NULL);
}
extern "C" void gb_pass_norm_of(gb_stream stream, const gb_pass *pass, const double *groups, int64_t count) {
  GB_LAUNCH(stream, norm_kernel, 1, GB_THREADS, 0, *pass, count * GB_PASS_GROUP, groups);
}
extern "C" void gb_pass_join(gb_stream stream, const gb_pass *pass, int64_t chunks, double *groups) {
  int64_t count = (chunks + GB_PASS_GROUP - 1) / GB_PASS_GROUP;
  GB_LAUNCH(stream, join_kernel, (unsigned)((count + GB_THREADS - 1) / GB_THREADS), GB_THREADS, 0, *pass, chunks,
            groups);
}

/* ====} */

/* {==== clipping ==== */

/* What brings a norm down to max_norm; 1: nothing to do. One that is not finite raises the owner's flag, and gives 0 or
 * NaN, as in PyTorch, unless a scaler will skip the step. */
struct norm_clip { double factor; bool finite; };

static __device__ __forceinline__ norm_clip clip_by_norm(const gb_pass &p) {
  double norm = p.norm->norm_squared, total = isinf(p.norm_type) ? norm : p.norm_type == 2 ? sqrt(norm)
      : pow(norm, 1 / p.norm_type);
  double factor = p.max_norm / (total + 1e-6);
  bool finite = total - total == 0;
  if (!finite && p.owner && threadIdx.x == 0 && blockIdx.x == 0) raise_flag(&p.owner->found_inf);
  if (!finite) return { p.spares ? 1.0 : factor, false };
  return { factor < 1 ? factor : 1.0, true };
}

/* Multiply, or clamp where a limit is given; NaN stays NaN. */
struct clip_run {
  double factor, limit;
  __device__ void run(const gb_pass &p, int, int64_t first, int64_t last) {
    for (four f = first_four(first, last); f.at < last; next_four(&f, last)) {
      if (p.gradient_dtype == GB_FLOAT64) clip<double>(p, f);
      else clip<float>(p, f);
    }
  }
  template <typename T> __device__ __forceinline__ void clip(const gb_pass &p, const four &f) {
    T g[GB_LANES], most = (T)limit;
    load_four<T>(p.gradients, p.gradient_dtype, f, g);
    GB_UNROLL for (int l = 0; l < GB_LANES; l++) g[l] = most > 0 ? (g[l] > most ? most : g[l] < -most ? -most : g[l])
        : g[l] * (T)factor;
    store_four<T>(p.gradients, p.gradient_dtype, f, g);
  }
};

static __global__ void clip_kernel(gb_pass p) {
  clip_run visitor = { p.clip_factor, p.clip_value * (p.scaled ? (double)p.scale->scale : 1) };
  if (p.norm) visitor = { clip_by_norm(p).factor, 0 };
  if (p.norm && visitor.factor == 1) return;
  visit_chunk(p, this_chunk(p), visitor);
}

/* ====} */

/* {==== what steps share ==== */

/* New weights: as they are, and rounded into what is kept of them in 16 bits (the parameter that has a master, and the
 * copies). */
static __device__ __forceinline__ void write_weights(const gb_pass &p, const four &f, const float *w) {
  store_four<float>(p.weights, GB_FLOAT32, f, w);
  if (p.has_masters) store_four<float>(p.parameters, p.dtype, f, w);
#define WRITE_COPY(NAME) \
  if (p.copy[GB_COPY_##NAME]) store_four<float>(p.copy[GB_COPY_##NAME], GB_##NAME, f, w);
  GB_COPY_LIST(WRITE_COPY)
#undef WRITE_COPY
}
static __device__ __forceinline__ void write_weights(const gb_pass &p, const four &f,
                                                     const double *w) { store_four<double>(p.weights, GB_FLOAT64, f, w);
                                                                        }

/* What a step does with gradients on reading. */
template <typename T> struct reading {
  bool writes;          /* a step that clips: gradients stay behind in their true size and clipped, ... */
  T inverse, clip;      /* ... by two products, as by unscale_ and then by a clip, so that the bits are those of one
                           after the other */
  T factor;             /* without the scale, and with the sign that descends */
  bool skipped;         /* the flag was up, or the norm is not finite: no step, and the scaler hears of it */

  /* g was read, and so was all else that the four need: what is written first would hold those reads up. */
  __device__ __forceinline__ void apply(const gb_pass &p, const four &f, T *g) const {
    if (writes) {
      GB_UNROLL for (int l = 0; l < GB_LANES; l++) g[l] = g[l] * inverse * clip;
      store_four<T>(p.gradients, dtype_of((T)0), f, g);
    }
    GB_UNROLL for (int l = 0; l < GB_LANES; l++) g[l] *= factor;
  }
  /* What it makes of gradients, which stay as they are. */
  __device__ __forceinline__ void look(T *g) const {
    GB_UNROLL for (int l = 0; l < GB_LANES; l++) g[l] = writes ? g[l] * inverse * clip * factor : g[l] * factor;
  }
  /* Of a step that is skipped: what it leaves behind. */
  __device__ void run(const gb_pass &p, int, int64_t first, int64_t last) const {
    T g[GB_LANES];
    for (four f = first_four(first, last); f.at < last; next_four(&f, last)) {
      load_four<T>(p.gradients, dtype_of((T)0), f, g);
      apply(p, f, g);
    }
  }
};

template <typename T> static __device__ __forceinline__ reading<T> reading_of(const gb_pass &p) {
  norm_clip by = { 1, true };
  double inverse = inverse_of(p), sign = p.maximize ? -1 : 1;
  if (p.norm) by = clip_by_norm(p);
  bool skipped = p.found && (p.found->found_inf != 0 || !by.finite);
  if (skipped && p.scale && threadIdx.x == 0 && blockIdx.x == 0) raise_flag(&p.scale->found_inf);
  if (!p.norm) return { false, 1, 1, (T)(inverse * sign), skipped };
  return { p.scaled || by.factor != 1, (T)inverse, (T)by.factor, (T)sign, skipped };
}

/* One more step for every segment that took it; after the pass, which reads the count. */
static __global__ void count_kernel(gb_pass p) {
  if (is_skipped(p)) return;
  for (int s = (int)threadIdx.x; s < p.count; s += (int)blockDim.x) p.steps[p.segment[s].index]++;
}

extern "C" void gb_pass_count(gb_stream stream,
                              const gb_pass *pass) { GB_LAUNCH(stream, count_kernel, 1, GB_PASS_SEGMENTS, 0, *pass); }

/* ====} */

/* {==== steps ==== */

#define STATE_AT(room, k, i) room[k][i]
#define STATE_IN(room, k) true
#define T float
#define M(name) name##_f32
typedef T (*M(state_room))[GB_LANES];
#include "base/updates.h"
#undef T
#undef M

#define T double
#define M(name) name##_f64
typedef T (*M(state_room))[GB_LANES];
#include "base/updates.h"
#undef T
#undef M

/* What a step measures of a parameter first: nothing, or two norms. */
#define DIRECTIONS(NAME, real, suffix) \
  NO_MEASURES(NAME, real, suffix) \
  static __device__ __forceinline__ real direction(real w, real g, real (*state)[GB_LANES], int lane, \
      const numbers *n) { \
    NAME##_states##suffix s = NAME##_load##suffix(state, lane); \
    return NAME##_direction##suffix(w, g, &s, n); \
  }
#define NO_MEASURES(NAME, real, suffix) \
  static __device__ __forceinline__ void measured(const gb_optim_numbers &, const double *, numbers *) {}
#define MEASURES(NAME, real, suffix) \
  static __device__ __forceinline__ void measured(const gb_optim_numbers &hyper, const double *sum, numbers *n) { \
    NAME##_measured##suffix(&hyper.NAME, sqrt(sum[0]), sqrt(sum[1]), n); \
  } \
  static __device__ __forceinline__ real direction(real w, real g, real (*state)[GB_LANES], int lane, \
      const numbers *n) { \
    NAME##_states##suffix s = NAME##_load##suffix(state, lane); \
    return NAME##_direction##suffix(w, g, &s, n); \
  }

/* An optimizer in a precision as a type: X_f32 and X_f64. */
#define RULE(NAME, real, suffix, measures) \
  struct NAME##suffix { \
    typedef real number; \
    typedef NAME##_numbers##suffix numbers; \
    static const int states = sizeof(NAME##_states_count); \
    static __device__ __forceinline__ void segment(const gb_optim_numbers &hyper, int64_t steps, numbers *n) { \
      NAME##_segment##suffix(&hyper.NAME, steps, n); \
    } \
    static __device__ __forceinline__ real element(real w, real g, real (*state)[GB_LANES], int lane, \
        const numbers *n) { \
      NAME##_states##suffix s = NAME##_load##suffix(state, lane); \
      w = NAME##_element##suffix(w, g, &s, n); \
      NAME##_store##suffix(state, lane, s); \
      return w; \
    } \
    measures(NAME, real, suffix) \
  };
#define STATE(name) char name;
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) \
  struct NAME##_states_count { STATES };     \
  RULE(NAME, float, _f32, NO_MEASURES)       \
  RULE(NAME, double, _f64, NO_MEASURES)
#define MEASURED(NAME, HYPERS, STATES, DOC) \
  struct NAME##_states_count { STATES };    \
  RULE(NAME, float, _f32, MEASURES)         \
  RULE(NAME, double, _f64, MEASURES)
#define SHAPED(NAME, HYPERS, STATES, DOC) \
  struct NAME##_states_count { STATES };  \
  RULE(NAME, float, _f32, DIRECTIONS)     \
  RULE(NAME, double, _f64, DIRECTIONS)
#include "base/optimizers.def"

/* What the runs of a chunk add to the measures of their segments. */
template <class Rule> struct measure_run {
  typedef typename Rule::number T;
  gb_optim_numbers hyper;
  reading<T> gradients;
  int64_t chunk;
  __device__ void run(const gb_pass &p, int s, int64_t first, int64_t last) {
    typename Rule::numbers numbers;
    int64_t index = p.segment[s].index;
    Rule::segment(hyper, p.steps[index], &numbers);
    const int dtype = dtype_of((T)0);
    double weights = 0, directions = 0;
    for (four f = first_four(first, last); f.at < last; next_four(&f, last)) {
      T g[GB_LANES], w[GB_LANES], state[Rule::states][GB_LANES] = {};
      load_four<T>(p.gradients, dtype, f, g);
      load_four<T>(p.weights, dtype, f, w);
      GB_UNROLL for (int k = 0; k < Rule::states; k++)
        if (p.state[k]) load_four<T>(p.state[k], dtype, f, state[k]);
      gradients.look(g);
      GB_UNROLL for (int l = 0; l < GB_LANES; l++) {
        double along = is_in(f, l) ? (double)Rule::direction(w[l], g[l], state, l, &numbers) : 0;
        weights += (double)w[l] * (double)w[l]; /* 0 where it is not in the run */
        directions += along * along;
      }
    }
    weights = gb_block_reduce<gb_sum_of>(weights, 0.0);
    directions = gb_block_reduce<gb_sum_of>(directions, 0.0);
    if (threadIdx.x != 0) return;
    int64_t part = chunk + p.segment[s].place;
    p.parts[2 * part] = weights;
    p.parts[2 * part + 1] = directions;
  }
};

template <class Rule> static __global__ void __launch_bounds__(GB_THREADS) measure_kernel(gb_pass p) {
  int64_t chunk = this_chunk(p);
  measure_run<Rule> visitor = { p.numbers, reading_of<typename Rule::number>(p), chunk };
  if (p.live) visitor.hyper = *p.live;
  if (!visitor.gradients.skipped) visit_chunk(p, chunk, visitor);
}

/* A block for each segment adds its parts: those of a group of chunks, and then groups as gb_sum_parts. */
static __global__ void sum_kernel(gb_pass p) {
  gb_pass_segment segment = p.segment[blockIdx.x];
  int64_t first = (segment.offset - p.start) / CHUNK, last = (segment.offset + segment.size - 1 - p.start) / CHUNK;
  for (int k = 0; k < 2; k++) {
    double sum = 0;
    for (int64_t g = first / GB_PASS_GROUP + threadIdx.x; g <= last / GB_PASS_GROUP; g += blockDim.x) {
      int64_t from = g * GB_PASS_GROUP, to = from + GB_PASS_GROUP - 1;
      double part = 0;
      for (int64_t c = from > first ? from : first; c <= to && c <= last; c++)
        part += p.parts[2 * (c + segment.place) + k];
      sum += part;
    }
    sum = gb_block_reduce<gb_sum_of>(sum, 0.0);
    if (threadIdx.x == 0) p.measures[2 * segment.place + k] = sum;
  }
}

template <class Rule> static void measure_parts(gb_stream stream, unsigned grid, const gb_pass *pass) {
  GB_LAUNCH(stream, measure_kernel<Rule>, grid, GB_THREADS, 0, *pass);
}

template <class Rule> static void measure(gb_stream stream, unsigned grid, const gb_pass *pass) {
  if (pass->known) return;
  measure_parts<Rule>(stream, grid, pass);
  GB_LAUNCH(stream, sum_kernel, (unsigned)pass->count, GB_THREADS, 0, *pass);
}

static void run_measure(gb_stream stream, unsigned grid, const gb_pass *pass) {
  switch (pass->optimizer) {
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) \
  case GB_##NAME: return;
#define MEASURED(NAME, HYPERS, STATES, DOC)                                                                   \
  case GB_##NAME:                                                                                             \
    (pass->is_f64 ? measure_parts<NAME##_f64> : measure_parts<NAME##_f32>)(stream, grid, pass);               \
    return;
#include "base/optimizers.def"
    case GB_OPTIMIZERS: return;
  }
}

/* The directions of a chunk's runs, in the last state. */
template <class Rule> struct direct_run {
  typedef typename Rule::number T;
  gb_optim_numbers hyper;
  reading<T> gradients;
  __device__ void run(const gb_pass &p, int s, int64_t first, int64_t last) {
    typename Rule::numbers numbers;
    Rule::segment(hyper, p.steps[p.segment[s].index], &numbers);
    const int dtype = dtype_of((T)0);
    for (four f = first_four(first, last); f.at < last; next_four(&f, last)) {
      T g[GB_LANES], w[GB_LANES], state[Rule::states][GB_LANES] = {};
      load_four<T>(p.gradients, dtype, f, g);
      load_four<T>(p.weights, dtype, f, w);
      GB_UNROLL for (int k = 0; k < Rule::states - 1; k++)
        if (p.state[k]) load_four<T>(p.state[k], dtype, f, state[k]);
      gradients.look(g);
      GB_UNROLL for (int l = 0; l < GB_LANES; l++) w[l] = Rule::direction(w[l], g[l], state, l, &numbers);
      store_four<T>(p.state[Rule::states - 1], dtype, f, w);
    }
  }
};

template <class Rule> static __global__ void __launch_bounds__(GB_THREADS) direct_kernel(gb_pass p) {
  direct_run<Rule> visitor = { p.numbers, reading_of<typename Rule::number>(p) };
  visit_chunk(p, this_chunk(p), visitor);
}

static void run_direct(gb_stream stream, unsigned grid, const gb_pass *pass) {
  switch (pass->optimizer) {
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) \
  case GB_##NAME: return;
#define SHAPED(NAME, HYPERS, STATES, DOC)                                                           \
  case GB_##NAME:                                                                                   \
    if (pass->is_f64) { GB_LAUNCH(stream, direct_kernel<NAME##_f64>, grid, GB_THREADS, 0, *pass); } \
    else { GB_LAUNCH(stream, direct_kernel<NAME##_f32>, grid, GB_THREADS, 0, *pass); }              \
    return;
#include "base/optimizers.def"
    case GB_OPTIMIZERS: return;
  }
}

/* A thread makes the numbers of a segment, with powers in double that the elements' threads need not raise again. */
template <class Rule> static __global__ void numbers_kernel(gb_pass p) {
  static_assert(sizeof(typename Rule::numbers) <= GB_PASS_NUMBERS, "a segment's numbers have room");
  int s = (int)threadIdx.x;
  if (s >= p.count) return;
  int64_t index = p.segment[s].index;
  typename Rule::numbers numbers;
  gb_optim_numbers hyper = p.live ? *p.live : p.numbers;
  Rule::segment(hyper, p.steps[index], &numbers);
  Rule::measured(hyper, p.measures + 2 * p.segment[s].place, &numbers);
  *(typename Rule::numbers *)(void *)(p.made + s * GB_PASS_NUMBERS) = numbers;
}

template <class Rule> struct step_run {
  typedef typename Rule::number T;
  reading<T> gradients;
  __device__ void run(const gb_pass &p, int s, int64_t first, int64_t last) {
    const typename Rule::numbers numbers = *(const typename Rule::numbers *)(const void *)(p.made +
        s * GB_PASS_NUMBERS);
    const int dtype = dtype_of((T)0);
    for (four f = first_four(first, last); f.at < last; next_four(&f, last)) {
      T g[GB_LANES], w[GB_LANES], state[Rule::states][GB_LANES] = {};
      load_four<T>(p.gradients, dtype, f, g);
      load_four<T>(p.weights, dtype, f, w);
      GB_UNROLL for (int k = 0; k < Rule::states; k++)
        if (p.state[k]) load_four<T>(p.state[k], dtype, f, state[k]);
      gradients.apply(p, f, g);
      GB_UNROLL for (int l = 0; l < GB_LANES; l++) w[l] = Rule::element(w[l], g[l], state, l, &numbers);
      GB_UNROLL for (int k = 0; k < Rule::states; k++)
        if (p.state[k]) store_four<T>(p.state[k], dtype, f, state[k]);
      write_weights(p, f, w);
    }
  }
};

/* In float32 four blocks to a multiprocessor, which as many registers as the compiler would take leave no room for. */
template <class Rule> static __global__ void __launch_bounds__(GB_THREADS,
                                                               sizeof(typename Rule::number) == 4 ? 4
    : 2) step_kernel(gb_pass p) {
  step_run<Rule> visitor = { reading_of<typename Rule::number>(p) };
  if (!visitor.gradients.skipped) visit_chunk(p, this_chunk(p), visitor);
  else if (visitor.gradients.writes) visit_chunk(p, this_chunk(p), visitor.gradients);
}

template <class Rule> static void step(gb_stream stream, unsigned grid, const gb_pass *pass) {
  GB_LAUNCH(stream, numbers_kernel<Rule>, 1, GB_PASS_SEGMENTS, 0, *pass);
  GB_LAUNCH(stream, step_kernel<Rule>, grid, GB_THREADS, 0, *pass);
}

static void run_step(gb_stream stream, unsigned grid, const gb_pass *pass) {
  switch (pass->optimizer) {
#define OPTIMIZER(NAME, HYPERS, STATES, DOC)                                     \
  case GB_##NAME:                                                                \
    (pass->is_f64 ? step<NAME##_f64> : step<NAME##_f32>)(stream, grid, pass);    \
    return;
#define MEASURED(NAME, HYPERS, STATES, DOC)                                      \
  case GB_##NAME:                                                                \
    (pass->is_f64 ? measure<NAME##_f64> : measure<NAME##_f32>)(stream, grid, pass); \
    (pass->is_f64 ? step<NAME##_f64> : step<NAME##_f32>)(stream, grid, pass);    \
    return;
#include "base/optimizers.def"
    case GB_OPTIMIZERS: return;
  }
}

/* ====} */

extern "C" void gb_pass_run(gb_stream stream, gb_pass_kind kind, const gb_pass *pass) {
  const gb_pass_segment *last = &pass->segment[pass->count - 1];
  int64_t first_chunk = (pass->segment[0].offset - pass->start) / CHUNK,
      end = gb_pass_chunks(last->offset + last->size - pass->start);
  unsigned grid = (unsigned)(end - first_chunk);
  switch (kind) {
    case GB_PASS_CHECK: GB_LAUNCH(stream, check_kernel, grid, GB_THREADS, 0, *pass, false); return;
    case GB_PASS_UNSCALE: GB_LAUNCH(stream, check_kernel, grid, GB_THREADS, 0, *pass, true); return;
    case GB_PASS_CLIP: GB_LAUNCH(stream, clip_kernel, grid, GB_THREADS, 0, *pass); return;
    case GB_PASS_DIRECT: run_direct(stream, grid, pass); return;
    case GB_PASS_MEASURE: run_measure(stream, grid, pass); return;
    case GB_PASS_STEP: run_step(stream, grid, pass); return;
  }
}

/* {==== the scaler ==== */

static __global__ void update_kernel(gb_scale_state *scalars, gb_scale_rule rule) { gb_scale_update(scalars, &rule); }

extern "C" void gb_pass_update_scale(gb_stream stream, gb_scale_state *scalars, const gb_scale_rule *rule) {
  GB_LAUNCH(stream, update_kernel, 1, 1, 0, scalars, *rule);
}

/* ====} */
