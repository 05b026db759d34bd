/* io/events.c - event files: see events.h. Order within: checksum, protocol buffers, records, values, life. */
#define _DEFAULT_SOURCE /* gethostname */
#include "io/events.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "io/append.h"
#include "io/path.h"

struct gb_events {
  gb_context *context;
  gb_append *file;
  char *path;
};

/* {==== checksum ==== */

uint32_t gb_crc32c(const void *data, size_t bytes) {
  const uint8_t *at = data;
  uint32_t table[256], crc = 0xffffffffu;
  for (uint32_t i = 0; i < 256; i++) {
    table[i] = i;
    for (int k = 0; k < 8; k++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0x82f63b78u : 0);
  }
  for (size_t i = 0; i < bytes; i++) crc = table[(crc ^ at[i]) & 255] ^ crc >> 8;
  return ~crc;
}

uint32_t gb_crc32c_masked(const void *data, size_t bytes) {
  uint32_t crc = gb_crc32c(data, bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* ====} */

/* {==== protocol buffers ==== */

/* A message as it is put together, in counted memory. A failure is kept in status and makes the calls that follow do
 * nothing. */
typedef struct message {
  gb_context *context;
  uint8_t *data;
  size_t bytes, capacity;
  gb_status status;
} message;

static void put(message *m, const void *data, size_t bytes) {
  if (m->status != GB_OK) return;
  if (bytes > m->capacity - m->bytes) {
    size_t capacity = m->bytes + bytes > 2 * m->capacity ? m->bytes + bytes + 64 : 2 * m->capacity;
    uint8_t *longer = gb_counted_resize(m->context, m->data, capacity);
    if (!longer) {
      m->status = m->context->error_code;
      return;
    }
    m->data = longer;
    m->capacity = capacity;
  }
  if (bytes) memcpy(m->data + m->bytes, data, bytes);
  m->bytes += bytes;
}

/* Little-endian, whatever the machine is. */
static void put_little(message *m, uint64_t value, int bytes) {
  uint8_t little[8];
  for (int i = 0; i < bytes; i++) little[i] = (uint8_t)(value >> 8 * i);
  put(m, little, (size_t)bytes);
}

static void put_varint(message *m, uint64_t value) {
  uint8_t bytes[10];
  int n = 0;
  do {
    bytes[n] = (uint8_t)(value & 127);
    value >>= 7;
    bytes[n++] |= value ? 128 : 0;
  } while (value);
  put(m, bytes, (size_t)n);
}

enum { VARINT = 0, EIGHT = 1, BYTES = 2, FOUR = 5 }; /* how a field is written */
static void put_key(message *m, int field, int how) { put_varint(m, (uint64_t)field << 3 | (uint64_t)how); }

static void put_int(message *m, int field, int64_t value) {
  put_key(m, field, VARINT);
  put_varint(m, (uint64_t)value);
}

static void put_raw_double(message *m, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  put_little(m, bits, 8);
}

static void put_double(message *m, int field, double value) {
  put_key(m, field, EIGHT);
  put_raw_double(m, value);
}

static void put_float(message *m, int field, double value) {
  float narrow = (float)value;
  uint32_t bits;
  memcpy(&bits, &narrow, sizeof bits);
  put_key(m, field, FOUR);
  put_little(m, bits, 4);
}

static void put_bytes(message *m, int field, const void *data, size_t bytes) {
  put_key(m, field, BYTES);
  put_varint(m, bytes);
  put(m, data, bytes);
}

static void put_text(message *m, int field, const char *text) { put_bytes(m, field, text, strlen(text)); }

static message begin(gb_context *context) { return (message){ .context = context, .status = GB_OK }; }

/* An inner message becomes a field of an outer one, and ends. */
static void put_message(message *m, int field, message *inner) {
  if (m->status == GB_OK) m->status = inner->status;
  put_bytes(m, field, inner->data, inner->bytes);
  gb_counted_free(inner->data);
}

/* Fields of the messages; only what is written. */
enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_NUMBER = 2, VALUE_IMAGE = 4, VALUE_HISTOGRAM = 5, VALUE_TENSOR = 8,
       VALUE_METADATA = 9 };
enum { IMAGE_HEIGHT = 1, IMAGE_WIDTH = 2, IMAGE_COLORS = 3, IMAGE_PNG = 4 };
enum { HISTOGRAM_MIN = 1, HISTOGRAM_MAX = 2, HISTOGRAM_COUNT = 3, HISTOGRAM_SUM = 4, HISTOGRAM_SQUARES = 5,
       HISTOGRAM_LIMITS = 6, HISTOGRAM_BUCKETS = 7 };
enum { METADATA_PLUGIN = 1, PLUGIN_NAME = 1, PLUGIN_CONTENT = 2 };
enum { TENSOR_DTYPE = 1, TENSOR_SHAPE = 2, TENSOR_TEXT = 8, SHAPE_DIM = 2, DIM_SIZE = 1, DT_FLOAT = 1, DT_STRING = 7 };
enum { HPARAMS_VERSION = 1, HPARAMS_EXPERIMENT = 2, HPARAMS_START = 3, HPARAMS_END = 4, EXPERIMENT_CREATED = 3,
       EXPERIMENT_PARAM = 4, EXPERIMENT_METRIC = 5, PARAM_NAME = 1, PARAM_TYPE = 4, METRIC_NAME = 1, METRIC_TAG = 2,
       START_PARAM = 1, START_TIME = 5, MAP_KEY = 1, MAP_VALUE = 2, ANY_NUMBER = 2, ANY_TEXT = 3, ANY_BOOL = 4,
       END_STATUS = 1, END_TIME = 2, STATUS_SUCCESS = 1 };

/* ====} */

/* {==== records ==== */

/* Seconds since 1970. */
static double wall_time(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Frame the event and append it; it ends. */
static gb_status write_event(gb_events *events, message *event) {
  message record = begin(events->context), length = begin(events->context);
  record.status = event->status;
  put_little(&length, event->bytes, 8);
  put_little(&record, event->bytes, 8);
  if (length.status == GB_OK) put_little(&record, gb_crc32c_masked(length.data, 8), 4);
  else record.status = length.status;
  put(&record, event->data, event->bytes);
  if (record.status == GB_OK) put_little(&record, gb_crc32c_masked(event->data, event->bytes), 4);
  gb_status status = record.status == GB_OK ? gb_append_write(events->file, record.data, record.bytes) : record.status;
  gb_counted_free(record.data);
  gb_counted_free(length.data);
  gb_counted_free(event->data);
  return status;
}

/* The event of a summary, which ends. */
static gb_status write_summary(gb_events *events, int64_t step, message *summary) {
  message event = begin(events->context);
  put_double(&event, EVENT_TIME, wall_time());
  put_int(&event, EVENT_STEP, step);
  put_message(&event, EVENT_SUMMARY, summary);
  return write_event(events, &event);
}

/* The event of a single value, which ends; its tag is in it. */
static gb_status write_value(gb_events *events, int64_t step, message *value) {
  message summary = begin(events->context);
  put_message(&summary, SUMMARY_VALUE, value);
  return write_summary(events, step, &summary);
}

static message begin_value(gb_events *events, const char *tag) {
  message value = begin(events->context);
  put_text(&value, VALUE_TAG, tag);
  return value;
}

/* Whose value this is; content may be NULL, and ends. */
static void put_plugin(message *value, const char *name, message *content) {
  message metadata = begin(value->context), plugin = begin(value->context);
  put_text(&plugin, PLUGIN_NAME, name);
  if (content) put_message(&plugin, PLUGIN_CONTENT, content);
  put_message(&metadata, METADATA_PLUGIN, &plugin);
  put_message(value, VALUE_METADATA, &metadata);
}

/* The shape of a vector. */
static void put_shape(message *tensor, int64_t size) {
  message shape = begin(tensor->context), dim = begin(tensor->context);
  put_int(&dim, DIM_SIZE, size);
  put_message(&shape, SHAPE_DIM, &dim);
  put_message(tensor, TENSOR_SHAPE, &shape);
}

/* ====} */

/* {==== values ==== */

gb_status gb_events_scalars(gb_events *events, int64_t step, const char *const *tags, const double *values, int count) {
  message summary = begin(events->context);
  for (int i = 0; i < count; i++) {
    message value = begin_value(events, tags[i]);
    put_float(&value, VALUE_NUMBER, values[i]);
    put_message(&summary, SUMMARY_VALUE, &value);
  }
  return write_summary(events, step, &summary);
}

/* What every histogram has, and its buckets: `limits` are right edges. */
typedef struct histogram {
  double least, most, count, sum, squares;
  const double *limits, *buckets;
  size_t n;
} histogram;

static void put_doubles(message *m, int field, const double *values, size_t count) {
  put_key(m, field, BYTES);
  put_varint(m, 8 * count);
  for (size_t i = 0; i < count; i++) put_raw_double(m, values[i]);
}

static gb_status write_histogram(gb_events *events, int64_t step, const char *tag, const histogram *h) {
  message value = begin_value(events, tag), histo = begin(events->context);
  put_double(&histo, HISTOGRAM_MIN, h->least);
  put_double(&histo, HISTOGRAM_MAX, h->most);
  put_double(&histo, HISTOGRAM_COUNT, h->count);
  put_double(&histo, HISTOGRAM_SUM, h->sum);
  put_double(&histo, HISTOGRAM_SQUARES, h->squares);
  put_doubles(&histo, HISTOGRAM_LIMITS, h->limits, h->n);
  put_doubles(&histo, HISTOGRAM_BUCKETS, h->buckets, h->n);
  put_message(&value, VALUE_HISTOGRAM, &histo);
  return write_value(events, step, &value);
}

/* Edges above 0, below the largest that TensorFlow has; with those below 0, 0 itself and the last, which is open. */
enum { EDGES = 774, LIMITS = 2 * EDGES + 2 };

static void fill_limits(double limits[LIMITS]) {
  double edge = 1e-12;
  for (int i = 0; i < EDGES; i++, edge *= 1.1) {
    limits[EDGES + 1 + i] = edge;
    limits[EDGES - 1 - i] = -edge;
  }
  limits[EDGES] = 0;
  limits[LIMITS - 1] = 1.7976931348623157e308;
}

/* The first limit above x. */
static size_t bucket_of(const double limits[LIMITS], double x) {
  size_t low = 0, high = LIMITS - 1;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (limits[middle] > x) high = middle;
    else low = middle + 1;
  }
  return low;
}

gb_status gb_events_histogram(gb_events *events, int64_t step, const char *tag, const double *values, size_t count) {
  double *limits = gb_counted_alloc(events->context, 2 * LIMITS * sizeof *limits), *buckets = limits + LIMITS;
  if (!limits) return events->context->error_code;
  histogram h = { .least = INFINITY, .most = -INFINITY };
  gb_status status = GB_OK;
  int64_t work = 0;
  fill_limits(limits);
  for (size_t i = 0; status == GB_OK && i < count; i++) {
    double x = values[i];
    if (i % 1024 == 0) status = gb_poll_work(events->context, &work, 1024 * 8);
    if (!isfinite(x)) continue;
    buckets[bucket_of(limits, x)]++;
    h.least = x < h.least ? x : h.least;
    h.most = x > h.most ? x : h.most;
    h.count++;
    h.sum += x;
    h.squares += x * x;
  }
  size_t first = 0, last = LIMITS - 1;
  while (h.count > 0 && buckets[first] == 0) first++;
  while (h.count > 0 && buckets[last] == 0) last--;
  if (h.count == 0) h.least = h.most = 0, first = EDGES, last = EDGES + 1;
  if (first > 0) first--; /* an empty one before them, whose right edge is their left one */
  h.limits = limits + first;
  h.buckets = buckets + first;
  h.n = last - first + 1;
  if (status == GB_OK) status = write_histogram(events, step, tag, &h);
  gb_counted_free(limits);
  return status;
}

gb_status gb_events_counts(gb_events *events, int64_t step, const char *tag, int64_t least, const int64_t *counts,
                           size_t count) {
  double *limits = gb_counted_alloc(events->context, 2 * (count + 1) * sizeof *limits), *buckets = limits + count + 1;
  if (!limits) return events->context->error_code;
  histogram h = { .least = (double)least, .most = (double)least + (double)count - 1, .limits = limits,
                  .buckets = buckets, .n = count + 1 };
  limits[0] = h.least - 0.5;
  for (size_t i = 0; i < count; i++) {
    double x = h.least + (double)i, times = (double)counts[i];
    limits[i + 1] = x + 0.5;
    buckets[i + 1] = times;
    h.count += times;
    h.sum += times * x;
    h.squares += times * x * x;
  }
  gb_status status = write_histogram(events, step, tag, &h);
  gb_counted_free(limits);
  return status;
}

gb_status gb_events_image(gb_events *events, int64_t step, const char *tag, int64_t width, int64_t height, int channels,
                          const void *png, size_t bytes) {
  message value = begin_value(events, tag), image = begin(events->context);
  put_int(&image, IMAGE_HEIGHT, height);
  put_int(&image, IMAGE_WIDTH, width);
  put_int(&image, IMAGE_COLORS, channels);
  put_bytes(&image, IMAGE_PNG, png, bytes);
  put_message(&value, VALUE_IMAGE, &image);
  return write_value(events, step, &value);
}

gb_status gb_events_text(gb_events *events, int64_t step, const char *tag, const char *text, size_t length) {
  message value = begin(events->context), tensor = begin(events->context), name = begin(events->context);
  put(&name, tag, strlen(tag));
  put(&name, "/text_summary", strlen("/text_summary"));
  put_message(&value, VALUE_TAG, &name);
  put_int(&tensor, TENSOR_DTYPE, DT_STRING);
  put_shape(&tensor, 1);
  put_bytes(&tensor, TENSOR_TEXT, text, length);
  put_message(&value, VALUE_TENSOR, &tensor);
  put_plugin(&value, "text", NULL);
  return write_value(events, step, &value);
}

/* One of the three values that the plugin wants, which say what they are in their metadata; content ends. */
static gb_status write_hparams(gb_events *events, const char *tag, int field, message *content) {
  message value = begin_value(events, tag), data = begin(events->context), tensor = begin(events->context);
  put_int(&data, HPARAMS_VERSION, 0);
  put_message(&data, field, content);
  put_plugin(&value, "hparams", &data);
  put_int(&tensor, TENSOR_DTYPE, DT_FLOAT);
  put_shape(&tensor, 0);
  put_message(&value, VALUE_TENSOR, &tensor);
  return write_value(events, 0, &value);
}

/* Which hyperparameters and metrics there are. */
static message experiment_of(gb_context *context, const gb_hparam *params, int n_params, const char *const *metrics,
                             int n_metrics) {
  message experiment = begin(context);
  put_double(&experiment, EXPERIMENT_CREATED, wall_time());
  for (int i = 0; i < n_params; i++) {
    message param = begin(context);
    put_text(&param, PARAM_NAME, params[i].name);
    put_int(&param, PARAM_TYPE, params[i].type);
    put_message(&experiment, EXPERIMENT_PARAM, &param);
  }
  for (int i = 0; i < n_metrics; i++) {
    message metric = begin(context), name = begin(context);
    put_text(&name, METRIC_TAG, metrics[i]);
    put_message(&metric, METRIC_NAME, &name);
    put_message(&experiment, EXPERIMENT_METRIC, &metric);
  }
  return experiment;
}

/* What they are in this run. */
static message start_of(gb_context *context, const gb_hparam *params, int n_params) {
  message start = begin(context);
  for (int i = 0; i < n_params; i++) {
    message entry = begin(context), any = begin(context);
    put_text(&entry, MAP_KEY, params[i].name);
    if (params[i].type == GB_HPARAM_TEXT) put_bytes(&any, ANY_TEXT, params[i].text, params[i].length);
    else if (params[i].type == GB_HPARAM_BOOL) put_int(&any, ANY_BOOL, params[i].number != 0);
    else put_double(&any, ANY_NUMBER, params[i].number);
    put_message(&entry, MAP_VALUE, &any);
    put_message(&start, START_PARAM, &entry);
  }
  put_double(&start, START_TIME, wall_time());
  return start;
}

gb_status gb_events_hparams(gb_events *events, const gb_hparam *params, int n_params, const char *const *metrics,
                            int n_metrics) {
  message experiment = experiment_of(events->context, params, n_params, metrics, n_metrics);
  GB_TRY(write_hparams(events, "_hparams_/experiment", HPARAMS_EXPERIMENT, &experiment));
  message start = start_of(events->context, params, n_params);
  GB_TRY(write_hparams(events, "_hparams_/session_start_info", HPARAMS_START, &start));
  message end = begin(events->context);
  put_int(&end, END_STATUS, STATUS_SUCCESS);
  put_double(&end, END_TIME, wall_time());
  return write_hparams(events, "_hparams_/session_end_info", HPARAMS_END, &end);
}

/* ====} */

/* {==== life ==== */

/* The name of this machine, without what does not belong into the name of a file. */
static void host_name(char *text, size_t size) {
  if (gethostname(text, size)) snprintf(text, size, "localhost");
  text[size - 1] = 0;
  for (char *at = text; *at; at++)
    if (*at == '/' || *at == '.') *at = '-';
}

/* The first name that is free. */
static gb_status open_file(gb_events *events, const char *folder) {
  char host[128];
  size_t size = strlen(folder) + sizeof host + 96;
  events->path = malloc(size);
  if (!events->path) return gb_fail_memory(events->context, size);
  host_name(host, sizeof host);
  for (int n = 0;; n++) {
    snprintf(events->path, size, "%s/events.out.tfevents.%010" PRId64 ".%s.%ld.%d", folder, (int64_t)time(NULL), host,
             (long)getpid(), n);
    if (!gb_path_exists(events->context, events->path))
      return gb_append_open(events->context, events->path, true, &events->file);
  }
}

gb_status gb_events_open(gb_context *context, const char *folder, gb_events **out) {
  gb_events *events = calloc(1, sizeof *events);
  if (!events) return gb_fail_memory(context, sizeof *events);
  events->context = context;
  gb_context_retain(context);
  gb_status status = gb_path_make_folder(context, folder);
  if (status == GB_OK) status = open_file(events, folder);
  if (status == GB_OK) {
    message event = begin(context);
    put_double(&event, EVENT_TIME, wall_time());
    put_text(&event, EVENT_VERSION, "brain.Event:2");
    status = write_event(events, &event);
  }
  if (status != GB_OK) { gb_events_close(events); return status; }
  *out = events;
  return GB_OK;
}

const char *gb_events_path(const gb_events *events) { return events->path; }

gb_status gb_events_flush(gb_events *events) { return gb_append_flush(events->file); }

void gb_events_close(gb_events *events) {
  if (!events) return;
  gb_context *context = events->context;
  gb_append_close(events->file);
  free(events->path);
  free(events);
  gb_context_release(context);
}

/* ====} */
