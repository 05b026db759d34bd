/* io/npy.c - NumPy's arrays: a magic string, a version, and a header that is a Python dict of three entries. See
 * npy.h. */
#include "io/npy.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define MAGIC "\223NUMPY"
#define MAGIC_BYTES 6
#define HEADER_MOST 65536            /* bytes; the three entries of a plain array take about 100 */
#define PIECE ((size_t)1 << 16)      /* bytes that are turned into another order or dtype at once */

/* What the engine reads, and as what. */
static const struct { char kind; unsigned char width; bool is_signed; gb_dtype dtype; } types[] = {
  { 'f', 2, true, GB_FLOAT16 }, { 'f', 4, true, GB_FLOAT32 }, { 'f', 8, true, GB_FLOAT64 },
  { 'i', 1, true, GB_INT8 }, { 'i', 2, true, GB_INT16 }, { 'i', 4, true, GB_INT32 }, { 'i', 8, true, GB_INT64 },
  { 'u', 1, false, GB_UINT8 }, { 'u', 2, false, GB_INT32 }, { 'u', 4, false, GB_INT64 }, { 'u', 8, false, GB_INT64 },
  { 'b', 1, false, GB_BOOL },
};

/* Where the bytes of an array come from. */
typedef struct source {
  gb_context *context;
  gb_file_reader *file;              /* one of the two, */
  gb_member *member;
  uint64_t at, size;                 /* bytes read, and there in all */
  char name[512];                    /* "'x.npz', member 'a.npy'" */
} source;

/* A header that was read. */
typedef struct header {
  int type;                          /* a row of types */
  bool swapped, fortran;
  int ndim;
  int64_t shape[GB_MAX_NDIM];
  uint64_t bytes;                    /* of the elements */
} header;

static GB_PRINTF(2, 3) gb_status bad(const source *from, const char *format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  return gb_fail(from->context, GB_EFORMAT, "%s: %s", from->name, text);
}

static gb_status take(source *from, void *to, size_t bytes) {
  if (bytes > from->size - from->at)
    return bad(from, "it ends at byte %" PRIu64 ", where %zu more were expected; write or fetch it again", from->size,
               bytes - (size_t)(from->size - from->at));
  GB_TRY(from->file ? gb_file_read(from->file, from->at, to, bytes) : gb_member_read(from->member, to, bytes));
  from->at += bytes;
  return GB_OK;
}

/* {==== The header ==== */

/* The place in a header's text. */
typedef struct place { const char *text, *at; } place;

static void pass_blanks(place *p) { p->at += strspn(p->at, " \t\r\n"); }

/* Pass over a character, and the blanks before it. */
static bool pass(place *p, char c) {
  pass_blanks(p);
  if (*p->at != c) return false;
  p->at++;
  return true;
}

/* A string of Python's in one or two quotes, without escapes; NULL: there is none. */
static const char *read_string(place *p, size_t *length) {
  pass_blanks(p);
  char quote = *p->at;
  const char *begin = p->at + 1, *end = quote == '\'' || quote == '"' ? strchr(begin, quote) : NULL;
  if (!end) return NULL;
  *length = (size_t)(end - begin);
  p->at = end + 1;
  return memchr(begin, '\\', *length) ? NULL : begin;
}

/* The dtype: '<f4', '|b1'; a list is that of a structure. */
static gb_status read_descr(const source *from, place *p, header *out) {
  size_t length;
  const char *text = read_string(p, &length);
  out->type = -1;
  if (!text) return bad(from, "it is an array of structures; save each field as an array of its own");
  for (size_t i = 0; length == 3 && i < sizeof types / sizeof *types; i++)
    if (text[1] == types[i].kind && text[2] == (char)('0' + types[i].width)) out->type = (int)i;
  out->swapped = *text == '>';
  if (length && out->type >= 0 && strchr("<>|=", *text)) return GB_OK;
  if (length > 1 && memchr(text, 'O', length))
    return bad(from, "it holds Python objects, which are never loaded; save an array of numbers: array.astype('f4')");
  return bad(from, "dtype '%.*s' cannot be read, only integers, booleans and floats of 2 to 8 bytes; convert it in "
             "Python: array.astype('f4')", length < 40 ? (int)length : 40, text);
}

static gb_status read_shape(const source *from, place *p, header *out) {
  out->ndim = 0;
  if (!pass(p, '(')) return bad(from, "the shape in its header is no tuple; the file is damaged");
  while (!pass(p, ')')) {
    int64_t size = 0;
    pass_blanks(p);
    size_t digits = strspn(p->at, "0123456789");
    if (!digits || digits > 18) return bad(from, "the shape in its header is no tuple of sizes; the file is damaged");
    if (out->ndim == GB_MAX_NDIM)
      return bad(from, "it has more than %d dimensions; reshape it in Python", GB_MAX_NDIM);
    for (; digits; digits--) size = 10 * size + (*p->at++ - '0');
    if (*p->at == 'L') p->at++; /* of Python 2 */
    out->shape[out->ndim++] = size;
    if (!pass(p, ',') && (pass_blanks(p), *p->at != ')'))
      return bad(from, "the shape in its header does not end; the file is damaged");
  }
  return GB_OK;
}

static gb_status read_order(const source *from, place *p, header *out) {
  pass_blanks(p);
  out->fortran = !strncmp(p->at, "True", 4);
  if (!out->fortran && strncmp(p->at, "False", 5))
    return bad(from, "'fortran_order' in its header is neither True nor False; the file is damaged");
  p->at += out->fortran ? 4 : 5;
  return GB_OK;
}

static const struct { const char *key; gb_status (*read)(const source *from, place *p, header *out); } keys[] = {
  { "descr", read_descr }, { "fortran_order", read_order }, { "shape", read_shape },
};
enum { KEYS = sizeof keys / sizeof *keys };

/* The dict: each of its entries once. */
static gb_status parse(const source *from, const char *text, header *out) {
  place p = { text, text };
  bool seen[KEYS] = { false };
  if (!pass(&p, '{')) return bad(from, "its header is no dict; the file is damaged");
  while (!pass(&p, '}')) {
    size_t length = 0;
    const char *key = read_string(&p, &length);
    int i = 0;
    while (i < KEYS && (!key || strlen(keys[i].key) != length || memcmp(keys[i].key, key, length))) i++;
    if (i == KEYS || seen[i] || !pass(&p, ':'))
      return bad(from, "its header is damaged at byte %td: 'descr', 'fortran_order' and 'shape' stand there once each",
                 p.at - p.text + 1);
    seen[i] = true;
    GB_TRY(keys[i].read(from, &p, out));
    if (!pass(&p, ',') && (pass_blanks(&p), *p.at != '}'))
      return bad(from, "its header is damaged at byte %td, where a comma was expected", p.at - p.text + 1);
  }
  pass_blanks(&p);
  for (int i = 0; i < KEYS; i++)
    if (!seen[i]) return bad(from, "its header has no '%s'; the file is damaged", keys[i].key);
  return *p.at ? bad(from, "text behind its header; the file is damaged") : GB_OK;
}

/* The elements take what is left of the file, to the byte. */
static gb_status check_size(const source *from, header *h) {
  uint64_t bytes = types[h->type].width;
  bool overflow = false, empty = false;
  for (int d = 0; d < h->ndim; d++) empty |= h->shape[d] == 0;
  for (int d = 0; d < h->ndim && !empty; d++)
    overflow |= __builtin_mul_overflow(bytes, (uint64_t)h->shape[d], &bytes);
  h->bytes = empty ? 0 : bytes;
  if (overflow || h->bytes != from->size - from->at)
    return bad(from, "its header claims %s%" PRIu64 " bytes of elements, and %" PRIu64 " are there; it was cut off or "
               "is damaged", overflow ? "more than " : "", overflow ? UINT64_MAX : h->bytes, from->size - from->at);
  return GB_OK;
}

static gb_status read_header(source *from, header *out) {
  unsigned char magic[12];
  GB_TRY(take(from, magic, 10));
  if (memcmp(magic, MAGIC, MAGIC_BYTES)) return bad(from, "it is no .npy file: it does not begin with \\x93NUMPY");
  if (magic[6] < 1 || magic[6] > 3)
    return bad(from, "it is of version %d.%d of the format; 1 to 3 are known", magic[6], magic[7]);
  size_t length = magic[8] | (size_t)magic[9] << 8;
  if (magic[6] > 1) {
    GB_TRY(take(from, magic + 10, 2));
    length |= (size_t)magic[10] << 16 | (size_t)magic[11] << 24;
  }
  if (length > HEADER_MOST)
    return bad(from, "its header claims %zu bytes, at most %d are possible; the file is damaged", length, HEADER_MOST);
  char *text = gb_counted_alloc(from->context, length + 1);
  if (!text) return gb_error_code(from->context);
  gb_status status = take(from, text, length);
  if (status == GB_OK) {
    text[length] = '\0';
    status = strlen(text) == length ? parse(from, text, out) : bad(from, "a zero byte in its header; it is damaged");
  }
  gb_counted_free(text);
  return status == GB_OK ? check_size(from, out) : status;
}

/* ====} */

/* {==== Elements ==== */

/* The element at `at`, of so many bytes, as an integer. */
static uint64_t get_integer(const unsigned char *at, int width, bool swapped) {
  uint64_t value = 0;
  for (int i = 0; i < width; i++) value |= (uint64_t)at[swapped ? width - 1 - i : i] << (8 * i);
  return value;
}

/* Put the low bytes of an integer, little-endian as the engine's machines are. */
static void put_integer(unsigned char *at, int width, uint64_t value) {
  for (int i = 0; i < width; i++) at[i] = (unsigned char)(value >> (8 * i));
}

/* Elements whose bytes are in another order, or that become wider. */
static gb_status convert(source *from, const header *h, unsigned char *to) {
  int width = types[h->type].width, wider = (int)gb_dtype_bytes(types[h->type].dtype);
  unsigned char *piece = gb_counted_alloc(from->context, PIECE);
  gb_status status = piece ? GB_OK : gb_error_code(from->context);
  int64_t work = 0;
  for (uint64_t done = 0; status == GB_OK && done < h->bytes;) {
    size_t some = h->bytes - done < PIECE ? (size_t)(h->bytes - done) : PIECE;
    status = take(from, piece, some);
    for (size_t i = 0; status == GB_OK && i < some; i += (size_t)width, to += wider) {
      uint64_t value = get_integer(piece + i, width, h->swapped);
      if (types[h->type].kind == 'u' && value > INT64_MAX)
        status = bad(from, "element %" PRIu64 " is %" PRIu64 ", which is too large for int64; convert it in Python",
                     (done + i) / (uint64_t)width + 1, value);
      put_integer(to, wider, value);
    }
    if (status == GB_OK) status = gb_poll_work(from->context, &work, 4 * (int64_t)some);
    done += some;
  }
  gb_counted_free(piece);
  return status;
}

static gb_status check_bools(source *from, const unsigned char *data, uint64_t count) {
  int64_t work = 0;
  for (uint64_t i = 0; i < count; i++) {
    if (data[i] > 1) return bad(from, "element %" PRIu64 " is no boolean but the byte %d", i + 1, data[i]);
    GB_TRY(gb_poll_work(from->context, &work, 1));
  }
  return GB_OK;
}

static gb_status read_elements(source *from, const header *h, gb_tensor *tensor) {
  unsigned char *data = h->bytes ? (unsigned char *)gb_data(tensor) : NULL;
  if (!data) return GB_OK;
  bool as_is = types[h->type].is_signed || types[h->type].width == 1;
  if (h->swapped || !as_is) return convert(from, h, data);
  GB_TRY(take(from, data, (size_t)h->bytes));
  return types[h->type].dtype == GB_BOOL ? check_bools(from, data, h->bytes) : GB_OK;
}

/* A tensor from all of the source. In Fortran's order the first dimension lies densest. */
static gb_status read_array(source *from, gb_tensor **out) {
  header h = { 0 };
  int64_t strides[GB_MAX_NDIM], stride = 1;
  gb_tensor *tensor;
  GB_TRY(read_header(from, &h));
  bool turned = h.fortran && h.bytes && h.ndim > 1;
  for (int d = 0; turned && d < h.ndim; stride *= h.shape[d++]) strides[d] = stride;
  GB_TRY(gb_tensor_new_as(from->context, types[h.type].dtype, h.ndim, h.shape, turned ? strides : NULL,
                          (gb_device){ GB_CPU, 0 }, GB_MEM_OTHER, &tensor));
  gb_status status = read_elements(from, &h, tensor);
  if (status == GB_OK && !turned) {
    *out = tensor;
    return GB_OK;
  }
  gb_tensor *ordered = NULL;
  if (status == GB_OK)
    status = gb_tensor_new(from->context, types[h.type].dtype, h.ndim, h.shape, (gb_device){ GB_CPU, 0 }, &ordered);
  if (status == GB_OK)
    status = gb_tensor_read(tensor, gb_data(ordered), (size_t)ordered->numel * gb_dtype_bytes(types[h.type].dtype));
  gb_tensor_release(tensor);
  if (status == GB_OK) *out = ordered;
  else gb_tensor_release(ordered);
  return status;
}

gb_status gb_npy_load(gb_context *context, const char *path, gb_tensor **out) {
  source from = { .context = context };
  snprintf(from.name, sizeof from.name, "'%.400s'", path);
  GB_TRY(gb_file_open(context, path, &from.file));
  from.size = gb_file_size(from.file);
  gb_status status = read_array(&from, out);
  gb_file_close(from.file);
  return status;
}

gb_status gb_npy_load_member(gb_context *context, const char *path, gb_zip *zip, int64_t i, gb_tensor **out) {
  source from = { .context = context, .size = gb_zip_size(zip, i) };
  gb_tensor *tensor = NULL;
  snprintf(from.name, sizeof from.name, "'%.250s', member '%.200s'", path, gb_zip_name(zip, i));
  GB_TRY(gb_member_open(zip, i, &from.member));
  gb_status status = read_array(&from, &tensor);
  if (status == GB_OK) status = gb_member_check(from.member);
  gb_member_close(from.member);
  if (status == GB_OK) *out = tensor;
  else gb_tensor_release(tensor);
  return status;
}

/* ====} */

/* {==== Writing ==== */

/* The row of a dtype that has one of its own; -1: NumPy has none. */
static int type_of(gb_dtype dtype) {
  for (int i = 0; i < (int)(sizeof types / sizeof *types); i++)
    if (types[i].dtype == dtype && (types[i].is_signed || types[i].width == 1)) return i;
  return -1;
}

/* The header of a tensor, padded so that the elements begin at a multiple of 64 bytes; gives its length. */
static gb_status make_header(gb_context *context, const gb_tensor *tensor, char to[512], size_t *length) {
  int type = type_of(gb_tensor_dtype(tensor)), ndim = gb_tensor_ndim(tensor);
  if (type < 0)
    return gb_fail(context, GB_EDTYPE, "NumPy has no %s; convert the tensor: t:float()",
                   gb_dtype_name(gb_tensor_dtype(tensor)));
  char *text = to + 10;
  size_t room = 512 - 10;
  int n = snprintf(text, room, "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (",
                   types[type].width > 1 ? '<' : '|', types[type].kind, types[type].width);
  for (int d = 0; d < ndim; d++)
    n += snprintf(text + n, room - (size_t)n, "%s%" PRId64 "%s", d ? " " : "", gb_tensor_shape(tensor)[d],
                  d + 1 < ndim || ndim == 1 ? "," : "");
  n += snprintf(text + n, room - (size_t)n, "), }");
  size_t padded = ((size_t)n + 1 + 10 + 63) / 64 * 64 - 10;
  memset(text + n, ' ', padded - (size_t)n);
  text[padded - 1] = '\n';
  memcpy(to, MAGIC "\1\0", 8);
  to[8] = (char)(padded & 0xff);
  to[9] = (char)(padded >> 8);
  *length = padded + 10;
  return GB_OK;
}

/* A tensor as the bytes of an array: its header, and its elements, which lie in `data`. */
typedef struct array { char header[512]; size_t length, bytes; const void *data; void *ordered; } array;

static gb_status open_array(gb_context *context, gb_tensor *tensor, array *out) {
  *out = (array){ .bytes = (size_t)gb_tensor_numel(tensor) * gb_dtype_bytes(gb_tensor_dtype(tensor)) };
  GB_TRY(gb_touch_values(tensor));
  GB_TRY(make_header(context, tensor, out->header, &out->length));
  if (!out->bytes) return GB_OK;
  if (gb_tensor_device(tensor).type == GB_CPU && gb_is_contiguous(tensor)) {
    out->data = gb_data(tensor);
    return GB_OK;
  }
  out->data = out->ordered = gb_counted_resize(context, NULL, out->bytes);
  return out->ordered ? gb_tensor_read(tensor, out->ordered, out->bytes) : gb_error_code(context);
}

static void close_array(array *a) { gb_counted_free(a->ordered); }

static gb_status write_array(gb_file_writer *file, const array *a) {
  GB_TRY(gb_file_write(file, a->header, a->length));
  return a->bytes ? gb_file_write(file, a->data, a->bytes) : GB_OK;
}

gb_status gb_npy_save(gb_context *context, const char *path, gb_tensor *tensor) {
  array a;
  gb_file_writer *file = NULL;
  gb_status status = open_array(context, tensor, &a);
  if (status == GB_OK) status = gb_file_create(context, path, &file);
  if (status == GB_OK) status = write_array(file, &a);
  if (status == GB_OK) status = gb_file_commit(file);
  else gb_file_abandon(file);
  close_array(&a);
  return status;
}

/* The check sum of an array's bytes. */
static gb_status sum_array(gb_context *context, const array *a, uint32_t *crc) {
  int64_t work = 0;
  const unsigned char *at = a->data;
  *crc = (uint32_t)crc32(0, (const unsigned char *)a->header, (unsigned)a->length);
  for (size_t left = a->bytes, some; left; left -= some, at += some) {
    some = left < PIECE ? left : PIECE;
    *crc = (uint32_t)crc32(*crc, at, (unsigned)some);
    GB_TRY(gb_poll_work(context, &work, (int64_t)some));
  }
  return GB_OK;
}

/* Write a member at byte *at, which moves on. */
static gb_status write_member(gb_context *context, gb_file_writer *file, gb_tensor *tensor, gb_zip_entry *entry,
                              uint64_t *at) {
  array a;
  gb_status status = open_array(context, tensor, &a);
  if (status == GB_OK) status = sum_array(context, &a, &entry->crc);
  if (status == GB_OK) status = gb_zip_write_header(file, entry, at);
  if (status == GB_OK) status = write_array(file, &a);
  close_array(&a);
  return status;
}

/* The names with their ending, and how long each member is. All that can be refused is refused here. */
static gb_status plan(gb_context *context, const char *const *names, gb_tensor *const *tensors, int64_t count,
                      gb_zip_entry *entries, char *text) {
  char room[512];
  size_t length;
  for (int64_t i = 0; i < count; i++) {
    GB_TRY(make_header(context, tensors[i], room, &length));
    entries[i].name = text;
    entries[i].bytes = length + (uint64_t)gb_tensor_numel(tensors[i]) * gb_dtype_bytes(gb_tensor_dtype(tensors[i]));
    if (!*names[i] || strlen(names[i]) > 65000)
      return gb_fail(context, GB_EINVAL, "npz: a name has 1 to 65000 bytes, not %zu", strlen(names[i]));
    text += sprintf(text, "%s.npy", names[i]) + 1;
  }
  if (count <= GB_ZIP_MEMBERS_MOST && gb_zip_bytes(entries, count) <= GB_ZIP_MOST) return GB_OK;
  return gb_fail(context, GB_EUNSUPPORTED, "npz: an archive holds at most 4 GiB and %d tensors; write several files, "
                 "or safetensors by gb.save", GB_ZIP_MEMBERS_MOST);
}

gb_status gb_npz_save(gb_context *context, const char *path, const char *const *names, gb_tensor *const *tensors,
                      int64_t count) {
  size_t bytes = 1;
  uint64_t at = 0;
  for (int64_t i = 0; i < count; i++) bytes += strlen(names[i]) + sizeof ".npy";
  gb_file_writer *file = NULL;
  char *text = gb_counted_alloc(context, bytes);
  gb_zip_entry *entries = text ? gb_counted_alloc(context, ((size_t)count + 1) * sizeof *entries) : NULL;
  gb_status status = entries ? plan(context, names, tensors, count, entries, text) : gb_error_code(context);
  if (status == GB_OK) status = gb_file_create(context, path, &file);
  for (int64_t i = 0; i < count && status == GB_OK; i++)
    status = write_member(context, file, tensors[i], &entries[i], &at);
  if (status == GB_OK) status = gb_zip_write_directory(file, entries, count, at);
  if (status == GB_OK) status = gb_file_commit(file);
  else gb_file_abandon(file);
  gb_counted_free(entries);
  gb_counted_free(text);
  return status;
}

/* ====} */
