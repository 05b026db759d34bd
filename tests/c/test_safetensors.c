/* test_safetensors.c - io/safetensors.h and io/file.h: what is saved comes back, what is malformed is refused, a failed
 * write harms nothing. */
#define _DEFAULT_SOURCE /* symlink, mkdtemp, setrlimit */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "io/file.h"
#include "io/safetensors.h"

static gb_context *context;
static char folder[] = "/tmp/gibbous-test-XXXXXX";

/* A path in the test's folder; good until the next call but three. */
static const char *path_of(const char *name) {
  static char paths[4][128];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

static void put_file(const char *path, const void *data, size_t bytes) {
  FILE *f = fopen(path, "wb");
  CHECK(f && fwrite(data, 1, bytes, f) == bytes);
  if (f) fclose(f);
}

/* A file of a header (its length is put in front) and data bytes that count up from 0. */
static void put_header(const char *path, const char *header, size_t data_bytes) {
  unsigned char file[4096];
  size_t length = strlen(header);
  for (int i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)length >> (8 * i));
  memcpy(file + 8, header, length);
  for (size_t i = 0; i < data_bytes; i++) file[8 + length + i] = (unsigned char)i;
  put_file(path, file, 8 + length + data_bytes);
}

static int files_in_folder(void) {
  int count = 0;
  DIR *d = opendir(folder);
  for (struct dirent *e; d && (e = readdir(d));) count += e->d_name[0] != '.';
  if (d) closedir(d);
  return count;
}

/* Open, load everything there is, close: the first failure, or GB_OK. */
static gb_status read_all(const char *path) {
  gb_safetensors *file;
  gb_status status = gb_safetensors_open(context, path, &file);
  if (status != GB_OK) return status;
  for (int64_t i = 0; i < gb_safetensors_count(file) && status == GB_OK; i++) {
    gb_tensor *t = NULL;
    status = gb_safetensors_load(file, i, &t);
    gb_tensor_release(t);
  }
  gb_safetensors_close(file);
  return status;
}

static gb_tensor *over(void *data, gb_dtype dtype, int ndim, const int64_t *shape) {
  gb_tensor *t = NULL;
  CHECK(gb_tensor_over(context, data, dtype, ndim, shape, NULL, NULL, &t) == GB_OK);
  return t;
}

/* Tensor i of the file has this name, dtype, shape and these bytes. */
static int has(gb_safetensors *file, const char *name, gb_dtype dtype, int ndim, const int64_t *shape, const void *data,
               size_t bytes) {
  int rank, good;
  int64_t i = gb_safetensors_find(file, name);
  if (i < 0 || gb_safetensors_dtype(file, i) != dtype) return 0;
  const int64_t *sizes = gb_safetensors_shape(file, i, &rank);
  if (rank != ndim || memcmp(sizes, shape, (size_t)ndim * sizeof *shape)) return 0;
  gb_tensor *t;
  if (gb_safetensors_load(file, i, &t) != GB_OK) return 0;
  good = gb_tensor_ndim(t) == ndim && gb_tensor_dtype(t) == dtype && !memcmp(gb_tensor_data(t), data, bytes);
  gb_tensor_release(t);
  return good;
}

/* Every dtype; a scalar, an empty one, a transposed one. */
static void test_round_trip(void) {
  static double f64[2] = { 0.1, -2e300 };
  static float f32[6] = { 1, 2, 3, 4, 5, 6 };
  static const float transposed[6] = { 1, 4, 2, 5, 3, 6 };
  static uint16_t half[3] = { 0x3c00, 0x7bff, 1 };
  static int64_t i64[1] = { INT64_MIN };
  static int32_t i32[2] = { -1, 7 };
  static uint8_t u8[5] = { 0, 1, 2, 254, 255 }, flags[2] = { 1, 0 };
  const char *names[] = { "z", "a.weight", "h", "b\xc3\xa9", "label", "n", "bytes", "flag", "none", "t" };
  gb_tensor *tensors[10] = {
    over(f64, GB_FLOAT64, 1, (int64_t[]){ 2 }), over(f32, GB_FLOAT32, 2, (int64_t[]){ 2, 3 }),
        over(half, GB_FLOAT16, 1, (int64_t[]){ 3 }),
    over(half, GB_BFLOAT16, 2, (int64_t[]){ 1, 3 }), over(i64, GB_INT64, 0, NULL),
        over(i32, GB_INT32, 1, (int64_t[]){ 2 }),
    over(u8, GB_UINT8, 1, (int64_t[]){ 5 }), over(flags, GB_BOOL, 1, (int64_t[]){ 2 }),
        over(f32, GB_FLOAT32, 2, (int64_t[]){ 0, 3 }), NULL,
  };
  CHECK(gb_tensor_view(tensors[1], 2, (int64_t[]){ 3, 2 }, (int64_t[]){ 1, 3 }, 0, &tensors[9]) == GB_OK);
  const char *keys[] = { "format", "state" }, *values[] = { "pt", "{\"step\":12}" };
  const char *path = path_of("all.safetensors");
  CHECK(gb_safetensors_save(context, path, names, tensors, 10, keys, values, 2) == GB_OK);
  for (int i = 0; i < 10; i++) gb_tensor_release(tensors[i]);
  CHECK(files_in_folder() == 1);

  gb_safetensors *file;
  CHECK(gb_safetensors_open(context, path, &file) == GB_OK);
  CHECK(gb_safetensors_count(file) == 10 && gb_safetensors_metadata_count(file) == 2);
  CHECK(!strcmp(gb_safetensors_metadata(file, "format"), "pt") &&
        !strcmp(gb_safetensors_metadata(file, "state"), "{\"step\":12}"));
  CHECK(!strcmp(gb_safetensors_metadata_key(file, 0), "format") &&
        !strcmp(gb_safetensors_metadata_value(file, 1), "{\"step\":12}"));
  CHECK(!gb_safetensors_metadata(file, "nothing") && gb_safetensors_find(file, "nothing") == -1);
  CHECK(!strcmp(gb_safetensors_name(file, 0), "label") && !strcmp(gb_safetensors_dtype_name(file, 0), "I64"));
  CHECK(has(file, "z", GB_FLOAT64, 1, (int64_t[]){ 2 }, f64, sizeof f64));
  CHECK(has(file, "a.weight", GB_FLOAT32, 2, (int64_t[]){ 2, 3 }, f32, sizeof f32));
  CHECK(has(file, "t", GB_FLOAT32, 2, (int64_t[]){ 3, 2 }, transposed, sizeof transposed));
  CHECK(has(file, "h", GB_FLOAT16, 1, (int64_t[]){ 3 }, half, sizeof half));
  CHECK(has(file, "b\xc3\xa9", GB_BFLOAT16, 2, (int64_t[]){ 1, 3 }, half, sizeof half));
  CHECK(has(file, "label", GB_INT64, 0, (int64_t[]){ 0 }, i64, sizeof i64));
  CHECK(has(file, "n", GB_INT32, 1, (int64_t[]){ 2 }, i32, sizeof i32));
  CHECK(has(file, "bytes", GB_UINT8, 1, (int64_t[]){ 5 }, u8, sizeof u8));
  CHECK(has(file, "flag", GB_BOOL, 1, (int64_t[]){ 2 }, flags, sizeof flags));
  CHECK(has(file, "none", GB_FLOAT32, 2, (int64_t[]){ 0, 3 }, f32, 0));
  gb_safetensors_close(file);
  gb_safetensors_close(NULL);
}

/* A file of no tensors, with and without metadata. */
static void test_empty(void) {
  const char *path = path_of("empty.safetensors"), *keys[] = { "a" }, *values[] = { "" };
  for (int64_t metadata = 0; metadata < 2; metadata++) {
    gb_safetensors *file;
    CHECK(gb_safetensors_save(context, path, NULL, NULL, 0, keys, values, metadata) == GB_OK);
    CHECK(gb_safetensors_open(context, path, &file) == GB_OK);
    CHECK(gb_safetensors_count(file) == 0 && gb_safetensors_metadata_count(file) == metadata);
    gb_safetensors_close(file);
  }
  unlink(path);
}

/* Every shorter file, and a longer one, is refused; a changed byte gives an answer. */
static void test_damage(void) {
  char *data;
  size_t bytes;
  const char *whole = path_of("all.safetensors"), *path = path_of("damaged.safetensors");
  CHECK(gb_file_load(context, whole, &data, &bytes) == GB_OK);
  int refused = 0, wrong = 0;
  for (size_t length = 0; length < bytes; length++) {
    FILE *f = fopen(path, "wb");
    fwrite(data, 1, length, f);
    fclose(f);
    refused += read_all(path) == GB_EFORMAT;
  }
  CHECK(refused == (int)bytes);
  put_file(path, data, bytes + 1); /* gb_file_load puts a NUL behind */
  CHECK(read_all(path) == GB_EFORMAT);
  static const unsigned char changes[] = { 0, 1, ' ', '"', '0', '9', '-', '[', '}', ',', 0x7f, 0x80, 0xff };
  for (size_t i = 0; i < bytes; i++)
    for (size_t c = 0; c < sizeof changes; c++) {
      char before = data[i];
      data[i] = (char)changes[c];
      FILE *f = fopen(path, "wb");
      fwrite(data, 1, bytes, f);
      fclose(f);
      gb_status status = read_all(path);
      wrong += status != GB_OK && status != GB_EFORMAT && status != GB_EDTYPE;
      data[i] = before;
    }
  CHECK(wrong == 0);
  gb_counted_free(data);
  unlink(path);
}

/* Each rule of the format, broken by itself. */
static void test_rules(void) {
  static const struct { const char *header; size_t data; gb_status status; } cases[] = {
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, GB_OK },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}    ", 4, GB_OK },
    { "{\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[1,2]},"
      "\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 2, GB_OK },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[0,9],\"data_offsets\":[0,0]}}", 0, GB_OK },
    { "{}", 0, GB_OK },
    { "{\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, GB_OK },
    { "{\"a\":{\"dtype\":\"U16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, GB_EDTYPE },
    { "{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, GB_EDTYPE },
    { "{\"a\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]}}", 2, GB_EDTYPE },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, GB_EUNSUPPORTED },
    { " {}", 0, GB_EFORMAT },
    { "[]", 0, GB_EFORMAT },
    { "{}x", 0, GB_EFORMAT },
    { "{}", 1, GB_EFORMAT },
    { "{\"a\":1}", 0, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"Q9\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, GB_EDTYPE }, /* a dtype of the future */
    { "{\"a\":{\"dtype\":\"Q9\",\"shape\":[4],\"data_offsets\":[1,4]}}", 4, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"q9\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\\u0000\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, GB_EFORMAT },
    { "{\"a\":{\"dtype\":3,\"shape\":[4],\"data_offsets\":[0,4]}}", 4, GB_EFORMAT },
    { "{\"a\":{\"shape\":[4],\"data_offsets\":[0,4]}}", 4, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}", 4, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4.0],\"data_offsets\":[0,4]}}", 4, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[-4],\"data_offsets\":[0,4]}}", 4, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,4]}}", 4, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,5]}}", 4, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}}", 4, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[1,5]}}", 5, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,8]}}", 4, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[18446744073709551612,18446744073709551616]}}", 4,
      GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3,
     GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]}}", 5,
     GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2,
     GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
      "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}", 4,
     GB_EFORMAT },
    { "{\"a\\u0000\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, GB_EFORMAT },
    { "{\"a\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3, GB_EFORMAT },
    { "{\"__metadata__\":[]}", 0, GB_EFORMAT },
    { "{\"__metadata__\":{\"a\":1}}", 0, GB_EFORMAT },
    { "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, GB_EFORMAT },
    { "{\"__metadata__\":{\"a\":\"\\u0000\"}}", 0, GB_EFORMAT },
  };
  const char *path = path_of("rule.safetensors");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    put_header(path, cases[i].header, cases[i].data);
    gb_status status = read_all(path);
    CHECK(status == cases[i].status);
    if (status != cases[i].status)
      fprintf(stderr, "  %s: %s\n", cases[i].header, status == GB_OK ? "ok" : gb_error(context));
  }
  put_file(path, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
  CHECK(read_all(path) == GB_EFORMAT);
  put_file(path, "\x01\0\0\0\0\0\0\0{}", 10);
  CHECK(read_all(path) == GB_EFORMAT);
  unlink(path);
}

/* What must not be written, and where. */
static void test_refusals(void) {
  float one = 1;
  gb_tensor *t = over(&one, GB_FLOAT32, 0, NULL), *pair[] = { t, t };
  const char *twice[] = { "a", "a" }, *reserved[] = { "__metadata__" }, *bad[] = { "\xff" }, *good[] = { "a" };
  const char *path = path_of("refused.safetensors");
  CHECK(gb_safetensors_save(context, path, twice, pair, 2, NULL, NULL, 0) == GB_EINVAL);
  CHECK(gb_safetensors_save(context, path, reserved, pair, 1, NULL, NULL, 0) == GB_EINVAL);
  CHECK(gb_safetensors_save(context, path, bad, pair, 1, NULL, NULL, 0) == GB_EINVAL);
  CHECK(gb_safetensors_save(context, path, good, pair, 1, twice, twice, 2) == GB_EINVAL);
  CHECK(gb_safetensors_save(context, path, good, pair, 1, good, bad, 1) == GB_EINVAL);
  CHECK(gb_safetensors_save(context, path_of("no/such/folder"), good, pair, 1, NULL, NULL, 0) == GB_EIO);
  CHECK(gb_safetensors_save(context, folder, good, pair, 1, NULL, NULL, 0) == GB_EIO);
  CHECK(strstr(gb_error(context), "no regular file"));
  CHECK(read_all(path) == GB_EIO && strstr(gb_error(context), "refused.safetensors"));
  CHECK(read_all(folder) == GB_EIO);
  CHECK(files_in_folder() == 1);
  gb_tensor_release(t);
}

/* The disk fills up in the middle: the old file is whole, and no temporary file stays. */
static void test_failed_write(void) {
  size_t bytes = 1 << 20;
  uint8_t *large = calloc(1, bytes), small = 7;
  gb_tensor *l = over(large, GB_UINT8, 1, (int64_t[]){ (int64_t)bytes }), *s = over(&small, GB_UINT8, 0, NULL);
  const char *names[] = { "a" }, *path = path_of("kept.safetensors");
  CHECK(gb_safetensors_save(context, path, names, &s, 1, NULL, NULL, 0) == GB_OK);
  struct rlimit before, less;
  getrlimit(RLIMIT_FSIZE, &before);
  less = before;
  less.rlim_cur = 100000;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &less);
  gb_status status = gb_safetensors_save(context, path, names, &l, 1, NULL, NULL, 0);
  setrlimit(RLIMIT_FSIZE, &before);
  CHECK(status == GB_EIO && strstr(gb_error(context), "cannot write"));
  CHECK(read_all(path) == GB_OK && files_in_folder() == 2);
  CHECK(gb_safetensors_save(context, path, names, &l, 1, NULL, NULL, 0) == GB_OK && read_all(path) == GB_OK);
  gb_tensor_release(l);
  gb_tensor_release(s);
  free(large);
  unlink(path);
}

/* Permissions and symbolic links stay; a temporary file left behind is reused; two writers do not meet. */
static void test_files(void) {
  const char *path = path_of("file"), *link = path_of("link");
  struct stat info;
  gb_file_writer *one, *two;
  put_file(path, "old", 3);
  chmod(path, 0640);
  CHECK(!symlink(path, link));
  put_file(path_of("file.tmp"), "left behind by a killed process", 31);
  CHECK(gb_file_create(context, link, &one) == GB_OK && gb_file_create(context, path, &two) == GB_OK);
  CHECK(gb_file_write(one, "one", 3) == GB_OK && gb_file_write(two, "two", 3) == GB_OK &&
        gb_file_write(one, "!", 1) == GB_OK);
  CHECK(gb_file_commit(one) == GB_OK);
  char *data;
  size_t bytes;
  CHECK(gb_file_load(context, link, &data, &bytes) == GB_OK && bytes == 4 && !strcmp(data, "one!"));
  gb_counted_free(data);
  gb_file_abandon(two);
  CHECK(gb_file_load(context, path, &data, &bytes) == GB_OK && !strcmp(data, "one!"));
  gb_counted_free(data);
  CHECK(!lstat(link, &info) && S_ISLNK(info.st_mode) && !stat(path, &info) && (info.st_mode & 0777) == 0640);
  gb_file_reader *file;
  char part[8] = { 0 };
  CHECK(gb_file_open(context, path, &file) == GB_OK && gb_file_size(file) == 4);
  CHECK(gb_file_read(file, 1, part, 2) == GB_OK && !strcmp(part, "ne") && gb_file_read(file, 3, part, 2) == GB_EFORMAT);
  gb_file_close(file);
  unlink(link);
  unlink(path);
  CHECK(files_in_folder() == 1);
}

int main(void) {
  CHECK(mkdtemp(folder) != NULL);
  CHECK(gb_context_open(NULL, &context) == GB_OK);
  if (context) {
    test_round_trip();
    test_empty();
    test_damage();
    test_rules();
    test_refusals();
    test_failed_write();
    test_files();
    gb_context_close(context);
  }
  unlink(path_of("all.safetensors"));
  CHECK(rmdir(folder) == 0);
  return check_report();
}
