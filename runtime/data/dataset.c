/* data/dataset.c - the life of a dataset, and the kinds there are. Each kind is a struct behind user, a get_batch and a
 * release. */
#include "data/dataset.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* {==== Any dataset ==== */

/* The bytes of a sample's column; false: it makes no sense or does not fit memory. */
static bool measure_column(gb_column *column) {
  size_t bytes = gb_dtype_bytes(column->dtype);
  if (!bytes || column->ndim < 0 || column->ndim >= GB_MAX_NDIM) return false;
  for (int d = 0; d < column->ndim; d++)
    if (column->shape[d] < 0 || __builtin_mul_overflow(bytes, (size_t)column->shape[d], &bytes)) return false;
  column->bytes = bytes;
  return bytes <= PTRDIFF_MAX / 2;
}

gb_status gb_dataset_new(gb_context *context, const gb_dataset *table, gb_dataset **out) {
  gb_status status = GB_OK;
  gb_dataset *dataset = gb_counted_alloc(context, sizeof *dataset);
  if (!dataset) status = context->error_code;
  else {
    memcpy(dataset, table, sizeof *dataset);
    atomic_init(&dataset->refs, 1);
  }
  if (status == GB_OK && (table->columns < 1 || table->columns > GB_MAX_COLUMNS || table->count < 0))
    status = gb_fail(context, GB_EINVAL, "a dataset has 1 to %d columns and no negative count", GB_MAX_COLUMNS);
  for (int c = 0; status == GB_OK && c < table->columns; c++)
    if (!measure_column(&dataset->column[c]))
      status = gb_fail(context, GB_ESHAPE, "column %d of the dataset has no possible shape and dtype", c + 1);
  if (status != GB_OK) {
    gb_counted_free(dataset);
    if (table->release) table->release(table->user);
    return status;
  }
  *out = dataset;
  return GB_OK;
}

void gb_fields_retain(gb_fields *fields) {
  if (fields) atomic_fetch_add_explicit(&fields->refs, 1, memory_order_relaxed);
}

void gb_fields_release(gb_fields *fields) {
  if (fields && atomic_fetch_sub_explicit(&fields->refs, 1, memory_order_acq_rel) == 1) fields->release(fields);
}

void gb_dataset_retain(gb_dataset *dataset) { atomic_fetch_add_explicit(&dataset->refs, 1, memory_order_relaxed); }

void gb_dataset_release(gb_dataset *dataset) {
  if (!dataset || atomic_fetch_sub_explicit(&dataset->refs, 1, memory_order_acq_rel) != 1) return;
  if (dataset->release) dataset->release(dataset->user);
  gb_fields_release(dataset->fields);
  gb_counted_free(dataset);
}

gb_status gb_dataset_draw(gb_dataset *dataset, const gb_draw *draw, const int64_t *indices, int64_t n,
                          void *const *out, char *error, size_t error_size) {
  for (int64_t i = 0; i < n; i++) {
    if (indices[i] >= 0 && indices[i] < dataset->count) continue;
    snprintf(error, error_size, "sample %" PRId64 " is out of range; the dataset has %" PRId64 " (counted from 1)",
             indices[i] + 1, dataset->count);
    return GB_EINDEX;
  }
  if (dataset->get_drawn) return dataset->get_drawn(dataset->user, draw, indices, n, out, error, error_size);
  return dataset->get_batch(dataset->user, indices, n, out, error, error_size);
}

gb_status gb_dataset_read(gb_dataset *dataset, const int64_t *indices, int64_t n, void *const *out, char *error,
                          size_t error_size) {
  return gb_dataset_draw(dataset, &(gb_draw){ 0 }, indices, n, out, error, error_size);
}

gb_status gb_dataset_get(gb_context *context, gb_dataset *dataset, int64_t index, gb_tensor **out) {
  gb_tensor *made[GB_MAX_COLUMNS] = { NULL };
  void *data[GB_MAX_COLUMNS];
  char error[512] = "";
  gb_status status = GB_OK;
  gb_draw draw = { context->seed, 0, context };
  for (int c = 0; c < dataset->columns && status == GB_OK; c++) {
    const gb_column *column = &dataset->column[c];
    status = gb_tensor_new(context, column->dtype, column->ndim, column->shape, (gb_device){ GB_CPU, 0 }, &made[c]);
    if (status == GB_OK) data[c] = gb_data(made[c]);
  }
  if (status == GB_OK) {
    if (dataset->get_drawn) draw.epoch = gb_rng_take(context);
    status = gb_dataset_draw(dataset, &draw, &index, 1, data, error, sizeof error);
    if (status != GB_OK) gb_fail(context, status, "%s", error);
  }
  for (int c = 0; c < dataset->columns; c++)
    if (status == GB_OK) out[c] = made[c];
    else gb_tensor_release(made[c]);
  return status;
}

/* ====} */

/* {==== Rows of tensors ==== */

typedef struct rows { int count; gb_tensor *tensor[GB_MAX_COLUMNS]; size_t bytes[GB_MAX_COLUMNS]; } rows;

static gb_status rows_get(void *user, const int64_t *indices, int64_t n, void *const *out, char *error,
                          size_t error_size) {
  const rows *set = user;
  (void)error, (void)error_size;
  for (int c = 0; c < set->count; c++) {
    const char *from = gb_data(set->tensor[c]);
    size_t bytes = set->bytes[c];
    for (int64_t i = 0; bytes && i < n; i++)
      memcpy((char *)out[c] + (size_t)i * bytes, from + (size_t)indices[i] * bytes, bytes);
  }
  return GB_OK;
}

static void rows_release(void *user) {
  rows *set = user;
  for (int c = 0; c < set->count; c++) gb_tensor_release(set->tensor[c]);
  gb_counted_free(set);
}

/* A tensor whose rows can be copied as they lie. */
static gb_status check_rows(gb_context *context, gb_tensor *const *tensors, int c) {
  const gb_tensor *t = tensors[c];
  char device[32];
  if (t->ndim < 1)
    return gb_fail(context, GB_ESHAPE, "tensor %d of the dataset is a scalar; its first dimension must count the "
                                       "samples", c + 1);
  if (t->storage->device.type != GB_CPU)
    return gb_fail(context, GB_EDEVICE, "tensor %d of the dataset is on %s; datasets lie on the cpu: use :to('cpu')",
                   c + 1,
                   gb_device_text(context, t->storage->device, device, sizeof device));
  if (!gb_is_contiguous(t))
    return gb_fail(context, GB_EINVAL, "tensor %d of the dataset is not contiguous: use :contiguous()", c + 1);
  if (t->storage->loan != GB_OWNED) /* a loader's thread reads it */
    return gb_fail(context, GB_ESTATE, "tensor %d of the dataset is a loan that can be taken back at any time: use "
                                       ":clone()", c + 1);
  GB_TRY(gb_touch_values(t));
  if (t->shape[0] != tensors[0]->shape[0])
    return gb_fail(context, GB_ESHAPE, "tensor %d of the dataset has %" PRId64 " samples, tensor 1 has %" PRId64, c + 1,
                   t->shape[0],
                   tensors[0]->shape[0]);
  return GB_OK;
}

gb_status gb_dataset_tensors(gb_context *context, gb_tensor *const *tensors, int count, gb_dataset **out) {
  if (count < 1 || count > GB_MAX_COLUMNS)
    return gb_fail(context, GB_EINVAL, "a dataset is made of 1 to %d tensors, not %d", GB_MAX_COLUMNS, count);
  gb_dataset table = { .columns = count, .get_batch = rows_get, .release = rows_release };
  for (int c = 0; c < count; c++) GB_TRY(check_rows(context, tensors, c));
  rows *set = gb_counted_alloc(context, sizeof *set);
  if (!set) return context->error_code;
  set->count = count;
  for (int c = 0; c < count; c++) {
    const gb_tensor *t = tensors[c];
    gb_column *column = &table.column[c];
    *column = (gb_column){ .dtype = (gb_dtype)t->dtype, .ndim = t->ndim - 1 };
    memcpy(column->shape, t->shape + 1, (size_t)column->ndim * sizeof *t->shape);
    set->bytes[c] = gb_dtype_bytes(column->dtype);
    for (int d = 0; d < column->ndim; d++) set->bytes[c] *= (size_t)column->shape[d];
    set->tensor[c] = tensors[c];
    gb_tensor_retain(tensors[c]);
  }
  table.count = tensors[0]->shape[0];
  table.user = set;
  return gb_dataset_new(context, &table, out);
}

/* ====} */

/* {==== Windows of a text or a token file ==== */

typedef struct windows { gb_text *text; gb_tokens *tokens; int64_t first, block; } windows; /* one of text and tokens */

/* x = ids at .. at + block - 1, y = the ids one further. */
static gb_status read_window(const windows *set, int64_t at, int64_t *x, int64_t *y, char *error, size_t error_size) {
  int64_t block = set->block;
  if (set->tokens) GB_TRY(gb_tokens_read(set->tokens, at, block, x, &y[block - 1], error, error_size));
  else {
    const uint16_t *from = gb_text_ids(set->text) + at;
    for (int64_t t = 0; t < block; t++) x[t] = from[t];
    y[block - 1] = from[block];
  }
  memcpy(y, x + 1, (size_t)(block - 1) * sizeof *y);
  return GB_OK;
}

static gb_status windows_get(void *user, const int64_t *indices, int64_t n, void *const *out, char *error,
                             size_t error_size) {
  const windows *set = user;
  int64_t *x = out[0], *y = out[1], block = set->block;
  for (int64_t i = 0; i < n; i++, x += block, y += block)
    GB_TRY(read_window(set, set->first + indices[i], x, y, error, error_size));
  return GB_OK;
}

static void windows_release(void *user) {
  windows *set = user;
  gb_text_release(set->text);
  gb_tokens_release(set->tokens);
  gb_counted_free(set);
}

/* Windows of ids first .. first + count - 1 of `length`, from what source holds; source is retained when there is no
 * failure. */
static gb_status windows_new(gb_context *context, const windows *source, int64_t length, int64_t count,
                             gb_dataset **out) {
  int64_t first = source->first, block = source->block;
  if (first < 0 || count < 0 || first > length || count > length - first)
    return gb_fail(context, GB_EINDEX, "ids %" PRId64 " to %" PRId64 " are not all there; there are %" PRId64,
                   first + 1, first + count, length);
  if (block < 1) return gb_fail(context, GB_EINVAL, "block must be at least 1, not %" PRId64, block);
  if (count <= block)
    return gb_fail(context, GB_EINVAL,
                   "%" PRId64 " ids are too few for windows of %" PRId64 " and the next id: use a smaller block or "
                                                                         "a longer text", count, block);
  windows *set = gb_counted_alloc(context, sizeof *set);
  if (!set) return context->error_code;
  *set = *source;
  if (set->text) gb_text_retain(set->text);
  if (set->tokens) gb_tokens_retain(set->tokens);
  gb_column column = { .dtype = GB_INT64, .ndim = 1, .shape = { block } };
  gb_dataset table = { .count = count - block, .columns = 2, .column = { column, column }, .get_batch = windows_get,
                       .release = windows_release,
                      .user = set };
  return gb_dataset_new(context, &table, out);
}

gb_status gb_dataset_windows(gb_context *context, gb_text *text, int64_t first, int64_t count, int64_t block,
                             gb_dataset **out) {
  return windows_new(context, &(windows){ .text = text, .first = first, .block = block }, gb_text_length(text), count,
                     out);
}

gb_status gb_dataset_token_windows(gb_context *context, gb_tokens *tokens, int64_t first, int64_t count, int64_t block,
                                   gb_dataset **out) {
  return windows_new(context, &(windows){ .tokens = tokens, .first = first, .block = block }, gb_tokens_length(tokens),
                     count, out);
}

/* ====} */

/* {==== Indices and parts ==== */

static gb_status indices_get(void *user, const int64_t *indices, int64_t n, void *const *out, char *error,
                             size_t error_size) {
  (void)user, (void)error, (void)error_size;
  memcpy(out[0], indices, (size_t)n * sizeof *indices);
  return GB_OK;
}

gb_status gb_dataset_indices(gb_context *context, int64_t count, gb_dataset **out) {
  return gb_dataset_new(context, &(gb_dataset){ .count = count, .columns = 1, .column = { { .dtype = GB_INT64 } },
                                                .get_batch = indices_get }, out);
}

/* A counted list of indices, which parts of parts share. */
typedef struct list { _Atomic int32_t refs; int64_t index[]; } list;

/* A part: sample i is sample first + i of another dataset, or list->index[first + i]. That other one is never a part
 * itself: a part of a part is one of the whole, so that however often a recipe takes parts of parts, reading and
 * releasing go one step. */
typedef struct part { gb_dataset *of; int64_t first; list *list; } part;

/* Translates a few indices at a time, on the stack. */
static gb_status part_drawn(void *user, const gb_draw *draw, const int64_t *indices, int64_t n, void *const *out,
                            char *error, size_t error_size) {
  const part *p = user;
  int64_t translated[256];
  void *at[GB_MAX_COLUMNS];
  for (int64_t done = 0; done < n; done += 256) {
    int64_t some = n - done < 256 ? n - done : 256;
    for (int64_t i = 0; i < some; i++) {
      int64_t place = p->first + indices[done + i];
      translated[i] = p->list ? p->list->index[place] : place;
    }
    for (int c = 0; c < p->of->columns; c++) at[c] = (char *)out[c] + (size_t)done * p->of->column[c].bytes;
    GB_TRY(gb_dataset_draw(p->of, draw, translated, some, at, error, error_size));
  }
  return GB_OK;
}

static gb_status part_get(void *user, const int64_t *indices, int64_t n, void *const *out, char *error,
                          size_t error_size) {
  return part_drawn(user, &(gb_draw){ 0 }, indices, n, out, error, error_size);
}

static int64_t part_skipped(void *user) {
  const part *p = user;
  return p->of->skipped(p->of->user);
}

static void list_release(list *l) {
  if (l && atomic_fetch_sub(&l->refs, 1) == 1) gb_counted_free(l);
}

static void part_release(void *user) {
  part *p = user;
  gb_dataset_release(p->of);
  list_release(p->list);
  gb_counted_free(p);
}

/* Takes the list of what it is given, and retains the dataset. */
static gb_status part_new(gb_context *context, part made, int64_t count, gb_dataset **out) {
  part *p = gb_counted_alloc(context, sizeof *p);
  if (!p) { list_release(made.list); return context->error_code; }
  *p = made;
  gb_dataset_retain(p->of);
  gb_dataset table = { .count = count, .columns = p->of->columns, .get_batch = part_get, .release = part_release,
                       .get_drawn = p->of->get_drawn ? part_drawn : NULL,
                       .skipped = p->of->skipped ? part_skipped : NULL, .user = p };
  memcpy(table.column, p->of->column, sizeof table.column);
  gb_fields *fields = p->of->fields;
  GB_TRY(gb_dataset_new(context, &table, out));
  gb_fields_retain((*out)->fields = fields);
  return GB_OK;
}

/* A dataset as the part of another that it is; one that is none is all of itself. */
static part as_part(gb_dataset *of) { return of->get_batch == part_get ? *(const part *)of->user : (part){ .of = of }; }

gb_status gb_dataset_range(gb_context *context, gb_dataset *of, int64_t first, int64_t count, gb_dataset **out) {
  if (first < 0 || count < 0 || first > of->count || count > of->count - first)
    return gb_fail(context, GB_EINDEX,
                   "samples %" PRId64 " to %" PRId64 " are not all in the dataset, which has %" PRId64, first + 1,
                   first + count, of->count);
  part p = as_part(of);
  p.first += first;
  if (p.list) atomic_fetch_add(&p.list->refs, 1);
  return part_new(context, p, count, out);
}

gb_status gb_dataset_subset(gb_context *context, gb_dataset *of, const int64_t *indices, int64_t count,
                            gb_dataset **out) {
  for (int64_t i = 0; i < count; i++)
    if (indices[i] < 0 || indices[i] >= of->count)
      return gb_fail(context, GB_EINDEX,
                     "sample %" PRId64 " is not in the dataset, which has %" PRId64 " (counted from 1)", indices[i] + 1,
                     of->count);
  list *l = gb_counted_alloc(context, sizeof *l + (size_t)count * sizeof *l->index);
  if (!l) return context->error_code;
  part p = as_part(of);
  atomic_init(&l->refs, 1);
  for (int64_t i = 0; i < count; i++) {
    int64_t place = p.first + indices[i];
    l->index[i] = p.list ? p.list->index[place] : place;
  }
  return part_new(context, (part){ .of = p.of, .list = l }, count, out);
}

/* ====} */
