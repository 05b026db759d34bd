/* data/data.h - what training data is made from: idx files, text, token files, and orders that depend on a seed alone.
 *
 * Datasets (data/dataset.h) and the loader (data/loader.h) stand on these. */
#ifndef GB_DATA_DATA_H
#define GB_DATA_DATA_H

#include "tensor/context.h"

/* {==== idx.c: the files of MNIST (http://yann.lecun.com/exdb/mnist, "The IDX file format"), gzipped or not ==== */

/* An array in host memory and byte order; data is the caller's to free. */
typedef struct gb_idx {
  gb_dtype dtype;                    /* uint8, int32, float32 or float64 */
  int ndim;
  int64_t shape[GB_MAX_NDIM];
  void *data;
  size_t bytes;
} gb_idx;

gb_status gb_idx_read(gb_context *context, const char *path, gb_idx *out);

/* ====} */

/* {==== text.c: a text as a row of ids ==== */

/* Characters: UTF-8 code points, the vocabulary being those that occur, sorted. Bytes: 256 ids, whatever occurs. */
typedef enum gb_text_kind { GB_TEXT_CHARACTERS, GB_TEXT_BYTES } gb_text_kind;

typedef struct gb_text gb_text;      /* counted; unchanging, so any thread may read it */

/* vocabulary (of characters): UTF-8 text with the characters the ids stand for, to encode one text as another was;
 * NULL: its own. */
gb_status gb_text_new(gb_context *context, const char *data, size_t bytes, gb_text_kind kind, const char *vocabulary,
                      size_t vocabulary_bytes,
                      gb_text **out);
gb_status gb_text_open(gb_context *context, const char *path, gb_text_kind kind, const char *vocabulary,
                       size_t vocabulary_bytes, gb_text **out);
void gb_text_retain(gb_text *text);
void gb_text_release(gb_text *text);             /* NULL is fine */

int64_t gb_text_length(const gb_text *text);     /* in ids */
const uint16_t *gb_text_ids(const gb_text *text);
int64_t gb_text_vocabulary_size(const gb_text *text);
/* The characters of the vocabulary in the order of their ids, as UTF-8, NUL-terminated; NULL for bytes. */
const char *gb_text_vocabulary(const gb_text *text, size_t *bytes);

/* ids[] has room for `bytes` ids; *count says how many there are. A character outside the vocabulary is an error. */
gb_status gb_text_encode(gb_context *context, const gb_text *text, const char *data, size_t bytes, int64_t *ids,
                         int64_t *count);
/* The text of ids, NUL-terminated; the caller frees it. */
gb_status gb_text_decode(gb_context *context, const gb_text *text, const int64_t *ids, int64_t count, char **data,
                         size_t *bytes);

/* ====} */

/* {==== tokens.c: a file of token ids, read piece by piece ==== */

typedef struct gb_tokens gb_tokens;  /* counted; unchanging, so any thread may read it */

/* How wide an id is in the file, little-endian. */
typedef enum gb_token_kind { GB_TOKENS_UINT8, GB_TOKENS_UINT16, GB_TOKENS_INT32, GB_TOKEN_KINDS } gb_token_kind;

/* For 16-bit ids the file may begin with llm.c's header (magic 20240520): then its version and length are checked and
 * it is passed over. */
gb_status gb_tokens_open(gb_context *context, const char *path, gb_token_kind kind, gb_tokens **out);
void gb_tokens_retain(gb_tokens *tokens);
void gb_tokens_release(gb_tokens *tokens);       /* NULL is fine */

int64_t gb_tokens_length(const gb_tokens *tokens);
/* ids first .. first + count - 1, which the file has, and unless next is NULL the one behind them, by one read. Any
 * thread, several at once; on failure the text goes to error. */
gb_status gb_tokens_read(const gb_tokens *tokens, int64_t first, int64_t count, int64_t *ids, int64_t *next,
                         char *error, size_t error_size);

/* ====} */

/* {==== shuffle.c: orders that are a function of (seed, epoch) ==== */

/* Who may end the making of a long order, asked after every piece of it. Where one is given, false says that it ended
 * so; then what was written is no order. */
typedef struct gb_stopper { bool (*asks)(void *user); void *user; } gb_stopper;
/* The wish of a context to stop, on the thread that runs it. */
gb_stopper gb_stopper_of(gb_context *context);

/* A whole number in 0 .. limit - 1 that depends on nothing but (seed, epoch, index); limit is at least 1. */
int64_t gb_sample(uint64_t seed, uint64_t epoch, uint64_t index, int64_t limit);
/* Put the numbers 0 .. count - 1 in a random order (Fisher and Yates). */
bool gb_permutation(uint64_t seed, uint64_t epoch, int64_t count, int64_t *out, const gb_stopper *stop);
/* Draw `count` of the numbers 0 .. n - 1 by their weights, which are finite, not negative and not all 0. With
 * replacement by their running sums; without it the largest of log(u) / weight come first (Efraimidis and Spirakis
 * 2006), and at least `count` weights are above 0. room: n doubles. */
bool gb_weighted(uint64_t seed, uint64_t epoch, const double *weights, int64_t n, double *room, bool replacement,
                 int64_t count, int64_t *out, const gb_stopper *stop);
/* An order of 0 .. n - 1 in which the numbers of a batch have about the same length. Shuffled: numbers are put in a
 * random order, so many batches of it at a time are sorted by length, and the full batches change places; else all are
 * sorted. room: n numbers. */
bool gb_bucketed(uint64_t seed, uint64_t epoch, const int64_t *lengths, int64_t n, int64_t batch_size, int64_t window,
                 bool shuffle, int64_t *room, int64_t *out, const gb_stopper *stop);

/* ====} */

#endif
