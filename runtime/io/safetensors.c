/* io/safetensors.c - see safetensors.h. The rules of the reader are those of the format's own
 * (safetensors/src/tensor.rs, Metadata::validate), and, beyond them, no duplicate keys, dtypes in capitals and digits,
 * at most MOST_RANK dimensions, no NUL in names and values, and bool bytes of 0 or 1. */
#include "io/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/file.h"
#include "io/json.h"
#include "io/kind.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are written as they lie in memory");

#define HEADER_MOST 100000000u
#define MOST_RANK 16
#define MOST_DTYPE_NAME 24 /* of those that are not known here */
#define METADATA "__metadata__"

/* The dtypes of the format; dtype is the engine's, NONE where it has none; cure: what PyTorch makes of such a tensor
 * that the engine has. A dtype that is in no row came after this was written: its row is the last, and its elements are
 * of no known size. */
static const struct { const char *name; uint64_t bits; gb_dtype dtype; const char *cure; } dtypes[] = {
#define OURS(NAME, name, type, reading, category, digits, least, most, file, ...) \
  { file, 8 * sizeof(type), GB_##NAME, NULL },
  GB_DTYPE_LIST(OURS)
#undef OURS
  { "U16", 16, GB_DTYPE_NONE, "to(torch.int32)" }, { "U32", 32, GB_DTYPE_NONE, "to(torch.int64)" },
  { "U64", 64, GB_DTYPE_NONE, "to(torch.int64)" }, { "C64", 64, GB_DTYPE_NONE, "view(torch.float32)" },
  { "F8_E5M2", 8, GB_DTYPE_NONE, "to(torch.float16)" }, { "F8_E4M3", 8, GB_DTYPE_NONE, "to(torch.float16)" },
  { "F8_E8M0", 8, GB_DTYPE_NONE, "to(torch.float32)" }, { "F8_E4M3FNUZ", 8, GB_DTYPE_NONE, "to(torch.float16)" },
  { "F8_E5M2FNUZ", 8, GB_DTYPE_NONE, "to(torch.float32)" }, { "F6_E2M3", 6, GB_DTYPE_NONE, "to(torch.float16)" },
  { "F6_E3M2", 6, GB_DTYPE_NONE, "to(torch.float16)" }, { "F4", 4, GB_DTYPE_NONE, "to(torch.float16)" },
  { NULL, 0, GB_DTYPE_NONE, "to(torch.float32)" },
};
#define DTYPES (int)(sizeof dtypes / sizeof *dtypes - 1) /* the row behind them: unknown */

/* {==== Writer ==== */

typedef struct item { const char *name; gb_tensor *tensor; } item;

/* Wide elements first, so that everything is aligned to its own size; then by name, so that the file depends on nothing
 * else. */
static int compare_items(const void *a, const void *b) {
  const item *x = a, *y = b;
  size_t wide = gb_dtype_bytes(gb_tensor_dtype(x->tensor)), other = gb_dtype_bytes(gb_tensor_dtype(y->tensor));
  return wide != other ? (wide < other) - (wide > other) : strcmp(x->name, y->name);
}

static size_t bytes_of(const gb_tensor *tensor) { return (size_t)gb_tensor_numel(tensor) *
                                                  gb_dtype_bytes(gb_tensor_dtype(tensor)); }

static const char *file_dtype(gb_dtype dtype) {
  for (int i = 0; i < DTYPES; i++)
    if (dtypes[i].dtype == dtype) return dtypes[i].name;
  return NULL;
}

static void write_text(gb_json_writer *w, const char *text) { gb_json_string(w, text, strlen(text)); }

/* "name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]} */
static void write_entry(gb_json_writer *w, const item *entry, uint64_t begin) {
  gb_json_key(w, entry->name, strlen(entry->name));
  gb_json_open(w, '{');
  gb_json_key(w, "dtype", 5);
  write_text(w, file_dtype(gb_tensor_dtype(entry->tensor)));
  gb_json_key(w, "shape", 5);
  gb_json_open(w, '[');
  for (int d = 0; d < gb_tensor_ndim(entry->tensor); d++) gb_json_integer(w, gb_tensor_shape(entry->tensor)[d]);
  gb_json_close(w, ']');
  gb_json_key(w, "data_offsets", 12);
  gb_json_open(w, '[');
  gb_json_unsigned(w, begin);
  gb_json_unsigned(w, begin + bytes_of(entry->tensor));
  gb_json_close(w, ']');
  gb_json_close(w, '}');
}

/* The header, padded with spaces to a multiple of eight. */
static gb_status write_header(gb_context *context, const item *items, int64_t count, const char *const *keys,
                              const char *const *values,
                              int64_t metadata_count, gb_json_writer *w) {
  uint64_t begin = 0;
  gb_json_open(w, '{');
  if (metadata_count) {
    gb_json_key(w, METADATA, strlen(METADATA));
    gb_json_open(w, '{');
    for (int64_t i = 0; i < metadata_count; i++) {
      gb_json_key(w, keys[i], strlen(keys[i]));
      write_text(w, values[i]);
    }
    gb_json_close(w, '}');
  }
  for (int64_t i = 0; i < count; begin += bytes_of(items[i++].tensor)) write_entry(w, &items[i], begin);
  gb_json_close(w, '}');
  if (w->status == GB_EMEMORY) return gb_fail_memory(context, w->length);
  if (w->status != GB_OK) return gb_fail(context, GB_EINVAL, "safetensors: names and metadata must be UTF-8 text");
  if (w->length + 8 > HEADER_MOST)
    return gb_fail(context, GB_EINVAL, "safetensors: names and metadata take %zu bytes; a file can hold %u", w->length,
                   HEADER_MOST);
  return GB_OK;
}

/* The bytes of one tensor, in row-major order. */
static gb_status write_tensor(gb_context *context, gb_file_writer *file, gb_tensor *tensor) {
  size_t bytes = bytes_of(tensor);
  if (!bytes) return GB_OK;
  GB_TRY(gb_touch_values(tensor));
  if (gb_tensor_device(tensor).type == GB_CPU && gb_is_contiguous(tensor))
    return gb_file_write(file, gb_data(tensor), bytes);
  void *ordered = gb_counted_resize(context, NULL, bytes);
  if (!ordered) return gb_error_code(context);
  gb_status status = gb_tensor_read(tensor, ordered, bytes);
  if (status == GB_OK) status = gb_file_write(file, ordered, bytes);
  gb_counted_free(ordered);
  return status;
}

/* Length, header, tensors. */
static gb_status write_all(gb_context *context, gb_file_writer *file, const gb_json_writer *header, const item *items,
                           int64_t count) {
  static const char spaces[8] = "        ";
  unsigned char length[8];
  uint64_t padded = (header->length + 7) / 8 * 8;
  for (int i = 0; i < 8; i++) length[i] = (unsigned char)(padded >> (8 * i));
  GB_TRY(gb_file_write(file, length, sizeof length));
  GB_TRY(gb_file_write(file, header->text, header->length));
  GB_TRY(gb_file_write(file, spaces, (size_t)padded - header->length));
  for (int64_t i = 0; i < count; i++) GB_TRY(write_tensor(context, file, items[i].tensor));
  return GB_OK;
}

static int compare_texts(const void *a, const void *b) { return strcmp(*(const char *const *)a,
                                                                       *(const char *const *)b); }

/* No text comes twice. */
static gb_status check_different(gb_context *context, const char *what, const char *const *texts, int64_t count) {
  const char **sorted = malloc((size_t)(count + 1) * sizeof *sorted);
  if (!sorted) return gb_fail_memory(context, (size_t)count * sizeof *sorted);
  for (int64_t i = 0; i < count; i++) sorted[i] = texts[i];
  qsort(sorted, (size_t)count, sizeof *sorted, compare_texts);
  gb_status status = GB_OK;
  for (int64_t i = 1; i < count && status == GB_OK; i++)
    if (!strcmp(sorted[i - 1], sorted[i]))
      status = gb_fail(context, GB_EINVAL, "safetensors: the %s '%s' is given twice", what, sorted[i]);
  free(sorted);
  return status;
}

static gb_status check_names(gb_context *context, const char *const *names, gb_tensor *const *tensors, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    if (!strcmp(names[i], METADATA))
      return gb_fail(context, GB_EINVAL, "safetensors: a tensor cannot be called '%s'", METADATA);
    if (!file_dtype(gb_tensor_dtype(tensors[i])))
      return gb_fail(context, GB_EDTYPE, "safetensors: '%s' is %s, which the format does not have", names[i],
                     gb_dtype_name(gb_tensor_dtype(tensors[i])));
  }
  return check_different(context, "name", names, count);
}

/* With the items sorted: make the header, then write the file. */
static gb_status save_items(gb_context *context, const char *path, const item *items, int64_t count,
                            const char *const *keys,
                            const char *const *values, int64_t metadata_count) {
  gb_json_writer header = { .context = context };
  gb_file_writer *file = NULL;
  gb_status status = write_header(context, items, count, keys, values, metadata_count, &header);
  if (status == GB_OK) status = gb_file_create(context, path, &file);
  if (status == GB_OK) {
    status = write_all(context, file, &header, items, count);
    if (status == GB_OK) status = gb_file_commit(file);
    else gb_file_abandon(file);
  }
  gb_json_writer_free(&header);
  return status;
}

gb_status gb_safetensors_save(gb_context *context, const char *path, const char *const *names,
                              gb_tensor *const *tensors, int64_t count,
                              const char *const *keys, const char *const *values, int64_t metadata_count) {
  GB_TRY(check_names(context, names, tensors, count));
  GB_TRY(check_different(context, "metadata key", keys, metadata_count));
  item *items = malloc((size_t)(count + 1) * sizeof *items);
  if (!items) return gb_fail_memory(context, (size_t)count * sizeof *items);
  for (int64_t i = 0; i < count; i++) items[i] = (item){ names[i], tensors[i] };
  qsort(items, (size_t)count, sizeof *items, compare_items);
  gb_status status = save_items(context, path, items, count, keys, values, metadata_count);
  free(items);
  return status;
}

/* ====} */

/* {==== Reader ==== */

typedef struct entry {
  const char *name, *dtype_name;     /* in the parsed header, like all texts here */
  int dtype, ndim;                   /* dtype: a row of dtypes[] */
  int64_t shape[MOST_RANK];
  uint64_t begin, end;               /* in the data part */
} entry;

struct gb_safetensors {
  gb_context *context;
  gb_file_reader *file;
  gb_json *header;
  uint64_t data;                     /* where the data part begins */
  entry *entries;
  int64_t count;
  const gb_json **metadata;          /* strings; NULL: the file has no metadata */
  int64_t metadata_count;
};

/* GB_EFORMAT about one tensor. */
static gb_status bad_entry(gb_context *context, const gb_json *member, const char *what) {
  return gb_fail(context, GB_EFORMAT, "safetensors: tensor '%.200s' %s", member->key, what);
}

static bool has_nul(const char *text, size_t length) { return memchr(text, 0, length) != NULL; }

/* shape: non-negative integers, few enough. */
static gb_status read_shape(gb_context *context, const gb_json *member, entry *out) {
  const gb_json *shape = gb_json_get(member, "shape");
  if (!shape || shape->type != GB_JSON_ARRAY) return bad_entry(context, member, "has no shape");
  if (shape->as.list.count > MOST_RANK) return bad_entry(context, member, "has too many dimensions");
  for (const gb_json *size = shape->as.list.first; size; size = size->next)
    if (!gb_json_int64(size, &out->shape[out->ndim]) || out->shape[out->ndim++] < 0)
      return bad_entry(context, member, "has a size that is no whole number from 0 on");
  return GB_OK;
}

/* data_offsets: exactly two, in order. */
static gb_status read_offsets(gb_context *context, const gb_json *member, entry *out) {
  const gb_json *offsets = gb_json_get(member, "data_offsets");
  int64_t begin, end;
  if (!offsets || offsets->type != GB_JSON_ARRAY || offsets->as.list.count != 2)
    return bad_entry(context, member, "has no pair of data_offsets");
  if (!gb_json_int64(offsets->as.list.first, &begin) || !gb_json_int64(offsets->as.list.first->next, &end) ||
      begin < 0 || end < begin)
    return bad_entry(context, member, "has data_offsets that are no range");
  out->begin = (uint64_t)begin;
  out->end = (uint64_t)end;
  return GB_OK;
}

static gb_status read_dtype(gb_context *context, const gb_json *member, entry *out) {
  const gb_json *dtype = gb_json_get(member, "dtype");
  if (!dtype || dtype->type != GB_JSON_STRING) return bad_entry(context, member, "has no dtype");
  out->dtype_name = dtype->as.string.text;
  if (strspn(out->dtype_name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != dtype->as.string.length ||
      dtype->as.string.length > MOST_DTYPE_NAME)
    return bad_entry(context, member, "has a dtype that is no name of one");
  while (out->dtype < DTYPES && strcmp(dtypes[out->dtype].name, out->dtype_name)) out->dtype++;
  return GB_OK;
}

/* One member of the header; its size must be what shape and dtype say, where the dtype is known. */
static gb_status read_entry(gb_context *context, const gb_json *member, entry *out) {
  *out = (entry){ .name = member->key };
  if (has_nul(member->key, member->key_length)) return bad_entry(context, member, "has a NUL in its name");
  if (member->type != GB_JSON_OBJECT) return bad_entry(context, member, "is not described by an object");
  GB_TRY(read_dtype(context, member, out));
  GB_TRY(read_shape(context, member, out));
  GB_TRY(read_offsets(context, member, out));
  uint64_t bits = 1;
  bool overflow = false;
  for (int d = 0; d < out->ndim; d++) overflow |= __builtin_mul_overflow(bits, (uint64_t)out->shape[d], &bits);
  overflow |= __builtin_mul_overflow(bits, dtypes[out->dtype].bits, &bits);
  if (overflow) return bad_entry(context, member, "has a shape whose size overflows");
  if (out->dtype == DTYPES) return GB_OK; /* nobody here knows what it should be */
  if (bits % 8 || bits / 8 != out->end - out->begin)
    return bad_entry(context, member, "has data_offsets that do not fit its shape and dtype");
  return GB_OK;
}

/* __metadata__: strings only. */
static gb_status read_metadata(gb_safetensors *file, const gb_json *member) {
  if (member->type != GB_JSON_OBJECT)
    return gb_fail(file->context, GB_EFORMAT, "safetensors: %s is no object", METADATA);
  size_t count = (size_t)member->as.list.count;
  file->metadata = gb_counted_alloc(file->context, (count + 1) * sizeof *file->metadata);
  if (!file->metadata) return gb_error_code(file->context);
  for (const gb_json *m = member->as.list.first; m; m = m->next) {
    if (m->type != GB_JSON_STRING || has_nul(m->key, m->key_length) || has_nul(m->as.string.text, m->as.string.length))
      return gb_fail(file->context, GB_EFORMAT, "safetensors: the metadata '%.200s' is no string", m->key);
    file->metadata[file->metadata_count++] = m;
  }
  return GB_OK;
}

static int compare_entries(const void *a, const void *b) {
  const entry *x = a, *y = b;
  if (x->begin != y->begin) return (x->begin > y->begin) - (x->begin < y->begin);
  if (x->end != y->end) return (x->end > y->end) - (x->end < y->end);
  return strcmp(x->name, y->name);
}

/* Sorted by offset, each tensor begins where the one before ends, and the last ends with the file. */
static gb_status check_layout(gb_safetensors *file) {
  uint64_t end = 0, bytes = gb_file_size(file->file) - file->data;
  qsort(file->entries, (size_t)file->count, sizeof *file->entries, compare_entries);
  for (int64_t i = 0; i < file->count; end = file->entries[i++].end)
    if (file->entries[i].begin != end)
      return gb_fail(file->context, GB_EFORMAT,
                     "safetensors: tensor '%.200s' begins at %" PRIu64 ", the one before ends at %" PRIu64,
                     file->entries[i].name, file->entries[i].begin, end);
  if (end != bytes)
    return gb_fail(file->context, GB_EFORMAT,
                   "safetensors: the tensors take %" PRIu64 " bytes, the file holds %" PRIu64, end, bytes);
  return GB_OK;
}

/* Everything the parsed header says. */
static gb_status read_entries(gb_safetensors *file) {
  const gb_json *header = file->header;
  size_t count = (size_t)header->as.list.count;
  file->entries = gb_counted_alloc(file->context, (count + 1) * sizeof *file->entries);
  if (!file->entries) return gb_error_code(file->context);
  for (const gb_json *m = header->as.list.first; m; m = m->next) {
    if (m->key_length == strlen(METADATA) && !strcmp(m->key, METADATA)) GB_TRY(read_metadata(file, m));
    else GB_TRY(read_entry(file->context, m, &file->entries[file->count++]));
  }
  return check_layout(file);
}

/* Parse the header's text, which must be an object. */
static gb_status parse_header(gb_safetensors *file, const char *text, size_t bytes) {
  char error[256];
  gb_status status = gb_json_parse(file->context, text, bytes, &file->header, error, sizeof error);
  return status != GB_EFORMAT ? status : gb_fail(file->context, status, "safetensors: the header is malformed: %s",
                                                 error);
}

/* GB_EFORMAT: there is no header; a file that begins as another format does is named as that, with what can be done. */
static gb_status no_header(const gb_safetensors *file, const unsigned char *first, size_t bytes,
                           const char *otherwise) {
  const gb_kind *kind = gb_kind_of(first, bytes);
  if (kind) return gb_fail(file->context, GB_EFORMAT, "this is %s, not a safetensors file; %s", kind->what, kind->cure);
  return gb_fail(file->context, GB_EFORMAT, "safetensors: %s", otherwise);
}

/* Read and check everything before the data. */
static gb_status read_header(gb_safetensors *file) {
  unsigned char first[GB_KIND_BYTES];
  char otherwise[96];
  uint64_t size = gb_file_size(file->file), length = 0;
  size_t bytes = size < sizeof first ? (size_t)size : sizeof first;
  GB_TRY(gb_file_read(file->file, 0, first, bytes));
  snprintf(otherwise, sizeof otherwise, "a file of %" PRIu64 " bytes is too short", size);
  if (size < 8) return no_header(file, first, bytes, otherwise);
  for (int i = 7; i >= 0; i--) length = length << 8 | first[i];
  snprintf(otherwise, sizeof otherwise, "a header of %" PRIu64 " bytes in a file of %" PRIu64, length, size);
  if (length < 2 || length > HEADER_MOST || length > size - 8) return no_header(file, first, bytes, otherwise);
  if (first[8] != '{') return no_header(file, first, bytes, "the header does not begin with '{'");
  file->data = 8 + length;
  char *text = gb_counted_resize(file->context, NULL, (size_t)length);
  if (!text) return gb_error_code(file->context);
  gb_status status = gb_file_read(file->file, 8, text, (size_t)length);
  if (status == GB_OK) status = parse_header(file, text, (size_t)length);
  gb_counted_free(text);
  return status == GB_OK ? read_entries(file) : status;
}

gb_status gb_safetensors_open(gb_context *context, const char *path, gb_safetensors **out) {
  gb_safetensors *file = calloc(1, sizeof *file);
  if (!file) return gb_fail_memory(context, sizeof *file);
  file->context = context;
  gb_context_retain(context);
  gb_status status = gb_file_open(context, path, &file->file);
  if (status == GB_OK) {
    status = read_header(file);
    if (status == GB_EFORMAT) status = gb_fail(context, status, "%s (in '%s')", gb_error(context), path);
  }
  if (status != GB_OK) { gb_safetensors_close(file); return status; }
  *out = file;
  return GB_OK;
}

void gb_safetensors_close(gb_safetensors *file) {
  if (!file) return;
  gb_file_close(file->file);
  gb_json_free(file->header);
  gb_counted_free(file->entries);
  gb_counted_free((void *)file->metadata);
  gb_context_release(file->context);
  free(file);
}

int64_t gb_safetensors_count(const gb_safetensors *file) { return file->count; }
const char *gb_safetensors_name(const gb_safetensors *file, int64_t i) { return file->entries[i].name; }
const char *gb_safetensors_dtype_name(const gb_safetensors *file, int64_t i) { return file->entries[i].dtype_name; }
gb_dtype gb_safetensors_dtype(const gb_safetensors *file, int64_t i) { return dtypes[file->entries[i].dtype].dtype; }

const int64_t *gb_safetensors_shape(const gb_safetensors *file, int64_t i, int *ndim) {
  *ndim = file->entries[i].ndim;
  return file->entries[i].shape;
}

int64_t gb_safetensors_find(const gb_safetensors *file, const char *name) {
  for (int64_t i = 0; i < file->count; i++)
    if (!strcmp(file->entries[i].name, name)) return i;
  return -1;
}

/* The engine holds bools as 0 or 1, and reads them as that. */
static gb_status check_bools(gb_context *context, const entry *e, const unsigned char *data) {
  for (uint64_t i = 0; i < e->end - e->begin; i++)
    if (data[i] > 1)
      return gb_fail(context, GB_EFORMAT, "safetensors: tensor '%.200s' is BOOL and holds the byte %d", e->name,
                     data[i]);
  return GB_OK;
}

gb_status gb_safetensors_load(gb_safetensors *file, int64_t i, gb_tensor **out) {
  const entry *e = &file->entries[i];
  gb_dtype dtype = dtypes[e->dtype].dtype;
  if (dtype == GB_DTYPE_NONE)
    return gb_fail(file->context, GB_EDTYPE,
                   "safetensors: tensor '%.200s' is %.40s; only F64, F32, F16, BF16, I64, I32, U8 and BOOL can be "
                   "loaded; convert it in Python, "
                   "with tensor.%s, and save the file again by safetensors.torch.save_file", e->name, e->dtype_name,
                       dtypes[e->dtype].cure);
  if (e->ndim > GB_MAX_NDIM)
    return gb_fail(file->context, GB_EUNSUPPORTED, "safetensors: tensor '%.200s' has %d dimensions; at most %d can "
                                                   "be loaded", e->name, e->ndim,
                   GB_MAX_NDIM);
  gb_tensor *tensor;
  GB_TRY(gb_tensor_new(file->context, dtype, e->ndim, e->shape, (gb_device){ GB_CPU, 0 }, &tensor));
  gb_status status = gb_file_read(file->file, file->data + e->begin, gb_data(tensor), (size_t)(e->end - e->begin));
  if (status == GB_OK && dtype == GB_BOOL) status = check_bools(file->context, e, (const uint8_t *)gb_data(tensor));
  if (status != GB_OK) { gb_tensor_release(tensor); return status; }
  *out = tensor;
  return GB_OK;
}

int64_t gb_safetensors_metadata_count(const gb_safetensors *file) { return file->metadata_count; }
const char *gb_safetensors_metadata_key(const gb_safetensors *file, int64_t i) { return file->metadata[i]->key; }
const char *gb_safetensors_metadata_value(const gb_safetensors *file,
                                          int64_t i) { return file->metadata[i]->as.string.text; }

const char *gb_safetensors_metadata(const gb_safetensors *file, const char *key) {
  for (int64_t i = 0; i < file->metadata_count; i++)
    if (!strcmp(file->metadata[i]->key, key)) return file->metadata[i]->as.string.text;
  return NULL;
}

/* ====} */
