/* test_dnn_graphs.c - operation graphs that conv.c, attention.c, batch_norm.c and pool.c make for shapes of the tests
 * and recipes get a plan from the cuDNN that is installed: an engine for an H200 that keeps what was asked of it, with
 * the workspace that it may have. The few that get none, and so run on other kernels, are named where they are tested.
 *
 * This needs no device: cuDNN prepares plans from a description of one (HOPPER), and no_driver.c stands in for the
 * driver where engines are compiled at run time. Not checked here: what a plan computes, and whether the description
 * is that of the device in every respect. */
#include "check.h"
#include "cuda/attention_graph.h"
#include "cuda/batch_norm_graph.h"
#include "cuda/conv_graph.h"
#include "cuda/cuda.h"
#include "cuda/pool_graph.h"

#include <stdarg.h>
#include <string.h>

/* {==== what the files under test take from the backend; nothing here is launched ==== */

gb_status gb_cuda_fail(gb_cuda_call *call, gb_status status, const char *format, ...) {
  (void)call, (void)format;
  return status;
}

void gb_cuda_slower(const gb_cuda_call *call, gb_slower kind, const char *format, ...) {
  (void)call, (void)kind, (void)format;
}

void *gb_cuda_scratch(gb_cuda_call *call, size_t bytes) {
  (void)call, (void)bytes;
  return NULL;
}

gb_status gb_cuda_may_open(gb_cuda_call *call, const char *library) {
  (void)call, (void)library;
  return GB_OK;
}

void gb_cuda_settle(void *stream) { (void)stream; }

int gb_rt_set(gb_stream stream, void *block, int byte, size_t bytes) {
  (void)stream, (void)block, (void)byte, (void)bytes;
  return 1;
}

/* ====} */

/* {==== plans for a device that is only described ==== */

/* An H200, from its data sheet and the limits of compute capability 9.0. */
static const char HOPPER[] =
    "{\"cudaDeviceId\": 0, \"deviceName\": \"NVIDIA H200\", \"deviceVer\": 900, \"driverVer\": 13000,"
    "\"pciDeviceId\": 0,\"isTccDriver\": 0, \"supportCoopLaunch\": 1, \"multiProcessorCount\": 132, \"warpSize\": 32,"
    "\"smClockRateKHz\": 1980000, \"memClockRateKHz\": 3201000, \"l2CacheSize\": 62914560,"
    "\"totalGlobalMem\": 150754820096, \"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64],"
    "\"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, \"maxCtasPerSM\": 32, \"regsPerBlock\": 65536,"
    "\"maxRegistersPerSM\": 65536, \"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": 232448,"
    "\"reservedSharedMemoryPerBlock\": 1024, \"maxSharedMemoryPerSM\": 233472, \"sharedMemoryPerSM\": 233472,"
    "\"maxSharedMemoryPerMultiprocessor\": 233472}";

static gb_dnn_part device;

static bool describe_device(void) {
  cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device);
  if (status == CUDNN_STATUS_SUCCESS)
    status = cudnnBackendSetAttribute(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                      (int64_t)strlen(HOPPER), HOPPER);
  return status == CUDNN_STATUS_SUCCESS && cudnnBackendFinalize(device) == CUDNN_STATUS_SUCCESS;
}

/* Does the library itself note of a configuration that its results change from run to run? */
static bool changes(gb_dnn_part config) {
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  gb_dnn_part engine = NULL;
  int64_t count = 0;
  bool found = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS ||
      cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                               &engine) != CUDNN_STATUS_SUCCESS ||
      cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                               CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes) != CUDNN_STATUS_SUCCESS;
  for (int64_t i = 0; !found && i < count; i++) found = notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
  if (engine) cudnnBackendDestroyDescriptor(engine);
  return found;
}

/* How many graphs were asked for and how many had a plan, and the largest workspace of one. */
static struct { int asked, planned; size_t workspace; } tally;

/* Does the graph get a plan that keeps the wish? A line says where it gets none. */
static bool plans(gb_dnn_build make, const void *what, const gb_dnn_wish *wish, const char *format, ...)
    GB_PRINTF(4, 5);
static bool plans(gb_dnn_build make, const void *what, const gb_dnn_wish *wish, const char *format, ...) {
  gb_dnn_plan *p = gb_dnn_plan_make(NULL, device, make, what, wish);
  bool has = p && p->plan;
  tally.asked++;
  tally.planned += has;
  if (has) {
    CHECK(p->workspace <= wish->workspace);
    CHECK(!wish->deterministic || !changes(p->config));
    if (p->workspace > tally.workspace) tally.workspace = p->workspace;
  } else {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, ": %s\n", p ? p->error : "out of memory");
  }
  gb_dnn_plan_release(p);
  return has;
}

/* Print what a family of graphs came to, and begin the next one. */
static void report(const char *family) {
  printf("%s: %d of %d graphs have a plan, with at most %zu bytes of workspace\n", family, tally.planned, tally.asked,
         tally.workspace);
  fflush(stdout);
  memset(&tally, 0, sizeof tally);
}

/* ====} */

static const gb_dtype floats[] = { GB_FLOAT32, GB_BFLOAT16, GB_FLOAT16, GB_FLOAT64 };

/* The dtypes of a family's shape s: float16's plans differ in nothing but the dtype from bfloat16's, and float64 is not
 * for all, so both are asked for once. */
static size_t dtypes_of(size_t s, size_t most) { return s == 1 ? most : 2; }

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

static bool conv_plans(const gb_conv *c, const char *what) {
  const gb_dnn_wish wish = { .deterministic = true, .exact = c->dtype == GB_FLOAT32, .workspace = (size_t)512 << 20 };
  return plans(gb_conv_graph, c, &wish, "%s, dtype %d, [%d, %d, %d, %d] to %d, kernel %d, groups %d, bias %d, relu %d",
               what, (int)c->dtype, (int)c->n, (int)c->c, (int)c->in[0], (int)c->in[1], (int)c->o, (int)c->kernel[0],
               (int)c->groups, c->bias != NULL, c->relu);
}

/* Without an engine are: ReLU behind some sums, which then runs apart; and float32 gradients of 16-bit weights with an
 * odd number of channels, which get channels of zeros beside them, or in groups, which plain kernels do. */
static void test_convolution(gb_conv conv) {
  for (int d = 0; d < 2; d++)
    conv.out[d] = (conv.in[d] + 2 * conv.padding[d] - conv.dilation[d] * (conv.kernel[d] - 1) - 1) / conv.stride[d] + 1;
  conv.result = conv.dtype;
  conv.kind = GB_CONV_FORWARD;
  for (int form = 0; form < 4; form++) { /* bias or none, ReLU or none */
    conv.bias = form & 1 ? &conv : NULL;
    conv.relu = form & 2;
    bool grouped = conv.groups > 1 && conv.dtype == GB_BFLOAT16 && conv.relu && !conv.bias;
    CHECK(conv_plans(&conv, "a convolution") == !(grouped || (conv.relu && conv.dtype == GB_FLOAT64)));
  }
  conv.bias = NULL;
  conv.relu = false;
  conv.kind = GB_CONV_BACKWARD_INPUT;
  CHECK(conv_plans(&conv, "the gradient of a convolution's input"));
  conv.kind = GB_CONV_BACKWARD_WEIGHT;
  CHECK(conv_plans(&conv, "the gradient of a convolution's weight"));
  if (!gb_is_16bit(conv.dtype)) return;
  conv.result = GB_FLOAT32;
  CHECK(conv_plans(&conv, "the float32 gradient of a convolution's weight") == (conv.groups == 1 && conv.c % 2 == 0));
}

static void test_convolutions(void) {
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
    for (size_t t = 0; t < dtypes_of(s, 4); t++) {
      gb_conv conv = shapes[s];
      conv.dtype = floats[t];
      test_convolution(conv);
    }
}

/* Convolutions of training in bfloat16: of recipes/cifar_resnet.lua, unet.lua and dcgan.lua (whose transposed ones are
 * gradients of inputs), and of ResNet-50: channels, size, kernel, stride. */
static const struct { int n, c, in, o, kernel, stride; } trained[] = {
  { 128, 16, 32, 16, 3, 1 }, { 128, 16, 32, 32, 3, 2 }, { 128, 16, 32, 32, 1, 2 }, { 128, 64, 8, 64, 3, 1 },
  { 16, 64, 32, 32, 3, 1 }, { 64, 32, 28, 64, 4, 2 }, { 256, 64, 56, 256, 1, 1 }, { 256, 128, 56, 128, 3, 2 },
  { 256, 256, 56, 512, 1, 2 }, { 256, 512, 7, 512, 3, 1 }, { 256, 2048, 7, 512, 1, 1 },
};

/* What a step asks of a convolution without bias: forward, the gradient of its input, and that of its weight in
 * float32. */
static void test_training(void) {
  for (size_t s = 0; s < sizeof trained / sizeof *trained; s++)
    for (int kind = GB_CONV_FORWARD; kind <= GB_CONV_BACKWARD_WEIGHT; kind++) {
      int64_t k = trained[s].kernel, stride = trained[s].stride, in = trained[s].in, padding = (k - 1) / 2;
      int64_t out = (in + 2 * padding - k) / stride + 1;
      gb_conv conv = { .kind = (gb_conv_kind)kind, .n = trained[s].n, .c = trained[s].c, .in = { in, in },
                       .o = trained[s].o, .out = { out, out }, .kernel = { k, k }, .stride = { stride, stride },
                       .padding = { padding, padding }, .dilation = { 1, 1 }, .groups = 1, .dtype = GB_BFLOAT16,
                       .result = kind == GB_CONV_BACKWARD_WEIGHT ? GB_FLOAT32 : GB_BFLOAT16 };
      CHECK(conv_plans(&conv, "a convolution of training"));
    }
}

/* A kernel larger than the padded input has no result: the graph says so. */
static void test_wrong_convolution(void) {
  gb_conv conv = shapes[1];
  conv.dtype = conv.result = GB_BFLOAT16;
  conv.out[0] = 14, conv.out[1] = -3;
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
  static const gb_dnn_wish wish = { .deterministic = true, .workspace = (size_t)256 << 20 },
      of_backward = { .workspace = (size_t)1 << 30 },
      of_fixed = { .deterministic = true, .workspace = (size_t)4 << 30 };
  static const char text[] = "%s, dtype %d, [%d, %d, %d, %d] by %d keys of %d heads, causal %d, lse %d";
  float lse;
  for (int form = 0; form < 4; form++) { /* causal or full, with what backward needs or without */
    a.causal = form & 1;
    a.lse = form & 2 ? &lse : NULL;
    CHECK(plans(gb_attention_forward_graph, &a, &wish, text, "attention", (int)a.dtype, (int)a.batch, (int)a.heads,
                (int)a.tq, (int)a.e, (int)a.tk, (int)a.key_heads, a.causal, a.lse != NULL));
    for (int fixed = 0; fixed < 2 && a.lse && a.heads == a.key_heads; fixed++) {
      a.deterministic = fixed;
      CHECK(plans(gb_attention_backward_graph, &a, fixed ? &of_fixed : &of_backward, text, "the gradient of attention",
                  (int)a.dtype, (int)a.batch, (int)a.heads, (int)a.tq, (int)a.e, (int)a.tk, (int)a.key_heads, a.causal,
                  true));
    }
  }
}

/* Every head_dim at one length, every length at one head_dim, packed operands, and fewer heads of keys. */
static void test_attentions(void) {
  static const int64_t sizes[] = { 8, 32, 128, 256 }, times[] = { 1, 64, 1000, 1024 };
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    test_attention(attention_of(GB_BFLOAT16, 2, 4, 4, 256, 256, sizes[s], false));
  for (size_t t = 0; t < sizeof times / sizeof *times; t++)
    test_attention(attention_of(GB_BFLOAT16, 2, 4, 4, times[t], times[t], 64, t == 3));
  test_attention(attention_of(GB_FLOAT16, 2, 4, 4, 1024, 1024, 64, true));
  test_attention(attention_of(GB_BFLOAT16, 2, 8, 2, 256, 128, 64, false));
  test_attention(attention_of(GB_BFLOAT16, 16, 12, 12, 1024, 1024, 64, true)); /* GPT-2's step */
}

/* ====} */

/* {==== batch norms ==== */

/* The channels of recipes/mnist_cnn.lua and of the golden cases, of a row per image, and of a large image. */
static const struct { int64_t n, c, inner; } batches[] = { { 64, 32, 784 }, { 64, 64, 196 }, { 2, 3, 20 },
                                                           { 128, 256, 1 }, { 5, 7, 1 }, { 8, 64, 112 * 112 } };

/* What the library has no engine for, plain kernels do: channels in no multiple of 8, and evaluation in float32, whose
 * engines say that they may round their operands. */
static void test_batch_norms(void) {
  for (size_t s = 0; s < sizeof batches / sizeof *batches; s++)
    for (size_t t = 0; t < dtypes_of(s, 3); t++) { /* float64 is not the library's */
      gb_batch_norm b = { .n = batches[s].n, .c = batches[s].c, .inner = batches[s].inner, .dtype = floats[t] };
      for (int kind = GB_BATCH_NORM_TRAINING; kind <= GB_BATCH_NORM_BACKWARD; kind++) {
        b.kind = (gb_batch_norm_kind)kind;
        const gb_dnn_wish wish = { .deterministic = true, .exact = b.dtype == GB_FLOAT32,
                                   .workspace = (size_t)256 << 20 };
        bool has = kind == GB_BATCH_NORM_INFERENCE ? gb_is_16bit(b.dtype) : b.c % 8 == 0;
        CHECK(has == plans(gb_batch_norm_graph, &b, &wish, "a batch norm, kind %d, dtype %d, [%d, %d, %d]", kind,
                           (int)b.dtype, (int)b.n, (int)b.c, (int)b.inner));
      }
    }
}

/* Those of ResNet-50 and of an odd one, backward through the ReLU behind it, with one gradient or the sum of two. Where
 * channels are no multiple of 16 bytes the ReLU's gradient runs apart. */
static void test_through_relu(void) {
  static const struct { int64_t c, inner; } layers[] = { { 64, 112 * 112 }, { 256, 56 * 56 }, { 512, 28 * 28 },
                                                         { 1024, 14 * 14 }, { 2048, 7 * 7 }, { 20, 7 * 7 } };
  int x = 0;
  for (size_t s = 0; s < sizeof layers / sizeof *layers; s++)
    for (int t = 0; t < 3; t++)
      for (int more = 0; more < 2; more++) {
        gb_batch_norm b = { .kind = GB_BATCH_NORM_THROUGH_RELU, .n = 64, .c = layers[s].c, .inner = layers[s].inner,
                            .dtype = floats[t], .more = more ? &x : NULL, .rectified = &x, .masked = &x };
        const gb_dnn_wish wish = { .deterministic = true, .exact = b.dtype == GB_FLOAT32,
                                   .workspace = (size_t)256 << 20 };
        bool has = b.c % (gb_is_16bit(b.dtype) ? 8 : 4) == 0;
        CHECK(has == plans(gb_batch_norm_graph, &b, &wish,
                           "a batch norm through a ReLU, dtype %d, [%d, %d, %d], more %d", (int)b.dtype,
                           (int)b.n, (int)b.c, (int)b.inner, more));
      }
}

/* The same forward, with the ReLU behind them and the sum with a residual in front of it, in training and evaluation.
 * The sum without a ReLU is not the library's. Where it has no engine the plain kernels do it all, or without a
 * residual ReLU runs apart. */
static void test_with_relu(void) {
  static const struct { int64_t c, inner; } layers[] = { { 64, 112 * 112 }, { 256, 56 * 56 }, { 512, 28 * 28 },
                                                         { 1024, 14 * 14 }, { 2048, 7 * 7 }, { 20, 7 * 7 } };
  int x = 0;
  for (size_t s = 0; s < sizeof layers / sizeof *layers; s++)
    for (int t = 0; t < 3; t++)
      for (int form = 0; form < 4; form++) { /* training or evaluation, with a residual or without */
        gb_batch_norm b = { .kind = form & 1 ? GB_BATCH_NORM_INFERENCE : GB_BATCH_NORM_TRAINING, .n = 64,
                            .c = layers[s].c, .inner = layers[s].inner, .dtype = floats[t],
                            .residual = form & 2 ? &x : NULL, .relu = true };
        const gb_dnn_wish wish = { .deterministic = true, .exact = b.dtype == GB_FLOAT32,
                                   .workspace = (size_t)256 << 20 };
        bool has = form & 1 ? gb_is_16bit(b.dtype) : b.c % (gb_is_16bit(b.dtype) ? 8 : 4) == 0;
        CHECK(has == plans(gb_batch_norm_graph, &b, &wish,
                           "a batch norm with ReLU, kind %d, dtype %d, [%d, %d, %d], residual %d", (int)b.kind,
                           (int)b.dtype, (int)b.n, (int)b.c, (int)b.inner, b.residual != NULL));
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

/* Gradients of a mean in float32 are left to plain kernels: the engines say that they may round. */
static void test_pools(void) {
  for (size_t s = 0; s < sizeof pools / sizeof *pools; s++)
    for (size_t t = 0; t < dtypes_of(s, 3); t++)
      for (int kind = GB_POOL_MAX; kind <= GB_POOL_MEAN_BACKWARD; kind++) {
        gb_pool p = pools[s];
        for (int d = 0; d < 2; d++) p.out[d] = (p.in[d] + 2 * p.padding[d] - p.kernel[d]) / p.stride[d] + 1;
        p.kind = (gb_pool_kind)kind;
        p.dtype = floats[t];
        const gb_dnn_wish wish = { .deterministic = true, .exact = p.dtype == GB_FLOAT32,
                                   .workspace = (size_t)256 << 20 };
        bool has = kind != GB_POOL_MEAN_BACKWARD || gb_is_16bit(p.dtype);
        CHECK(has == plans(gb_pool_graph, &p, &wish, "a pooling, kind %d, dtype %d, [%d, %d, %d, %d], kernel %d",
                           kind, (int)p.dtype, (int)p.n, (int)p.c, (int)p.in[0], (int)p.in[1], (int)p.kernel[0]));
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

/* Tensors of 2^32 elements, which the library is not asked about: that would open it, and fail without a device. */
static void test_large(void) {
  static gb_context context;
  gb_op_call op = { .context = &context };
  gb_cuda cuda = { .device = 0 };
  gb_cuda_call call = { .cuda = &cuda, .call = &op };
  char why[256] = "";
  bool served = true;
  const gb_pool pool = { .kind = GB_POOL_MEAN, .n = 64, .c = 64, .in = { 1024, 1024 }, .out = { 512, 512 },
                         .kernel = { 2, 2 }, .stride = { 2, 2 }, .dtype = GB_BFLOAT16 };
  CHECK(gb_pool_run(&call, &pool, &served) == GB_OK && !served);
  const gb_batch_norm norm = { .kind = GB_BATCH_NORM_TRAINING, .n = 64, .c = 64, .inner = 1 << 20,
                               .dtype = GB_BFLOAT16 };
  served = true;
  CHECK(gb_batch_norm_has(&call, &norm, &served) == GB_OK && !served);
  const gb_conv conv = { .kind = GB_CONV_FORWARD, .n = 64, .c = 64, .in = { 1024, 1024 }, .o = 64, .kernel = { 3, 3 },
                         .out = { 1024, 1024 }, .stride = { 1, 1 }, .padding = { 1, 1 }, .dilation = { 1, 1 },
                         .groups = 64, .dtype = GB_BFLOAT16, .result = GB_BFLOAT16 };
  served = true;
  CHECK(gb_conv_run(&call, &conv, &served, why, sizeof why) == GB_OK && !served && strstr(why, "32 bits"));
}

int main(void) {
  printf("cuDNN %zu\n", cudnnGetVersion());
  CHECK(describe_device());
  test_attentions();
  report("attention");
  test_batch_norms();
  test_through_relu();
  test_with_relu();
  test_wrong_batch_norm();
  report("batch norms");
  test_pools();
  report("pooling");
  test_convolutions();
  test_training();
  test_wrong_convolution();
  report("convolutions");
  test_wrong_pool();
  test_large();
  return check_report();
}
