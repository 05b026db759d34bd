/* plugin_two_ops.c - a backend of two ops, add and relu on contiguous float32, that the engine opens at run time.
 *
 * Its device memory holds every byte inverted: an engine that looked into it, instead of asking for reads and writes,
 * would find rubbish. It links to nothing of ours; what it needs of the engine it gets as a table. Compiled with
 * another PLUGIN_ABI it is a plugin of an engine that does not exist, and declines. */
#include <stdlib.h>

#include "graph/ops.h"

#ifndef PLUGIN_ABI
#define PLUGIN_ABI GB_BACKEND_ABI
#endif

/* What the plugin keeps: the engine's table, handed to kernels by way of backend->state. */
typedef struct two_ops { const gb_engine_table *engine; } two_ops;

gb_status gb_backend_open(const gb_engine_table *engine, uint32_t abi, gb_backend *out);

/* {==== memory ==== */

static void *take_memory(void *state, size_t bytes, size_t alignment) {
  void *block;
  (void)state;
  return posix_memalign(&block, alignment, bytes) ? NULL : block;
}

static void give_memory(void *state, void *block, size_t bytes) {
  (void)state, (void)bytes;
  free(block);
}

static gb_status copy_inverted(void *to, const void *from, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) ((unsigned char *)to)[i] = (unsigned char)~((const unsigned char *)from)[i];
  return GB_OK;
}

static gb_status write_bytes(void *state, void *device, const void *host, size_t bytes) {
  (void)state;
  return copy_inverted(device, host, bytes);
}

static gb_status read_bytes(void *state, void *host, const void *device, size_t bytes) {
  (void)state;
  return copy_inverted(host, device, bytes);
}

static gb_status synchronize(void *state) {
  (void)state;
  return GB_OK;
}

/* ====} */

/* {==== kernels ==== */

static const gb_engine_table *engine_of(const gb_op_call *call) {
  const two_ops *state = call->context->backend[call->device.type]->state;
  return state->engine;
}

/* Element i of an operand; a 0-d operand, which may lie on the CPU, counts for every i. */
static float load(const gb_tensor *t, int64_t i) {
  float value;
  const char *from = gb_data(t) + (t->ndim ? (size_t)i * sizeof value : 0);
  if (t->storage->device.type == GB_CPU)
    return t->dtype == GB_FLOAT64 ? (float)*(const double *)from : (float)*(const int64_t *)from;
  copy_inverted(&value, from, sizeof value);
  return value;
}

static void store(gb_tensor *t, int64_t i, float value) { copy_inverted(gb_data(t) + (size_t)i * sizeof value, &value,
                                                                        sizeof value); }

/* Only what this backend can: float32 in order, of one shape (or a number). */
static gb_status check(gb_op_call *call, const gb_tensor *y) {
  for (int i = 0; i < call->n_in; i++) {
    const gb_tensor *x = call->in[i];
    bool number = x->wrapped && x->ndim == 0;
    bool simple = x->dtype == GB_FLOAT32 && x->numel == y->numel && x->ndim == y->ndim;
    if (!number && !simple)
      return engine_of(call)->fail(call->context, GB_EUNSUPPORTED, "two_ops runs on contiguous float32 tensors of "
                                                                   "one shape only");
  }
  return GB_OK;
}

static gb_status add(gb_op_call *call) {
  const gb_in_add *in = GB_IN(call, add);
  gb_tensor *z = GB_OUT(call, add)->z;
  GB_TRY(check(call, z));
  for (int64_t i = 0; i < z->numel; i++) store(z, i, load(in->x, i) + load(in->y, i));
  return GB_OK;
}

static gb_status relu(gb_op_call *call) {
  gb_tensor *y = GB_OUT(call, relu)->y;
  GB_TRY(check(call, y));
  for (int64_t i = 0; i < y->numel; i++) {
    float x = load(GB_IN(call, relu)->x, i);
    store(y, i, x > 0 ? x : 0);
  }
  return GB_OK;
}

/* ====} */

/* The one symbol that the engine looks for. */
gb_status gb_backend_open(const gb_engine_table *engine, uint32_t abi, gb_backend *out) {
  if (abi != PLUGIN_ABI || engine->op_hash() != gb_op_table_hash()) return GB_EUNSUPPORTED;
  two_ops *state = malloc(sizeof *state);
  if (!state) return GB_EMEMORY;
  state->engine = engine;
  *out = (gb_backend){ .name = "two_ops", .state = state, .alloc = take_memory, .free = give_memory,
                       .write = write_bytes, .read = read_bytes,
                       .synchronize = synchronize, .close = free };
  out->run[GB_OP_add] = add;
  out->run[GB_OP_relu] = relu;
  return GB_OK;
}
