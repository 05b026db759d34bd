/* engine.h - what the C tests of the engine share: contexts, tensors from values, ops by name, and the bytes of
 * results.
 *
 * Helpers check what they do, so that a test reads as what it is about; a failure is counted where the helper stands
 * and named by `CHECK`. */
#ifndef GB_TESTS_ENGINE_H
#define GB_TESTS_ENGINE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "device.h"
#include "graph/ops.h"

#define CPU ((gb_device){ GB_CPU, 0 })
#define SHAPE(...) ((int64_t[]){ __VA_ARGS__ })

/* A context of so many threads, with the test device; level NULL: the best. */
static inline gb_context *open_context(int threads, const char *level) {
  gb_context_options options;
  gb_context *context = NULL;
  gb_context_options_init(&options, sizeof options);
  options.threads = threads;
  options.cpu_level = level;
  options.seed = 7;
  options.plugins = getenv("GIBBOUS_PLUGINS");
  if (gb_context_open(&options, &context) == GB_OK) need_test_device(context);
  return context;
}

/* Uniform numbers in [-1, 1) that depend on their position and key alone, written down by no random op. */
static inline double noise(uint64_t key, int64_t i) {
  uint64_t z = ((uint64_t)i + 1) * 0x9E3779B97F4A7C15u + key * 0xD1B54A32D192ED03u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return (double)((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
}

/* A tensor on the test device whose elements make_element writes, one after another, in dtype; NULL when there is no
 * memory. */
typedef void (*make_element)(void *element, gb_dtype dtype, int64_t i, uint64_t key);
static inline gb_tensor *new_made(gb_context *context, gb_dtype dtype, int ndim, const int64_t *shape,
                                  make_element make, uint64_t key) {
  gb_tensor *t = NULL;
  if (gb_tensor_new(context, dtype, ndim, shape, test_device(), &t) != GB_OK) return NULL;
  size_t each = gb_dtype_bytes(dtype), bytes = (size_t)t->numel * each;
  char *host = malloc(bytes + 1);
  for (int64_t i = 0; host && i < t->numel; i++) make(host + (size_t)i * each, dtype, i, key);
  if (!host || gb_tensor_write(t, host, bytes) != GB_OK) gb_drop(&t);
  free(host);
  return t;
}

static inline void make_noise(void *element, gb_dtype dtype, int64_t i, uint64_t key) {
  switch (dtype) {
    case GB_FLOAT64: *(double *)element = noise(key, i); break;
    case GB_FLOAT32: *(float *)element = (float)noise(key, i); break;
    case GB_FLOAT16: *(uint16_t *)element = gb_double_to_float16(noise(key, i)); break;
    default: *(uint16_t *)element = gb_double_to_bfloat16(noise(key, i)); break;
  }
}

/* Some number below `limit`. */
static inline void make_index(void *element, gb_dtype dtype, int64_t i, uint64_t limit) {
  (void)dtype;
  *(int64_t *)element = (int64_t)((noise(limit, i) + 1) * 0.5 * (double)limit);
}

/* A floating tensor of noise; NULL when there is no memory. */
static inline gb_tensor *new_noise(gb_context *context, gb_dtype dtype, int ndim, const int64_t *shape, uint64_t key) {
  return new_made(context, dtype, ndim, shape, make_noise, key);
}

/* A tensor that holds the numbers given, in dtype. */
static inline gb_tensor *new_values(gb_context *context, gb_dtype dtype, int ndim, const int64_t *shape,
                                    const double *values) {
  gb_tensor *wide = NULL, *t = NULL;
  CHECK(gb_tensor_new(context, GB_FLOAT64, ndim, shape, test_device(), &wide) == GB_OK);
  CHECK(gb_tensor_write(wide, values, (size_t)wide->numel * 8) == GB_OK);
  CHECK(gb_op_cast(context, wide, dtype, &t) == GB_OK);
  gb_tensor_release(wide);
  return t;
}

/* op(x, y) with attributes or NULL; the result is the caller's. Counts a failure and shows its text. */
static inline gb_tensor *run2(gb_op op, gb_tensor *x, gb_tensor *y, const gb_attr *attrs) {
  gb_tensor *out[GB_MAX_OUT] = { NULL }, *in[] = { x, y };
  gb_context *context = gb_tensor_context(x);
  gb_status status = gb_apply(context, op, in, y ? 2 : 1, attrs, out);
  if (status != GB_OK) fprintf(stderr, "%s\n", gb_error(context));
  CHECK(status == GB_OK);
  for (int i = 1; i < GB_MAX_OUT; i++) gb_tensor_release(out[i]);
  return out[0];
}

static inline gb_tensor *run1(gb_op op, gb_tensor *x, const gb_attr *attrs) { return run2(op, x, NULL, attrs); }

/* As above, and the operand at the left ends: for chains. */
static inline gb_tensor *then2(gb_op op, gb_tensor *x, gb_tensor *y, const gb_attr *attrs) {
  gb_tensor *out = run2(op, x, y, attrs);
  gb_tensor_release(x);
  return out;
}

/* Element i as a number. */
static inline double at(gb_tensor *t, int64_t i) {
  double value = NAN;
  gb_tensor *flat = NULL, *one = NULL;
  gb_context *context = gb_tensor_context(t);
  bool grad = gb_set_grad_enabled(context, false);
  if (GB_RUN(context, reshape, &flat, .x = t, .shape = gb_attr_ints(1, SHAPE(-1))) == GB_OK &&
      GB_RUN(context, select, &one, .x = flat, .dim = gb_attr_int(0), .position = gb_attr_int(i)) == GB_OK)
    gb_tensor_item(one, &value, NULL);
  gb_set_grad_enabled(context, grad);
  gb_tensor_release(flat);
  gb_tensor_release(one);
  return value;
}

/* The element of a one-element tensor, which ends. */
static inline double take_item(gb_tensor *t) {
  double value = NAN;
  if (t) CHECK(gb_tensor_item(t, &value, NULL) == GB_OK);
  gb_tensor_release(t);
  return value;
}

static inline bool near(double a, double b, double tolerance) { return fabs(a - b) <= tolerance * (1 + fabs(b)); }

/* A number for the bytes of t in order, chained: FNV-1a. */
static inline uint64_t hash_tensor(gb_tensor *t, uint64_t hash) {
  size_t bytes = (size_t)t->numel * gb_dtype_bytes(gb_tensor_dtype(t));
  unsigned char *host = malloc(bytes + 1);
  if (!host || gb_tensor_read(t, host, bytes) != GB_OK) { free(host); return 0; }
  for (size_t i = 0; i < bytes; i++) hash = (hash ^ host[i]) * 0x100000001B3u;
  free(host);
  return hash;
}

static inline size_t live_bytes(gb_context *context) {
  gb_memory_stats stats;
  gb_memory_get_stats(context, &stats);
  return stats.current_total;
}

/* Does the last failure's text contain this? Shows it where it does not. */
static inline bool says(const gb_context *context, const char *text) {
  bool found = strstr(gb_error(context), text) != NULL;
  if (!found) fprintf(stderr, "the error '%s' does not say '%s'\n", gb_error(context), text);
  return found;
}

#endif
