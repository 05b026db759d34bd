/* cuda/mma.cuh - products of small matrices by one warp, whose results stay in registers.
 *
 * Where a value lies in a warp is the layout of the instruction mma.m16n8k16 (PTX ISA, "Matrix Fragments for
 * mma.m16n8k16"): lane l has g = l / 4 and t = l % 4. On the emulated device lanes exchange what the instructions
 * exchange, so that it proves the layout and the addresses; the order of the sums within one instruction is the
 * device's own. float32 operands are multiplied by plain fused multiply-adds, with the sums in the same layout. Every
 * lane of the warp takes part; matrices lie in shared memory, rows `stride` elements apart. */
#ifndef GB_CUDA_MMA_CUH
#define GB_CUDA_MMA_CUH

#include "cuda/elements.cuh"

/* 16 x 8 sums: columns 2t and 2t + 1 of row g, and the same of row g + 8. */
struct gb_tile { float at[4]; };
/* 16 x 16 operands of 16 bits, two to a word: columns 2t and 2t + 1 of row g, and of row g + 8; columns 2t + 8 and 2t +
 * 9 of the two rows. */
struct gb_tile16 { uint32_t at[4]; };

static __device__ __forceinline__ int gb_lane(void) { return (int)(threadIdx.x % GB_WARP); }

/* 16 bytes that move as one. */
template <typename S> struct alignas(16) gb_vector { S lane[16 / sizeof(S)]; };

/* 2^x by the device's own instruction: 2 ulp, and 0 for what would be denormal. */
static GB_DEVICE float gb_exp2_near(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

/* {==== copies that go on while the warp computes ==== */

/* A thread's copies from global into shared memory that are on their way. On the emulated device none arrives before it
 * is waited for. */
struct gb_copies {
#ifdef GB_CUDA_EMULATE
  enum { MOST = 256 };
  struct { gb_vector<float> *to; const gb_vector<float> *from; } on_way[MOST];
  int n = 0;
#endif

  /* 16 bytes; both begin at multiples of 16. */
  __device__ __forceinline__ void add(void *to, const void *from) {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from) : "memory");
#elif defined(GB_CUDA_EMULATE)
    if (n == MOST) wait();
    on_way[n].to = (gb_vector<float> *)to;
    on_way[n++].from = (const gb_vector<float> *)from;
#endif
  }

  /* All of this thread's have arrived; those of others have when all have waited and met at a barrier. */
  __device__ __forceinline__ void wait(void) {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_all;" : : : "memory");
#elif defined(GB_CUDA_EMULATE)
    for (int i = 0; i < n; i++) *on_way[i].to = *on_way[i].from;
    n = 0;
#endif
  }
};

/* ====} */

/* {==== 16-bit operands ==== */

#ifdef GB_CUDA_EMULATE
/* Every lane brings something; `take` reads what the lanes of the warp brought. Blocks are one-dimensional. */
template <typename T, class Take> static inline void gb_exchange(const T &mine, Take take) {
  static T brought[1024];
  T *warp = brought + threadIdx.x / GB_WARP * GB_WARP;
  warp[gb_lane()] = mine;
  __syncwarp();
  take((const T *)warp);
  __syncwarp();
}
#endif

/* A tile, or (TRANSPOSED) the transpose of one, from a matrix whose rows begin at multiples of 16 bytes: ldmatrix,
 * where lane 8 i + r gives the address of row r of the i-th 8 x 8 matrix. */
template <bool TRANSPOSED> static __device__ __forceinline__ gb_tile16 gb_tile16_load(const uint16_t *matrix,
    int stride) {
  int lane = gb_lane(), first = lane / 8 % 2 * 8, second = lane / 16 * 8;
  const uint16_t *row = matrix + (lane % 8 + (TRANSPOSED ? second : first)) * stride + (TRANSPOSED ? first : second);
  gb_tile16 tile;
#if defined(__CUDA_ARCH__)
  uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tile.at[0]), "=r"(tile.at[1]), "=r"(tile.at[2]), "=r"(tile.at[3]) : "r"(address) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tile.at[0]), "=r"(tile.at[1]), "=r"(tile.at[2]), "=r"(tile.at[3]) : "r"(address) : "memory");
#elif defined(GB_CUDA_EMULATE)
  int g = lane / 4, t = lane % 4;
  gb_exchange(row, [&](const uint16_t *const *rows) {
    for (int i = 0; i < 4; i++) {
      const uint16_t *const *of = rows + 8 * i;
      tile.at[i] = TRANSPOSED ? of[2 * t][g] | (uint32_t)of[2 * t + 1][g] << 16
          : of[g][2 * t] | (uint32_t)of[g][2 * t + 1] << 16;
    }
  });
#endif
  return tile;
}

template <bool BFLOAT> static GB_DEVICE float gb_short_value(uint16_t bits) { return BFLOAT ? gb_bfloat16_to_float(bits)
    : gb_half_value(bits); }
template <bool BFLOAT> static GB_DEVICE uint16_t gb_short_bits(float x) { return BFLOAT ? gb_bfloat_bits(x)
                                                                          : gb_half_bits(x); }

/* c += a b, where b [16, 8] has in its words rows 2t and 2t + 1 of column g, and rows 2t + 8 and 2t + 9. */
template <bool BFLOAT> static __device__ __forceinline__ void gb_tile_multiply(gb_tile *c, const gb_tile16 &a,
    uint32_t b0, uint32_t b1) {
#if defined(__CUDA_ARCH__)
  if (BFLOAT)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c->at[0]), "+f"(c->at[1]), "+f"(c->at[2]), "+f"(c->at[3])
                 : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c->at[0]), "+f"(c->at[1]), "+f"(c->at[2]), "+f"(c->at[3])
                 : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
#elif defined(GB_CUDA_EMULATE)
  struct operands { uint32_t a[4], b[2]; } mine = { { a.at[0], a.at[1], a.at[2], a.at[3] }, { b0, b1 } };
  int g = gb_lane() / 4, t = gb_lane() % 4;
  gb_exchange(mine, [&](const operands *lanes) {
    for (int i = 0; i < 4; i++) {
      int column = 2 * t + i % 2;
      for (int k = 0; k < 16; k++) {
        uint32_t x = lanes[4 * g + k % 8 / 2].a[i / 2 + k / 8 * 2], y = lanes[4 * column + k % 8 / 2].b[k / 8];
        c->at[i] += gb_short_value<BFLOAT>((uint16_t)(x >> k % 2 * 16)) *
            gb_short_value<BFLOAT>((uint16_t)(y >> k % 2 * 16));
      }
    }
  });
#endif
}

/* Two values, rounded, in one word; the first one in its lower half. */
template <bool BFLOAT> static __device__ __forceinline__ uint32_t gb_short_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t word; /* the instruction takes the upper half first */
  if (BFLOAT) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  return gb_short_bits<BFLOAT>(low) | (uint32_t)gb_short_bits<BFLOAT>(high) << 16;
#endif
}

/* Two tiles of sums beside each other, rounded, as one operand. */
template <bool BFLOAT> static __device__ __forceinline__ gb_tile16 gb_tile16_round(const gb_tile &left,
    const gb_tile &right) {
  gb_tile16 tile;
  GB_UNROLL for (int i = 0; i < 4; i++) {
    const gb_tile &from = i < 2 ? left : right;
    tile.at[i] = gb_short_pair<BFLOAT>(from.at[i % 2 * 2], from.at[i % 2 * 2 + 1]);
  }
  return tile;
}

/* Products by Tensor Cores. STRIDE_PAD elements more than its columns keep the rows of a matrix in different banks. */
template <bool BFLOAT> struct gb_short_products {
  typedef uint16_t element;
  enum { STRIDE_PAD = 8, IS_SHORT = 1 };
  static GB_DEVICE element round(float x) { return gb_short_bits<BFLOAT>(x); }

  /* c [16, 8 N] += x [16, depth] y [8 N, depth]^T; depth is a multiple of 16. */
  template <int N> static __device__ __forceinline__ void add_rows(gb_tile (&c)[N], const element *x, const element *y,
                                                                   int stride, int depth) {
    for (int k = 0; k < depth; k += 16) {
      gb_tile16 a = gb_tile16_load<false>(x + k, stride);
      GB_UNROLL for (int n = 0; n < N; n += 2) {
        gb_tile16 b = gb_tile16_load<false>(y + n * 8 * stride + k, stride);
        gb_tile_multiply<BFLOAT>(&c[n], a, b.at[0], b.at[2]);
        gb_tile_multiply<BFLOAT>(&c[n + 1], a, b.at[1], b.at[3]);
      }
    }
  }

  /* c [16, columns] += p [16, 8 K] y [8 K, columns], p rounded; columns is a multiple of 16, and at most 8 N. No room
   * is needed. */
  template <int N, int K>
  static __device__ __forceinline__ void add_columns(gb_tile (&c)[N], const gb_tile (&p)[K], const element *y,
                                                     int stride, int columns, element *) {
    GB_UNROLL for (int k = 0; k < K; k += 2) {
      gb_tile16 a = gb_tile16_round<BFLOAT>(p[k], p[k + 1]);
      GB_UNROLL for (int n = 0; n < N; n += 2) {
        if (n * 8 >= columns) continue;
        gb_tile16 b = gb_tile16_load<true>(y + k * 8 * stride + n * 8, stride);
        gb_tile_multiply<BFLOAT>(&c[n], a, b.at[0], b.at[2]);
        gb_tile_multiply<BFLOAT>(&c[n + 1], a, b.at[1], b.at[3]);
      }
    }
  }
};

/* ====} */

/* {==== float32 operands ==== */

/* The same by plain multiply-adds. p goes through `room` [16, 8 K + 4] in shared memory, one for each warp. */
struct gb_float_products {
  typedef float element;
  enum { STRIDE_PAD = 4, IS_SHORT = 0 };
  static GB_DEVICE element round(float x) { return x; }

  template <int N> static __device__ __forceinline__ void add_rows(gb_tile (&c)[N], const element *x, const element *y,
                                                                   int stride, int depth) {
    typedef gb_vector<float> four;
    int g = gb_lane() / 4, t = gb_lane() % 4;
    for (int k = 0; k < depth; k += 4) {
      four x0 = *(const four *)(x + g * stride + k), x1 = *(const four *)(x + (g + 8) * stride + k);
      GB_UNROLL for (int n = 0; n < N; n++) {
        four y0 = *(const four *)(y + (8 * n + 2 * t) * stride + k),
            y1 = *(const four *)(y + (8 * n + 2 * t + 1) * stride + k);
        GB_UNROLL for (int i = 0; i < 4; i++) {
          c[n].at[0] += x0.lane[i] * y0.lane[i];
          c[n].at[1] += x0.lane[i] * y1.lane[i];
          c[n].at[2] += x1.lane[i] * y0.lane[i];
          c[n].at[3] += x1.lane[i] * y1.lane[i];
        }
      }
    }
  }

  template <int N, int K>
  static __device__ __forceinline__ void add_columns(gb_tile (&c)[N], const gb_tile (&p)[K], const element *y,
                                                     int stride, int columns, element *room) {
    int g = gb_lane() / 4, t = gb_lane() % 4, across = 8 * K + 4;
    GB_UNROLL for (int k = 0; k < K; k++)
      GB_UNROLL for (int i = 0; i < 4; i++) room[(g + i / 2 * 8) * across + 8 * k + 2 * t + i % 2] = p[k].at[i];
    __syncwarp();
    for (int k = 0; k < 8 * K; k++) {
      float p0 = room[g * across + k], p1 = room[(g + 8) * across + k];
      GB_UNROLL for (int n = 0; n < N; n++) {
        if (n * 8 >= columns) continue;
        const float *from = y + k * stride + 8 * n + 2 * t;
        c[n].at[0] += p0 * from[0];
        c[n].at[1] += p0 * from[1];
        c[n].at[2] += p1 * from[0];
        c[n].at[3] += p1 * from[1];
      }
    }
    __syncwarp();
  }
};

/* ====} */

#endif
