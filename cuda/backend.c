/* cuda/backend.c - the entrance of the plugin: opens a device, puts the tables of kernels together, and brings the
 * engine's calls to them.
 *
 * Everything is computed on one stream per device, and nothing waits, except reads, synchronisation, a host that is
 * more than a step ahead, and what frees memory of the device. What the host writes crosses the bus beside the kernels
 * (upload.h). What kernels found wrong in data, and what else failed after its op had returned, is told by the next
 * wait; under gb.anomaly every op waits. Each function first selects its device. */
#include "cuda/cuda.h"
#include "cuda/cache.h"
#include "cuda/conv.h"
#include "cuda/gemm.h"
#include "cuda/rnn.h"
#include "cuda/solver.h"
#include "cuda/upload.h"
#include "graph/room.h"
#include "tensor/slab.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(GB_CUDA_MOST_OUT >= GB_MAX_OUT, "a call has room for every output");

GB_API gb_status gb_backend_open(const gb_engine_table *engine, uint32_t abi, gb_backend *out);

#define ADVANCE_BYTES (2 * sizeof(uint64_t))

/* A result that could be computed again is kept if it takes at most this part of the memory: on 141 GB 550 MB, on 24 GB
 * 94 MB. The hidden layer of a block of GPT-2 124M takes 100 MB for 16,384 tokens. */
#define KEPT_SHARE 256

/* {==== What kernels may ask ==== */

gb_status gb_cuda_fail(gb_cuda_call *call, gb_status status, const char *format, ...) {
  char text[sizeof call->cuda->context->error];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return call->cuda->engine->fail(call->cuda->context, status, "%s", text);
}

void gb_cuda_slower(const gb_cuda_call *call, gb_slower kind, const char *format, ...) {
  gb_cuda *cuda = call->cuda;
  bool first = kind < GB_SLOWER_UNASKED && !cuda->said[kind];
  if (cuda->silent || !(cuda->verbose || first)) return;
  va_list arguments;
  va_start(arguments, format);
  fputs("gibbous: ", stderr);
  vfprintf(stderr, format, arguments);
  fputs(cuda->verbose ? "\n" : " (told once; GIBBOUS_CUDA_VERBOSE=1 tells all, 0 none)\n", stderr);
  va_end(arguments);
  cuda->said[kind] = true;
}

void gb_cuda_no_solvers(gb_cuda *cuda, const char *why) {
  const gb_cuda_call call = { .cuda = cuda };
  gb_cuda_slower(&call, GB_SLOWER_LINALG, "gb.linalg computes on the CPU, and matrices travel there and back: %s", why);
}

static gb_device device_of(const gb_cuda *cuda) { return (gb_device){ GB_CUDA, (int16_t)cuda->device }; }

void *gb_cuda_scratch(gb_cuda_call *call, size_t bytes) {
  const gb_engine_table *engine = call->cuda->engine;
  if (call->scratches == GB_CUDA_SCRATCH) {
    gb_cuda_fail(call, GB_EMEMORY, "needs more than %d pieces of scratch memory", GB_CUDA_SCRATCH);
    return NULL;
  }
  gb_block *block = engine->alloc(call->cuda->context, device_of(call->cuda), bytes, GB_MEM_SCRATCH);
  if (!block) return NULL;
  call->scratch[call->scratches++] = block;
  return engine->block_data(block);
}

void gb_cuda_scratch_back(gb_cuda_call *call, int mark) {
  while (call->scratches > mark)
    call->cuda->engine->free(call->cuda->context, device_of(call->cuda), call->scratch[--call->scratches]);
}

gb_status gb_cuda_clear(gb_cuda_call *call, void *data, size_t bytes) {
  int code = bytes ? gb_rt_set(call->stream, data, 0, bytes) : 0;
  return code ? gb_cuda_fail(call, GB_EDEVICE, "memory could not be cleared: %s", gb_rt_text(code)) : GB_OK;
}

gb_dtype gb_cuda_common(const gb_cuda_call *call, int without) {
  gb_tensor *in[GB_MAX_IN];
  int count = call->n_in < GB_MAX_IN ? call->n_in : GB_MAX_IN;
  for (int i = 0; i < count; i++) in[i] = i == without ? NULL : call->call->in[i];
  return call->cuda->engine->result_type(in, count);
}

void gb_cuda_changed(gb_cuda_call *call, const gb_cuda_tensor *input) {
  for (int i = 0; input && i < call->n_in; i++)
    if (call->in[i] == input) gb_tensor_bump(call->call->in[i]);
}

gb_status gb_cuda_run_op(gb_cuda_call *call, gb_op op, const gb_cuda_tensor **in, int n_in, const gb_cuda_tensor *out,
                         const void *attrs) {
  gb_tensor operands[GB_MAX_IN], *own[GB_MAX_IN]; /* as gb_cuda_common reads them */
  for (int i = 0; i < n_in; i++) {
    own[i] = in[i] ? &operands[i] : NULL;
    if (in[i]) operands[i] = (gb_tensor){ .dtype = (int8_t)in[i]->dtype, .ndim = (int8_t)in[i]->ndim,
                                          .wrapped = in[i]->wrapped };
  }
  gb_op_call engine = { .context = call->call->context, .op = op, .n_in = n_in, .in = own };
  gb_cuda_call inner = *call;
  inner.op = op;
  inner.call = &engine;
  inner.n_in = n_in, inner.n_out = 1;
  inner.in = in, inner.attrs = attrs;
  memset(inner.out, 0, sizeof inner.out);
  inner.out[0] = out;
  gb_status status = call->cuda->row[op]->kernel(&inner);
  gb_cuda_scratch_back(&inner, call->scratches);
  return status;
}

bool gb_cuda_recomputing(const gb_cuda_call *call) { return call->cuda->context->modes->recompute; }

/* ====} */

/* {==== Waiting, and what was found by then ==== */

/* What an index is called in the text. */
static const char *index_name(int op) {
  static const int of_targets[] = { GB_OP_cross_entropy, GB_OP_nll_loss, GB_OP_linear_cross_entropy, GB_OP_ctc_loss };
  for (size_t i = 0; i < sizeof of_targets / sizeof *of_targets; i++)
    if (of_targets[i] == op) return "target";
  return "index";
}

/* Turn a fault record into a failure of its op. */
static gb_status fault_failure(gb_cuda *cuda, const gb_cuda_fault *fault) {
  gb_status (*fail)(gb_context *, gb_status, const char *, ...) = cuda->engine->fail;
  const char *outer = cuda->context->op;
  gb_status status = GB_EINVAL;
  cuda->context->op = cuda->engine->op_name(fault->op);
  switch ((gb_cuda_fault_kind)fault->kind) {
    case GB_FAULT_INDEX:
      status = fail(cuda->context, GB_EINDEX, "%s %lld is out of range 0 .. %lld", index_name(fault->op),
                    (long long)fault->value,
                    (long long)fault->limit - 1);
      break;
    case GB_FAULT_DIVISION: fail(cuda->context, status, "integer division by zero (256 is 0 in uint8); use floating "
                                                        "tensors to get inf or nan"); break;
    case GB_FAULT_PROBABILITY: fail(cuda->context, status, "probabilities must be 0 to 1"); break;
    case GB_FAULT_WEIGHTS: fail(cuda->context, status, "weights must be finite and not negative"); break;
    case GB_FAULT_ZERO_WEIGHTS: fail(cuda->context, status, "a row of weights has nothing but zeros"); break;
    case GB_FAULT_FEW_WEIGHTS:
      fail(cuda->context, status, "%lld samples without replacement, but a row has only %lld weights that are not 0",
           (long long)fault->value,
           (long long)fault->limit);
      break;
    case GB_FAULT_LENGTH:
      status = fail(cuda->context, GB_EINDEX, "a length of %lld is out of range 0 .. %lld", (long long)fault->value,
                    (long long)fault->limit);
      break;
    case GB_FAULT_NONE: case GB_FAULT_KINDS: break;
  }
  cuda->context->op = outer;
  return status;
}

/* A call of the runtime that failed. */
static gb_status runtime_failure(gb_cuda *cuda, int code, const char *what) {
  return cuda->engine->fail(cuda->context, GB_EDEVICE, "%s failed: %s", what, gb_rt_text(code));
}

static bool waits_for_each(const gb_cuda *cuda) { return cuda->blocking || cuda->context->modes->anomaly; }

/* How to learn which op it was, where that is not known. */
static const char *cure_of(const gb_cuda *cuda) {
  return waits_for_each(cuda) ? "" : "; it was some op since the last wait: run under gb.anomaly to learn which";
}

/* Fail for the first failed launch that was not reported yet. */
static gb_status launch_failure(gb_cuda *cuda) {
  const char *kernel = NULL;
  int code = gb_rt_launch_error(&kernel);
  if (code && !kernel)
    return cuda->engine->fail(cuda->context, GB_EDEVICE, "an earlier kernel failed: %s%s", gb_rt_text(code),
                              cure_of(cuda));
  return code ? cuda->engine->fail(cuda->context, GB_EDEVICE, "kernel %s: %s", kernel, gb_rt_text(code)) : GB_OK;
}

/* Refuse what the host cannot do during a capture, when nothing runs. */
static gb_status refuse_in_capture(gb_cuda *cuda, const char *what) {
  if (!cuda->capturing) return GB_OK;
  return cuda->engine->fail(cuda->context, GB_ESTATE, "cannot %s while a graph is captured, since nothing runs "
                                                      "then; do it outside of the step", what);
}

/* Called before any work is given to the device. */
static gb_status enter(gb_cuda *cuda) {
  if (cuda->context->capturing && !cuda->capturing)
    return cuda->engine->fail(cuda->context, GB_ESTATE, "cuda:%d is asked to work while a graph of another device "
                                                        "is captured; a graph is of one device",
                              cuda->device);
  int code = gb_rt_select(cuda->device);
  return code ? runtime_failure(cuda, code, "choosing the device") : GB_OK;
}

/* The device failed at earlier work; which work is not known here. */
static gb_status late_failure(gb_cuda *cuda, int code) {
  return cuda->engine->fail(cuda->context, GB_EDEVICE, "the device failed: %s%s", gb_rt_text(code),
                            cure_of(cuda));
}

/* Wait for the stream; then report, once, what a kernel found. */
static gb_status wait_for(gb_cuda *cuda) {
  GB_TRY(refuse_in_capture(cuda, "wait for the device"));
  int code = gb_rt_copy(cuda->stream, cuda->fault_seen, cuda->fault, sizeof *cuda->fault, GB_COPY_TO_HOST);
  if (!code) code = gb_rt_synchronize(cuda->stream);
  GB_TRY(launch_failure(cuda));
  if (code) return late_failure(cuda, code);
  if (cuda->fault_seen->kind == GB_FAULT_NONE) return GB_OK;
  gb_cuda_fault fault = *cuda->fault_seen;
  code = gb_rt_set(cuda->stream, cuda->fault, 0, sizeof *cuda->fault);
  return code ? runtime_failure(cuda, code, "waiting for the device") : fault_failure(cuda, &fault);
}

/* ====} */

/* {==== Calls ==== */

static void describe(gb_cuda_tensor *to, const gb_tensor *t) {
  to->data = gb_data(t);
  to->dtype = (gb_dtype)t->dtype;
  to->ndim = t->ndim;
  memcpy(to->shape, t->shape, sizeof to->shape);
  memcpy(to->stride, t->stride, sizeof to->stride);
  to->numel = t->numel;
  to->host = t->storage->device.type == GB_CPU;
  to->wrapped = t->wrapped;
}

/* Bring a number of the host to the device. */
static gb_status upload(gb_cuda_call *call, gb_cuda_tensor *number) {
  uint64_t bits = 0;
  memcpy(&bits, number->data, call->cuda->engine->dtype_bytes(number->dtype));
  number->data = gb_cuda_scratch(call, sizeof bits);
  if (!number->data) return GB_EMEMORY;
  gb_cuda_put(call->stream, number->data, bits);
  number->host = false;
  return GB_OK;
}

/* Describe the operands and run the kernel. `in` and `tensors` have room for n_in; the outputs follow in `tensors`. */
static gb_status run_in_room(gb_cuda *cuda, gb_op_call *call, const gb_cuda_tensor **in, gb_cuda_tensor *tensors) {
  const gb_cuda_row *row = cuda->row[call->op];
  const gb_op_call *outer = call->context->graph->composite;
  gb_cuda_call c = {
    .op = outer ? outer->op : call->op,
    .n_in = call->n_in,
    .n_out = call->n_out,
    .in = in,
    .attrs = call->attrs,
    .stream = cuda->stream,
    .place = { call->rng_seed, call->rng_offset, cuda->capturing ? cuda->advance : NULL },
    .fault = cuda->fault,
    .in_place = call->in_place,
    .tf32 = call->context->tf32,
    .cuda = cuda,
    .call = call,
  };
  gb_status status = GB_OK;
  for (int i = 0; i < call->n_in; i++) {
    in[i] = call->in[i] ? &tensors[i] : NULL;
    if (!call->in[i]) continue;
    describe(&tensors[i], call->in[i]);
    if (status == GB_OK && tensors[i].host && !row->takes_numbers) status = upload(&c, &tensors[i]);
  }
  for (int i = 0; i < call->n_out; i++) {
    if (!call->out[i]) continue;
    describe(&tensors[call->n_in + i], call->out[i]);
    c.out[i] = &tensors[call->n_in + i];
  }
  if (status == GB_OK) status = row->kernel(&c);
  gb_cuda_scratch_back(&c, 0);
  return status;
}

/* What was launched may have failed to, and may have to be waited for. */
static gb_status launched(gb_cuda *cuda) {
  GB_TRY(launch_failure(cuda));
  return !cuda->capturing && waits_for_each(cuda) ? wait_for(cuda) : GB_OK;
}

/* Every step of the engine's. */
static gb_status run_step(gb_step_call *step) {
  gb_cuda *cuda = gb_context_backend(step->context, step->device)->state;
  GB_TRY(enter(cuda));
  gb_cuda_call call = { .op = GB_OP_COUNT, .stream = cuda->stream, .fault = cuda->fault, .cuda = cuda };
  gb_status status = gb_cuda_steps[step->step](&call, step);
  gb_cuda_scratch_back(&call, 0);
  return status == GB_OK ? launched(cuda) : status;
}

/* The kernel of every op. */
static gb_status run(gb_op_call *call) {
  gb_cuda *cuda = gb_context_backend(call->context, call->device)->state;
  const gb_cuda_tensor *in[GB_MAX_IN];
  gb_cuda_tensor tensors[GB_MAX_IN + GB_CUDA_MOST_OUT];
  gb_status status = enter(cuda);
  if (status != GB_OK) return status;
  if (call->n_in <= GB_MAX_IN) status = run_in_room(cuda, call, in, tensors);
  else { /* a long list of tensors */
    size_t count = (size_t)call->n_in;
    gb_cuda_tensor *more = malloc((count + GB_CUDA_MOST_OUT) * sizeof *more + count * sizeof *in);
    if (!more)
      return cuda->engine->fail(call->context, GB_EMEMORY, "out of memory for a list of %d tensors", call->n_in);
    status = run_in_room(cuda, call, (const gb_cuda_tensor **)(void *)(more + count + GB_CUDA_MOST_OUT), more);
    free(more);
  }
  return status == GB_OK ? launched(cuda) : status;
}

/* ====} */

/* {==== Memory ==== */

static void *device_alloc(void *state, size_t bytes, size_t alignment) {
  (void)alignment; /* 256 bytes, as the pool asks */
  gb_cuda *cuda = state;
  if (enter(cuda) != GB_OK) return NULL;
  void *block = gb_rt_alloc(bytes);
  int code = block ? 0 : gb_rt_alloc_error();
  if (code)
    cuda->engine->fail(cuda->context, GB_EDEVICE, "the device failed before %zu bytes were asked for: %s%s", bytes,
                       gb_rt_text(code), cure_of(cuda));
  return block;
}

static void device_free(void *state, void *block, size_t bytes) {
  (void)state;
  gb_rt_free(block, bytes);
}

static gb_status device_write(void *state, void *device, const void *host, size_t bytes) {
  gb_cuda *cuda = state;
  GB_TRY(refuse_in_capture(cuda, "bring values of the host to the device"));
  GB_TRY(enter(cuda));
  int code = gb_uploads_write(cuda->uploads, device, host, bytes);
  return code ? runtime_failure(cuda, code, "a copy to the device") : GB_OK;
}

static gb_status device_read(void *state, void *host, const void *device, size_t bytes) {
  gb_cuda *cuda = state;
  GB_TRY(refuse_in_capture(cuda, "read values of the device"));
  GB_TRY(enter(cuda));
  int code = bytes ? gb_rt_copy(cuda->stream, host, device, bytes, GB_COPY_TO_HOST) : 0;
  return code ? late_failure(cuda, code) : wait_for(cuda);
}

gb_status gb_cuda_may_open(gb_cuda_call *call, const char *library) {
  if (!call->cuda->capturing) return GB_OK;
  return gb_cuda_fail(call, GB_ESTATE, "%s is first used while a graph is captured, when it cannot be opened; run this "
                                       "op once before the step is captured", library);
}

void gb_cuda_settle(void *stream) { (void)gb_rt_synchronize(stream); }

gb_status gb_cuda_read(gb_cuda_call *call, void *host, const void *device, size_t bytes) {
  return device_read(call->cuda, host, device, bytes);
}

gb_status gb_cuda_write(gb_cuda_call *call, void *device, const void *host, size_t bytes) {
  return device_write(call->cuda, device, host, bytes);
}

/* Each device's stream waits for the other's where memory changes hands: the source's for what writes it, and what
 * comes after in the source's stream, which may use that memory again, for the copy. */
static gb_status device_fetch(void *state, void *to, void *source, const void *from, size_t bytes) {
  gb_cuda *cuda = state, *other = source;
  GB_TRY(refuse_in_capture(cuda, "copy from another device"));
  GB_TRY(refuse_in_capture(other, "copy to another device"));
  GB_TRY(enter(other));
  int code = gb_rt_event_record(other->crossed, other->stream);
  GB_TRY(enter(cuda));
  if (!code) code = gb_rt_event_wait(cuda->stream, other->crossed);
  if (!code) code = gb_rt_copy_peer(cuda->stream, to, cuda->device, from, other->device, bytes);
  if (!code) code = gb_rt_event_record(cuda->crossed, cuda->stream);
  if (!code) code = gb_rt_event_wait(other->stream, cuda->crossed);
  return code ? runtime_failure(cuda, code, "a copy between devices") : GB_OK;
}

static gb_status device_copy(void *state, void *to, const void *from, size_t bytes) {
  gb_cuda *cuda = state;
  GB_TRY(enter(cuda));
  int code = bytes ? gb_rt_copy(cuda->stream, to, from, bytes, GB_COPY_ON_DEVICE) : 0;
  return code ? runtime_failure(cuda, code, "a copy on the device") : GB_OK;
}

static gb_status device_clear(void *state, void *device, size_t bytes) {
  gb_cuda *cuda = state;
  GB_TRY(enter(cuda));
  int code = bytes ? gb_rt_set(cuda->stream, device, 0, bytes) : 0;
  return code ? runtime_failure(cuda, code, "clearing memory") : GB_OK;
}

static void *device_pin(void *state, size_t bytes) { return enter(state) == GB_OK ? gb_rt_host_alloc(bytes) : NULL; }

/* Copies that were posted may be on their way there: no document says that freeing such memory waits for them. */
static void device_unpin(void *state, void *host) {
  gb_cuda *cuda = state;
  if (!cuda->capturing && enter(cuda) == GB_OK) (void)gb_rt_event_synchronize(cuda->posted);
  gb_rt_host_free(host);
}

static gb_status device_post(void *state, void *pinned, const void *device, size_t bytes) {
  gb_cuda *cuda = state;
  GB_TRY(enter(cuda));
  int code = gb_rt_copy(cuda->stream, pinned, device, bytes, GB_COPY_TO_HOST);
  if (!code && !cuda->capturing) code = gb_rt_event_record(cuda->posted, cuda->stream);
  if (!code && !cuda->capturing && waits_for_each(cuda)) code = gb_rt_event_synchronize(cuda->posted);
  return code ? runtime_failure(cuda, code, "a copy from the device") : GB_OK;
}

static gb_status device_arrive(void *state, bool wait, bool *there) {
  gb_cuda *cuda = state;
  *there = !cuda->capturing; /* nobody may ask then */
  if (cuda->capturing) return wait ? refuse_in_capture(cuda, "wait for the device") : GB_OK;
  GB_TRY(enter(cuda));
  int code = wait ? gb_rt_event_synchronize(cuda->posted) : gb_rt_event_done(cuda->posted, there);
  return code ? late_failure(cuda, code) : GB_OK;
}

static gb_status device_synchronize(void *state) {
  GB_TRY(enter(state));
  return wait_for(state);
}

static gb_status device_pace(void *state) {
  gb_cuda *cuda = state;
  if (cuda->capturing) return GB_OK;
  GB_TRY(enter(cuda));
  int code = gb_rt_event_record(cuda->step[cuda->steps % 2], cuda->stream);
  cuda->steps++;
  if (!code && cuda->steps > 1) code = gb_rt_event_synchronize(cuda->step[cuda->steps % 2]);
  return code ? late_failure(cuda, code) : GB_OK;
}

/* ====} */

/* {==== Graphs ==== */

/* A graph, and the plans whose kernels are in it. */
typedef struct captured { gb_graph *graph; gb_keeper *keeper; } captured;

/* Close a graph with its keeper. Plans that it took over may be used by what was launched before the capture; within
 * another capture its keeper takes them over. */
static void close_captured(gb_cuda *cuda, const captured *c) {
  gb_rt_graph_close(c->graph);
  if (!cuda->context->capturing) gb_cuda_settle(cuda->stream);
  gb_keeper_close(c->keeper);
}

static void device_graph_close(void *state, void *graph) {
  if (!graph) return;
  close_captured(state, graph);
  free(graph);
}

static gb_status device_capture_begin(void *state) {
  gb_cuda *cuda = state;
  if (cuda->context->modes->anomaly)
    return cuda->engine->fail(cuda->context, GB_ESTATE, "a graph cannot be captured under gb.anomaly, which waits "
                                                        "for every op; leave the scope, or the graph");
  GB_TRY(enter(cuda));
  cuda->keeper = gb_keeper_open();
  if (!cuda->keeper) return cuda->engine->fail(cuda->context, GB_EMEMORY, "out of memory for a graph");
  int code = gb_rt_capture_begin(cuda->stream);
  if (code) {
    gb_keeper_close(cuda->keeper);
    cuda->keeper = NULL;
    return runtime_failure(cuda, code, "beginning a capture");
  }
  cuda->capturing = true;
  gb_keeper_name(cuda->keeper);
  return GB_OK;
}

static gb_status device_capture_end(void *state, void **graph) {
  gb_cuda *cuda = state;
  captured made = { .keeper = cuda->keeper }, *kept = malloc(sizeof *kept);
  *graph = NULL;
  gb_keeper_name(NULL);
  cuda->keeper = NULL;
  cuda->capturing = false;
  gb_status status = enter(cuda);
  int code = gb_rt_capture_end(cuda->stream, &made.graph);
  if (status == GB_OK) status = launch_failure(cuda);
  if (status == GB_OK && code) status = runtime_failure(cuda, code, "capturing a graph");
  if (status == GB_OK && (!kept || !gb_keeper_is_whole(made.keeper)))
    status = cuda->engine->fail(cuda->context, GB_EMEMORY, "out of memory for a graph");
  if (status != GB_OK) {
    close_captured(cuda, &made);
    free(kept);
    return status;
  }
  *kept = made;
  *graph = kept;
  return GB_OK;
}

/* The two numbers travel with launches of their own, so that a replay that is still running keeps its own. */
static gb_status device_replay(void *state, void *graph, uint64_t places, uint64_t seeds) {
  gb_cuda *cuda = state;
  const captured *c = graph;
  GB_TRY(enter(cuda));
  gb_cuda_put(cuda->stream, &cuda->advance[0], places);
  gb_cuda_put(cuda->stream, &cuda->advance[1], seeds);
  int code = gb_rt_graph_launch(c->graph, cuda->stream);
  if (!code) code = gb_rt_event_record(cuda->posted, cuda->stream); /* what the graph posts has arrived by then */
  if (code) return runtime_failure(cuda, code, "replaying a graph");
  return launch_failure(cuda);
}

/* ====} */

/* {==== Opening and closing ==== */

static gb_status device_describe(void *state, gb_device_info *out) {
  gb_cuda *cuda = state;
  gb_device_properties p;
  size_t available = 0, total = 0;
  GB_TRY(enter(cuda));
  int code = gb_rt_properties(cuda->device, &p);
  if (!code) code = gb_rt_memory(&available, &total);
  if (code) return runtime_failure(cuda, code, "asking for the device's properties");
  *out = (gb_device_info){ .major = p.major, .minor = p.minor, .multiprocessors = p.multiprocessors, .driver = p.driver,
                           .runtime = p.runtime,
                           .total_memory = (int64_t)total, .free_memory = (int64_t)available,
                           .staging = (int64_t)gb_uploads_bytes(cuda->uploads) };
  memcpy(out->name, p.name, sizeof out->name);
  return GB_OK;
}

static void range_push(void *state, const char *name) {
  (void)state;
  gb_rt_range_push(name);
}

static void range_pop(void *state) {
  (void)state;
  gb_rt_range_pop();
}

/* {---- marks: events that note their time ---- */

static gb_status device_mark(void *state, void **out) {
  gb_cuda *cuda = state;
  gb_event event = NULL;
  GB_TRY(enter(cuda));
  int code = gb_rt_event_open_timed(&event);
  if (!code) code = gb_rt_event_record(event, cuda->stream);
  if (code && event) gb_rt_event_close(event);
  *out = code ? NULL : event;
  return code ? late_failure(cuda, code) : GB_OK;
}

static gb_status device_between(void *state, void *from, void *to, double *seconds) {
  GB_TRY(enter(state));
  int code = gb_rt_event_elapsed(from, to, seconds);
  return code ? late_failure(state, code) : GB_OK;
}

static void device_unmark(void *state, void *mark) {
  if (enter(state) == GB_OK) gb_rt_event_close(mark);
}

/* ----} */

/* {---- which algorithms multiply ---- */

static gb_status device_tune(void *state, bool on) {
  gb_cuda_call call = { .cuda = state, .stream = ((gb_cuda *)state)->stream };
  GB_TRY(enter(state));
  if (on) GB_TRY(refuse_in_capture(state, "time products"));
  return gb_gemms_tune(&call, on);
}

static gb_status device_tuned(void *state, const char *text, size_t bytes, gb_tuned *out) {
  gb_cuda_call call = { .cuda = state, .stream = ((gb_cuda *)state)->stream };
  GB_TRY(enter(state));
  if (!((gb_cuda *)state)->gemms) GB_TRY(refuse_in_capture(state, "open cuBLASLt"));
  return gb_gemms_tuned(&call, text, bytes, out);
}

static size_t device_tuned_text(void *state, char *out, size_t room) {
  return gb_gemms_table(((gb_cuda *)state)->gemms, out, room);
}

/* ----} */

/* Ops of linear algebra have a kernel where their library is. */
static bool device_lacks(void *state, int op) {
  gb_cuda *cuda = state;
  const gb_cuda_row *row = gb_cuda_linalg;
  while (row->op != GB_OP_COUNT && (int)row->op != op) row++;
  if (row->op == GB_OP_COUNT || cuda->capturing) return false; /* which the kernel refuses */
  gb_rt_select(cuda->device);
  return !gb_solvers_have(cuda);
}

static bool device_runs_rnn(void *state, const gb_rnn *rnn, gb_rnn_room *room) {
  gb_rt_select(((gb_cuda *)state)->device);
  return gb_rnns_have(state, rnn, room);
}

static void device_close(void *state) {
  gb_cuda *cuda = state;
  gb_rt_select(cuda->device);
  gb_uploads_close(cuda->uploads);
  gb_gemms_close(cuda->gemms);
  gb_dnns_close(cuda->dnns);
  gb_solvers_close(cuda->solvers);
  gb_rnns_close(cuda->rnns);
  gb_event events[] = { cuda->posted, cuda->crossed, cuda->step[0], cuda->step[1] };
  if (cuda->stream) gb_rt_stream_close(cuda->stream);
  for (size_t i = 0; i < sizeof events / sizeof *events; i++)
    if (events[i]) gb_rt_event_close(events[i]);
  if (cuda->fault) gb_rt_free(cuda->fault, sizeof *cuda->fault);
  if (cuda->advance) gb_rt_free(cuda->advance, ADVANCE_BYTES);
  if (cuda->fault_seen) gb_rt_host_free(cuda->fault_seen);
  free(cuda);
}

/* Every family's kernels, by op, and the steps. */
static void gather_rows(gb_cuda *cuda, gb_backend *out) {
  static const gb_cuda_row *const families[] = {
#define FAMILY(name) gb_cuda_##name,
    GB_CUDA_FAMILIES(FAMILY)
#undef FAMILY
  };
  for (size_t f = 0; f < sizeof families / sizeof *families; f++)
    for (const gb_cuda_row *row = families[f]; row->op != GB_OP_COUNT; row++) {
      cuda->row[row->op] = row;
      out->run[row->op] = run;
    }
  for (int step = 0; step < GB_STEP_COUNT; step++) out->step[step] = run_step;
}

enum { NO_DEVICE = -1, NO_MEMORY = -2, NOT_SO_MANY = -3 };

/* The device's streams, events and records; nonzero: what the runtime says, or one of the above. */
static int open_device(gb_cuda *cuda, int *count) {
  int code = gb_rt_device_count(count);
  if (!code && *count == 0) return NO_DEVICE;
  if (!code && cuda->device >= *count) return NOT_SO_MANY;
  if (!code) code = gb_rt_select(cuda->device);
  if (!code) code = gb_rt_stream_open(&cuda->stream);
  gb_device_properties properties;
  if (!code) code = gb_rt_properties(cuda->device, &properties);
  if (code) return code;
  cuda->memory = properties.memory;
  cuda->shared_most = properties.shared_most;
  cuda->major = properties.major;
  gb_event *events[] = { &cuda->posted, &cuda->crossed, &cuda->step[0], &cuda->step[1] };
  for (size_t i = 0; !code && i < sizeof events / sizeof *events; i++) code = gb_rt_event_open(events[i]);
  if (code) return code;
  cuda->fault = gb_rt_alloc(sizeof *cuda->fault);
  cuda->fault_seen = gb_rt_host_alloc(sizeof *cuda->fault_seen);
  cuda->advance = gb_rt_alloc(ADVANCE_BYTES);
  cuda->uploads = gb_uploads_open(cuda->stream);
  if (!cuda->fault || !cuda->fault_seen || !cuda->advance || !cuda->uploads)
    return gb_rt_alloc_error() ? gb_rt_alloc_error() : NO_MEMORY;
  code = gb_rt_set(cuda->stream, cuda->advance, 0, ADVANCE_BYTES);
  return code ? code : gb_rt_set(cuda->stream, cuda->fault, 0, sizeof *cuda->fault);
}

static gb_status open_failure(gb_cuda *cuda, int code, int count) {
  const char *why = code == NO_DEVICE ? "there is no CUDA device" : code == NO_MEMORY ? "out of memory" : code < 0 ? ""
      : gb_rt_text(code);
  if (code == NOT_SO_MANY)
    return cuda->engine->fail(cuda->context, GB_EDEVICE, "there are %d of them, cuda:0 .. cuda:%d", count, count - 1);
  return cuda->engine->fail(cuda->context, GB_EDEVICE, "%s", why);
}

/* Is an environment variable set, and is it set to more than 0? */
static bool is_set(const char *name) {
  const char *value = getenv(name);
  return value && *value;
}
static bool is_asked(const char *name) { return is_set(name) && strcmp(getenv(name), "0"); }

/* Ranges are sent only to an attached tool; GIBBOUS_CUDA_RANGES=0 turns them off. */
static bool wants_ranges(void) {
  const char *value = getenv("GIBBOUS_CUDA_RANGES");
  return !(value && !strcmp(value, "0")) && gb_rt_ranges_wanted();
}

gb_status gb_backend_open(const gb_engine_table *engine, uint32_t abi, gb_backend *out) {
  if (abi != GB_BACKEND_ABI || engine->size < sizeof *engine || engine->op_hash() != gb_op_table_hash())
    return GB_EUNSUPPORTED;
  gb_cuda *cuda = calloc(1, sizeof *cuda);
  if (!cuda) return GB_EMEMORY;
  cuda->engine = engine;
  cuda->context = out->context;
  cuda->device = out->index;
  cuda->blocking = is_asked("GIBBOUS_CUDA_BLOCKING");
  cuda->verbose = is_asked("GIBBOUS_CUDA_VERBOSE");
  cuda->silent = !cuda->verbose && is_set("GIBBOUS_CUDA_VERBOSE");
  const char *piece = getenv("GIBBOUS_CUDA_PIECE");
  cuda->piece = piece ? strtoll(piece, NULL, 10) : 0;
  int count = 0, code = open_device(cuda, &count);
  if (code) {
    gb_status status = open_failure(cuda, code, count);
    device_close(cuda);
    return status;
  }
  bool ranges = wants_ranges();
  *out = (gb_backend){ .name = "cuda", .state = cuda, .context = out->context, .index = cuda->device, .devices = count,
                       .alloc = device_alloc,
                       .free = device_free, .write = device_write, .read = device_read, .fetch = device_fetch,
                           .copy = device_copy, .clear = device_clear, .pin = device_pin,
                       .unpin = device_unpin, .post = device_post, .arrive = device_arrive, .pace = device_pace,
                           .synchronize = device_synchronize,
                       .describe = device_describe, .capture_begin = device_capture_begin,
                           .capture_end = device_capture_end, .replay = device_replay,
                       .graph_close = device_graph_close, .range_push = ranges ? range_push : NULL,
                           .range_pop = ranges ? range_pop : NULL,
                       .mark = device_mark, .between = device_between, .unmark = device_unmark,
                       .lacks = device_lacks, .runs_rnn = device_runs_rnn, .tune = device_tune, .tuned = device_tuned,
                           .tuned_text = device_tuned_text, .close = device_close, .keeps = cuda->memory / KEPT_SHARE };
  gather_rows(cuda, out);
  return GB_OK;
}

/* ====} */
