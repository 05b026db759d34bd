/* cuda/runtime_cuda.c - cuda/runtime.h by the CUDA runtime, which is linked statically: without a driver the plugin
 * opens and says so. */
#include "cuda/runtime.h"

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>

struct gb_graph { cudaGraphExec_t exec; };

const char *gb_rt_text(int code) { return cudaGetErrorString((cudaError_t)code); }

/* Return a code to the caller, and clear it so that the next launch does not report it again. */
static int told(cudaError_t code) {
  if (code != cudaSuccess) cudaGetLastError();
  return (int)code;
}

int gb_rt_device_count(int *count) { return told(cudaGetDeviceCount(count)); }

/* Done each time, since a host may use CUDA on the same thread. */
int gb_rt_select(int device) { return told(cudaSetDevice(device)); }

int gb_rt_properties(int device, gb_device_properties *out) {
  struct cudaDeviceProp p;
  *out = (gb_device_properties){ .name = "" };
  cudaError_t code = cudaGetDeviceProperties(&p, device);
  if (code != cudaSuccess) return told(code);
  snprintf(out->name, sizeof out->name, "%s", p.name);
  out->major = p.major;
  out->minor = p.minor;
  out->multiprocessors = p.multiProcessorCount;
  out->memory = p.totalGlobalMem;
  out->shared_per_block = p.sharedMemPerBlock;
  out->shared_most = p.sharedMemPerBlockOptin;
  code = cudaDriverGetVersion(&out->driver);
  return told(code == cudaSuccess ? cudaRuntimeGetVersion(&out->runtime) : code);
}

int gb_rt_memory(size_t *available, size_t *total) { return told(cudaMemGetInfo(available, total)); }

/* Memory may be taken and given back while a graph is captured, which the strict modes of a host's own capture forbid.
 * Between these two calls they do not hold. */
static enum cudaStreamCaptureMode relax(void) {
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  return mode;
}

static void restore(enum cudaStreamCaptureMode mode) { cudaThreadExchangeStreamCaptureMode(&mode); }

static _Thread_local int alloc_code;

/* An allocation has ended: remember why it failed, unless for lack of memory. */
static void *allocated(int code, void *block) {
  alloc_code = code == cudaErrorMemoryAllocation ? 0 : code;
  return code ? NULL : block;
}

int gb_rt_alloc_error(void) { return alloc_code; }

void *gb_rt_alloc(size_t bytes) {
  void *block = NULL;
  enum cudaStreamCaptureMode mode = relax();
  int code = told(cudaMalloc(&block, bytes));
  if (!code) { /* it may hold what another context of the process wrote; in a stream that nobody captures */
    code = told(cudaMemsetAsync(block, 0, bytes, cudaStreamPerThread));
    if (!code) code = told(cudaStreamSynchronize(cudaStreamPerThread));
    if (code) told(cudaFree(block));
  }
  restore(mode);
  return allocated(code, block);
}

void gb_rt_free(void *block, size_t bytes) {
  (void)bytes;
  enum cudaStreamCaptureMode mode = relax();
  told(cudaFree(block));
  restore(mode);
}

void *gb_rt_host_alloc(size_t bytes) {
  void *block = NULL;
  enum cudaStreamCaptureMode mode = relax();
  int code = told(cudaHostAlloc(&block, bytes, cudaHostAllocDefault));
  restore(mode);
  return allocated(code, block);
}

void gb_rt_host_free(void *block) {
  enum cudaStreamCaptureMode mode = relax();
  told(cudaFreeHost(block));
  restore(mode);
}

bool gb_rt_is_pinned(const void *host) {
  struct cudaPointerAttributes what;
  enum cudaStreamCaptureMode mode = relax();
  bool pinned = !told(cudaPointerGetAttributes(&what, host)) && what.type == cudaMemoryTypeHost;
  restore(mode);
  return pinned;
}

bool gb_rt_is_on_device(const void *memory) {
  struct cudaPointerAttributes what;
  enum cudaStreamCaptureMode mode = relax();
  bool there = !told(cudaPointerGetAttributes(&what, memory)) && what.type == cudaMemoryTypeDevice;
  restore(mode);
  return there;
}

int gb_rt_stream_open(gb_stream *out) { return told(cudaStreamCreateWithFlags(out, cudaStreamNonBlocking)); }
void gb_rt_stream_close(gb_stream stream) { told(cudaStreamDestroy(stream)); }
int gb_rt_synchronize(gb_stream stream) { return told(cudaStreamSynchronize(stream)); }

/* Would a copy to this memory be recorded, although its caller needs the bytes now? */
static bool is_only_noted(gb_stream stream, const void *host) {
  enum cudaStreamCaptureStatus status;
  if (told(cudaStreamIsCapturing(stream, &status)) || status == cudaStreamCaptureStatusNone) return false;
  return !gb_rt_is_pinned(host);
}

int gb_rt_copy(gb_stream stream, void *to, const void *from, size_t bytes, gb_copy_kind kind) {
  static const enum cudaMemcpyKind kinds[] = { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                               cudaMemcpyDeviceToDevice };
  const void *host = kind == GB_COPY_TO_HOST ? to : kind == GB_COPY_TO_DEVICE ? from : NULL;
  if (kind == GB_COPY_TO_HOST && is_only_noted(stream, to)) return (int)cudaErrorStreamCaptureUnsupported;
  int code = told(cudaMemcpyAsync(to, from, bytes, kinds[kind], stream));
  /* of memory that is not pinned the call "might be synchronous" (CUDA runtime API, "API synchronization behavior"): it
   * need not be where the device reads the host's pages itself */
  return code || !host || gb_rt_is_pinned(host) ? code : told(cudaStreamSynchronize(stream));
}

int gb_rt_copy_peer(gb_stream stream, void *to, int to_device, const void *from, int from_device, size_t bytes) {
  return told(cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream));
}

int gb_rt_set(gb_stream stream, void *block, int byte,
              size_t bytes) { return told(cudaMemsetAsync(block, byte, bytes, stream)); }

int gb_rt_event_open(gb_event *out) { return told(cudaEventCreateWithFlags(out, cudaEventDisableTiming)); }
void gb_rt_event_close(gb_event event) { told(cudaEventDestroy(event)); }
int gb_rt_event_record(gb_event event, gb_stream stream) { return told(cudaEventRecord(event, stream)); }
int gb_rt_event_synchronize(gb_event event) { return told(cudaEventSynchronize(event)); }
int gb_rt_event_done(gb_event event, bool *done) {
  cudaError_t code = cudaEventQuery(event);
  *done = code == cudaSuccess;
  if (code == cudaErrorNotReady) cudaGetLastError();
  return code == cudaErrorNotReady ? 0 : told(code);
}
int gb_rt_event_wait(gb_stream stream, gb_event event) { return told(cudaStreamWaitEvent(stream, event, 0)); }
int gb_rt_event_open_timed(gb_event *out) { return told(cudaEventCreate(out)); }
int gb_rt_event_elapsed(gb_event from, gb_event to, double *seconds) {
  float milliseconds = 0;
  int code = told(cudaEventElapsedTime(&milliseconds, from, to));
  *seconds = 1e-3 * (double)milliseconds;
  return code;
}

/* Relaxed: a library that meets a shape for the first time in a capture may have to load kernels, which the strict
 * modes forbid. What a capture cannot have (backend.c's refuse_in_capture) is refused before the runtime is asked. */
int gb_rt_capture_begin(gb_stream stream) { return told(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed)); }

int gb_rt_capture_end(gb_stream stream, gb_graph **out) {
  cudaGraph_t recorded = NULL;
  *out = NULL;
  cudaError_t code = cudaStreamEndCapture(stream, &recorded);
  gb_graph *graph = code == cudaSuccess ? malloc(sizeof *graph) : NULL;
  if (code == cudaSuccess && !graph) code = cudaErrorMemoryAllocation;
  if (code == cudaSuccess) code = cudaGraphInstantiate(&graph->exec, recorded, 0);
  if (recorded) told(cudaGraphDestroy(recorded));
  if (code == cudaSuccess) *out = graph;
  else free(graph);
  return told(code);
}

int gb_rt_graph_launch(gb_graph *graph, gb_stream stream) { return told(cudaGraphLaunch(graph->exec, stream)); }

void gb_rt_graph_close(gb_graph *graph) {
  if (!graph) return;
  enum cudaStreamCaptureMode mode = relax(); /* it may be collected while another one is captured */
  told(cudaGraphExecDestroy(graph->exec));
  restore(mode);
  free(graph);
}

/* {---- launches that failed: noted per thread, since contexts may run on several ---- */

static _Thread_local int launch_code;
static _Thread_local const char *launch_kernel;

/* Errors of work that ran, which every later call repeats: a launch that meets one is not the one that failed. */
static bool is_of_earlier(cudaError_t code) {
  static const cudaError_t late[] = {
    cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable, cudaErrorIllegalAddress, cudaErrorLaunchTimeout,
    cudaErrorAssert, cudaErrorHardwareStackError, cudaErrorIllegalInstruction, cudaErrorMisalignedAddress,
    cudaErrorInvalidAddressSpace, cudaErrorInvalidPc, cudaErrorLaunchFailure, cudaErrorMpsClientTerminated,
    cudaErrorExternalDevice,
    (cudaError_t)226, (cudaError_t)721, /* Contained, TensorMemoryLeak: toolkits before 13 do not name them all */
  };
  for (size_t i = 0; i < sizeof late / sizeof *late; i++)
    if (late[i] == code) return true;
  return false;
}

void gb_rt_launched(const char *kernel) {
  cudaError_t code = cudaGetLastError();
  if (code == cudaSuccess || launch_code) return;
  launch_code = (int)code;
  launch_kernel = is_of_earlier(code) ? NULL : kernel;
}

int gb_rt_launch_error(const char **kernel) {
  int code = launch_code;
  *kernel = launch_kernel;
  launch_code = 0;
  return code;
}

/* ----} */

/* {---- ranges: NVTX, which is a header that looks for a tool ---- */

/* Without a tool a push has no level. */
bool gb_rt_ranges_wanted(void) {
  if (nvtxRangePushA("gibbous") < 0) return false;
  nvtxRangePop();
  return true;
}

void gb_rt_range_push(const char *name) { nvtxRangePushA(name); }
void gb_rt_range_pop(void) { nvtxRangePop(); }

/* ----} */
