/* cuda/attend_backward.cu - the gradients of attention in two passes, in a fixed order, without a matrix of time x
 * time.
 *
 * The first pass gives a block some keys of one head and lets it look at every query, tile by tile: dkey += dscores^T
 * query, dvalue += shares^T grad. The second gives a block some queries and lets it look at every key: dquery +=
 * dscores key. Both compute a tile of shares again from the log of the sum that forward kept, and draw again what
 * forward dropped. So nothing is added by two blocks, and no atomics are needed (Dao: "FlashAttention-2", 2023, section
 * 3.1, with the second pass in place of its atomic additions). A warp owns 16 rows, whose shares it computes with its
 * own rows down and the others across: so they lie in its registers as the next product takes them. Where a head has
 * more than 128 columns the first pass runs once for dvalue and once for dkey, which fit in registers one by one.
 *
 * Operations: 8 tq tk head_dim in the first pass (10 in two) and 6 in the second, half of it when causal. Bytes: a
 * block reads its own rows once, and the rows of query and grad (key and value) once for each 64 rows of its own,
 * mostly from the L2 cache; results are written once. */
#include "cuda/attend.h"
#include "cuda/mma.cuh"
#include "cuda/rows.cuh"

/* What a launch computes. */
enum { OF_KEY = 1, OF_VALUE = 2, OF_QUERY = 4 };

/* A block has WARPS warps of 16 rows, and takes OTHER of the other rows at a time, while the next ones are on their
 * way: as many as leave its shared memory within GB_LARGE_SHARED. Heads have at most D columns. */
template <class P, int D> struct shape {
  enum {
    WARPS = D > 128 && !P::IS_SHORT ? 2 : 4, OWN = 16 * WARPS, THREADS = GB_WARP * WARPS,
    OTHER = P::IS_SHORT ? (D <= 64 ? 64 : D <= 128 ? 32 : 16) : (D <= 64 ? 32 : 8),
    /* of a warp's shares, between two products */
    STRIDE = D + P::STRIDE_PAD, ROOM = P::IS_SHORT ? 0 : 16 * (OTHER + 4),
    PAIR = 2 * OTHER * STRIDE, /* a tile of other rows: what scores are products of, then what the gradients of shares
                                  are */
    ELEMENTS = 2 * OWN * STRIDE + 2 * PAIR + WARPS * ROOM,
    HAS_PLAIN = P::IS_SHORT && D <= 128, /* is there a form for heads without mask, dropout and window? */
    LINES = HAS_PLAIN ? 2 * OTHER : 0,   /* of a tile's queries, in that form: the log of the sum, then the shift */
    BYTES = ELEMENTS * (int)sizeof(typename P::element) + 2 * LINES * 4
  };
  static_assert(BYTES <= (int)GB_LARGE_SHARED, "a block has more shared memory than every device gives");
};

/* Blocks that a multiprocessor is to hold at once: with 3 a thread has 168 registers, with 4 it has 128. 0: as the
 * compiler has it; with 1 it takes so many for the queries' pass of 128 columns that a third block finds no room. */
template <class P, int D, int WHAT> static constexpr int blocks_of(void) {
  return P::IS_SHORT && D <= 64 ? (WHAT == OF_QUERY ? 4 : 3) : 0;
}

/* {==== tiles ==== */

/* A product with 0 is 0, whatever the sum is: a scale may be 0. */
static GB_DEVICE float scaled(float sum, float by) { return by == 0 ? 0 : sum * by; }

/* `count` rows from `first` on of a head into shared memory, as columns of a multiple of 16: zeros beyond the last row
 * and column. Some of it is on its way when this returns. */
template <class P> static __device__ void fill(gb_copies *copies, typename P::element *to, int stride, int count,
                                               const gb_heads_view &v, int64_t b,
                                               int64_t head, int first, int rows, int columns) {
  typedef typename P::element element;
  typedef gb_vector<element> vector;
  const int each = v.aligned ? 16 / (int)sizeof(element) : 1, across = (columns + 15) / 16 * 16 / each;
  const element *from = (const element *)v.data + b * v.stride[0] + head * v.stride[1] + first * v.stride[2];
  for (int i = (int)threadIdx.x; i < count * across; i += (int)blockDim.x) {
    int r = i / across, c = i % across * each;
    bool inside = first + r < rows && c < columns;
    if (v.aligned) {
      const vector zeros = {};
      if (inside) copies->add(to + r * stride + c, from + r * v.stride[2] + c);
      else *(vector *)(to + r * stride + c) = zeros;
    } else to[r * stride + c] = inside ? from[r * v.stride[2] + c * v.stride[3]] : (element)0;
  }
}

template <int N> static GB_DEVICE void clear(gb_tile (&tiles)[N]) {
  GB_UNROLL for (int n = 0; n < N; n++)
    GB_UNROLL for (int i = 0; i < 4; i++) tiles[n].at[i] = 0;
}

/* The warp's 16 rows of sums, times alpha, into a head's rows from `first` on. */
template <class P, int N> static __device__ void put(const gb_tile (&sums)[N], float alpha, const gb_heads_view &v,
                                                     int64_t b, int64_t head, int first,
                                                     int rows, int columns) {
  typename P::element *to = (typename P::element *)v.data + b * v.stride[0] + head * v.stride[1];
  int g = gb_lane() / 4, t = gb_lane() % 4;
  GB_UNROLL for (int n = 0; n < N; n++)
    GB_UNROLL for (int i = 0; i < 4; i++) {
      int r = first + g + i / 2 * 8;
      int c = 8 * n + 2 * t + i % 2;
      if (r < rows && c < columns) to[r * v.stride[2] + c * v.stride[3]] = P::round(scaled(sums[n].at[i], alpha));
    }
}

/* ====} */

/* {==== shares ==== */

/* What was rounded to 16 bits anyway needs no more than the device's own exponential: 2 ulp, and one more for each unit
 * of x. */
template <class P> static GB_DEVICE float power(float x) {
#if defined(__CUDA_ARCH__)
  return P::IS_SHORT ? __expf(x) : expf(x);
#else
  return gb_row_exp(x);
#endif
}

/* Which of the lane's elements of N tiles forward kept: bit 4 n + i for element i of tile n. The word of an element is
 * the one that its place in [batch, heads, tq, tk] has; neighbours in a row mostly share the four words of a draw. */
template <bool KEYS, int N> static __device__ __forceinline__ uint32_t draw_kept(const gb_attend_tiles &a,
    uint64_t first_element, int own, int other) {
  uint32_t kept = 0, words[4] = { 0, 0, 0, 0 };
  uint64_t drawn = ~(uint64_t)0;
  if (a.drop_bound == 0) return ~(uint32_t)0;
  GB_ROLLED for (int n = 0; n < 4 * N; n++) {
    uint64_t down = (uint64_t)(own + gb_lane() / 4 + n / 2 % 2 * 8),
        across = (uint64_t)(other + n / 4 * 8 + gb_lane() % 4 * 2 + n % 2);
    uint64_t element = first_element + (KEYS ? across : down) * (uint64_t)a.tk + (KEYS ? down : across);
    if (drawn != element / 4) gb_philox(gb_random_seed(a.place), gb_random_offset(a.place), drawn = element / 4, words);
    /* indexed, the array would leave the registers */
    uint32_t low = element & 1 ? words[1] : words[0], high = element & 1 ? words[3] : words[2];
    if (!gb_is_dropped(element & 2 ? high : low, a.drop_bound)) kept |= 1u << n;
  }
  return kept;
}

/* Is a key too far from a query? */
static GB_DEVICE bool is_far(const gb_attend_tiles &a, int query, int key) {
  return a.window && (key > query ? key - query : query - key) >= a.window;
}

/* The score of a key with the mask. */
static __device__ __forceinline__ float masked(const gb_attend_tiles &a, float score, int64_t b, int64_t head,
                                               int query, int key) {
  int64_t at = b * a.mask.stride[0] + head * a.mask.stride[1] + query * a.mask.stride[2] + key * a.mask.stride[3];
  if (a.mask.dtype == GB_BOOL) return a.mask.data[at] ? score : -INFINITY;
  return score + ((const float *)(const void *)a.mask.data)[at];
}

/* Products query key become shares as they met the values, products grad value the gradients of the scores. own and
 * other: the first row of the warp's 16 and of the tile's. Keys are down in the first pass (KEYS), queries in the
 * second. */
template <class P, bool KEYS, int N>
static __device__ __forceinline__ void soften(const gb_attend_tiles &a, gb_tile (&shares)[N], gb_tile (&gradients)[N],
                                              int64_t b, int64_t head, int own,
                                              int other) {
  int g = gb_lane() / 4, t = gb_lane() % 4;
  const int tq = (int)a.tq, tk = (int)a.tk;
  const int64_t line = b * a.heads + head;
  const float *lse = a.lse + line * a.tq, *shift = a.shift + line * a.tq;
  const uint32_t kept = draw_kept<KEYS, N>(a, (uint64_t)line * (uint64_t)a.tq * (uint64_t)a.tk, own, other);
  GB_UNROLL for (int n = 0; n < N; n++)
    GB_UNROLL for (int i = 0; i < 4; i++) {
      int down = own + g + i / 2 * 8, across = other + 8 * n + 2 * t + i % 2, query = KEYS ? across : down,
          key = KEYS ? down : across;
      float share = 0, gradient = 0;
      if (query < tq && key < tk && (!a.causal || key <= query) && !is_far(a, query, key)) {
        float score = scaled(shares[n].at[i], a.scale);
        if (a.mask.data) score = masked(a, score, b, head, query, key);
        float whole = power<P>(score - lse[query]), keep = kept >> (4 * n + i) & 1 ? a.keep : 0;
        share = whole * keep;
        if (whole != 0) gradient = whole * (gradients[n].at[i] * keep - shift[query]);
      }
      shares[n].at[i] = share;
      gradients[n].at[i] = gradient;
    }
}

/* {---- without mask, dropout and window ---- */

#define LOG2E 1.4426950408889634f

/* Most heads have none of these. Then a share takes one multiply-add, one power of 2 and the two numbers of its query,
 * which lie in registers or in shared memory; elements are looked at one by one only where a tile is cut by the causal
 * mask or by the last key. */

/* What a thread knows of the queries of a tile: in the first pass of those across, which lie in shared memory, in the
 * second of its own two rows. The log of the sum is that to base 2. */
template <bool KEYS, int OTHER> struct lines {
  const float *across;
  float log_sum[2], shift[2];
};

/* soften for plain heads. CHECKED: some elements are beyond the last key, or hidden by the causal mask. Queries beyond
 * the last one have an infinite sum, so their shares are 0; keys beyond it are rows of the first pass that are thrown
 * away. */
template <bool KEYS, bool CHECKED, int OTHER, int N>
static __device__ __forceinline__ void soften_plain(const gb_attend_tiles &a, gb_tile (&shares)[N],
                                                    gb_tile (&gradients)[N], const lines<KEYS, OTHER> &line, int own,
                                                    int other) {
  const int g = gb_lane() / 4, t = gb_lane() % 4;
  const float scale = a.scale * LOG2E;
  GB_UNROLL for (int n = 0; n < N; n++)
    GB_UNROLL for (int i = 0; i < 4; i++) {
      const int at = 8 * n + 2 * t + i % 2;
      float log_sum = KEYS ? line.across[at] : line.log_sum[i / 2],
            shift = KEYS ? line.across[OTHER + at] : line.shift[i / 2];
      float share = gb_exp2_near(shares[n].at[i] * scale - log_sum);
      if (CHECKED) {
        const int down = own + g + i / 2 * 8, query = KEYS ? other + at : down, key = KEYS ? down : other + at;
        if ((!KEYS && key >= (int)a.tk) || (a.causal && key > query)) share = 0;
      }
      shares[n].at[i] = share;
      gradients[n].at[i] = share != 0 ? share * (gradients[n].at[i] - shift) : 0;
    }
}

/* Does a tile, of a warp's 16 rows and OTHER others, have elements to look at one by one? */
template <bool KEYS, int OTHER> static __device__ __forceinline__ bool is_checked(const gb_attend_tiles &a, int own,
                                                                                  int other) {
  if (KEYS) return a.causal && own + 15 > other;
  return other + OTHER > (int)a.tk || (a.causal && other + OTHER - 1 > own);
}

/* What there is to know of a query of a line of them: number i of two times OTHER. */
template <int OTHER> static __device__ __forceinline__ float line_of(const gb_attend_tiles &a, int64_t line, int first,
                                                                     int i) {
  const bool sums = i < OTHER;
  const int query = first + (sums ? i : i - OTHER);
  if (query >= (int)a.tq) return sums ? INFINITY : 0;
  return sums ? a.lse[line * a.tq + query] * LOG2E : a.shift[line * a.tq + query];
}

/* ----} */

/* ====} */

/* {==== passes ==== */

/* The rows that a block owns: keys of a key head, or queries of a head. */
template <class P, int D, int WHAT, bool PLAIN> static __device__ void run_job(const gb_attend_tiles &a,
                                                                   typename P::element *memory, int64_t b,
    int64_t own_head, int first) {
  typedef shape<P, D> S;
  typedef typename P::element element;
  const bool keys = WHAT != OF_QUERY;
  const int own_rows = (int)(keys ? a.tk : a.tq), other_rows = (int)(keys ? a.tq : a.tk),
      group = (int)(a.heads / a.key_heads);
  const int warp = (int)threadIdx.x / GB_WARP, wide = (a.e + 15) / 16 * 16, wide_value = (a.ev + 15) / 16 * 16;
  element *own = memory, *own_value = own + S::OWN * S::STRIDE, *others = own_value + S::OWN * S::STRIDE,
      *room = others + 2 * S::PAIR + warp * S::ROOM;
  float *const across = (float *)(void *)(memory + S::ELEMENTS);
  lines<keys, S::OTHER> line = {};
  /* what a causal mask leaves */
  const int from = keys && a.causal ? first : 0, seen = first + S::OWN, to = !keys && a.causal &&
      seen < other_rows ? seen : other_rows;
  const int64_t first_head = keys ? own_head * group : own_head,
      steps = to > from ? (to - from + S::OTHER - 1) / S::OTHER : 0;
  const int64_t all_steps = steps * (keys ? group : 1);
  gb_copies copies;
  gb_tile sums[D / 8], value_sums[D / 8];
  clear(sums);
  clear(value_sums);
  __syncthreads(); /* what was here before has been read */
  fill<P>(&copies, own, S::STRIDE, S::OWN, keys ? a.key : a.query, b, own_head, first, own_rows, a.e);
  if (WHAT != OF_VALUE)
    fill<P>(&copies, own_value, S::STRIDE, S::OWN, keys ? a.value : a.grad, b, own_head, first, own_rows, a.ev);
  if (PLAIN && !keys)
    GB_UNROLL for (int i = 0; i < 2; i++) {
      const int64_t own_line = b * a.heads + own_head;
      const int row = first + warp * 16 + gb_lane() / 4 + 8 * i;
      line.log_sum[i] = row < own_rows ? a.lse[own_line * a.tq + row] * LOG2E : INFINITY;
      line.shift[i] = row < own_rows ? a.shift[own_line * a.tq + row] : 0;
    }
  int64_t head = first_head, head_before = first_head; /* of the tile that is fetched, and of the one before it, which
                                                          is computed with */
  int at = from, at_before = from;
  for (int64_t step = 0; step <= all_steps; step++) {
    element *next = others + step % 2 * S::PAIR, *other = others + (step + 1) % 2 * S::PAIR,
        *other_value = other + S::OTHER * S::STRIDE;
    float coming = 0; /* a number of the next tile's queries, on its way while this one is computed with */
    if (step > 0) {
      copies.wait();
      __syncthreads(); /* the tile is here, and the one before it has been read */
    }
    if (step < all_steps) {
      int64_t other_head = keys ? head : head / group;
      fill<P>(&copies, next, S::STRIDE, S::OTHER, keys ? a.query : a.key, b, other_head, at, other_rows, a.e);
      fill<P>(&copies, next + S::OTHER * S::STRIDE, S::STRIDE, S::OTHER, keys ? a.grad : a.value, b, other_head, at,
              other_rows, a.ev);
      if (PLAIN && keys && threadIdx.x < S::LINES)
        coming = line_of<S::OTHER>(a, b * a.heads + head, at, (int)threadIdx.x);
    }
    if (step > 0) {
      gb_tile shares[S::OTHER / 8], gradients[S::OTHER / 8];
      clear(shares);
      clear(gradients);
      P::add_rows(shares, own + warp * 16 * S::STRIDE, other, S::STRIDE, wide);
      if (WHAT != OF_VALUE)
        P::add_rows(gradients, own_value + warp * 16 * S::STRIDE, other_value, S::STRIDE, wide_value);
      line.across = across + (step + 1) % 2 * S::LINES;
      if constexpr (!PLAIN) soften<P, keys>(a, shares, gradients, b, head_before, first + warp * 16, at_before);
      else if (is_checked<keys, S::OTHER>(a, first + warp * 16, at_before))
        soften_plain<keys, true>(a, shares, gradients, line, first + warp * 16, at_before);
      else soften_plain<keys, false>(a, shares, gradients, line, first + warp * 16, at_before);
      if (WHAT & OF_VALUE) P::add_columns(value_sums, shares, other_value, S::STRIDE, wide_value, room);
      if (WHAT != OF_VALUE) P::add_columns(sums, gradients, other, S::STRIDE, wide, room);
    }
    if (PLAIN && keys && step < all_steps && threadIdx.x < S::LINES) across[step % 2 * S::LINES + threadIdx.x] = coming;
    head_before = head;
    at_before = at;
    at += S::OTHER;
    if (at >= to) at = from, head++;
  }
  copies.wait(); /* where there was no step, those of the own rows */
  if (WHAT & OF_VALUE) put<P>(value_sums, 1, a.dvalue, b, own_head, first + warp * 16, own_rows, a.ev);
  if (WHAT != OF_VALUE) put<P>(sums, a.scale, keys ? a.dkey : a.dquery, b, own_head, first + warp * 16, own_rows, a.e);
}

/* Tiles of own rows are counted head by head; those that see most when causal come first. */
template <class P, int D, int WHAT, bool PLAIN>
static __global__ void __launch_bounds__(shape<P, D>::THREADS, blocks_of<P, D, WHAT>()) pass_kernel(gb_attend_tiles a,
    int64_t tiles, int64_t jobs) {
  GB_SHARED_BYTES(memory);
  const int64_t heads = WHAT == OF_QUERY ? a.heads : a.key_heads;
  for (int64_t job = blockIdx.x; job < jobs; job += gridDim.x) {
    int64_t tile = job % tiles, head = job / tiles % heads, b = job / tiles / heads;
    if (WHAT == OF_QUERY) tile = tiles - 1 - tile;
    run_job<P, D, WHAT, PLAIN>(a, (typename P::element *)(void *)memory, b, head, (int)tile * shape<P, D>::OWN);
  }
}

template <class P, int D, int WHAT> static void launch_pass(gb_cuda_call *call, const gb_attend_tiles *a) {
  const bool plain = !a->mask.data && a->drop_bound == 0 && a->window == 0 && a->scale != 0;
  typedef shape<P, D> S;
  int64_t rows = WHAT == OF_QUERY ? a->tq : a->tk, heads = WHAT == OF_QUERY ? a->heads : a->key_heads,
      tiles = (rows + S::OWN - 1) / S::OWN;
  int64_t jobs = tiles * heads * a->batch;
  if constexpr (S::HAS_PLAIN)
    if (plain) {
      GB_LAUNCH_LARGE(call->stream, GB_KERNEL(pass_kernel<P, D, WHAT, true>), gb_blocks(jobs, 1), S::THREADS, S::BYTES,
                      *a, tiles, jobs);
      return;
    }
  GB_LAUNCH_LARGE(call->stream, GB_KERNEL(pass_kernel<P, D, WHAT, false>), gb_blocks(jobs, 1), S::THREADS, S::BYTES, *a,
                  tiles, jobs);
}

template <class P> static void launch_passes(gb_cuda_call *call, const gb_attend_tiles *a) {
  int columns = a->e > a->ev ? a->e : a->ev;
  if (columns <= 64) {
    launch_pass<P, 64, OF_KEY | OF_VALUE>(call, a);
    launch_pass<P, 64, OF_QUERY>(call, a);
  } else if (columns <= 128) {
    launch_pass<P, 128, OF_KEY | OF_VALUE>(call, a);
    launch_pass<P, 128, OF_QUERY>(call, a);
  } else {
    launch_pass<P, 256, OF_VALUE>(call, a);
    launch_pass<P, 256, OF_KEY>(call, a);
    launch_pass<P, 256, OF_QUERY>(call, a);
  }
}

extern "C" void gb_attend_run_tiles(gb_cuda_call *call, const gb_attend_tiles *a) {
  if (a->query.dtype == GB_FLOAT32) launch_passes<gb_float_products>(call, a);
  else if (a->query.dtype == GB_BFLOAT16) launch_passes<gb_short_products<true>>(call, a);
  else launch_passes<gb_short_products<false>>(call, a);
}

/* ====} */
