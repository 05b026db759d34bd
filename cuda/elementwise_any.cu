/* cuda/elementwise_any.cu - kernels that functions share: float64, int64, and float32 in any layout; see
 * functions.cuh. */
#include "cuda/functions.cuh"

/* A functor is each of the functions with so many inputs (and dear or not): the one that the numbers name. */
#define CASE(name, type) \
  case GB_FUNCTION_##name: if constexpr (serves<name##_##type>) return name##_##type::of(x, y, z, n); break;

template <int count, bool dear> struct any_f32 {
  static constexpr int inputs = count;
  template <class F> static constexpr bool serves = F::inputs == count && (F::cost >= GB_DEAR) == dear;
  static __device__ __forceinline__ f32 of(f32 x, f32 y, f32 z, const gb_numbers<f32> &n) {
    switch (n.function) {
#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) \
  GB_WHERE_FLOATS_##types(CASE(name, f32))
#include "base/functions.def"
    }
    return 0;
  }
};

template <int count> struct any_f64 {
  static constexpr int inputs = count;
  template <class F> static constexpr bool serves = F::inputs == count;
  static __device__ __forceinline__ f64 of(f64 x, f64 y, f64 z, const gb_numbers<f64> &n) {
    switch (n.function) {
#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) \
  GB_WHERE_FLOATS_##types(CASE(name, f64))
#include "base/functions.def"
    }
    return 0;
  }
};

template <int count> struct any_i64 {
  static constexpr int inputs = count;
  template <class F> static constexpr bool serves = F::inputs == count;
  static __device__ __forceinline__ i64 of(i64 x, i64 y, i64 z, const gb_numbers<i64> &n) {
    switch (n.function) {
#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) \
  GB_WHERE_INTS_##types(CASE(name, i64))
#include "base/functions.def"
    }
    return 0;
  }
};

void gb_run_any_f32(const gb_elements &e, const gb_walk &w, int inputs, bool dear) {
  if (inputs == 1 && dear) gb_run_walk<any_f32<1, true>, f32>(e, w);
  else if (inputs == 1) gb_run_walk<any_f32<1, false>, f32>(e, w);
  else if (inputs == 2 && dear) gb_run_walk<any_f32<2, true>, f32>(e, w);
  else if (inputs == 2) gb_run_walk<any_f32<2, false>, f32>(e, w);
  else gb_run_walk<any_f32<3, false>, f32>(e, w);
}

void gb_run_any_f64(const gb_elements &e, const gb_walk &w, int inputs) {
  if (inputs == 1) gb_run_walk<any_f64<1>, f64>(e, w);
  else if (inputs == 2) gb_run_walk<any_f64<2>, f64>(e, w);
  else gb_run_walk<any_f64<3>, f64>(e, w);
}

void gb_run_any_i64(const gb_elements &e, const gb_walk &w, int inputs) {
  if (inputs == 1) gb_run_walk<any_i64<1>, i64>(e, w);
  else if (inputs == 2) gb_run_walk<any_i64<2>, i64>(e, w);
  else gb_run_walk<any_i64<3>, i64>(e, w);
}
