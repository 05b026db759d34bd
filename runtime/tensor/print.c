/* tensor/print.c - the text of a tensor, in PyTorch's layout (torch/_tensor_str.py): one width for all elements,
 * integers with a bare point where every element is whole, scientific where the values spread too far, the middle of
 * long dimensions left out.
 *
 * The elements that will be shown are read from the device first, in runs of the last dimension, and nothing else
 * is. */
#include "tensor/print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/context.h"

/* A text that grows. After a failed allocation it stays as it is. */
typedef struct text { char *at; size_t used, room; bool failed; } text;

/* How elements look, and what is shown of the tensor. */
typedef struct printer {
  const gb_tensor *tensor;
  const gb_print_options *options;
  text out;
  double *number;            /* the elements shown, in order: of a float dtype, */
  int64_t *integer;          /* or of any other */
  int64_t count, next;       /* elements shown; the next one to print */
  int64_t work;              /* since the last look for a stop */
  bool stopped;
  bool summarised, whole, scientific;
  int width;
} printer;

#define ELEMENT_WORK 128 /* of the text of an element, towards a piece */

/* Is a stop asked for? Then nothing more is made into text; the error stands in the context. */
static bool is_stopped(printer *p) {
  if (!p->stopped) p->stopped = gb_poll_work(p->tensor->storage->context, &p->work, ELEMENT_WORK) != GB_OK;
  return p->stopped;
}

/* {==== Text ==== */

static void put_bytes(text *t, const char *bytes, size_t n) {
  if (t->failed) return;
  if (t->used + n + 1 > t->room) {
    size_t room = 2 * (t->used + n + 1);
    char *grown = realloc(t->at, room);
    if (!grown) {
      t->failed = true;
      return;
    }
    t->at = grown, t->room = room;
  }
  memcpy(t->at + t->used, bytes, n);
  t->at[t->used += n] = 0;
}

static void put(text *t, const char *string) { put_bytes(t, string, strlen(string)); }

static void put_many(text *t, char c, int64_t n) {
  for (; n > 0; n--) put_bytes(t, &c, 1);
}

/* ====} */

/* {==== Which elements, and reading them ==== */

/* Of a dimension of this size, how many positions are shown. */
static int64_t shown(const printer *p, int64_t size) {
  int64_t ends = 2 * p->options->edge_items;
  return p->summarised && size > ends ? ends : size;
}

/* The position of the i-th that is shown. */
static int64_t position_shown(const printer *p, int64_t size, int64_t i) {
  return shown(p, size) < size && i >= p->options->edge_items ? size - shown(p, size) + i : i;
}

/* Read n neighbours of the last dimension, in one piece where they lie side by side. */
static gb_status read_run(printer *p, int64_t offset, int64_t stride, int64_t n) {
  const gb_tensor *t = p->tensor;
  gb_backend *backend = gb_context_backend(t->storage->context, t->storage->device);
  gb_dtype dtype = (gb_dtype)t->dtype;
  int64_t bytes = (int64_t)gb_dtype_bytes(dtype), piece = stride == 1 ? 128 : 1;
  _Alignas(8) char host[128 * 8];
  GB_TRY(gb_touch_values(t)); /* again: making room for the text may have run a finaliser */
  for (int64_t i = 0; i < n; i += piece) {
    int64_t count = n - i < piece ? n - i : piece;
    GB_TRY(gb_poll_work(t->storage->context, &p->work, ELEMENT_WORK));
    GB_TRY(backend->read(backend->state, host, gb_data(t) + (offset + i * stride) * bytes, (size_t)(count * bytes)));
    for (int64_t k = 0; k < count; k++, p->next++) {
      if (p->number) p->number[p->next] = gb_element_f64(host, dtype, k);
      else p->integer[p->next] = gb_element_i64(host, dtype, k);
    }
  }
  return GB_OK;
}

/* Read what is shown of dims dim .. at an offset. */
static gb_status read_shown(printer *p, int dim, int64_t offset) {
  const gb_tensor *t = p->tensor;
  if (dim == t->ndim) return read_run(p, offset, 1, 1);
  int64_t size = t->shape[dim], n = shown(p, size), edge = n < size ? p->options->edge_items : n;
  if (dim < t->ndim - 1) {
    for (int64_t i = 0; i < n; i++)
      GB_TRY(read_shown(p, dim + 1, offset + position_shown(p, size, i) * t->stride[dim]));
    return GB_OK;
  }
  GB_TRY(read_run(p, offset, t->stride[dim], edge));
  return n > edge ? read_run(p, offset + (size - edge) * t->stride[dim], t->stride[dim], n - edge) : GB_OK;
}

/* ====} */

/* {==== Elements ==== */

/* An element without its padding; returns its length. */
static int element_text(const printer *p, int64_t i, char *to, size_t size) {
  if (!p->number) {
    if (p->tensor->dtype == GB_BOOL) return snprintf(to, size, "%s", p->integer[i] ? "true" : "false");
    return snprintf(to, size, "%lld", (long long)p->integer[i]);
  }
  double v = p->number[i];
  if (isnan(v)) return snprintf(to, size, "nan");
  if (isinf(v)) return snprintf(to, size, v < 0 ? "-inf" : "inf");
  if (p->scientific) return snprintf(to, size, "%.*e", p->options->precision, v);
  if (p->whole) return snprintf(to, size, "%.0f.", v);
  return snprintf(to, size, "%.*f", p->options->precision, v);
}

/* PyTorch's choice: whole if every finite element is; scientific if the largest is above 1e8 or 1000 times the
 * smallest, or that below 1e-4. */
static void choose_format(printer *p) {
  double least = INFINITY, most = 0;
  p->whole = true;
  for (int64_t i = 0; p->number && i < p->count; i++) {
    double v = fabs(p->number[i]);
    if (!isfinite(v) || v == 0) continue;
    if (v != ceil(v)) p->whole = false;
    least = fmin(least, v), most = fmax(most, v);
  }
  p->scientific = most > 0 && (most / least > 1000 || most > 1e8 || (!p->whole && least < 1e-4));
  if (p->options->scientific != GB_SCIENTIFIC_AUTO)
    p->scientific = p->number && p->options->scientific == GB_SCIENTIFIC_ALWAYS;
  char room[400];
  for (int64_t i = 0; i < p->count && !is_stopped(p); i++) {
    int length = element_text(p, i, room, sizeof room);
    if (length > p->width) p->width = length;
  }
}

static void put_element(printer *p) {
  char room[400];
  if (is_stopped(p)) return;
  int length = element_text(p, p->next++, room, sizeof room);
  put_many(&p->out, ' ', p->width - length);
  put(&p->out, room);
}

/* ====} */

/* {==== Brackets ==== */

/* The last dimension: as many elements to a line as fit; "..." takes the place of one. */
static void put_vector(printer *p, int64_t size, int indent) {
  int64_t n = shown(p, size), cut = n < size ? p->options->edge_items : -1, items = n + (cut >= 0);
  int64_t per_line = (p->options->line_width - indent) / (p->width + 2);
  if (per_line < 1) per_line = 1;
  put(&p->out, "[");
  for (int64_t i = 0; i < items; i++) {
    if (i > 0 && i % per_line == 0) {
      put(&p->out, ",\n");
      put_many(&p->out, ' ', indent + 1);
    } else if (i > 0) {
      put(&p->out, ", ");
    }
    if (i == cut) put(&p->out, " ...");
    else put_element(p);
  }
  put(&p->out, "]");
}

/* Dimensions dim .. in brackets, with a blank line more for each dimension between the parts. */
static void put_dims(printer *p, int dim, int indent) {
  const gb_tensor *t = p->tensor;
  if (dim == t->ndim) { put_element(p); return; }
  if (dim == t->ndim - 1) { put_vector(p, t->shape[dim], indent); return; }
  int64_t size = t->shape[dim], n = shown(p, size), cut = n < size ? p->options->edge_items : -1,
      items = n + (cut >= 0);
  put(&p->out, "[");
  for (int64_t i = 0; i < items; i++) {
    if (i > 0) {
      put(&p->out, ",");
      put_many(&p->out, '\n', t->ndim - dim - 1);
      put_many(&p->out, ' ', indent + 1);
    }
    if (i == cut) put(&p->out, "...");
    else put_dims(p, dim + 1, indent + 1);
  }
  put(&p->out, "]");
}

/* ", name=value", on a line of its own where the last line would become too long. */
static void put_suffix(printer *p, int indent, const char *name, const char *value) {
  const char *line = p->out.at ? strrchr(p->out.at, '\n') : NULL;
  size_t length = p->out.at ? strlen(line ? line + 1 : p->out.at) : 0, more = strlen(name) + 1 + strlen(value);
  bool fits = length + more + 3 <= (size_t)p->options->line_width;
  put(&p->out, fits ? ", " : ",\n");
  if (!fits) put_many(&p->out, ' ', indent);
  put(&p->out, name);
  put(&p->out, "=");
  put(&p->out, value);
}

/* Append what the elements do not show: shape, dtype, device, gradients. */
static void put_suffixes(printer *p, int indent) {
  const gb_tensor *t = p->tensor;
  char room[192];
  gb_dtype dtype = (gb_dtype)t->dtype;
  if (p->summarised || (t->numel == 0 && t->ndim != 1))
    put_suffix(p, indent, "shape", gb_shape_text(t->ndim, t->shape, room, sizeof room));
  if (dtype != GB_FLOAT32 && (t->numel == 0 || (dtype != GB_INT64 && dtype != GB_BOOL)))
    put_suffix(p, indent, "dtype", gb_dtype_name(dtype));
  if (t->storage->device.type != GB_CPU)
    put_suffix(p, indent, "device", gb_device_text(t->storage->context, t->storage->device, room, sizeof room));
  if (gb_tensor_in_graph(t)) put_suffix(p, indent, "requires_grad", "true");
}

/* ====} */

void gb_print_options_init(gb_print_options *options) {
  *options = (gb_print_options){ .precision = 4, .threshold = 1000, .edge_items = 3, .line_width = 80,
                                 .scientific = GB_SCIENTIFIC_AUTO };
}

/* Read the elements that are shown and choose their format. */
static gb_status prepare(printer *p) {
  const gb_tensor *t = p->tensor;
  if (t->numel == 0) return GB_OK;
  GB_TRY(gb_touch_values(t));
  p->count = 1;
  for (int i = 0; i < t->ndim; i++) p->count *= shown(p, t->shape[i]);
  size_t bytes = (size_t)p->count * 8;
  bool is_float = gb_dtype_is_float((gb_dtype)t->dtype);
  if (is_float) p->number = malloc(bytes ? bytes : 1);
  else p->integer = malloc(bytes ? bytes : 1);
  if (!p->number && !p->integer) return gb_fail_memory(t->storage->context, bytes);
  if (p->count > 0) GB_TRY(read_shown(p, 0, 0));
  p->next = 0;
  choose_format(p);
  return GB_OK;
}

gb_status gb_tensor_text(gb_tensor *tensor, const gb_print_options *options, char **out) {
  static const char head[] = "tensor(";
  gb_print_options usual;
  gb_print_options_init(&usual);
  if (!options) options = &usual;
  printer p = { .tensor = tensor, .options = options, .summarised = tensor->numel > options->threshold };
  gb_status status = prepare(&p);
  if (status == GB_OK) {
    int indent = (int)sizeof head - 1;
    put(&p.out, head);
    if (tensor->numel == 0) put(&p.out, "[]");
    else put_dims(&p, 0, indent);
    put_suffixes(&p, indent);
    put(&p.out, ")");
    if (p.stopped) status = GB_EINTERRUPT;
    else if (p.out.failed) status = gb_fail_memory(tensor->storage->context, p.out.room);
  }
  free(p.number);
  free(p.integer);
  if (status == GB_OK) *out = p.out.at;
  else free(p.out.at);
  return status;
}
