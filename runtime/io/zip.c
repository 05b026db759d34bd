/* io/zip.c - the directory at the end of an archive, and zlib over what its entries point at. See zip.h. */
#include "io/zip.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define END_BYTES 22                 /* the record at the end of an archive, */
#define COMMENT_MOST 65535           /* and the comment behind it */
#define ENTRY_BYTES 46               /* of the directory, without name, extra field and comment */
#define HEADER_BYTES 30              /* in front of a member, the same */
#define END_SIGNATURE 0x06054b50u
#define ENTRY_SIGNATURE 0x02014b50u
#define HEADER_SIGNATURE 0x04034b50u
#define ENCRYPTED 1u                 /* of an entry's flags */
#define UTF8 0x800u
#define NEW_YEAR_1980 0x21u          /* the date of what is written: files do not depend on the clock */
#define INPUT ((size_t)1 << 16)      /* bytes of the file that are unpacked at once */
#define RATIO_MOST 1032u             /* bytes that deflate makes of one, at most (zlib, "Technical Details") */

enum { STORED = 0, DEFLATED = 8 };

typedef struct item {
  const char *name;                  /* in the copy of all names */
  unsigned method, flags;
  uint32_t crc;
  uint64_t packed, bytes, offset;
} item;

struct gb_zip {
  gb_context *context;
  gb_file_reader *file;
  char *path;
  item *entries;
  int64_t count;
  char *names;
};

struct gb_member {
  gb_zip *zip;
  const item *entry;
  uint64_t at, packed, left;         /* the next byte of the file; packed ones that were not read; unpacked ones */
  uint32_t crc;
  bool has_stream;
  z_stream stream;
  int64_t work;
  unsigned char input[INPUT];
};

static uint32_t get16(const unsigned char *at) { return at[0] | (uint32_t)at[1] << 8; }
static uint32_t get32(const unsigned char *at) { return get16(at) | get16(at + 2) << 16; }
static void put16(unsigned char *at, uint32_t value) {
  at[0] = (unsigned char)value;
  at[1] = (unsigned char)(value >> 8);
}
static void put32(unsigned char *at, uint32_t value) { put16(at, value & 0xffff), put16(at + 2, value >> 16); }

/* {==== The directory ==== */

static gb_status damaged(gb_zip *zip, uint64_t at, const char *what) {
  return gb_fail(zip->context, GB_EFORMAT, "'%s' is damaged: byte %" PRIu64 " %s; write or fetch the file again",
                 zip->path, at + 1, what);
}

/* Find the record at the end: *at is its place, tail its bytes. */
static gb_status find_end(gb_zip *zip, uint64_t *at, unsigned char tail[END_BYTES]) {
  uint64_t size = gb_file_size(zip->file);
  size_t some = size < END_BYTES + COMMENT_MOST ? (size_t)size : END_BYTES + COMMENT_MOST;
  unsigned char *bytes = gb_counted_alloc(zip->context, some + 1);
  if (!bytes) return gb_error_code(zip->context);
  gb_status status = gb_file_read(zip->file, size - some, bytes, some);
  bool found = false;
  for (size_t i = some; status == GB_OK && !found && i >= END_BYTES; i--) {
    const unsigned char *end = bytes + i - END_BYTES;
    found = get32(end) == END_SIGNATURE && get16(end + 20) == some - i;
    if (found) memcpy(tail, end, END_BYTES), *at = size - some + i - END_BYTES;
  }
  gb_counted_free(bytes);
  if (status != GB_OK || found) return status;
  return gb_fail(zip->context, GB_EFORMAT, "'%s' is no zip archive, or was cut off: it has no directory at its end; "
                 "write or fetch the file again", zip->path);
}

static int compare_names(const void *a, const void *b) {
  return strcmp((*(const item *const *)a)->name, (*(const item *const *)b)->name);
}

/* Names must differ: members are found by them. */
static gb_status check_names(gb_zip *zip) {
  const item **sorted = gb_counted_alloc(zip->context, ((size_t)zip->count + 1) * sizeof *sorted);
  if (!sorted) return gb_error_code(zip->context);
  for (int64_t i = 0; i < zip->count; i++) sorted[i] = &zip->entries[i];
  qsort(sorted, (size_t)zip->count, sizeof *sorted, compare_names);
  const char *twice = NULL;
  for (int64_t i = 1; i < zip->count && !twice; i++)
    if (!strcmp(sorted[i - 1]->name, sorted[i]->name)) twice = sorted[i]->name;
  gb_counted_free(sorted);
  return twice ? gb_fail(zip->context, GB_EFORMAT, "'%s' has two members '%.200s'", zip->path, twice) : GB_OK;
}

/* The entries of the directory, which lies in `bytes` and began at byte `first` of the file. */
static gb_status read_entries(gb_zip *zip, const unsigned char *bytes, size_t size, uint64_t first) {
  size_t at = 0;
  int64_t work = 0;
  char *name = zip->names;
  for (int64_t i = 0; i < zip->count; i++) {
    const unsigned char *from = bytes + at;
    if (size - at < ENTRY_BYTES || get32(from) != ENTRY_SIGNATURE) return damaged(zip, first + at, "begins no entry");
    size_t length = get16(from + 28), rest = get16(from + 30) + get16(from + 32);
    if (size - at - ENTRY_BYTES < length + rest) return damaged(zip, first + at, "begins an entry that is too long");
    if (!length || memchr(from + ENTRY_BYTES, 0, length))
      return damaged(zip, first + at, "begins an entry without a name");
    memcpy(name, from + ENTRY_BYTES, length);
    zip->entries[i] = (item){ .name = name, .flags = get16(from + 8), .method = get16(from + 10),
                               .crc = get32(from + 16), .packed = get32(from + 20), .bytes = get32(from + 24),
                               .offset = get32(from + 42) };
    const item *made = &zip->entries[i];
    if (made->packed == UINT32_MAX || made->bytes == UINT32_MAX || made->offset == UINT32_MAX)
      return gb_fail(zip->context, GB_EUNSUPPORTED, "'%s': member '%.*s' is of the zip64 format (4 GiB or more), which "
                     "is not read; save it as a .npy file of its own, or as safetensors", zip->path,
                     length < 200 ? (int)length : 200, name);
    name += length + 1; /* the memory is zeroed */
    at += ENTRY_BYTES + length + rest;
    GB_TRY(gb_poll_work(zip->context, &work, 256));
  }
  return at == size ? GB_OK : damaged(zip, first + at, "is no part of the directory");
}

static gb_status read_directory(gb_zip *zip) {
  unsigned char end[END_BYTES] = { 0 };
  uint64_t at = 0;
  GB_TRY(find_end(zip, &at, end));
  uint64_t count = get16(end + 10), size = get32(end + 12), first = get32(end + 16);
  if (count == 0xffff || size == UINT32_MAX || first == UINT32_MAX)
    return gb_fail(zip->context, GB_EUNSUPPORTED, "'%s' is a zip64 archive (4 GiB, or 65,535 members, or more), which "
                   "is not read; save its arrays as .npy files or as safetensors", zip->path);
  if (get16(end + 4) || get16(end + 6) || get16(end + 8) != count)
    return gb_fail(zip->context, GB_EUNSUPPORTED, "'%s' is one part of a zip archive in several; join them", zip->path);
  if (first > at || size != at - first) return damaged(zip, at, "is the end of a directory that is not there");
  zip->entries = gb_counted_alloc(zip->context, ((size_t)count + 1) * sizeof *zip->entries);
  zip->names = zip->entries ? gb_counted_alloc(zip->context, (size_t)size + count + 1) : NULL;
  unsigned char *bytes = zip->names ? gb_counted_alloc(zip->context, (size_t)size + 1) : NULL;
  if (!bytes) return gb_error_code(zip->context);
  zip->count = (int64_t)count;
  gb_status status = gb_file_read(zip->file, first, bytes, (size_t)size);
  if (status == GB_OK) status = read_entries(zip, bytes, (size_t)size, first);
  gb_counted_free(bytes);
  return status == GB_OK ? check_names(zip) : status;
}

gb_status gb_zip_open(gb_context *context, const char *path, gb_zip **out) {
  gb_zip *zip = gb_counted_alloc(context, sizeof *zip);
  if (!zip) return gb_error_code(context);
  zip->context = context;
  zip->path = gb_counted_alloc(context, strlen(path) + 1);
  gb_status status = zip->path ? GB_OK : gb_error_code(context);
  if (status == GB_OK) strcpy(zip->path, path);
  if (status == GB_OK) status = gb_file_open(context, path, &zip->file);
  if (status == GB_OK) status = read_directory(zip);
  if (status != GB_OK) { gb_zip_close(zip); return status; }
  *out = zip;
  return GB_OK;
}

void gb_zip_close(gb_zip *zip) {
  if (!zip) return;
  gb_file_close(zip->file);
  gb_counted_free(zip->path);
  gb_counted_free(zip->entries);
  gb_counted_free(zip->names);
  gb_counted_free(zip);
}

int64_t gb_zip_count(const gb_zip *zip) { return zip->count; }
const char *gb_zip_name(const gb_zip *zip, int64_t i) { return zip->entries[i].name; }
uint64_t gb_zip_size(const gb_zip *zip, int64_t i) { return zip->entries[i].bytes; }

/* ====} */

/* {==== Members ==== */

static gb_status bad_member(const gb_member *member, const char *what) {
  return gb_fail(member->zip->context, GB_EFORMAT, "'%s', member '%.200s', byte %" PRIu64 " of the file: %s",
                 member->zip->path, member->entry->name, member->at + 1, what);
}

/* Find the bytes of the member behind its own header. */
static gb_status find_bytes(gb_member *member) {
  unsigned char header[HEADER_BYTES];
  const item *e = member->entry;
  uint64_t size = gb_file_size(member->zip->file);
  member->at = e->offset;
  if (e->flags & ENCRYPTED) return bad_member(member, "it is encrypted; write it without a password");
  if (e->method != STORED && e->method != DEFLATED)
    return bad_member(member, "it is packed by a method that is neither \"stored\" nor \"deflate\"; numpy.savez and "
                      "numpy.savez_compressed write those");
  if (e->offset > size || size - e->offset < HEADER_BYTES) return bad_member(member, "it lies behind the file's end");
  GB_TRY(gb_file_read(member->zip->file, e->offset, header, sizeof header));
  uint64_t head = HEADER_BYTES + get16(header + 26) + get16(header + 28);
  if (get32(header) != HEADER_SIGNATURE) return bad_member(member, "no member begins here; the file is damaged");
  if (size - e->offset < head || size - e->offset - head < e->packed)
    return bad_member(member, "it lies behind the file's end");
  if (e->method == STORED ? e->packed != e->bytes : e->bytes > e->packed * RATIO_MOST)
    return bad_member(member, "it cannot unpack to as many bytes as it claims; the file is damaged");
  member->at += head;
  member->packed = e->packed;
  member->left = e->bytes;
  return GB_OK;
}

gb_status gb_member_open(gb_zip *zip, int64_t i, gb_member **out) {
  gb_member *member = gb_counted_alloc(zip->context, sizeof *member);
  if (!member) return gb_error_code(zip->context);
  member->zip = zip;
  member->entry = &zip->entries[i];
  gb_status status = find_bytes(member);
  if (status == GB_OK && member->entry->method == DEFLATED) {
    member->has_stream = inflateInit2(&member->stream, -MAX_WBITS) == Z_OK;
    if (!member->has_stream) status = gb_fail_memory(zip->context, sizeof member->stream);
  }
  if (status != GB_OK) { gb_member_close(member); return status; }
  *out = member;
  return GB_OK;
}

/* More of the file into the buffer; *bytes says how much, 0 at the end of the member. */
static gb_status refill(gb_member *member, size_t *bytes) {
  *bytes = member->packed < INPUT ? (size_t)member->packed : INPUT;
  GB_TRY(gb_file_read(member->zip->file, member->at, member->input, *bytes));
  member->at += *bytes;
  member->packed -= *bytes;
  return GB_OK;
}

/* Unpack exactly so many bytes, of which there are at most INPUT. */
static gb_status unpack(gb_member *member, unsigned char *to, size_t bytes) {
  z_stream *stream = &member->stream;
  stream->next_out = to;
  stream->avail_out = (unsigned)bytes;
  while (stream->avail_out) {
    if (!stream->avail_in) {
      size_t some;
      GB_TRY(refill(member, &some));
      stream->next_in = member->input;
      stream->avail_in = (unsigned)some;
    }
    bool starved = !stream->avail_in;
    unsigned before = stream->avail_out;
    int code = inflate(stream, Z_NO_FLUSH);
    if (code == Z_MEM_ERROR) return gb_fail_memory(member->zip->context, sizeof *stream);
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
      return bad_member(member, "what was packed is damaged; write or fetch the file again");
    if (stream->avail_out && (code == Z_STREAM_END || (starved && stream->avail_out == before)))
      return bad_member(member, "it ends early; write or fetch the file again");
  }
  return GB_OK;
}

gb_status gb_member_read(gb_member *member, void *to, size_t bytes) {
  unsigned char *at = to;
  if (bytes > member->left) return bad_member(member, "it is shorter than its own header says; the file is damaged");
  while (bytes) {
    size_t some = bytes < INPUT ? bytes : INPUT;
    if (member->has_stream) GB_TRY(unpack(member, at, some));
    else {
      GB_TRY(gb_file_read(member->zip->file, member->at, at, some));
      member->at += some;
    }
    member->crc = (uint32_t)crc32(member->crc, at, (unsigned)some);
    member->left -= some;
    at += some;
    bytes -= some;
    GB_TRY(gb_poll_work(member->zip->context, &member->work, 8 * (int64_t)some));
  }
  return GB_OK;
}

gb_status gb_member_check(gb_member *member) {
  if (member->left) return bad_member(member, "it holds more than its own header says; the file is damaged");
  if (member->crc != member->entry->crc)
    return bad_member(member, "the check sum is another; write or fetch the file again");
  return GB_OK;
}

void gb_member_close(gb_member *member) {
  if (!member) return;
  if (member->has_stream) inflateEnd(&member->stream);
  gb_counted_free(member);
}

/* ====} */

/* {==== Writing ==== */

/* What the header of a member and its entry in the directory have in common, 26 bytes. */
static void put_common(unsigned char *at, const gb_zip_entry *entry) {
  put16(at, 20); /* the version that is needed */
  put16(at + 2, UTF8);
  put16(at + 4, STORED);
  put16(at + 6, 0);
  put16(at + 8, NEW_YEAR_1980);
  put32(at + 10, entry->crc);
  put32(at + 14, (uint32_t)entry->bytes);
  put32(at + 18, (uint32_t)entry->bytes);
  put16(at + 22, (uint32_t)strlen(entry->name));
  put16(at + 24, 0);
}

gb_status gb_zip_write_header(gb_file_writer *file, gb_zip_entry *entry, uint64_t *at) {
  unsigned char header[HEADER_BYTES];
  entry->offset = *at;
  *at += HEADER_BYTES + strlen(entry->name) + entry->bytes;
  put32(header, HEADER_SIGNATURE);
  put_common(header + 4, entry);
  GB_TRY(gb_file_write(file, header, sizeof header));
  return gb_file_write(file, entry->name, strlen(entry->name));
}

gb_status gb_zip_write_directory(gb_file_writer *file, const gb_zip_entry *entries, int64_t count, uint64_t at) {
  uint64_t size = 0;
  for (int64_t i = 0; i < count; i++) {
    unsigned char from[ENTRY_BYTES] = { 0 };
    put32(from, ENTRY_SIGNATURE);
    put16(from + 4, 20);
    put_common(from + 6, &entries[i]);
    put32(from + 42, (uint32_t)entries[i].offset);
    GB_TRY(gb_file_write(file, from, sizeof from));
    GB_TRY(gb_file_write(file, entries[i].name, strlen(entries[i].name)));
    size += sizeof from + strlen(entries[i].name);
  }
  unsigned char end[END_BYTES] = { 0 };
  put32(end, END_SIGNATURE);
  put16(end + 8, (uint32_t)count);
  put16(end + 10, (uint32_t)count);
  put32(end + 12, (uint32_t)size);
  put32(end + 16, (uint32_t)at);
  return gb_file_write(file, end, sizeof end);
}

uint64_t gb_zip_bytes(const gb_zip_entry *entries, int64_t count) {
  uint64_t bytes = END_BYTES;
  for (int64_t i = 0; i < count; i++) {
    uint64_t more = HEADER_BYTES + ENTRY_BYTES + 2 * strlen(entries[i].name);
    if (entries[i].bytes > GB_ZIP_MOST || bytes > UINT64_MAX / 2) return UINT64_MAX;
    bytes += more + entries[i].bytes;
  }
  return bytes;
}

/* ====} */
