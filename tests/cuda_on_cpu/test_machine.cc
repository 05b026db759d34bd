/* test_machine.cc - the emulated device itself: what it runs right, and that it finds the mistakes it is there to find.
 *
 * Without an argument: checks, counted. With one, it runs a kernel with that mistake planted, for builds with a
 * sanitizer to name: "overrun" writes one element behind shared memory, "outside" one behind device memory, "elsewhere"
 * in another device's, "race" lets threads of a block share memory without a barrier; "overrun_tile" and "race_tile" do
 * that with the tiles of a product. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/mma.cuh"
#include "cuda/block.cuh"
#include "machine.h"

static int passed, failed;
#define CHECK(condition) check(condition, #condition, __LINE__)
static void check(bool good, const char *text, int line) {
  if (good) { passed++; return; }
  failed++;
  printf("FAILED  line %d: %s\n", line, text);
}

static gb_stream stream;

/* Memory of the device with what host[] holds. */
template <typename T> static T *to_device(const T *host, int n) {
  T *block = (T *)gb_rt_alloc(sizeof(T) * (size_t)n);
  gb_rt_copy(stream, block, host, sizeof(T) * (size_t)n, GB_COPY_TO_DEVICE);
  return block;
}

template <typename T> static void to_host(T *host, const T *block,
                                          int n) { gb_rt_copy(stream, host, block, sizeof(T) * (size_t)n,
                                                              GB_COPY_TO_HOST); }

/* The launch failed and said `text`. */
static bool says(const char *text) {
  gb_rt_synchronize(stream);
  const char *kernel = "";
  int code = gb_rt_launch_error(&kernel);
  bool found = code && (strstr(gb_rt_text(code), text) || strstr(kernel, text));
  if (!found) printf("  it says: %s: %s\n", kernel, code ? gb_rt_text(code) : "nothing");
  return found;
}

static bool says_nothing(void) {
  gb_rt_synchronize(stream);
  const char *kernel;
  return gb_rt_launch_error(&kernel) == 0;
}

/* {==== what must work ==== */

static __global__ void sum_kernel(const int64_t *x, int64_t *sums, int64_t *most) {
  int64_t sum = gb_block_reduce<gb_sum_of>(x[gb_thread<int>()], (int64_t)0),
      large = gb_block_reduce<gb_most_of>(x[gb_thread<int>()], (int64_t)INT64_MIN);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum, most[blockIdx.x] = large;
}

static void test_reductions(void) {
  int64_t host[512], sums[2], most[2];
  for (int i = 0; i < 512; i++) host[i] = i * 7 % 512;
  int64_t *x = to_device(host, 512), *a = to_device(sums, 2), *b = to_device(most, 2);
  GB_LAUNCH(stream, sum_kernel, 2, 256, 0, x, a, b);
  to_host(sums, a, 2);
  to_host(most, b, 2);
  CHECK(says_nothing() && sums[0] + sums[1] == 512 * 511 / 2 && (most[0] == 511 || most[1] == 511));
  gb_rt_free(x, sizeof host), gb_rt_free(a, sizeof sums), gb_rt_free(b, sizeof most);
}

static __global__ void lane_kernel(int *out) {
  int lane = (int)threadIdx.x % 32;
  int up = __shfl_up_sync(GB_ALL_LANES, lane, 1), other = __shfl_xor_sync(GB_ALL_LANES, lane, 5),
      first = __shfl_sync(GB_ALL_LANES, lane, 3, 8);
  unsigned odd = __ballot_sync(GB_ALL_LANES, lane % 2);
  bool right = up == (lane ? lane - 1 : 0) && other == (lane ^ 5) && first == (lane & ~7) + 3 && odd == 0xaaaaaaaau;
  right &= __any_sync(GB_ALL_LANES, lane == 31) && !__all_sync(GB_ALL_LANES, lane == 31);
  if (lane < 8) right &= __shfl_down_sync(0xffu, lane, 4, 8) == (lane < 4 ? lane + 4 : lane); /* a part of the warp */
  out[threadIdx.x] = right;
}

static void test_lanes(void) {
  int host[64] = { 0 };
  int *out = to_device(host, 64);
  GB_LAUNCH(stream, lane_kernel, 1, 64, 0, out);
  to_host(host, out, 64);
  int right = 0;
  for (int i = 0; i < 64; i++) right += host[i];
  CHECK(says_nothing() && right == 64);
  gb_rt_free(out, sizeof host);
}

static __global__ void grid_kernel(int *out) {
  out[((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * 24 + (threadIdx.z * blockDim.y + threadIdx.y) *
      blockDim.x + threadIdx.x] = 1;
}

static void test_grids(void) {
  int host[24 * 24] = { 0 }, right = 0;
  int *out = to_device(host, 24 * 24);
  GB_LAUNCH(stream, grid_kernel, dim3(2, 3, 4), dim3(4, 3, 2), 0, out);
  to_host(host, out, 24 * 24);
  for (int i = 0; i < 24 * 24; i++) right += host[i];
  CHECK(says_nothing() && right == 24 * 24);
  GB_LAUNCH(stream, grid_kernel, 0, 24, 0, out); /* nothing to do */
  CHECK(says_nothing());
  gb_rt_free(out, sizeof host);
}

/* Two warps, each with a product x [16, 32] y [16, 32]^T and, rounded, that times y [16, 32]: small integers, so that
 * every sum is exact. */
enum { DEEP = 32 };
template <class P> static __global__ void tiles_kernel(float *first, float *second) {
  typedef typename P::element element;
  const int stride = DEEP + P::STRIDE_PAD;
  GB_SHARED_BYTES(memory);
  element *x = (element *)memory + threadIdx.x / 32 * 32 * stride, *y = x + 16 * stride;
  element *room = (element *)memory + 64 * stride + threadIdx.x / 32 * 16 * 20;
  for (int i = gb_lane(); i < 16 * DEEP; i += 32) {
    x[i / DEEP * stride + i % DEEP] = P::round((float)(i * 7 % 5 - 2 + (int)threadIdx.x / 32));
    y[i / DEEP * stride + i % DEEP] = P::round((float)(i * 11 % 7 - 3));
  }
  __syncwarp();
  gb_tile s[2] = {}, r[DEEP / 8] = {};
  P::add_rows(s, x, y, stride, DEEP);
  P::add_columns(r, s, y, stride, DEEP - 16, room); /* half of the columns */
  int warp = (int)threadIdx.x / 32, g = gb_lane() / 4, t = gb_lane() % 4;
  for (int i = 0; i < 4; i++) {
    for (int n = 0; n < 2; n++) first[warp * 256 + (g + i / 2 * 8) * 16 + 8 * n + 2 * t + i % 2] = s[n].at[i];
    for (int n = 0; n < DEEP / 8; n++)
      second[warp * 16 * DEEP + (g + i / 2 * 8) * DEEP + 8 * n + 2 * t + i % 2] = r[n].at[i];
  }
}

template <class P> static void test_tiles_of(void) {
  static float first[2 * 256], second[2 * 16 * DEEP];
  float *a = to_device(first, 512), *b = to_device(second, 2 * 16 * DEEP);
  GB_LAUNCH(stream, tiles_kernel<P>, 1, 64, (64 * (DEEP + P::STRIDE_PAD) + 2 * 16 * 20) * sizeof(typename P::element),
            a, b);
  to_host(first, a, 512);
  to_host(second, b, 2 * 16 * DEEP);
  int wrong = 0;
  for (int w = 0; w < 2; w++)
    for (int i = 0; i < 16; i++) {
      float s[16];
      for (int j = 0; j < 16; j++) {
        s[j] = 0;
        for (int k = 0; k < DEEP; k++)
          s[j] += (float)((i * DEEP + k) * 7 % 5 - 2 + w) * (float)((j * DEEP + k) * 11 % 7 - 3);
        wrong += s[j] != first[w * 256 + i * 16 + j];
      }
      for (int c = 0; c < DEEP; c++) {
        float r = 0;
        for (int j = 0; j < 16; j++) r += s[j] * (float)((j * DEEP + c) * 11 % 7 - 3);
        wrong += (c < 16 ? r : 0) != second[w * 16 * DEEP + i * DEEP + c];
      }
    }
  CHECK(says_nothing() && wrong == 0);
  gb_rt_free(a, sizeof first), gb_rt_free(b, sizeof second);
}

/* A copy that goes on while threads compute is not there before it was waited for. */
static __global__ void copies_kernel(const float *x, int *out) {
  GB_SHARED_BYTES(memory);
  const float *here = (const float *)memory + threadIdx.x * 4;
  gb_copies copies;
  copies.add(memory + threadIdx.x * 16, x + threadIdx.x * 4);
  bool early = here[3] == x[threadIdx.x * 4 + 3];
  copies.wait();
  out[threadIdx.x] = !early && here[0] == x[threadIdx.x * 4] && here[3] == x[threadIdx.x * 4 + 3];
}

static void test_copies(void) {
  float host[128];
  int right[32];
  for (int i = 0; i < 128; i++) host[i] = (float)i;
  float *x = to_device(host, 128);
  int *out = to_device(right, 32), all = 1;
  GB_LAUNCH(stream, copies_kernel, 1, 32, sizeof host, x, out);
  to_host(right, out, 32);
  for (int i = 0; i < 32; i++) all &= right[i];
  CHECK(says_nothing() && all);
  gb_rt_free(x, sizeof host), gb_rt_free(out, sizeof right);
}

static void test_tiles(void) {
  test_tiles_of<gb_short_products<true>>();
  test_tiles_of<gb_short_products<false>>();
  test_tiles_of<gb_float_products>();
}

/* Launches and copies that were captured run with every replay, on what memory holds then. */
static __global__ void add_kernel(int *x, int by) { x[threadIdx.x] += by; }

static void test_graphs(void) {
  int host[4] = { 1, 2, 3, 4 };
  int *x = to_device(host, 4), *y = to_device(host, 4);
  gb_graph *graph = NULL;
  CHECK(gb_rt_capture_begin(stream) == 0);
  GB_LAUNCH(stream, add_kernel, 1, 4, 0, x, 10);
  CHECK(gb_rt_copy(stream, y, x, sizeof host, GB_COPY_ON_DEVICE) == 0);
  CHECK(gb_rt_capture_end(stream, &graph) == 0 && graph);
  to_host(host, x, 4);
  CHECK(host[0] == 1); /* nothing ran */
  CHECK(gb_rt_graph_launch(graph, stream) == 0 && gb_rt_graph_launch(graph, stream) == 0);
  to_host(host, y, 4);
  CHECK(host[0] == 21 && host[3] == 24);
  gb_rt_graph_close(graph);
  /* a host that waits for what does not run */
  CHECK(gb_rt_capture_begin(stream) == 0 && gb_rt_copy(stream, host, x, sizeof host, GB_COPY_TO_HOST) != 0);
  CHECK(gb_rt_capture_end(stream, &graph) != 0 && !graph && says("not pinned"));
  gb_rt_free(x, sizeof host), gb_rt_free(y, sizeof host);
}

/* A graph that is closed while its replay is still under way runs to its end. */
static void test_closed_graph(void) {
  int host[4] = { 1, 2, 3, 4 };
  int *x = to_device(host, 4);
  gb_graph *graph = NULL;
  CHECK(gb_rt_capture_begin(stream) == 0);
  GB_LAUNCH(stream, add_kernel, 1, 4, 0, x, 5);
  CHECK(gb_rt_capture_end(stream, &graph) == 0 && gb_rt_graph_launch(graph, stream) == 0);
  gb_rt_graph_close(graph);
  to_host(host, x, 4);
  CHECK(host[0] == 6 && says_nothing());
  gb_rt_free(x, sizeof host);
}

/* {---- streams: what one does for the other ---- */

static bool at_once(void) { return getenv("GIBBOUS_CUDA_LATE") && !strcmp(getenv("GIBBOUS_CUDA_LATE"), "0"); }

/* Numbers on their way through a landing zone: the copies on a stream of their own, the kernel on another. How many
 * runs of many went wrong. */
static int transfers_gone_wrong(bool waits) {
  enum { RUNS = 64, N = 32 };
  gb_stream copies;
  gb_event arrived, used;
  int sums[N] = { 0 }, wrong = 0, *pinned = (int *)gb_rt_host_alloc(sizeof sums);
  gb_rt_stream_open(&copies), gb_rt_event_open(&arrived), gb_rt_event_open(&used);
  int *landing = to_device(sums, N), *place = to_device(sums, N);
  gb_rt_synchronize(stream);
  for (int run = 0; run < RUNS; run++) {
    if (run) gb_rt_event_synchronize(used);
    for (int i = 0; i < N; i++) pinned[i] = 100 * run + i;
    gb_rt_copy(copies, landing, pinned, sizeof sums, GB_COPY_TO_DEVICE);
    gb_rt_event_record(arrived, copies);
    if (waits) gb_rt_event_wait(stream, arrived);
    gb_rt_copy(stream, place, landing, sizeof sums, GB_COPY_ON_DEVICE);
    gb_rt_event_record(used, stream);
    GB_LAUNCH(stream, add_kernel, 1, N, 0, place, 1);
    to_host(sums, place, N);
    gb_rt_synchronize(copies);
    wrong += sums[3] != 100 * run + 4;
  }
  gb_rt_stream_close(copies), gb_rt_event_close(arrived), gb_rt_event_close(used);
  gb_rt_free(landing, sizeof sums), gb_rt_free(place, sizeof sums), gb_rt_host_free(pinned);
  return wrong;
}

/* A pinned slot that is written over before its copy left it. */
static int slots_gone_wrong(bool waits) {
  int wrong = 0, zero = 0, *pinned = (int *)gb_rt_host_alloc(sizeof(int)), *x = to_device(&zero, 1),
      *y = to_device(&zero, 1);
  gb_event left;
  gb_rt_event_open(&left);
  for (int run = 1; run < 64; run++) {
    int first = 0;
    *pinned = run;
    gb_rt_copy(stream, x, pinned, sizeof run, GB_COPY_TO_DEVICE);
    gb_rt_event_record(left, stream);
    if (waits) gb_rt_event_synchronize(left);
    *pinned = -run;
    gb_rt_copy(stream, y, pinned, sizeof run, GB_COPY_TO_DEVICE);
    to_host(&first, x, 1);
    wrong += first != run;
  }
  gb_rt_event_close(left);
  gb_rt_free(x, sizeof zero), gb_rt_free(y, sizeof zero), gb_rt_host_free(pinned);
  return wrong;
}

static void test_streams(void) {
  CHECK(transfers_gone_wrong(true) == 0);
  CHECK((transfers_gone_wrong(false) > 0) == !at_once()); /* a kernel that does not wait for its data */
  CHECK(slots_gone_wrong(true) == 0);
  CHECK((slots_gone_wrong(false) > 0) == !at_once());
  CHECK(says_nothing());
}

/* A copy to pinned memory arrives some time later, and not before its event says so. */
static void test_posts(void) {
  int value = 7, late = 0, early = 0, *pinned = (int *)gb_rt_host_alloc(sizeof value), *x = to_device(&value, 1);
  gb_event posted;
  gb_rt_event_open(&posted);
  for (int run = 0; run < 64; run++) {
    bool there = false;
    *pinned = 0;
    gb_rt_copy(stream, pinned, x, sizeof value, GB_COPY_TO_HOST);
    gb_rt_event_record(posted, stream);
    CHECK(gb_rt_event_done(posted, &there) == 0);
    late += !there;
    early += there && *pinned != 7;
    CHECK(gb_rt_event_synchronize(posted) == 0 && *pinned == 7);
  }
  CHECK((late > 0) == !at_once() && early == 0);
  gb_rt_event_close(posted);
  gb_rt_free(x, sizeof value), gb_rt_host_free(pinned);
}

/* ----} */

/* What nobody may do on a thread that captures: each is an error, spoils the capture, and is told. */
static void test_capture_rules(void) {
  int value = 1, *x = to_device(&value, 1), *pinned = (int *)gb_rt_host_alloc(sizeof value);
  gb_stream other;
  gb_event before;
  gb_graph *graph = NULL, *empty = NULL;
  bool there;
  gb_rt_stream_open(&other), gb_rt_event_open(&before);
  gb_rt_event_record(before, stream);
  gb_rt_capture_begin(stream), gb_rt_capture_end(stream, &empty);
  const struct { const char *says; std::function<int()> call; } rules[] = {
    { "cudaStreamSynchronize", [&]() { return gb_rt_synchronize(stream); } },
    { "cudaStreamSynchronize", [&]() { return gb_rt_synchronize(other); } },
    { "cudaEventSynchronize", [&]() { return gb_rt_event_synchronize(before); } },
    { "cudaEventQuery", [&]() { return gb_rt_event_done(before, &there); } },
    { "not pinned", [&]() { return gb_rt_copy(stream, &value, x, sizeof value, GB_COPY_TO_HOST); } },
    { "not pinned", [&]() { return gb_rt_copy(stream, x, &value, sizeof value, GB_COPY_TO_DEVICE); } },
    { "cudaStreamWaitEvent", [&]() { return gb_rt_event_wait(stream, before); } },
    { "cudaMemcpyPeerAsync", [&]() { return gb_rt_copy_peer(stream, x, 0, x, 0, sizeof value); } },
    { "cudaGraphLaunch", [&]() { return gb_rt_graph_launch(empty, other); } },
    { "another stream", [&]() { return gb_rt_event_record(before, other); } },
  };
  for (auto &rule : rules) {
    CHECK(gb_rt_capture_begin(stream) == 0 && rule.call() != 0);
    CHECK(gb_rt_capture_end(stream, &graph) != 0 && !graph && says(rule.says));
  }
  CHECK(gb_rt_capture_begin(stream) == 0);
  void *block = gb_rt_alloc(64); /* which backends may */
  CHECK(block && gb_rt_copy(stream, pinned, x, sizeof value, GB_COPY_TO_HOST) == 0);
  gb_rt_free(block, 64);
  CHECK(gb_rt_capture_end(stream, &graph) == 0 && graph && says_nothing());
  gb_rt_graph_close(graph), gb_rt_graph_close(empty);
  gb_rt_stream_close(other), gb_rt_event_close(before);
  gb_rt_free(x, sizeof value), gb_rt_host_free(pinned);
}

/* Each device has its own work. */
static void test_devices(void) {
  int value = 3, count = 0, *x = to_device(&value, 1);
  gb_stream other;
  gb_event here;
  CHECK(gb_rt_device_count(&count) == 0 && count == 2 && gb_rt_select(2) != 0);
  CHECK(gb_rt_select(1) == 0);
  gb_rt_stream_open(&other), gb_rt_event_open(&here);
  int *y = (int *)gb_rt_alloc(sizeof *y);
  CHECK(gb_rt_event_record(here, stream) != 0);
  GB_LAUNCH(stream, add_kernel, 1, 1, 0, x, 1); /* to a device that is not the thread's */
  CHECK(says("work for device 0 while device 1"));
  CHECK(gb_rt_copy_peer(other, y, 1, x, 0, sizeof value) == 0);
  value = 0;
  gb_rt_copy(other, &value, y, sizeof value, GB_COPY_TO_HOST);
  CHECK(value == 3 && says_nothing());
  gb_rt_stream_close(other), gb_rt_event_close(here), gb_rt_free(y, sizeof *y);
  gb_rt_select(0);
  gb_rt_free(x, sizeof value);
}

/* ====} */

/* {==== what must be found ==== */

static __global__ void half_barrier_kernel(void) {
  if (threadIdx.x < 16) __syncthreads();
}

static __global__ void two_barriers_kernel(void) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

static __global__ void missing_lane_kernel(int *out) {
  if (threadIdx.x != 5) out[threadIdx.x] = __shfl_down_sync(GB_ALL_LANES, (int)threadIdx.x, 1);
}

static __global__ void wrong_mask_kernel(int *out) { out[threadIdx.x] = __shfl_sync(0x0fu, (int)threadIdx.x, 0); }

/* Shared memory is rubbish when a block starts, also where the block before it left something. */
static __global__ void fresh_kernel(int *out) {
  GB_SHARED(float, tile, [32]);
  out[blockIdx.x * 32 + threadIdx.x] = tile[threadIdx.x] != tile[threadIdx.x];
  tile[threadIdx.x] = 1;
}

static __global__ void large_kernel(void) {
  GB_SHARED(float, tile, [13000]);
  tile[threadIdx.x] = 0;
}

static __global__ void last_byte_kernel(int last) {
  GB_SHARED_BYTES(memory);
  memory[last] = 1;
}

static void test_mistakes(void) {
  int host[64] = { 0 };
  int *out = to_device(host, 64);
  GB_LAUNCH(stream, half_barrier_kernel, 2, 32, 0);
  CHECK(says("16 of 32 threads"));
  GB_LAUNCH(stream, two_barriers_kernel, 1, 32, 0);
  CHECK(says("two_barriers_kernel"));
  GB_LAUNCH(stream, missing_lane_kernel, 1, 32, 0, out);
  CHECK(says("that do not take part"));
  GB_LAUNCH(stream, wrong_mask_kernel, 1, 32, 0, out);
  CHECK(says("leaves it out"));
  GB_LAUNCH(stream, add_kernel, 1, 2048, 0, out, 1);
  CHECK(says("cannot be launched"));
  GB_LAUNCH(stream, add_kernel, dim3(1, 70000), 32, 0, out, 1);
  CHECK(says("cannot be launched"));
  GB_LAUNCH(stream, large_kernel, 1, 32, 0);
  CHECK(says("shared memory"));
  GB_LAUNCH(stream, last_byte_kernel, 1, 1, 50000, 49999);
  CHECK(says("shared memory"));
  GB_LAUNCH_LARGE(stream, last_byte_kernel, 1, 1, GB_LARGE_SHARED + 1, 0);
  CHECK(says("shared memory"));
  GB_LAUNCH_LARGE(stream, last_byte_kernel, 1, 1, GB_LARGE_SHARED, (int)GB_LARGE_SHARED - 1);
  CHECK(says_nothing());
  GB_LAUNCH(stream, fresh_kernel, 2, 32, 0, out); /* and the machine goes on after all that */
  to_host(host, out, 64);
  CHECK(says_nothing() && host[0] == 1 && host[31] == 1 && host[32] == 1 && host[63] == 1);
  gb_rt_free(out, sizeof host);
}

/* The last thread to write wins: with shuffled threads another one than with the plain order. */
static __global__ void last_kernel(int *out) { atomicExch(out, (int)threadIdx.x); }

static void test_order(void) {
  int last = -1, *out = to_device(&last, 1), different = 0;
  for (int i = 0; i < 8; i++) {
    GB_LAUNCH(stream, last_kernel, 1, 64, 0, out);
    to_host(&last, out, 1);
    different += last != 63;
  }
  CHECK(says_nothing() && (different > 0) == (getenv("GIBBOUS_CUDA_ORDER") != NULL));
  gb_rt_free(out, sizeof last);
}

/* ====} */

/* {==== planted, for the sanitizers ==== */

static __global__ void planted_overrun_kernel(float *out) {
  GB_SHARED(float, tile, [32]);
  tile[threadIdx.x + 1] = 1; /* the last thread leaves the array */
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}

static __global__ void planted_outside_kernel(float *out, int n) {
  if ((int)threadIdx.x <= n) out[threadIdx.x] = 1;
}

static __global__ void planted_race_kernel(float *out) {
  GB_SHARED(float, tile, [32]);
  tile[threadIdx.x] = (float)threadIdx.x;
  out[threadIdx.x] = tile[31 - threadIdx.x]; /* without waiting for the thread that writes it */
}

static __global__ void no_race_kernel(float *out) {
  GB_SHARED(float, tile, [32]);
  tile[threadIdx.x] = (float)threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = tile[31 - threadIdx.x];
}

static __global__ void planted_overrun_tile_kernel(float *out) {
  GB_SHARED_BYTES(memory); /* 16 rows of 16 */
  gb_tile16 tile = gb_tile16_load<false>((const uint16_t *)memory, 24);
  out[threadIdx.x] = (float)tile.at[0];
}

static __global__ void planted_race_tile_kernel(float *out) {
  GB_SHARED_BYTES(memory);
  uint16_t *x = (uint16_t *)memory;
  if (threadIdx.x < 32)
    for (int i = (int)threadIdx.x; i < 16 * 24; i += 32) x[i] = 0;
  gb_tile16 tile = gb_tile16_load<false>(x, 24); /* the second warp does not wait for the first one, which fills it */
  out[threadIdx.x % 32] = (float)tile.at[0];
}

static int plant(const char *what) {
  float *out = (float *)gb_rt_alloc(32 * sizeof *out);
  if (!strcmp(what, "overrun")) GB_LAUNCH(stream, planted_overrun_kernel, 1, 32, 0, out);
  else if (!strcmp(what, "outside")) GB_LAUNCH(stream, planted_outside_kernel, 1, 64, 0, out, 32);
  else if (!strcmp(what, "race")) GB_LAUNCH(stream, planted_race_kernel, 1, 32, 0, out);
  else if (!strcmp(what, "overrun_tile")) GB_LAUNCH(stream, planted_overrun_tile_kernel, 1, 32, 16 * 16 * 2, out);
  else if (!strcmp(what, "race_tile")) GB_LAUNCH(stream, planted_race_tile_kernel, 1, 64, 16 * 24 * 2, out);
  else if (!strcmp(what, "elsewhere")) {
    gb_stream other; /* of another device, which touches this one's memory */
    gb_rt_select(1);
    gb_rt_stream_open(&other);
    GB_LAUNCH(other, planted_outside_kernel, 1, 32, 0, out, 32);
    gb_rt_stream_close(other);
    gb_rt_select(0);
  } else if (!strcmp(what, "none")) GB_LAUNCH(stream, no_race_kernel, 4, 32, 0, out);
  else return 2;
  gb_rt_free(out, 32 * sizeof *out);
  gb_rt_stream_close(stream);
  return says_nothing() ? 0 : 1;
}

/* ====} */

int main(int argc, char **argv) {
  gb_rt_stream_open(&stream);
  if (argc > 1) return plant(argv[1]);
  test_reductions();
  test_lanes();
  test_grids();
  test_tiles();
  test_copies();
  test_graphs();
  test_closed_graph();
  test_streams();
  test_posts();
  test_capture_rules();
  test_devices();
  test_mistakes();
  test_order();
  gb_rt_stream_close(stream);
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
