/* test_dnn_graphs.c - every operation graph that conv.c, attention.c, batch_norm.c and pool.c make for the shapes of
 * the tests and recipes is accepted by the cuDNN that is installed: its tensors, its operations, and the graph of them
 * are finalised, which checks dtypes, shapes, strides and how operations hang together. This needs no device.
 *
 * Not checked here: whether an engine of some device runs a graph, and what it computes. The library names candidates
 * without a device, so that at least one is asked for; for attention it names none. */
#include "check.h"
#include "cuda/attention_graph.h"
#include "cuda/batch_norm_graph.h"
#include "cuda/conv_graph.h"
#include "cuda/pool_graph.h"

#include <stdarg.h>
#include <string.h>

/* {==== what the files under test take from the backend; nothing here is launched ==== */

gb_status gb_cuda_fail(gb_cuda_call *call, gb_status status, const char *format, ...) {
  (void)call, (void)format;
  return status;
}

void *gb_cuda_scratch(gb_cuda_call *call, size_t bytes) {
  (void)call, (void)bytes;
  return NULL;
}

int gb_rt_set(gb_stream stream, void *block, int byte, size_t bytes) {
  (void)stream, (void)block, (void)byte, (void)bytes;
  return 1;
}

/* ====} */

/* Build a graph; how many candidate engine configurations are named for it, or -1 with a line when it is refused. */
static int build(gb_dnn_build make, const void *what, const char *name) {
  gb_dnn_graph g;
  gb_dnn_begin(&g);
  make(&g, what);
  int configs = -1;
  if (gb_dnn_end(&g))
    configs = gb_dnn_count_configs(&g, CUDNN_HEUR_MODE_A) + gb_dnn_count_configs(&g, CUDNN_HEUR_MODE_FALLBACK);
  else fprintf(stderr, "%s: %s\n", name, g.error);
  gb_dnn_release(&g);
  return configs;
}

static const gb_dtype floats[] = { GB_FLOAT32, GB_FLOAT16, GB_BFLOAT16, GB_FLOAT64 };

/* {==== convolutions ==== */

/* The convolutions of recipes/mnist_cnn.lua, of the golden cases and of tests/cuda_on_cpu/test_products.lua. */
static const gb_conv shapes[] = {
  { .n = 64, .c = 1, .in = { 28, 28 }, .o = 32, .kernel = { 3, 3 }, .stride = { 1, 1 }, .padding = { 1, 1 },
    .dilation = { 1, 1 }, .groups = 1 },
  { .n = 64, .c = 32, .in = { 14, 14 }, .o = 64, .kernel = { 3, 3 }, .stride = { 1, 1 }, .padding = { 1, 1 },
    .dilation = { 1, 1 }, .groups = 1 },
  { .n = 2, .c = 6, .in = { 9, 8 }, .o = 4, .kernel = { 3, 3 }, .stride = { 1, 1 }, .padding = { 1, 1 },
    .dilation = { 1, 1 }, .groups = 1 },
  { .n = 2, .c = 6, .in = { 9, 8 }, .o = 4, .kernel = { 3, 3 }, .stride = { 2, 2 }, .padding = { 2, 1 },
    .dilation = { 1, 2 }, .groups = 1 },
  { .n = 2, .c = 6, .in = { 9, 8 }, .o = 4, .kernel = { 2, 3 }, .stride = { 1, 1 }, .padding = { 0, 0 },
    .dilation = { 1, 1 }, .groups = 2 },
  { .n = 2, .c = 8, .in = { 9, 8 }, .o = 8, .kernel = { 3, 3 }, .stride = { 1, 1 }, .padding = { 1, 1 },
    .dilation = { 1, 1 }, .groups = 8 },
  { .n = 1, .c = 3, .in = { 224, 224 }, .o = 64, .kernel = { 7, 7 }, .stride = { 2, 2 }, .padding = { 3, 3 },
    .dilation = { 1, 1 }, .groups = 1 },
  { .n = 3, .c = 16, .in = { 1, 1 }, .o = 8, .kernel = { 1, 1 }, .stride = { 1, 1 }, .padding = { 0, 0 },
    .dilation = { 1, 1 }, .groups = 1 },
};

static void test_convolution(gb_conv conv) {
  for (int d = 0; d < 2; d++)
    conv.out[d] = (conv.in[d] + 2 * conv.padding[d] - conv.dilation[d] * (conv.kernel[d] - 1) - 1) / conv.stride[d] + 1;
  conv.result = conv.dtype;
  conv.kind = GB_CONV_FORWARD;
  for (int form = 0; form < 4; form++) { /* bias or none, ReLU or none */
    conv.bias = form & 1 ? &conv : NULL;
    conv.relu = form & 2;
    CHECK(build(gb_conv_graph, &conv, "a convolution") > 0);
  }
  conv.bias = NULL;
  conv.relu = false;
  conv.kind = GB_CONV_BACKWARD_INPUT;
  CHECK(build(gb_conv_graph, &conv, "the gradient of a convolution's input") > 0);
  conv.kind = GB_CONV_BACKWARD_WEIGHT;
  CHECK(build(gb_conv_graph, &conv, "the gradient of a convolution's weight") > 0);
  if (conv.dtype == GB_FLOAT64) return;
  conv.result = GB_FLOAT32;
  CHECK(build(gb_conv_graph, &conv, "the float32 gradient of a convolution's weight") > 0);
}

static void test_convolutions(void) {
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
    for (size_t t = 0; t < sizeof floats / sizeof *floats; t++) {
      gb_conv conv = shapes[s];
      conv.dtype = floats[t];
      test_convolution(conv);
    }
}

/* A kernel larger than the padded input has no result: the graph says so. */
static void test_wrong_convolution(void) {
  gb_conv conv = shapes[1];
  conv.dtype = conv.result = GB_BFLOAT16;
  conv.out[0] = 14, conv.out[1] = 13;
  gb_dnn_graph g;
  gb_dnn_begin(&g);
  gb_conv_graph(&g, &conv);
  CHECK(!gb_dnn_end(&g) && g.status != CUDNN_STATUS_SUCCESS && strlen(g.error) > 20);
  gb_dnn_release(&g);
}

/* ====} */

/* {==== attention ==== */

/* Strides of [batch, heads, time, size] as heads before time, or as the middle of a packed [batch, time, 3, heads,
 * size]. */
static void set_strides(int64_t *stride, int64_t heads, int64_t time, int64_t size, bool packed) {
  stride[0] = (packed ? 3 : 1) * heads * time * size;
  stride[1] = packed ? size : time * size;
  stride[2] = packed ? 3 * heads * size : size;
  stride[3] = 1;
}

static gb_attention attention_of(gb_dtype dtype, int64_t batch, int64_t heads, int64_t key_heads, int64_t tq,
                                 int64_t tk, int64_t size, bool packed) {
  gb_attention a = { .batch = batch, .heads = heads, .key_heads = key_heads, .tq = tq, .tk = tk, .e = size, .ev = size,
                     .dtype = dtype };
  int64_t *of_queries[] = { a.query_stride, a.y_stride, a.grad_stride, a.dquery_stride };
  int64_t *of_keys[] = { a.key_stride, a.value_stride, a.dkey_stride, a.dvalue_stride };
  for (int i = 0; i < 4; i++) {
    set_strides(of_queries[i], heads, tq, size, packed);
    set_strides(of_keys[i], key_heads, tk, size, packed);
  }
  return a;
}

static void test_attention(gb_attention a) {
  float lse;
  for (int form = 0; form < 4; form++) { /* causal or full, with what backward needs or without */
    a.causal = form & 1;
    a.lse = form & 2 ? &lse : NULL;
    CHECK(build(gb_attention_forward_graph, &a, "attention") >= 0);
    if (a.lse && a.heads == a.key_heads)
      CHECK(build(gb_attention_backward_graph, &a, "the gradient of attention") >= 0);
  }
}

static void test_attentions(void) {
  static const int64_t sizes[] = { 8, 32, 64, 128, 256 }, times[] = { 1, 64, 1000, 1024, 8192 };
  for (int type = 0; type < 2; type++)
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
      for (size_t t = 0; t < sizeof times / sizeof *times; t++) {
        gb_dtype dtype = type ? GB_BFLOAT16 : GB_FLOAT16;
        test_attention(attention_of(dtype, 2, 4, 4, times[t], times[t], sizes[s], false));
        test_attention(attention_of(dtype, 2, 4, 4, times[t], times[t], sizes[s], true));
        test_attention(attention_of(dtype, 2, 8, 2, times[t], 128, sizes[s], false));
      }
}

/* ====} */

/* {==== batch norms ==== */

/* The channels of recipes/mnist_cnn.lua and of the golden cases, of a row per image, and of a large image. */
static const struct { int64_t n, c, inner; } batches[] = { { 64, 32, 784 }, { 64, 64, 196 }, { 2, 3, 20 },
                                                           { 128, 256, 1 }, { 5, 7, 1 }, { 8, 64, 112 * 112 } };

static void test_batch_norms(void) {
  for (size_t s = 0; s < sizeof batches / sizeof *batches; s++)
    for (int t = 0; t < 3; t++) { /* float64 is not the library's */
      gb_batch_norm b = { .n = batches[s].n, .c = batches[s].c, .inner = batches[s].inner, .dtype = floats[t] };
      for (int kind = GB_BATCH_NORM_TRAINING; kind <= GB_BATCH_NORM_BACKWARD; kind++) {
        b.kind = (gb_batch_norm_kind)kind;
        CHECK(build(gb_batch_norm_graph, &b, "a batch norm") > 0);
      }
    }
}

/* An image of less than nothing: the graph says so. */
static void test_wrong_batch_norm(void) {
  gb_batch_norm b = { .kind = GB_BATCH_NORM_TRAINING, .n = 4, .c = 8, .inner = -9, .dtype = GB_FLOAT16 };
  gb_dnn_graph g;
  gb_dnn_begin(&g);
  gb_batch_norm_graph(&g, &b);
  CHECK(!gb_dnn_end(&g) && g.status != CUDNN_STATUS_SUCCESS && strlen(g.error) > 20);
  gb_dnn_release(&g);
}

/* ====} */

/* {==== pooling ==== */

static const gb_pool pools[] = {
  { .n = 64, .c = 32, .in = { 28, 28 }, .kernel = { 2, 2 }, .stride = { 2, 2 } },
  { .n = 2, .c = 3, .in = { 7, 9 }, .kernel = { 3, 2 }, .stride = { 2, 1 }, .padding = { 1, 1 } },
  { .n = 8, .c = 64, .in = { 112, 112 }, .kernel = { 3, 3 }, .stride = { 2, 2 }, .padding = { 1, 1 } },
  { .n = 8, .c = 512, .in = { 7, 7 }, .kernel = { 7, 7 }, .stride = { 7, 7 } }, /* the mean over a whole image */
};

static void test_pools(void) {
  for (size_t s = 0; s < sizeof pools / sizeof *pools; s++)
    for (int t = 0; t < 3; t++)
      for (int kind = GB_POOL_MAX; kind <= GB_POOL_MEAN_BACKWARD; kind++) {
        gb_pool p = pools[s];
        for (int d = 0; d < 2; d++) p.out[d] = (p.in[d] + 2 * p.padding[d] - p.kernel[d]) / p.stride[d] + 1;
        p.kind = (gb_pool_kind)kind;
        p.dtype = floats[t];
        CHECK(build(gb_pool_graph, &p, "a pooling") > 0);
      }
}

/* A result larger than there are windows: the graph says so. */
static void test_wrong_pool(void) {
  gb_pool p = pools[0];
  p.kind = GB_POOL_MEAN;
  p.dtype = GB_FLOAT16;
  p.out[0] = 14, p.out[1] = 15;
  gb_dnn_graph g;
  gb_dnn_begin(&g);
  gb_pool_graph(&g, &p);
  CHECK(!gb_dnn_end(&g) && g.status != CUDNN_STATUS_SUCCESS && strlen(g.error) > 20);
  gb_dnn_release(&g);
}

/* ====} */

int main(void) {
  printf("cuDNN %zu\n", cudnnGetVersion());
  test_convolutions();
  test_wrong_convolution();
  test_attentions();
  test_batch_norms();
  test_wrong_batch_norm();
  test_pools();
  test_wrong_pool();
  return check_report();
}
