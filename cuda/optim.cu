/* cuda/optim.cu - passes over the segments of a slab: check, unscale, clip, the steps of SGD and Adam, and the scaler's update.
 *
 * A block handles one chunk of the slab and visits the segments that lie in it, four elements to a thread. What is the same for all elements is read from the records on
 * the device, so nothing waits for the host. Norms are of gradients in their true size, as unscaling rounds them, added in a fixed order: threads,
 * then chunks. A step reads and writes each element once: SGD moves 12 bytes per float32 element (20 with momentum), Adam 28, 4 more where it
 * clips, and 2 more per 16-bit copy that it refreshes on the way. Arithmetic is float32, or float64 for float64 parameters; the numbers of a whole
 * segment are made in double. */
#include "cuda/optim.h"

#include <float.h>

#include "cuda/block.cuh"
#include "cuda/lanes.cuh"

#define CHUNK 4096

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
template <class Visitor> static __device__ __forceinline__ void visit_chunk(const gb_pass &p, int64_t chunk, Visitor &visitor) {
  int64_t from = p.start + chunk * CHUNK, end = from + CHUNK;
  for (int s = segment_at(p, from); s < p.count && p.segment[s].offset < end; s++) {
    int64_t first = p.segment[s].offset > from ? p.segment[s].offset : from, stop = p.segment[s].offset + p.segment[s].size;
    visitor.run(p, s, first, stop < end ? stop : end);
  }
}

/* {---- four neighbouring elements to a thread ---- */

/* The first four of this thread in a run, and those of them that are in it: for (f = ...; f.at < last; next_four(&f, last)). */
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
template <typename T> static __device__ __forceinline__ void load_four(const void *data, int dtype, const four &f, T *v) {
  if (gb_lane_bytes(dtype)) {
    gb_lanes_unpack<T, GB_LANES>(gb_lanes_load<GB_LANES>(data, gb_lane_bytes(dtype), f.at, f.first, f.end), dtype, v);
    return;
  }
  GB_UNROLL for (int l = 0; l < GB_LANES; l++) v[l] = is_in(f, l) ? gb_load<T>(data, dtype, f.at + l) : (T)0;
}

template <typename T> static __device__ __forceinline__ void store_four(void *data, int dtype, const four &f, const T *v) {
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
static __device__ __forceinline__ int64_t this_chunk(const gb_pass &p) { return (p.segment[0].offset - p.start) / CHUNK + blockIdx.x; }

static __device__ __forceinline__ double inverse_of(const gb_pass &p) { return p.scaled ? (double)p.scale->inverse : 1.0; }

static __device__ __forceinline__ bool is_skipped(const gb_pass &p) { return p.found && p.found->found_inf != 0; }

static __device__ __forceinline__ void raise_flag(float *flag) { atomicExch((int *)flag, 0x3f800000); } /* 1.0f, whoever writes it */

/* ====} */

/* {==== checking ==== */

/* Join what two places add to a norm of a type: a sum, or the larger one; NaN wins. */
static __device__ __forceinline__ double join_norms(double type, double a, double b) { return isinf(type) ? gb_most_of::of(a, b) : a + b; }

static __device__ __forceinline__ double norm_of(double type, double g) {
  double size = fabs(g);
  return type == 2 ? g * g : isinf(type) ? size : pow(size, type);
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
      GB_UNROLL for (int l = 0; l < GB_LANES; l++) bad |= !(fabs(g[l]) <= DBL_MAX); /* those that are not in the run are 0 */
      GB_UNROLL for (int l = 0; l < GB_LANES; l++) g[l] = p.gradient_dtype == GB_FLOAT64 ? g[l] * inverse : (double)((float)g[l] * (float)inverse);
      if (unscale) store_four<double>(p.gradients, p.gradient_dtype, f, g);
      if (!p.norms) continue;
      GB_UNROLL for (int l = 0; l < GB_LANES; l++)
        if (is_in(f, l)) norm = join_norms(p.norm_type, norm, norm_of(p.norm_type, g[l]));
    }
    if (!bad) return;
    if (p.found) raise_flag(&p.found->found_inf);
    if (p.scale) raise_flag(&p.scale->found_inf);
    if (p.blame && p.scale) atomicExch((unsigned long long *)&p.blame[p.segment[s].index], (unsigned long long)(p.scale->steps + p.scale->skipped + 1));
  }
};

static __global__ void check_kernel(gb_pass p, bool unscale) {
  check_run visitor = { 0, unscale };
  int64_t chunk = this_chunk(p);
  visit_chunk(p, chunk, visitor);
  if (!p.norms) return;
  double norm = isinf(p.norm_type) ? gb_block_reduce<gb_most_of>(visitor.norm, 0.0) : gb_block_reduce<gb_sum_of>(visitor.norm, 0.0);
  if (threadIdx.x == 0) p.norms[chunk] = join_norms(p.norm_type, p.norms[chunk], norm); /* a chunk may be shared by two launches */
}

/* The norm of the slab, joined to what the record holds. */
static __global__ void norm_kernel(gb_pass p, int64_t chunks) {
  double norm = 0;
  for (int64_t i = threadIdx.x; i < chunks; i += blockDim.x) norm = join_norms(p.norm_type, norm, p.norms[i]);
  norm = isinf(p.norm_type) ? gb_block_reduce<gb_most_of>(norm, 0.0) : gb_block_reduce<gb_sum_of>(norm, 0.0);
  if (threadIdx.x == 0) p.found->norm = join_norms(p.norm_type, p.found->norm, norm);
}

extern "C" void gb_pass_norm(gb_stream stream, const gb_pass *pass, int64_t chunks) {
  GB_LAUNCH(stream, norm_kernel, 1, GB_THREADS, 0, *pass, chunks);
}

/* ====} */

/* {==== clipping ==== */

/* What brings a norm down to max_norm; 1: nothing to do. One that is not finite raises the owner's flag, and gives 0 or NaN, as in PyTorch, unless a
 * scaler will skip the step. */
struct norm_clip { double factor; bool finite; };

static __device__ __forceinline__ norm_clip clip_by_norm(const gb_pass &p) {
  double norm = p.norm->norm, total = isinf(p.norm_type) ? norm : p.norm_type == 2 ? sqrt(norm) : pow(norm, 1 / p.norm_type);
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
    GB_UNROLL for (int l = 0; l < GB_LANES; l++) g[l] = most > 0 ? (g[l] > most ? most : g[l] < -most ? -most : g[l]) : g[l] * (T)factor;
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

static __device__ __forceinline__ gb_pass_rates rates_of(const gb_pass &p) { return p.live ? *p.live : p.rates; }

/* New weights: as they are, and rounded into what is kept of them in 16 bits (the parameter that has a master, and the copies). */
static __device__ __forceinline__ void write_weights(const gb_pass &p, const four &f, const float *w) {
  store_four<float>(p.weights, GB_FLOAT32, f, w);
  if (p.has_masters) store_four<float>(p.parameters, p.dtype, f, w);
  if (p.copy[0]) store_four<float>(p.copy[0], GB_FLOAT16, f, w);
  if (p.copy[1]) store_four<float>(p.copy[1], GB_BFLOAT16, f, w);
}
static __device__ __forceinline__ void write_weights(const gb_pass &p, const four &f, const double *w) { store_four<double>(p.weights, GB_FLOAT64, f, w); }

/* m goes towards g by `rate`; from the nearer end, so that a rate of 1 gives g itself. */
template <typename T> static __device__ __forceinline__ T towards(T m, T g, T rate) {
  return rate < (T)0.5 ? m + rate * (g - m) : g - (g - m) * (1 - rate);
}

/* What a step does with gradients on reading. */
template <typename T> struct reading {
  bool writes;          /* a step that clips: gradients stay behind in their true size and clipped, ... */
  T inverse, clip;      /* ... by two products, as by unscale_ and then by a clip, so that the bits are those of one after the other */
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

extern "C" void gb_pass_count(gb_stream stream, const gb_pass *pass) { GB_LAUNCH(stream, count_kernel, 1, GB_PASS_SEGMENTS, 0, *pass); }

/* ====} */

/* {==== SGD ==== */

template <typename T> struct sgd_run {
  gb_pass_rates rates;
  reading<T> gradients;
  __device__ void run(const gb_pass &p, int s, int64_t first, int64_t last) {
    T lr = (T)rates.lr, decay = (T)rates.weight_decay, momentum = (T)p.momentum, keep = (T)(1 - p.dampening);
    bool fresh = p.steps[p.segment[s].index] == 0;
    const int dtype = dtype_of((T)0);
    for (four f = first_four(first, last); f.at < last; next_four(&f, last)) {
      T g[GB_LANES], w[GB_LANES], m[GB_LANES];
      load_four<T>(p.gradients, dtype, f, g);
      load_four<T>(p.weights, dtype, f, w);
      if (momentum != 0 && !fresh) load_four<T>(p.state[0], dtype, f, m);
      gradients.apply(p, f, g);
      GB_UNROLL for (int l = 0; l < GB_LANES; l++) {
        if (decay != 0) g[l] += decay * w[l];
        if (momentum != 0) {
          m[l] = fresh ? g[l] : m[l] * momentum + g[l] * keep;
          g[l] = p.nesterov ? g[l] + momentum * m[l] : m[l];
        }
        w[l] -= lr * g[l];
      }
      if (momentum != 0) store_four<T>(p.state[0], dtype, f, m);
      write_weights(p, f, w);
    }
  }
};

template <typename T> static __global__ void sgd_kernel(gb_pass p) {
  sgd_run<T> visitor = { rates_of(p), reading_of<T>(p) };
  if (!visitor.gradients.skipped) visit_chunk(p, this_chunk(p), visitor);
  else if (visitor.gradients.writes) visit_chunk(p, this_chunk(p), visitor.gradients);
}

/* ====} */

/* {==== Adam ==== */

template <typename T> struct adam_run {
  gb_pass_rates rates;
  reading<T> gradients;
  __device__ void run(const gb_pass &p, int s, int64_t first, int64_t last) {
    double steps = (double)(p.steps[p.segment[s].index] + 1); /* bias is corrected by the segment's own count */
    double correction1 = 1 - pow(p.beta1, steps), correction2 = 1 - pow(p.beta2, steps);
    T rate1 = (T)(1 - p.beta1), beta2 = (T)p.beta2, rate2 = (T)(1 - p.beta2), step = (T)(rates.lr / correction1), root = (T)(1 / sqrt(correction2));
    T eps = (T)p.eps, keep = (T)(p.decoupled ? 1 - rates.lr * rates.weight_decay : 1), decay = p.decoupled ? (T)0 : (T)rates.weight_decay;
    const int dtype = dtype_of((T)0);
    for (four f = first_four(first, last); f.at < last; next_four(&f, last)) {
      T g[GB_LANES], w[GB_LANES], m[GB_LANES], v[GB_LANES];
      load_four<T>(p.gradients, dtype, f, g);
      load_four<T>(p.weights, dtype, f, w);
      load_four<T>(p.state[0], dtype, f, m);
      load_four<T>(p.state[1], dtype, f, v);
      gradients.apply(p, f, g);
      GB_UNROLL for (int l = 0; l < GB_LANES; l++) {
        if (decay != 0) g[l] += decay * w[l];
        m[l] = towards(m[l], g[l], rate1);
        v[l] = v[l] * beta2 + rate2 * (g[l] * g[l]);
        w[l] = w[l] * keep - step * m[l] / ((T)sqrt(v[l]) * root + eps);
      }
      store_four<T>(p.state[0], dtype, f, m);
      store_four<T>(p.state[1], dtype, f, v);
      write_weights(p, f, w);
    }
  }
};

/* In float32 four blocks to a multiprocessor, which as many registers as the compiler would take leave no room for. */
template <typename T> static __global__ void __launch_bounds__(GB_THREADS, sizeof(T) == 4 ? 4 : 2) adam_kernel(gb_pass p) {
  adam_run<T> visitor = { rates_of(p), reading_of<T>(p) };
  if (!visitor.gradients.skipped) visit_chunk(p, this_chunk(p), visitor);
  else if (visitor.gradients.writes) visit_chunk(p, this_chunk(p), visitor.gradients);
}

/* ====} */

extern "C" void gb_pass_run(gb_stream stream, gb_pass_kind kind, const gb_pass *pass) {
  const gb_pass_segment *last = &pass->segment[pass->count - 1];
  int64_t first_chunk = (pass->segment[0].offset - pass->start) / CHUNK, end = gb_pass_chunks(last->offset + last->size - pass->start);
  unsigned grid = (unsigned)(end - first_chunk);
  switch (kind) {
    case GB_PASS_CHECK: GB_LAUNCH(stream, check_kernel, grid, GB_THREADS, 0, *pass, false); return;
    case GB_PASS_UNSCALE: GB_LAUNCH(stream, check_kernel, grid, GB_THREADS, 0, *pass, true); return;
    case GB_PASS_CLIP: GB_LAUNCH(stream, clip_kernel, grid, GB_THREADS, 0, *pass); return;
    case GB_PASS_SGD:
      if (pass->is_f64) { GB_LAUNCH(stream, sgd_kernel<double>, grid, GB_THREADS, 0, *pass); }
      else { GB_LAUNCH(stream, sgd_kernel<float>, grid, GB_THREADS, 0, *pass); }
      return;
    case GB_PASS_ADAM:
      if (pass->is_f64) { GB_LAUNCH(stream, adam_kernel<double>, grid, GB_THREADS, 0, *pass); }
      else { GB_LAUNCH(stream, adam_kernel<float>, grid, GB_THREADS, 0, *pass); }
      return;
  }
}

/* {==== the scaler ==== */

/* Smaller, but not below the floor; never so small that its inverse is not finite. */
static __device__ __forceinline__ float backed_off(const gb_pass_update &u, float scale) {
  float next = (float)(scale * u.backoff_factor), floor = u.min_scale > FLT_MIN ? (float)u.min_scale : FLT_MIN;
  return next >= floor ? next : scale < floor ? scale : floor;
}

/* Larger, but not above the ceiling; a scale that would be infinite stays. */
static __device__ __forceinline__ float grown(const gb_pass_update &u, float scale) {
  float next = (float)(scale * u.growth_factor);
  if (!(next <= FLT_MAX)) return scale;
  if (u.max_scale <= 0 || next <= (float)u.max_scale) return next;
  return scale > (float)u.max_scale ? scale : (float)u.max_scale;
}

/* Counts the step or the skip, and clears the flag. */
static __global__ void update_kernel(gb_pass_update u) {
  gb_pass_scale *r = u.scale;
  if (r->found_inf != 0) {
    r->growth_tracker = 0;
    r->skipped++;
    r->skipped_in_a_row++;
    if (r->skipped_in_a_row >= u.hysteresis) r->scale = backed_off(u, r->scale);
  } else {
    bool grows = r->growth_tracker + 1 >= (float)u.growth_interval;
    if (grows) r->scale = grown(u, r->scale);
    r->growth_tracker = grows ? 0 : r->growth_tracker + 1;
    r->steps++;
    r->skipped_in_a_row = 0;
  }
  r->inverse = (float)(1.0 / (double)r->scale);
  r->found_inf = 0;
}

extern "C" void gb_pass_update_scale(gb_stream stream, const gb_pass_update *update) { GB_LAUNCH(stream, update_kernel, 1, 1, 0, *update); }

/* ====} */
