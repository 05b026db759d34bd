/* device.h - where a test's tensors lie: on the CPU, or on the device that GIBBOUS_TEST_DEVICE names, whose plugin
 * GIBBOUS_PLUGINS leads to. Single elements are read and written by way of the backend, since a device's memory is not
 * the host's. */
#ifndef GB_TESTS_DEVICE_H
#define GB_TESTS_DEVICE_H

#include <stdlib.h>
#include <string.h>

#include "base/float.h"
#include "check.h"
#include "tensor/context.h"
#include "tensor/tensor.h"

static inline gb_device test_device(void) {
  const char *name = getenv("GIBBOUS_TEST_DEVICE");
  return (gb_device){ name && !strcmp(name, "cuda") ? GB_CUDA : GB_CPU, 0 };
}

/* The first lines of a recipe whose tensors lie there. */
#define ON_TEST_DEVICE "require 'gibbous'.set_default_device(os.getenv 'GIBBOUS_TEST_DEVICE' or 'cpu')\n"

/* Plugins open when they are asked for. Counted where it fails only: threads of a test open contexts too. */
static inline void need_test_device(gb_context *context) {
  const char *why = "";
  bool there = test_device().type == GB_CPU || gb_context_has_device(context, test_device().type, &why);
  if (!there) CHECK(there);
}

/* A context whose test device is there. */
static inline gb_context *open_on_device(void) {
  gb_context_options options;
  gb_context *context = NULL;
  gb_context_options_init(&options, sizeof options);
  options.plugins = getenv("GIBBOUS_PLUGINS");
  CHECK(gb_context_open(&options, &context) == GB_OK);
  need_test_device(context);
  return context;
}

/* So many elements from the first on, in memory order, as they are. */
static inline void peek_bits(const gb_tensor *t, int64_t first, int64_t count, void *bits) {
  int64_t bytes = (int64_t)gb_dtype_bytes((gb_dtype)t->dtype);
  gb_backend *backend = gb_context_backend(gb_tensor_context(t), t->storage->device);
  gb_status status = backend->read(backend->state, bits, gb_data(t) + first * bytes, (size_t)(count * bytes));
  if (status != GB_OK) CHECK(status == GB_OK); /* counted where it fails only: tests look at very many */
}

/* Floating element i of these. */
static inline double number_of(gb_dtype dtype, const void *bits, int64_t i) {
  switch (dtype) {
    case GB_FLOAT64: return ((const double *)bits)[i];
    case GB_FLOAT32: return ((const float *)bits)[i];
    case GB_FLOAT16: return gb_float16_to_float(((const uint16_t *)bits)[i]);
    default: return gb_bfloat16_to_float(((const uint16_t *)bits)[i]);
  }
}

/* Floating element i in memory order. */
static inline double peek(const gb_tensor *t, int64_t i) {
  union { double f64; float f32; uint16_t half; } bits;
  peek_bits(t, i, 1, &bits);
  return number_of((gb_dtype)t->dtype, &bits, 0);
}

/* All of them, read at once; the caller frees them. */
static inline double *peek_all(const gb_tensor *t) {
  size_t n = (size_t)t->numel + 1;
  double *numbers = malloc(n * sizeof *numbers);
  void *bits = malloc(n * gb_dtype_bytes((gb_dtype)t->dtype));
  if (!numbers || !bits) abort();
  peek_bits(t, 0, t->numel, bits);
  for (int64_t i = 0; i < t->numel; i++) numbers[i] = number_of((gb_dtype)t->dtype, bits, i);
  free(bits);
  return numbers;
}

/* Write one, counted as every change is. */
static inline void poke(gb_tensor *t, int64_t i, double value) {
  union { double f64; float f32; uint16_t half; } bits;
  size_t bytes = gb_dtype_bytes((gb_dtype)t->dtype);
  switch (t->dtype) {
    case GB_FLOAT64: bits.f64 = value; break;
    case GB_FLOAT32: bits.f32 = (float)value; break;
    case GB_FLOAT16: bits.half = gb_double_to_float16(value); break;
    default: bits.half = gb_double_to_bfloat16(value); break;
  }
  gb_backend *backend = gb_context_backend(gb_tensor_context(t), t->storage->device);
  CHECK(backend->write(backend->state, gb_data(t) + i * (int64_t)bytes, &bits, bytes) == GB_OK);
  gb_tensor_bump(t);
}

#endif
