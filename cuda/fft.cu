/* cuda/fft.cu - the Fourier transform of real rows, and back: base/fft.h has its steps.
 *
 * Every stage is a launch, one thread to a step of it, over as many rows as the working memory is for; so every number
 * is written once, in one order. Roots of unity are found on the device, in float64, once per call. */
#include "cuda/device.cuh"
#include "base/fft.h"
#include "cuda/families.h"

/* In float and in double by the same names. */
#define OF(name) name
#define REAL float
#include "base/fft_of.h"
#undef REAL
#define REAL double
#include "base/fft_of.h"
#undef REAL
#undef OF

#define MOST_AT_ONCE ((int64_t)1 << 25) /* complex numbers of the rows that go through the stages together */

/* The tables of a plan: roots of m, of n, the chirp and what a row turned by it is multiplied with; cosines and sines,
 * real and imaginary parts apart. */
template <typename T> struct fft_tables { T *root, *turn, *chirp, *filter_a, *filter_b; };

/* Rows first .. first + rows - 1 of x or y, of `of_x` and `of_y` numbers each. */
template <typename T> struct fft_rows {
  gb_fft_plan plan;
  fft_tables<T> t;
  const char *x;
  char *y;
  int x_dtype, y_dtype;
  int64_t first, rows, of_x, of_y;
  bool doubled;
  double scale;
};

/* Two complex arrays: what the next stage reads, and where it writes. */
template <typename T> struct fft_arrays { T *a, *b, *c, *d; };

template <typename T> __global__ void fft_fill_tables(gb_fft_plan p, fft_tables<T> t, int64_t entries) {
  for (int64_t i = gb_thread<int64_t>(); i < entries; i += gb_grid_size<int64_t>()) {
    double c, s;
    if (i < p.m) gb_fft_root(i, p.m, &c, &s), t.root[i] = (T)c, t.root[p.m + i] = (T)s;
    if (p.even && i <= p.h) gb_fft_root(i, p.n, &c, &s), t.turn[i] = (T)c, t.turn[p.h + 1 + i] = (T)s;
    if (p.chirp && i < p.h) gb_fft_chirp(i, p.h, &c, &s), t.chirp[i] = (T)c, t.chirp[p.h + i] = (T)s;
  }
}

/* The chirp turned back, by m, at both ends of a row of m. */
template <typename T> __global__ void fft_fill_filter(gb_fft_plan p, fft_tables<T> t, T *a, T *b) {
  for (int64_t i = gb_thread<int64_t>(); i < p.m; i += gb_grid_size<int64_t>()) {
    int64_t k = i < p.h ? i : i > p.m - p.h ? p.m - i : -1;
    a[i] = k < 0 ? 0 : t.chirp[k] / (T)p.m;
    b[i] = k < 0 ? 0 : t.chirp[p.h + k] / (T)p.m;
  }
}

/* Number k of the transform that a row is made from: the row of a real signal, whose ends are real. */
template <typename T> static GB_DEVICE void fft_number(const fft_rows<T> &j, int64_t row, int64_t k, T *re, T *im) {
  bool end = k == 0 || 2 * k == j.plan.n;
  T part = end || j.doubled ? (T)1 : (T)0.5;
  int64_t at = (j.first + row) * j.of_x + 2 * k;
  *re = gb_load<T>(j.x, j.x_dtype, at) * part;
  *im = end ? (T)0 : gb_load<T>(j.x, j.x_dtype, at + 1) * part;
}

/* Real rows as complex ones. */
template <typename T> __global__ void fft_take_real(fft_rows<T> j, T *a, T *b) {
  const gb_fft_plan &p = j.plan;
  for (int64_t i = gb_thread<int64_t>(); i < j.rows * p.h; i += gb_grid_size<int64_t>()) {
    int64_t row = i / p.h, k = i % p.h, from = (j.first + row) * j.of_x, to = row * p.m + k;
    a[to] = gb_load<T>(j.x, j.x_dtype, p.even ? from + 2 * k : from + k);
    b[to] = p.even ? gb_load<T>(j.x, j.x_dtype, from + 2 * k + 1) : (T)0;
  }
}

/* Complex rows from transforms of real ones. */
template <typename T> __global__ void fft_take_half(fft_rows<T> j, T *a, T *b) {
  const gb_fft_plan &p = j.plan;
  for (int64_t i = gb_thread<int64_t>(); i < j.rows * p.h; i += gb_grid_size<int64_t>()) {
    int64_t row = i / p.h, k = i % p.h, to = row * p.m + k;
    T re, im, ro, io;
    if (p.even) {
      fft_number(j, row, k, &re, &im);
      fft_number(j, row, p.h - k, &ro, &io);
      fft_join(re, im, ro, io, j.t.turn[k], j.t.turn[p.h + 1 + k], &re, &im);
    } else if (k < gb_fft_half(p.n)) fft_number(j, row, k, &re, &im);
    else fft_number(j, row, p.n - k, &re, &im), im = -im;
    a[to] = re;
    b[to] = im;
  }
}

template <typename T> __global__ void fft_give_real(fft_rows<T> j, const T *a, const T *b) {
  const gb_fft_plan &p = j.plan;
  T scale = (T)j.scale;
  for (int64_t i = gb_thread<int64_t>(); i < j.rows * p.h; i += gb_grid_size<int64_t>()) {
    int64_t row = i / p.h, k = i % p.h, to = (j.first + row) * j.of_y, from = row * p.m + k;
    if (!p.even) gb_store<T>(j.y, j.y_dtype, to + k, a[from] * scale);
    else {
      gb_store<T>(j.y, j.y_dtype, to + 2 * k, a[from] * scale);
      gb_store<T>(j.y, j.y_dtype, to + 2 * k + 1, b[from] * scale);
    }
  }
}

template <typename T> __global__ void fft_give_half(fft_rows<T> j, const T *a, const T *b) {
  const gb_fft_plan &p = j.plan;
  int64_t count = gb_fft_half(p.n);
  for (int64_t i = gb_thread<int64_t>(); i < j.rows * count; i += gb_grid_size<int64_t>()) {
    int64_t row = i / count, k = i % count, to = (j.first + row) * j.of_y + 2 * k;
    int64_t here = row * p.m + (k < p.h ? k : 0), other = row * p.m + (k > 0 && k < p.h ? p.h - k : 0);
    T re = a[here], im = b[here], scale = (T)(j.scale * gb_fft_weight(k, p.n, j.doubled));
    if (p.even) fft_split(re, im, a[other], b[other], j.t.turn[k], j.t.turn[p.h + 1 + k], &re, &im);
    gb_store<T>(j.y, j.y_dtype, to, re * scale);
    gb_store<T>(j.y, j.y_dtype, to + 1, k == 0 || 2 * k == p.n ? (T)0 : im * scale);
  }
}

/* A stage of one radix over `length` numbers of each row that are left to transform. */
template <typename T, int R>
__global__ void fft_stage(fft_arrays<T> x, const T *root, int64_t rows, int64_t m, int64_t length) {
  int64_t steps = m / R, beside = m / length;
  for (int64_t i = gb_thread<int64_t>(); i < rows * steps; i += gb_grid_size<int64_t>()) {
    int64_t row = i / steps * m, p = i % steps / beside, q = i % steps % beside;
    fft_step(R, x.a, x.b, row + q + beside * p, beside * (length / R), x.c, x.d, row + q + beside * R * p, beside, root,
             root + m, p * beside);
  }
}

/* The first h numbers of each row turned by the chirp; those behind them become 0 on the way there. */
template <typename T>
__global__ void fft_turn_rows(gb_fft_plan p, T *a, T *b, int64_t rows, const T *chirp, bool clear) {
  for (int64_t i = gb_thread<int64_t>(); i < rows * p.m; i += gb_grid_size<int64_t>()) {
    int64_t k = i % p.m;
    if (k < p.h) fft_turn(&a[i], &b[i], chirp[k], chirp[p.h + k]);
    else if (clear) a[i] = 0, b[i] = 0;
  }
}

template <typename T> __global__ void fft_filter_rows(T *a, T *b, int64_t rows, int64_t m, const T *fa, const T *fb) {
  for (int64_t i = gb_thread<int64_t>(); i < rows * m; i += gb_grid_size<int64_t>())
    fft_turn(&a[i], &b[i], fa[i % m], -fb[i % m]);
}

/* All stages over rows of m; results lie in a and b again, which names are exchanged for. */
template <typename T>
static void stages(gb_cuda_call *call, const gb_fft_plan &p, const T *root, fft_arrays<T> *x, int64_t rows) {
  int64_t length = p.m;
  for (int k = 0; k < p.count; k++) {
    int radix = p.radix[k];
    unsigned grid = gb_blocks(rows * (p.m / radix), GB_THREADS);
    if (radix == 2)
      GB_LAUNCH(call->stream, GB_KERNEL(fft_stage<T, 2>), grid, GB_THREADS, 0, *x, root, rows, p.m, length);
    else if (radix == 3)
      GB_LAUNCH(call->stream, GB_KERNEL(fft_stage<T, 3>), grid, GB_THREADS, 0, *x, root, rows, p.m, length);
    else if (radix == 4)
      GB_LAUNCH(call->stream, GB_KERNEL(fft_stage<T, 4>), grid, GB_THREADS, 0, *x, root, rows, p.m, length);
    else GB_LAUNCH(call->stream, GB_KERNEL(fft_stage<T, 5>), grid, GB_THREADS, 0, *x, root, rows, p.m, length);
    *x = { x->c, x->d, x->a, x->b };
    length /= radix;
  }
}

/* Parts exchanged: a transform of these is one turned around. */
template <typename T> static fft_arrays<T> exchanged(const fft_arrays<T> &x) { return { x.b, x.a, x.d, x.c }; }

/* The transform of complex rows of h. */
template <typename T> static void transform(gb_cuda_call *call, const fft_rows<T> &j, fft_arrays<T> *x) {
  const gb_fft_plan &p = j.plan;
  unsigned grid = gb_blocks(j.rows * p.m, GB_THREADS);
  if (!p.chirp) {
    stages(call, p, (const T *)j.t.root, x, j.rows);
    return;
  }
  GB_LAUNCH(call->stream, GB_KERNEL(fft_turn_rows<T>), grid, GB_THREADS, 0, p, x->a, x->b, j.rows,
            (const T *)j.t.chirp, true);
  stages(call, p, (const T *)j.t.root, x, j.rows);
  GB_LAUNCH(call->stream, GB_KERNEL(fft_filter_rows<T>), grid, GB_THREADS, 0, x->a, x->b, j.rows, p.m,
            (const T *)j.t.filter_a, (const T *)j.t.filter_b);
  fft_arrays<T> back = exchanged(*x);
  stages(call, p, (const T *)j.t.root, &back, j.rows);
  *x = exchanged(back);
  GB_LAUNCH(call->stream, GB_KERNEL(fft_turn_rows<T>), grid, GB_THREADS, 0, p, x->a, x->b, j.rows,
            (const T *)j.t.chirp, false);
}

/* The tables of the plan, in scratch; the filter in scratch of its own. */
template <typename T> static gb_status open_tables(gb_cuda_call *call, const gb_fft_plan &p, fft_tables<T> *t) {
  int64_t entries = p.m > p.h + 1 ? p.m : p.h + 1;
  T *base = (T *)gb_cuda_scratch(call, (size_t)(2 * p.m + 2 * (p.h + 1) + 2 * p.h) * sizeof(T));
  if (!base) return GB_EMEMORY;
  *t = { base, base + 2 * p.m, base + 2 * p.m + 2 * (p.h + 1), NULL, NULL };
  GB_LAUNCH(call->stream, GB_KERNEL(fft_fill_tables<T>), gb_blocks(entries, GB_THREADS), GB_THREADS, 0, p, *t, entries);
  if (!p.chirp) return GB_OK;
  T *room = (T *)gb_cuda_scratch(call, (size_t)(4 * p.m) * sizeof(T));
  if (!room) return GB_EMEMORY;
  fft_arrays<T> x = { room, room + p.m, room + 2 * p.m, room + 3 * p.m };
  GB_LAUNCH(call->stream, GB_KERNEL(fft_fill_filter<T>), gb_blocks(p.m, GB_THREADS), GB_THREADS, 0, p, *t, x.a, x.b);
  stages(call, p, (const T *)t->root, &x, (int64_t)1);
  t->filter_a = x.a;
  t->filter_b = x.b;
  return GB_OK;
}

/* Rows of n real numbers from x to y, as many at once as there is room for. */
template <typename T>
static gb_status run_as(gb_cuda_call *call, const gb_cuda_tensor *x, const gb_cuda_tensor *y, int64_t n, bool back,
                        bool doubled, double scale) {
  fft_rows<T> j = {};
  int64_t half = 2 * gb_fft_half(n);
  j.plan = gb_fft_plan_of(n);
  j.x = x->data, j.x_dtype = x->dtype, j.of_x = back ? half : n;
  j.y = y->data, j.y_dtype = y->dtype, j.of_y = back ? n : half;
  j.doubled = doubled, j.scale = scale;
  int64_t all = y->numel / j.of_y, most = MOST_AT_ONCE / j.plan.m > 1 ? MOST_AT_ONCE / j.plan.m : 1;
  most = most < all ? most : all;
  gb_status status = open_tables(call, j.plan, &j.t);
  if (status != GB_OK) return status;
  int64_t size = most * j.plan.m;
  T *room = (T *)gb_cuda_scratch(call, (size_t)(4 * size) * sizeof(T));
  if (!room) return GB_EMEMORY;
  for (j.first = 0; j.first < all; j.first += most) {
    j.rows = all - j.first < most ? all - j.first : most;
    fft_arrays<T> r = { room, room + size, room + 2 * size, room + 3 * size };
    unsigned grid = gb_blocks(j.rows * j.plan.h, GB_THREADS);
    if (back) {
      GB_LAUNCH(call->stream, GB_KERNEL(fft_take_half<T>), grid, GB_THREADS, 0, j, r.a, r.b);
      fft_arrays<T> turned = exchanged(r);
      transform(call, j, &turned);
      r = exchanged(turned);
      GB_LAUNCH(call->stream, GB_KERNEL(fft_give_real<T>), grid, GB_THREADS, 0, j, (const T *)r.a, (const T *)r.b);
    } else {
      GB_LAUNCH(call->stream, GB_KERNEL(fft_take_real<T>), grid, GB_THREADS, 0, j, r.a, r.b);
      transform(call, j, &r);
      grid = gb_blocks(j.rows * gb_fft_half(n), GB_THREADS);
      GB_LAUNCH(call->stream, GB_KERNEL(fft_give_half<T>), grid, GB_THREADS, 0, j, (const T *)r.a, (const T *)r.b);
    }
  }
  return GB_OK;
}

static gb_status run(gb_cuda_call *call, const gb_cuda_tensor *x, const gb_cuda_tensor *y, int64_t n, bool back,
                     bool doubled, double scale) {
  if (y->numel == 0) return GB_OK;
  if (x->dtype == GB_FLOAT64 || y->dtype == GB_FLOAT64) return run_as<double>(call, x, y, n, back, doubled, scale);
  return run_as<float>(call, x, y, n, back, doubled, scale);
}

static gb_status fft_real(gb_cuda_call *call) {
  const gb_attrs_fft_real *attrs = GB_ATTRS(call, fft_real);
  const gb_cuda_tensor *x = GB_CUDA_IN(call, fft_real)->x;
  return run(call, x, GB_CUDA_OUT(call, fft_real)->y, x->shape[x->ndim - 1], false, attrs->doubled.integer != 0,
             attrs->scale.number);
}

static gb_status fft_half(gb_cuda_call *call) {
  const gb_attrs_fft_half *attrs = GB_ATTRS(call, fft_half);
  return run(call, GB_CUDA_IN(call, fft_half)->x, GB_CUDA_OUT(call, fft_half)->y, attrs->n.integer, true,
             attrs->doubled.integer != 0, attrs->scale.number);
}

const gb_cuda_row gb_cuda_fft[] = {
  { GB_OP_fft_real, fft_real, false }, { GB_OP_fft_half, fft_half, false }, { GB_OP_COUNT, NULL, false },
};
