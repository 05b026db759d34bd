/* test_idx.c - data/data.h: idx files, plain and gzipped, whole and damaged; images as a dataset; texts and token files
 * as ids. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "check.h"
#include "data/dataset.h"

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
  if (!f || fwrite(data, 1, bytes, f) != bytes) CHECK(!"the test's file could be written");
  if (f) fclose(f);
}

static void put_gzip(const char *path, const void *data, size_t bytes) {
  gzFile f = gzopen(path, "wb9");
  CHECK(f && gzwrite(f, data, (unsigned)bytes) == (int)bytes && gzclose(f) == Z_OK);
}

static gb_status try_idx(const char *path) {
  gb_idx idx;
  gb_status status = gb_idx_read(context, path, &idx);
  if (status == GB_OK) gb_counted_free(idx.data);
  return status;
}

/* 3 images of 2 x 2, and labels. */
static const unsigned char pictures[] = { 0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 1, 2, 3, 50, 51, 52, 53,
                                          252, 253, 254, 255 };
static const unsigned char classes[] = { 0, 0, 8, 1, 0, 0, 0, 3, 7, 0, 9 };

static void test_read(void) {
  const char *path = path_of("a"), *zipped = path_of("a.gz");
  gb_idx idx;
  put_file(path, pictures, sizeof pictures);
  put_gzip(zipped, pictures, sizeof pictures);
  for (int i = 0; i < 2; i++) {
    CHECK(gb_idx_read(context, i ? zipped : path, &idx) == GB_OK);
    CHECK(idx.dtype == GB_UINT8 && idx.ndim == 3 && idx.shape[0] == 3 && idx.shape[1] == 2 && idx.shape[2] == 2 &&
          idx.bytes == 12);
    CHECK(!memcmp(idx.data, pictures + 16, 12));
    gb_counted_free(idx.data);
  }
  static const unsigned char floats[] = { 0, 0, 13, 1, 0, 0, 0, 2, 0x3f, 0xc0, 0, 0, 0xc0, 0, 0, 0 };
  static const unsigned char doubles[] = { 0, 0, 14, 1, 0, 0, 0, 1, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0 };
  static const unsigned char ints[] = { 0, 0, 12, 1, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xfe };
  static const unsigned char empty[] = { 0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0, 5 };
  put_file(path, floats, sizeof floats);
  CHECK(gb_idx_read(context, path, &idx) == GB_OK && idx.dtype == GB_FLOAT32 && ((float *)idx.data)[0] == 1.5f &&
        ((float *)idx.data)[1] == -2.0f);
  gb_counted_free(idx.data);
  put_file(path, doubles, sizeof doubles);
  CHECK(gb_idx_read(context, path, &idx) == GB_OK && idx.dtype == GB_FLOAT64 && ((double *)idx.data)[0] == 1.5);
  gb_counted_free(idx.data);
  put_file(path, ints, sizeof ints);
  CHECK(gb_idx_read(context, path, &idx) == GB_OK && idx.dtype == GB_INT32 && ((int32_t *)idx.data)[0] == -2);
  gb_counted_free(idx.data);
  put_file(path, empty, sizeof empty);
  CHECK(gb_idx_read(context, path, &idx) == GB_OK && idx.bytes == 0 && idx.shape[0] == 0 && idx.shape[1] == 5);
  gb_counted_free(idx.data);
  unlink(path);
  unlink(zipped);
}

/* Every shorter file is refused, plain and gzipped; a changed byte gets an answer; a header that lies gets no
 * memory. */
static void test_damage(void) {
  const char *path = path_of("b");
  unsigned char zipped[256];
  put_gzip(path, pictures, sizeof pictures);
  FILE *f = fopen(path, "rb");
  size_t bytes = fread(zipped, 1, sizeof zipped, f);
  fclose(f);
  int refused = 0;
  for (size_t n = 0; n < sizeof pictures; n++) {
    put_file(path, pictures, n);
    refused += try_idx(path) == GB_EFORMAT;
  }
  CHECK(refused == sizeof pictures);
  refused = 0;
  for (size_t n = 0; n < bytes; n++) {
    put_file(path, zipped, n);
    refused += try_idx(path) == GB_EFORMAT;
  }
  CHECK(refused == (int)bytes);
  unsigned char changed[256];
  for (size_t i = 0; i < sizeof pictures; i++)
    for (int value = 0; value < 256; value += 5) {
      memcpy(changed, pictures, sizeof pictures);
      changed[i] = (unsigned char)value;
      put_file(path, changed, sizeof pictures);
      gb_status status = try_idx(path);
      if (status != GB_EFORMAT && (status != GB_OK || i < 3)) CHECK(status == GB_OK && changed[i] == pictures[i]);
    }
  for (size_t i = 0; i < bytes; i++)
    for (int bit = 0; bit < 8; bit++) {
      memcpy(changed, zipped, bytes);
      changed[i] ^= (unsigned char)(1 << bit);
      put_file(path, changed, bytes);
      try_idx(path);
    }
  static const unsigned char large[] = { 0, 0, 8, 3, 0, 0, 255, 255, 0, 0, 255, 255, 0, 0, 0, 255, 1, 2, 3 };
  static const unsigned char larger[] = { 0, 0, 14, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255 };
  put_file(path, large, sizeof large);
  CHECK(try_idx(path) == GB_EFORMAT && strstr(gb_error(context), "too early"));
  put_file(path, larger, sizeof larger);
  CHECK(try_idx(path) == GB_EFORMAT && strstr(gb_error(context), "memory"));
  memcpy(changed, pictures, sizeof pictures);
  put_file(path, changed, sizeof pictures + 1);
  CHECK(try_idx(path) == GB_EFORMAT && strstr(gb_error(context), "more than its header"));
  unlink(path);
  CHECK(try_idx(path) == GB_EIO);
  CHECK(try_idx(folder) != GB_OK);
}

static void test_images(void) {
  const char *images = path_of("images"), *labels = path_of("labels");
  gb_dataset *set = NULL;
  put_file(images, pictures, sizeof pictures);
  put_gzip(labels, classes, sizeof classes);
  CHECK(gb_dataset_images(context, images, labels, 0.5, 0.25, &set) == GB_OK);
  CHECK(set && set->count == 3 && set->columns == 2 && set->column[0].dtype == GB_FLOAT32 && set->column[0].ndim == 3 &&
        set->column[1].ndim == 0);
  gb_tensor *out[2];
  CHECK(gb_dataset_get(context, set, 2, out) == GB_OK);
  CHECK(gb_tensor_ndim(out[0]) == 3 && gb_tensor_size(out[0], 0) == 1 && gb_tensor_size(out[0], 1) == 2 &&
        gb_tensor_ndim(out[1]) == 0);
  const float *x = gb_tensor_data(out[0]);
  CHECK(x[0] == (252.0f / 255.0f - 0.5f) / 0.25f && x[3] == 2.0f && *(int64_t *)gb_tensor_data(out[1]) == 9);
  gb_tensor_release(out[0]);
  gb_tensor_release(out[1]);
  CHECK(gb_dataset_get(context, set, 3, out) == GB_EINDEX && gb_dataset_get(context, set, -1, out) == GB_EINDEX);
  gb_dataset_release(set);
  CHECK(gb_dataset_images(context, images, NULL, 0, 1, &set) == GB_OK && set->columns == 1);
  gb_dataset_release(set);
  CHECK(gb_dataset_images(context, labels, images, 0, 1, &set) == GB_EFORMAT);
  CHECK(gb_dataset_images(context, images, labels, 0, 0, &set) == GB_EINVAL &&
        gb_dataset_images(context, images, labels, 0, NAN, &set) == GB_EINVAL);
  unsigned char fewer[sizeof classes] = { 0 };
  memcpy(fewer, classes, sizeof classes);
  fewer[7] = 2;
  put_file(labels, fewer, sizeof classes - 1);
  CHECK(gb_dataset_images(context, images, labels, 0, 1, &set) == GB_EFORMAT && strstr(gb_error(context), "2 labels"));
  unlink(images);
  unlink(labels);
}

static void test_text(void) {
  static const char sample[] = "hé, b\xf0\x9f\x98\x80! hé";
  size_t bytes = sizeof sample - 1, size;
  gb_text *text = NULL, *other = NULL;
  CHECK(gb_text_new(context, sample, bytes, GB_TEXT_CHARACTERS, NULL, 0, &text) == GB_OK);
  CHECK(gb_text_length(text) == 10 && gb_text_vocabulary_size(text) == 7);
  CHECK(!strcmp(gb_text_vocabulary(text, &size), " !,bhé\xf0\x9f\x98\x80") && size == 11);
  static const uint16_t expected[] = { 4, 5, 2, 0, 3, 6, 1, 0, 4, 5 };
  CHECK(!memcmp(gb_text_ids(text), expected, sizeof expected));
  int64_t ids[32], count;
  CHECK(gb_text_encode(context, text, "bé!", 4, ids, &count) == GB_OK && count == 3 && ids[0] == 3 && ids[1] == 5 &&
        ids[2] == 1);
  char *back;
  CHECK(gb_text_decode(context, text, ids, 3, &back, &size) == GB_OK && size == 4 && !strcmp(back, "bé!"));
  free(back);
  CHECK(gb_text_encode(context, text, "x", 1, ids, &count) == GB_EINVAL && strstr(gb_error(context), "'x'"));
  CHECK(gb_text_encode(context, text, "\xff", 1, ids, &count) == GB_EFORMAT);
  ids[0] = 7;
  CHECK(gb_text_decode(context, text, ids, 1, &back, &size) == GB_EINDEX);
  ids[0] = -1;
  CHECK(gb_text_decode(context, text, ids, 1, &back, &size) == GB_EINDEX);
  const char *vocabulary = gb_text_vocabulary(text, &size);
  CHECK(gb_text_new(context, "b b", 3, GB_TEXT_CHARACTERS, vocabulary, size, &other) == GB_OK);
  CHECK(gb_text_vocabulary_size(other) == 7 && gb_text_ids(other)[0] == 3 && gb_text_ids(other)[1] == 0);
  gb_text_release(other);
  CHECK(gb_text_new(context, "z", 1, GB_TEXT_CHARACTERS, vocabulary, size, &other) == GB_EINVAL);
  CHECK(gb_text_new(context, "a\xff", 2, GB_TEXT_CHARACTERS, NULL, 0, &other) == GB_EFORMAT &&
        strstr(gb_error(context), "byte 2"));
  gb_text_release(text);

  CHECK(gb_text_new(context, "\xff\0z", 3, GB_TEXT_BYTES, NULL, 0, &text) == GB_OK);
  CHECK(gb_text_length(text) == 3 && gb_text_vocabulary_size(text) == 256 && !gb_text_vocabulary(text, &size));
  CHECK(gb_text_ids(text)[0] == 255 && gb_text_ids(text)[1] == 0);
  CHECK(gb_text_decode(context, text, (int64_t[]){ 255, 0, 'z' }, 3, &back, &size) == GB_OK && size == 3 &&
        !memcmp(back, "\xff\0z", 4));
  free(back);
  gb_text_release(text);
  CHECK(gb_text_new(context, "", 0, GB_TEXT_CHARACTERS, NULL, 0, &text) == GB_OK && gb_text_length(text) == 0);
  gb_text_release(text);
  const char *path = path_of("text");
  put_file(path, sample, bytes);
  CHECK(gb_text_open(context, path, GB_TEXT_CHARACTERS, NULL, 0, &text) == GB_OK && gb_text_length(text) == 10);
  gb_text_release(text);
  put_file(path, "\xc3", 1);
  CHECK(gb_text_open(context, path, GB_TEXT_CHARACTERS, NULL, 0, &text) == GB_EFORMAT &&
        strstr(gb_error(context), path));
  unlink(path);
  CHECK(gb_text_open(context, path, GB_TEXT_BYTES, NULL, 0, &text) == GB_EIO);
}

/* Ids of each width, with and without a header; every damage to the header is said; a file that shrinks is an error of
 * the read. */
static void test_tokens(void) {
  const char *path = path_of("tokens");
  static const unsigned char plain[] = { 1, 0, 0xff, 0xff, 2, 1, 0, 0x80 };
  static const struct { gb_token_kind kind; int64_t length, ids[8]; } rows[] = {
    { GB_TOKENS_UINT8, 8, { 1, 0, 255, 255, 2, 1, 0, 128 } },
    { GB_TOKENS_UINT16, 4, { 1, 65535, 258, 32768 } },
    { GB_TOKENS_INT32, 2, { -65535, INT32_MIN + 258 } },
  };
  char error[256] = "";
  int64_t ids[5000];
  gb_tokens *tokens = NULL;
  put_file(path, plain, sizeof plain);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    CHECK(gb_tokens_open(context, path, rows[i].kind, &tokens) == GB_OK && gb_tokens_length(tokens) == rows[i].length);
    CHECK(gb_tokens_read(tokens, 0, rows[i].length, ids, NULL, error, sizeof error) == GB_OK);
    CHECK(!memcmp(ids, rows[i].ids, (size_t)rows[i].length * sizeof *ids));
    gb_tokens_release(tokens);
  }
  put_file(path, plain, 7);
  CHECK(gb_tokens_open(context, path, GB_TOKENS_UINT16, &tokens) == GB_EFORMAT && strstr(gb_error(context), "7 bytes"));

  /* 20240520, 1, 5000 */
  static unsigned char headed[1024 + 2 * 5000] = { 0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 5000 % 256, 5000 / 256 };
  for (int i = 0; i < 5000; i++)
    headed[1024 + 2 * i] = (unsigned char)i, headed[1025 + 2 * i] = (unsigned char)(i >> 8);
  put_file(path, headed, sizeof headed);
  CHECK(gb_tokens_open(context, path, GB_TOKENS_UINT16, &tokens) == GB_OK && gb_tokens_length(tokens) == 5000);
  CHECK(gb_tokens_read(tokens, 3, 4990, ids, NULL, error, sizeof error) == GB_OK && ids[0] == 3 && ids[4989] == 4992);
  gb_tokens_release(tokens);
  CHECK(gb_tokens_open(context, path, GB_TOKENS_UINT8, &tokens) == GB_OK && gb_tokens_length(tokens) == sizeof headed);
  gb_tokens_release(tokens);
  put_file(path, headed, sizeof headed - 2);
  CHECK(gb_tokens_open(context, path, GB_TOKENS_UINT16, &tokens) == GB_EFORMAT &&
        strstr(gb_error(context), "5000 ids"));
  headed[4] = 7;
  put_file(path, headed, sizeof headed);
  CHECK(gb_tokens_open(context, path, GB_TOKENS_UINT16, &tokens) == GB_EFORMAT &&
        strstr(gb_error(context), "version 7"));

  gb_dataset *set = NULL;
  headed[4] = 1;
  put_file(path, headed, sizeof headed);
  CHECK(gb_tokens_open(context, path, GB_TOKENS_UINT16, &tokens) == GB_OK);
  CHECK(gb_dataset_token_windows(context, tokens, 4990, 11, 3, &set) == GB_EINDEX);
  CHECK(gb_dataset_token_windows(context, tokens, 0, 5000, 5000, &set) == GB_EINVAL &&
        strstr(gb_error(context), "too few"));
  CHECK(gb_dataset_token_windows(context, tokens, 4990, 10, 3, &set) == GB_OK && set->count == 7);
  gb_tokens_release(tokens); /* the dataset holds it */
  int64_t x[6], y[6], at[] = { 6, 0 };
  CHECK(gb_dataset_read(set, at, 2, (void *[]){ x, y }, error, sizeof error) == GB_OK);
  CHECK(x[0] == 4996 && x[2] == 4998 && y[0] == 4997 && y[2] == 4999 && x[3] == 4990 && y[5] == 4993);
  put_file(path, headed, 1024 + 2 * 4998);
  CHECK(gb_dataset_read(set, at, 1, (void *[]){ x, y }, error, sizeof error) == GB_EFORMAT && strstr(error, path) &&
        strstr(error, "ends at byte 11020") && strstr(error, "ids 4997 to 5000 of the 5000") &&
        strstr(error, "write it"));
  gb_dataset_release(set);
  unlink(path);
  CHECK(gb_tokens_open(context, path, GB_TOKENS_UINT16, &tokens) == GB_EIO);
}

int main(void) {
  CHECK(mkdtemp(folder) != NULL);
  CHECK(gb_context_open(NULL, &context) == GB_OK);
  if (context) {
    test_read();
    test_damage();
    test_images();
    test_text();
    test_tokens();
    gb_context_close(context);
  }
  CHECK(rmdir(folder) == 0);
  return check_report();
}
