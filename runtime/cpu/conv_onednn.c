/* cpu/conv_onednn.c - the one file that knows oneDNN (C API of version 2 or 3); compiled once, not per level.
 *
 * Primitives are made and run with OpenMP told to use one thread, since oneDNN cuts its work, and so orders its sums,
 * by that number when a primitive is made. The number belongs to the calling thread; it is put back afterwards, because
 * the host may use OpenMP too. The OpenMP library is the one oneDNN brought along, so its functions are looked up, not
 * linked. oneDNN itself is opened when the first convolution wants it: its relocations and its constructors were 4 of
 * the 10 MiB of a program that starts. Builds with sanitizers link it (GB_ONEDNN_LINKED), whose leak checker dies in a
 * library that was opened so. Scratchpads are the caller's: nothing is shared by threads that run one primitive at
 * once. Implementations named "ref" are slower than the plain convolution and are refused. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "cpu/conv_onednn.h"
#include "cpu/cpu.h"

#if defined(GB_HAVE_ONEDNN)
#include <dnnl.h>
#if (DNNL_VERSION_MAJOR == 2 || DNNL_VERSION_MAJOR == 3) && (DNNL_CPU_RUNTIME == DNNL_RUNTIME_OMP || \
  DNNL_CPU_RUNTIME == DNNL_RUNTIME_SEQ)
#define USE_ONEDNN
#endif
#endif

#ifdef USE_ONEDNN

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* {==== The library ==== */

#define FUNCTIONS(X) X(version) X(engine_create) X(engine_destroy) X(memory_create) X(memory_destroy) \
  X(memory_desc_equal) X(memory_desc_get_size) X(primitive_attr_create) X(primitive_attr_destroy) \
  X(primitive_attr_set_scratchpad_mode) X(primitive_create) X(primitive_destroy) X(primitive_execute) \
  X(primitive_desc_destroy) X(primitive_desc_query) X(primitive_desc_query_md) X(reorder_primitive_desc_create) \
  X(stream_create) X(stream_destroy) X(stream_wait) FUNCTIONS_OF_VERSION(X)
#if DNNL_VERSION_MAJOR == 2
#define FUNCTIONS_OF_VERSION(X) X(memory_desc_init_by_tag) X(memory_desc_init_by_strides) X(primitive_desc_create) \
  X(dilated_convolution_forward_desc_init) X(dilated_convolution_backward_data_desc_init) \
  X(dilated_convolution_backward_weights_desc_init)
#else
#define FUNCTIONS_OF_VERSION(X) X(memory_desc_create_with_tag) X(memory_desc_create_with_strides) \
  X(memory_desc_clone) X(memory_desc_destroy) X(convolution_forward_primitive_desc_create) \
  X(convolution_backward_data_primitive_desc_create) X(convolution_backward_weights_primitive_desc_create)
#endif

/* Where its functions are, once open_library has found them. */
#define POINTER(name) __typeof__(dnnl_##name) *name;
static struct { FUNCTIONS(POINTER) } dnnl;
static int (*omp_get_threads)(void);             /* omp_get_max_threads; NULL in a sequential oneDNN */
static void (*omp_set_threads)(int);             /* omp_set_num_threads */
static char version_text[32], trouble[256];      /* trouble: why it does not serve; "": it does */
static _Atomic bool tried;

#define TEXT_OF(number) #number
#define FILE_OF(major) "libdnnl.so." TEXT_OF(major)

/* The handle of the library, or NULL and the trouble. It stays open: threads may be inside it when the process ends. */
static void *find_library(void) {
#ifdef GB_ONEDNN_LINKED
#define FOUND(name) dnnl.name = dnnl_##name;
  FUNCTIONS(FOUND)
  return RTLD_DEFAULT;
#else
  void *library = dlopen(FILE_OF(DNNL_VERSION_MAJOR), RTLD_NOW | RTLD_LOCAL), *found;
  if (!library) return snprintf(trouble, sizeof trouble, "%s", dlerror()), NULL;
#define FOUND(name) \
  if (!(found = dlsym(library, "dnnl_" #name))) \
    return snprintf(trouble, sizeof trouble, "%s has no dnnl_%s", FILE_OF(DNNL_VERSION_MAJOR), #name), NULL; \
  memcpy(&dnnl.name, &found, sizeof found);
  FUNCTIONS(FOUND)
  return library;
#endif
}

static void find_all(void) {
  void *library = find_library();
  if (*trouble) return;
  const dnnl_version_t *v = dnnl.version();
  snprintf(version_text, sizeof version_text, "%d.%d.%d", v->major, v->minor, v->patch);
  if (v->major != DNNL_VERSION_MAJOR) {
    snprintf(trouble, sizeof trouble, "version %s was found, and this build is for %d", version_text,
             DNNL_VERSION_MAJOR);
    return;
  }
  if (DNNL_CPU_RUNTIME == DNNL_RUNTIME_SEQ) return;
  *(void **)&omp_get_threads = dlsym(library, "omp_get_max_threads");
  *(void **)&omp_set_threads = dlsym(library, "omp_set_num_threads");
  if (!omp_get_threads || !omp_set_threads)
    snprintf(trouble, sizeof trouble, "its OpenMP has no omp_set_num_threads, so it cannot be held to one thread");
}

static void open_once(void) {
  find_all();
  atomic_store(&tried, true);
}

/* Open it, once; false: it does not serve. Any thread. */
static bool open_library(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_once);
  return !*trouble;
}

const char *gb_onednn_version(const char **why) {
  if (open_library()) return version_text;
  *why = trouble;
  return NULL;
}

const char *gb_onednn_trouble(void) { return atomic_load(&tried) && *trouble ? trouble : NULL; }

/* ====} */

/* {==== What the versions do differently ====
 * A layout (a memory descriptor) is a struct of the caller's in version 2 and a handle in version 3; here it is a
 * pointer that layout_free
 * frees. Version 2 makes a primitive's descriptor in two steps, version 3 in one. */

/* How a convolution goes over its input. */
typedef struct geometry { dnnl_dims_t stride, dilation, padding, after; } geometry;

#if DNNL_VERSION_MAJOR == 2

typedef dnnl_memory_desc_t *layout;
typedef const dnnl_memory_desc_t *const_layout;

static void layout_free(layout l) { free(l); }

/* A layout to be filled in. */
static layout layout_new(void) { return calloc(1, sizeof(dnnl_memory_desc_t)); }

static bool layout_by_tag(layout *out, int ndim, const dnnl_dims_t shape, dnnl_data_type_t type,
                          dnnl_format_tag_t tag) {
  return (*out = layout_new()) && dnnl.memory_desc_init_by_tag(*out, ndim, shape, type, tag) == dnnl_success;
}

static bool layout_by_strides(layout *out, int ndim, const dnnl_dims_t shape, dnnl_data_type_t type,
                              const dnnl_dims_t strides) {
  return (*out = layout_new()) && dnnl.memory_desc_init_by_strides(*out, ndim, shape, type, strides) == dnnl_success;
}

static bool layout_copy(layout *out, const_layout from) {
  if (!(*out = layout_new())) return false;
  **out = *from;
  return true;
}

/* The second step: a primitive descriptor of what the first one described. */
static dnnl_primitive_desc_t make(dnnl_status_t status, const dnnl_convolution_desc_t *desc, dnnl_engine_t engine,
                                  const_dnnl_primitive_attr_t attr,
                                  const_dnnl_primitive_desc_t hint) {
  dnnl_primitive_desc_t made = NULL;
  return status == dnnl_success && dnnl.primitive_desc_create(&made, desc, attr, engine, hint) == dnnl_success ? made
      : NULL;
}

static dnnl_primitive_desc_t describe_forward(dnnl_engine_t engine, const_layout x, const_layout weight,
                                              const_layout bias, const_layout y,
                                              const geometry *g, const_dnnl_primitive_attr_t attr) {
  dnnl_convolution_desc_t desc;
  return make(dnnl.dilated_convolution_forward_desc_init(&desc, dnnl_forward_training, dnnl_convolution_direct, x,
                                                         weight, bias, y, g->stride,
                                                         g->dilation, g->padding, g->after), &desc, engine, attr, NULL);
}

static dnnl_primitive_desc_t describe_backward_input(dnnl_engine_t engine, const_layout x, const_layout weight,
                                                     const_layout y, const geometry *g,
                                                     const_dnnl_primitive_attr_t attr,
                                                         const_dnnl_primitive_desc_t hint) {
  dnnl_convolution_desc_t desc;
  return make(dnnl.dilated_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, x, weight, y, g->stride,
                                                               g->dilation, g->padding,
                                                               g->after), &desc, engine, attr, hint);
}

static dnnl_primitive_desc_t describe_backward_weight(dnnl_engine_t engine, const_layout x, const_layout weight,
                                                      const_layout y, const geometry *g,
                                                      const_dnnl_primitive_attr_t attr,
                                                          const_dnnl_primitive_desc_t hint) {
  dnnl_convolution_desc_t desc;
  return make(dnnl.dilated_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct, x, weight, NULL, y,
                                                                  g->stride, g->dilation,
                                                                  g->padding, g->after), &desc, engine, attr, hint);
}

#else

typedef dnnl_memory_desc_t layout;
typedef const_dnnl_memory_desc_t const_layout;

static void layout_free(layout l) {
  if (l) dnnl.memory_desc_destroy(l);
}

static bool layout_by_tag(layout *out, int ndim, const dnnl_dims_t shape, dnnl_data_type_t type,
                          dnnl_format_tag_t tag) {
  return dnnl.memory_desc_create_with_tag(out, ndim, shape, type, tag) == dnnl_success;
}

static bool layout_by_strides(layout *out, int ndim, const dnnl_dims_t shape, dnnl_data_type_t type,
                              const dnnl_dims_t strides) {
  return dnnl.memory_desc_create_with_strides(out, ndim, shape, type, strides) == dnnl_success;
}

static bool layout_copy(layout *out, const_layout from) { return dnnl.memory_desc_clone(out, from) == dnnl_success; }

static dnnl_primitive_desc_t describe_forward(dnnl_engine_t engine, const_layout x, const_layout weight,
                                              const_layout bias, const_layout y,
                                              const geometry *g, const_dnnl_primitive_attr_t attr) {
  dnnl_primitive_desc_t made = NULL;
  return dnnl.convolution_forward_primitive_desc_create(&made, engine, dnnl_forward_training, dnnl_convolution_direct,
                                                        x, weight, bias, y,
                                                        g->stride, g->dilation, g->padding, g->after,
                                                            attr) == dnnl_success ? made : NULL;
}

static dnnl_primitive_desc_t describe_backward_input(dnnl_engine_t engine, const_layout x, const_layout weight,
                                                     const_layout y, const geometry *g,
                                                     const_dnnl_primitive_attr_t attr,
                                                         const_dnnl_primitive_desc_t hint) {
  dnnl_primitive_desc_t made = NULL;
  return dnnl.convolution_backward_data_primitive_desc_create(&made, engine, dnnl_convolution_direct, x, weight, y,
                                                              g->stride, g->dilation,
                                                              g->padding, g->after, hint,
                                                                  attr) == dnnl_success ? made : NULL;
}

static dnnl_primitive_desc_t describe_backward_weight(dnnl_engine_t engine, const_layout x, const_layout weight,
                                                      const_layout y, const geometry *g,
                                                      const_dnnl_primitive_attr_t attr,
                                                          const_dnnl_primitive_desc_t hint) {
  dnnl_primitive_desc_t made = NULL;
  return dnnl.convolution_backward_weights_primitive_desc_create(&made, engine, dnnl_convolution_direct, x, weight,
                                                                 NULL, y, g->stride,
                                                                 g->dilation, g->padding, g->after, hint,
                                                                     attr) == dnnl_success ? made : NULL;
}

#endif

/* ====} */

/* Shapes kept; a training step of a large network has fewer than this. */
#define MOST_CONVS 256

/* A primitive and the working memory it wants. */
typedef struct step { dnnl_primitive_t primitive; layout scratch; } step;

struct gb_onednn_conv {
  const struct gb_onednn *onednn;
  gb_onednn_kind kind;
  bool bias, half;
  step run, reorder;                             /* reorder has no primitive where oneDNN's layout is ours */
  layout x, weight, packed, any, y, bias_layout;  /* any: a weight whose layout is oneDNN's choice */
};

/* What a shape is found by; no padding, so that keys compare as bytes. */
typedef struct conv_key { gb_conv_sizes sizes; int64_t kind, bias, half; } conv_key;

/* A kept convolution; conv is NULL where oneDNN was asked and cannot. */
typedef struct kept_conv { conv_key key; gb_onednn_conv *conv; uint64_t used; } kept_conv;

struct gb_onednn {
  dnnl_engine_t engine;
  const char *unit;                              /* what names of implementations by the unit for bfloat16 contain */
  uint64_t clock;
  int count;
  kept_conv kept[MOST_CONVS];
};

/* {==== One thread ==== */

/* Tell OpenMP that this thread works alone; returns what to put back. */
static int begin_alone(void) {
  int before = omp_get_threads ? omp_get_threads() : 1;
  if (before != 1) omp_set_threads(1);
  return before;
}

static void end_alone(int before) {
  if (before != 1) omp_set_threads(before);
}

/* ====} */

/* {==== Running ==== */

/* One operand of a step: which it is to oneDNN, how it lies, where. */
typedef struct operand { int role; const_layout lies; void *data; } operand;

enum { MOST_OPERANDS = 5 };

/* Run a step on these operands and its scratch. */
static bool execute(const struct gb_onednn *o, const step *s, operand *operands, int count, void *scratch) {
  dnnl_exec_arg_t args[MOST_OPERANDS];
  dnnl_stream_t stream = NULL;
  int made = 0, before = begin_alone();
  operands[count++] = (operand){ DNNL_ARG_SCRATCHPAD, s->scratch, scratch };
  bool good = dnnl.stream_create(&stream, o->engine, dnnl_stream_default_flags) == dnnl_success;
  for (; good && made < count; made++) {
    args[made].arg = operands[made].role;
    good = dnnl.memory_create(&args[made].memory, operands[made].lies, o->engine, operands[made].data) == dnnl_success;
    if (!good) break;
  }
  good = good && dnnl.primitive_execute(s->primitive, stream, count, args) == dnnl_success &&
      dnnl.stream_wait(stream) == dnnl_success;
  while (made > 0) dnnl.memory_destroy(args[--made].memory);
  if (stream) dnnl.stream_destroy(stream);
  end_alone(before);
  return good;
}

/* From one weight layout to the other. */
static bool reorder(const gb_onednn_conv *conv, const_layout from_lies, const void *from, const_layout to_lies,
                    void *to, void *scratch) {
  if (!conv->reorder.primitive) {
    memcpy(to, from, dnnl.memory_desc_get_size(to_lies));
    return true;
  }
  operand operands[MOST_OPERANDS] = { { DNNL_ARG_FROM, from_lies, (void *)from }, { DNNL_ARG_TO, to_lies, to } };
  return execute(conv->onednn, &conv->reorder, operands, 2, scratch);
}

bool gb_onednn_pack(const gb_onednn_conv *conv, const void *weight, void *packed, void *scratch) {
  return reorder(conv, conv->weight, weight, conv->packed, packed, scratch);
}

bool gb_onednn_unpack(const gb_onednn_conv *conv, const void *packed, void *weight, void *scratch) {
  return reorder(conv, conv->packed, packed, conv->weight, weight, scratch);
}

bool gb_onednn_run(const gb_onednn_conv *conv, void *x, void *packed, const float *bias, void *y, void *scratch) {
  static const struct { int x, weight, y; } roles[] = {
    [GB_ONEDNN_FORWARD] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST },
    [GB_ONEDNN_BACKWARD_INPUT] = { DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST },
    [GB_ONEDNN_BACKWARD_WEIGHT] = { DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST },
  };
  operand operands[MOST_OPERANDS] = { { roles[conv->kind].x, conv->x, x },
                                      { roles[conv->kind].weight, conv->packed, packed },
                                      { roles[conv->kind].y, conv->y, y },
                                      { DNNL_ARG_BIAS, conv->bias_layout, (void *)bias } };
  return execute(conv->onednn, &conv->run, operands, conv->bias ? 4 : 3, scratch);
}

size_t gb_onednn_weight_bytes(const gb_onednn_conv *conv) { return dnnl.memory_desc_get_size(conv->packed); }

size_t gb_onednn_scratch_bytes(const gb_onednn_conv *conv) {
  size_t run = dnnl.memory_desc_get_size(conv->run.scratch), order = conv->reorder.primitive
      ? dnnl.memory_desc_get_size(conv->reorder.scratch) : 0;
  return ((run > order ? run : order) + 63) & ~(size_t)63;
}

/* ====} */

/* {==== Making ==== */

static void free_layouts(gb_onednn_conv *conv) {
  layout all[] = { conv->run.scratch, conv->reorder.scratch, conv->x, conv->weight, conv->packed, conv->any, conv->y,
                   conv->bias_layout };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) layout_free(all[i]);
}

static void conv_free(gb_onednn_conv *conv) {
  if (!conv) return;
  if (conv->run.primitive) dnnl.primitive_destroy(conv->run.primitive);
  if (conv->reorder.primitive) dnnl.primitive_destroy(conv->reorder.primitive);
  free_layouts(conv);
  free(conv);
}

/* The layouts of the operands as they lie outside, and of a weight whose layout is oneDNN's choice. */
static bool lay_out(gb_onednn_conv *conv, const gb_conv_sizes *s) {
  int64_t g = s->groups, cg = s->c / g, taps = s->kernel[0] * s->kernel[1];
  const dnnl_dims_t x = { s->n, s->c, s->in[0], s->in[1] }, y = { s->n, s->o, s->out[0], s->out[1] }, bias = { s->o };
  const dnnl_dims_t shape = { g, s->o / g, cg, s->kernel[0], s->kernel[1] };
  const dnnl_dims_t strides = { s->o / g * taps * cg, taps * cg, 1, s->kernel[1] * cg, cg };
  int skip = g == 1; /* a weight without groups has no dimension for them */
  const dnnl_data_type_t given = conv->half ? dnnl_bf16 : dnnl_f32; /* the result is float32 */
  const dnnl_data_type_t x_type = conv->kind == GB_ONEDNN_BACKWARD_INPUT ? dnnl_f32 : given;
  const dnnl_data_type_t weight_type = conv->kind == GB_ONEDNN_BACKWARD_WEIGHT ? dnnl_f32 : given;
  const dnnl_data_type_t y_type = conv->kind == GB_ONEDNN_FORWARD ? dnnl_f32 : given;
  return layout_by_tag(&conv->x, 4, x, x_type, dnnl_nhwc) && layout_by_tag(&conv->y, 4, y, y_type, dnnl_nhwc) &&
         layout_by_tag(&conv->bias_layout, 1, bias, dnnl_f32, dnnl_x) &&
         layout_by_strides(&conv->weight, 5 - skip, shape + skip, weight_type, strides + skip) &&
         layout_by_tag(&conv->any, 5 - skip, shape + skip, weight_type, dnnl_format_tag_any);
}

/* The padding behind the input. */
static int64_t after_of(const gb_conv_sizes *s, int i) {
  return gb_padding_after(s->in[i], s->out[i], s->kernel[i], s->stride[i], s->padding[i], s->dilation[i]);
}

/* The primitive descriptor; backward ones want the forward one as a hint. */
static dnnl_primitive_desc_t describe(const gb_onednn_conv *conv, const gb_conv_sizes *s,
                                      const_dnnl_primitive_attr_t attr, const_dnnl_primitive_desc_t hint) {
  dnnl_engine_t engine = conv->onednn->engine;
  const geometry g = { .stride = { s->stride[0], s->stride[1] }, .padding = { s->padding[0], s->padding[1] },
                       .dilation = { s->dilation[0] - 1, s->dilation[1] - 1 }, /* oneDNN counts the gaps */
                       .after = { after_of(s, 0), after_of(s, 1) } };
  if (conv->kind == GB_ONEDNN_FORWARD)
    return describe_forward(engine, conv->x, conv->any, conv->bias ? conv->bias_layout : NULL, conv->y, &g, attr);
  if (conv->kind == GB_ONEDNN_BACKWARD_INPUT)
    return describe_backward_input(engine, conv->x, conv->any, conv->y, &g, attr, hint);
  return describe_backward_weight(engine, conv->x, conv->any, conv->y, &g, attr, hint);
}

/* Compile a step; takes over its descriptor, which may be NULL. */
static bool compile(step *s, dnnl_primitive_desc_t desc) {
  if (!desc) return false;
  bool good = layout_copy(&s->scratch, dnnl.primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0)) &&
              dnnl.primitive_create(&s->primitive, desc) == dnnl_success;
  if (!good) s->primitive = NULL;
  dnnl.primitive_desc_destroy(desc);
  return good;
}

/* Is this implementation slower than another that the caller has: one of oneDNN's references, or, of bfloat16, one
 * without the unit that the backend uses? */
static bool is_slow(const gb_onednn_conv *conv, const_dnnl_primitive_desc_t desc) {
  const char *name = NULL;
  if (dnnl.primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name) != dnnl_success || !name) return true;
  return conv->half ? !strstr(name, conv->onednn->unit) : strstr(name, "ref") != NULL;
}

/* Compile what carries the weight into oneDNN's layout, or its gradient out of it; nothing where both are the same. */
static bool compile_reorder(gb_onednn_conv *conv, const_dnnl_primitive_attr_t attr) {
  bool out = conv->kind == GB_ONEDNN_BACKWARD_WEIGHT;
  const_layout from = out ? conv->packed : conv->weight, to = out ? conv->weight : conv->packed;
  dnnl_primitive_desc_t desc = NULL;
  if (dnnl.memory_desc_equal(from, to)) return true;
  if (dnnl.reorder_primitive_desc_create(&desc, from, conv->onednn->engine, to, conv->onednn->engine,
                                         attr) != dnnl_success) return false;
  return compile(&conv->reorder, desc);
}

/* The forward convolution that backward ones want as a hint. */
static dnnl_primitive_desc_t hint_for(const gb_onednn_conv *conv, const gb_conv_sizes *s,
                                      const_dnnl_primitive_attr_t attr) {
  gb_onednn_conv forward = { .onednn = conv->onednn, .kind = GB_ONEDNN_FORWARD, .half = conv->half };
  dnnl_primitive_desc_t hint = lay_out(&forward, s) ? describe(&forward, s, attr, NULL) : NULL;
  free_layouts(&forward);
  return hint;
}

/* Compile conv's primitives for these sizes. false: oneDNN cannot, or not fast. */
static bool compile_all(gb_onednn_conv *conv, const gb_conv_sizes *s, const_dnnl_primitive_attr_t attr) {
  dnnl_primitive_desc_t hint = NULL, run;
  if (!lay_out(conv, s)) return false;
  if (conv->kind != GB_ONEDNN_FORWARD && !(hint = hint_for(conv, s, attr))) return false;
  run = describe(conv, s, attr, hint);
  if (hint) dnnl.primitive_desc_destroy(hint);
  if (!run) return false;
  if (is_slow(conv, run)) {
    dnnl.primitive_desc_destroy(run);
    return false;
  }
  bool out = conv->kind == GB_ONEDNN_BACKWARD_WEIGHT;
  bool known = layout_copy(&conv->packed, dnnl.primitive_desc_query_md(run,
                                                                       out ? dnnl_query_diff_weights_md
      : dnnl_query_weights_md, 0));
  return compile(&conv->run, run) && known && compile_reorder(conv, attr);
}

/* A new convolution, or NULL where oneDNN cannot. */
static gb_onednn_conv *conv_new(const struct gb_onednn *o, gb_onednn_kind kind, const gb_conv_sizes *s, bool bias,
                                bool half) {
  gb_onednn_conv *conv = calloc(1, sizeof *conv);
  if (!conv) return NULL;
  conv->onednn = o;
  conv->kind = kind;
  conv->bias = bias;
  conv->half = half;
  dnnl_primitive_attr_t attr = NULL;
  int before = begin_alone();
  bool good = dnnl.primitive_attr_create(&attr) == dnnl_success &&
              dnnl.primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success &&
                  compile_all(conv, s, attr);
  if (attr) dnnl.primitive_attr_destroy(attr);
  end_alone(before);
  if (good) return conv;
  conv_free(conv);
  return NULL;
}

/* ====} */

/* {==== Keeping ==== */

/* oneDNN's engine for this context; NULL where there is no memory or no library. */
static struct gb_onednn *onednn_open(gb_unit unit) {
  struct gb_onednn *o = open_library() ? calloc(1, sizeof *o) : NULL;
  if (!o) return NULL;
  o->unit = unit == GB_UNIT_TILES ? "amx" : "avx512_core_bf16";
  if (dnnl.engine_create(&o->engine, dnnl_cpu, 0) == dnnl_success) return o;
  free(o);
  return NULL;
}

void gb_onednn_close(struct gb_onednn *o) {
  if (!o) return;
  for (int i = 0; i < o->count; i++) conv_free(o->kept[i].conv);
  dnnl.engine_destroy(o->engine);
  free(o);
}

/* Where a new convolution is kept: the next free place, or that of the one unused for longest. */
static kept_conv *place(struct gb_onednn *o) {
  if (o->count < MOST_CONVS) return &o->kept[o->count++];
  kept_conv *oldest = &o->kept[0];
  for (int i = 1; i < o->count; i++)
    if (o->kept[i].used < oldest->used) oldest = &o->kept[i];
  conv_free(oldest->conv);
  return oldest;
}

const gb_onednn_conv *gb_onednn_find(gb_context *context, gb_onednn_kind kind, const gb_conv_sizes *s, bool bias,
                                     bool half) {
  gb_cpu_room *room = gb_cpu(context);
  if (room->plain_convolution) return NULL;
  struct gb_onednn *o = room->onednn;
  if (!o && !(o = room->onednn = onednn_open(room->unit))) return NULL;
  conv_key key = { .sizes = *s, .kind = kind, .bias = bias, .half = half };
  kept_conv *found = NULL;
  for (int i = 0; i < o->count && !found; i++)
    if (!memcmp(&o->kept[i].key, &key, sizeof key)) found = &o->kept[i];
  if (!found) {
    found = place(o);
    *found = (kept_conv){ .key = key, .conv = conv_new(o, kind, s, bias, half) };
  }
  found->used = ++o->clock;
  return found->conv;
}

/* ====} */

#else

const gb_onednn_conv *gb_onednn_find(gb_context *context, gb_onednn_kind kind, const gb_conv_sizes *s, bool bias,
                                     bool half) {
  (void)context, (void)kind, (void)s, (void)bias, (void)half;
  return NULL;
}

size_t gb_onednn_weight_bytes(const gb_onednn_conv *conv) { (void)conv; return 0; }
size_t gb_onednn_scratch_bytes(const gb_onednn_conv *conv) { (void)conv; return 0; }

bool gb_onednn_pack(const gb_onednn_conv *conv, const void *weight, void *packed, void *scratch) {
  (void)conv, (void)weight, (void)packed, (void)scratch;
  return false;
}

bool gb_onednn_unpack(const gb_onednn_conv *conv, const void *packed, void *weight, void *scratch) {
  (void)conv, (void)packed, (void)weight, (void)scratch;
  return false;
}

bool gb_onednn_run(const gb_onednn_conv *conv, void *x, void *packed, const float *bias, void *y, void *scratch) {
  (void)conv, (void)x, (void)packed, (void)bias, (void)y, (void)scratch;
  return false;
}

void gb_onednn_close(struct gb_onednn *onednn) { (void)onednn; }

const char *gb_onednn_version(const char **why) { return *why = NULL, NULL; }
const char *gb_onednn_trouble(void) { return NULL; }

#endif
