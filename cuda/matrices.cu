/* cuda/matrices.cu - kernels around the routines of cuSOLVER. See matrices.h. */
#include "cuda/matrices.h"
#include "cuda/device.cuh"

template <typename T> struct matrices { T *data; int64_t rows, columns, count; };
template <typename T> static matrices<T> of(gb_matrices m) { return { (T *)m.data, m.rows, m.columns, m.count }; }

/* Launch a kernel of matrices for their dtype, a thread for each of `threads` things. */
#define LAUNCH(stream, kernel, m, threads, ...)                                                                    \
  do {                                                                                                             \
    if ((m).dtype == GB_FLOAT64)                                                                                   \
      GB_LAUNCH(stream, kernel<double>, gb_blocks(threads, GB_THREADS), GB_THREADS, 0, of<double>(m), __VA_ARGS__); \
    else GB_LAUNCH(stream, kernel<float>, gb_blocks(threads, GB_THREADS), GB_THREADS, 0, of<float>(m), __VA_ARGS__); \
  } while (0)

static int64_t elements(gb_matrices m) { return m.rows * m.columns * m.count; }

template <typename T> static __global__ void check_kernel(matrices<T> m, int kind, int *fault) {
  int64_t each = m.rows * m.columns, n = each * m.count;
  for (int64_t i = gb_thread<int64_t>(); i < n; i += gb_grid_size<int64_t>()) {
    if (m.data[i] - m.data[i] == 0) continue;
    m.data[i] = 0;
    fault[i / each] = kind; /* all that write here write the same */
  }
}

void gb_matrices_check(gb_stream stream, gb_matrices m, int fault_kind, int *fault) {
  LAUNCH(stream, check_kernel, m, elements(m), fault_kind, fault);
}

template <typename T> static __global__ void unit_kernel(matrices<T> m, int) {
  int64_t each = m.rows * m.columns, n = each * m.count;
  for (int64_t i = gb_thread<int64_t>(); i < n; i += gb_grid_size<int64_t>()) {
    int64_t at = i % each;
    m.data[i] = (T)(at / m.rows == at % m.rows);
  }
}

void gb_matrices_unit(gb_stream stream, gb_matrices m) { LAUNCH(stream, unit_kernel, m, elements(m), 0); }

template <typename T> static __global__ void triangle_kernel(matrices<T> m, bool upper, bool ones) {
  int64_t each = m.rows * m.columns, n = each * m.count;
  for (int64_t i = gb_thread<int64_t>(); i < n; i += gb_grid_size<int64_t>()) {
    int64_t at = i % each, column = at / m.rows, row = at % m.rows;
    if (row == column ? ones : upper ? row > column : row < column) m.data[i] = (T)(row == column);
  }
}

void gb_matrices_triangle(gb_stream stream, gb_matrices m, bool upper, bool ones) {
  LAUNCH(stream, triangle_kernel, m, elements(m), upper, ones);
}

template <typename T> static __global__ void diagonal_kernel(matrices<T> m, int kind, int *fault) {
  for (int64_t i = gb_thread<int64_t>(); i < m.rows * m.count; i += gb_grid_size<int64_t>()) {
    int64_t matrix = i / m.rows, row = i % m.rows;
    if (m.data[matrix * m.rows * m.rows + row * (m.rows + 1)] == 0 && fault[matrix] == 0)
      fault[matrix] = kind; /* all that write here write the same */
  }
}

void gb_matrices_diagonal(gb_stream stream, gb_matrices m, int fault_kind, int *fault) {
  LAUNCH(stream, diagonal_kernel, m, m.rows * m.count, fault_kind, fault);
}

static __global__ void no_pivots_kernel(int64_t rows, int64_t n, int *pivots) {
  for (int64_t i = gb_thread<int64_t>(); i < n; i += gb_grid_size<int64_t>()) pivots[i] = (int)(i % rows) + 1;
}

void gb_matrices_no_pivots(gb_stream stream, int64_t rows, int64_t count, int *pivots) {
  GB_LAUNCH(stream, no_pivots_kernel, gb_blocks(rows * count, GB_THREADS), GB_THREADS, 0, rows, rows * count, pivots);
}

/* A thread for each matrix, which goes down the diagonal as the CPU does. */
template <typename T>
static __global__ void determinant_kernel(matrices<T> m, const int *pivots, T *sign, T *value) {
  for (int64_t i = gb_thread<int64_t>(); i < m.count; i += gb_grid_size<int64_t>()) {
    const T *lu = m.data + i * m.rows * m.rows;
    const int *pivot = pivots + i * m.rows;
    T product = 1, total = 0;
    for (int64_t j = 0; j < m.rows; j++)
      if (pivot[j] != j + 1) product = -product;
    for (int64_t j = 0; j < m.rows; j++) {
      T d = lu[j * (m.rows + 1)];
      if (!sign) product *= d;
      else {
        product = d == 0 ? 0 : d < 0 ? -product : product;
        total += (T)log((double)(d < 0 ? -d : d));
      }
    }
    if (sign) sign[i] = product;
    value[i] = sign ? total : product;
  }
}

void gb_matrices_determinant(gb_stream stream, gb_matrices lu, const int *pivots, void *sign, void *value) {
  if (lu.dtype == GB_FLOAT64)
    GB_LAUNCH(stream, determinant_kernel<double>, gb_blocks(lu.count, GB_WARP), GB_WARP, 0, of<double>(lu), pivots,
              (double *)sign, (double *)value);
  else
    GB_LAUNCH(stream, determinant_kernel<float>, gb_blocks(lu.count, GB_WARP), GB_WARP, 0, of<float>(lu), pivots,
              (float *)sign, (float *)value);
}

template <typename T> static __global__ void divide_kernel(matrices<T> m, const T *s, double rtol, double atol) {
  int64_t each = m.rows * m.columns, n = each * m.count;
  for (int64_t i = gb_thread<int64_t>(); i < n; i += gb_grid_size<int64_t>()) {
    const T *own = s + i / each * m.columns;
    T by = own[i % each / m.rows];
    double least = rtol * (double)own[0];
    if (atol > least) least = atol;
    m.data[i] = (double)by > least && by > 0 ? m.data[i] / by : (T)0;
  }
}

void gb_matrices_divide(gb_stream stream, gb_matrices m, const void *s, double rtol, double atol) {
  unsigned blocks = gb_blocks(elements(m), GB_THREADS);
  if (m.dtype == GB_FLOAT64)
    GB_LAUNCH(stream, divide_kernel<double>, blocks, GB_THREADS, 0, of<double>(m), (const double *)s, rtol, atol);
  else GB_LAUNCH(stream, divide_kernel<float>, blocks, GB_THREADS, 0, of<float>(m), (const float *)s, rtol, atol);
}

/* One block: the least place of each thread, then the least of all. */
static __global__ void first_fault_kernel(int64_t count, const int *fault, const int *info, int info_kind, int kinds,
                                          int64_t *first) {
  GB_SHARED(int64_t, least, [GB_THREADS]);
  int64_t mine = INT64_MAX;
  for (int64_t i = threadIdx.x; i < count && mine == INT64_MAX; i += blockDim.x) {
    int found = fault[i] ? fault[i] : info && info[i] > 0 ? info_kind : 0;
    if (found) mine = i * kinds + found;
  }
  least[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned step = GB_THREADS / 2; step > 0; step /= 2) {
    if (threadIdx.x < step && least[threadIdx.x + step] < least[threadIdx.x])
      least[threadIdx.x] = least[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) *first = least[0] == INT64_MAX ? -1 : least[0];
}

void gb_matrices_first_fault(gb_stream stream, int64_t count, const int *fault, const int *info, int info_kind,
                             int kinds, int64_t *first) {
  GB_LAUNCH(stream, first_fault_kernel, 1, GB_THREADS, 0, count, fault, info, info_kind, kinds, first);
}
