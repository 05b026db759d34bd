/* data/dataset.h - a dataset: so many samples, each of one to four columns of fixed dtype and shape, copied into plain
 * buffers on demand.
 *
 * A dataset is counted and does not change while it is used, so that a loader's thread can read it; it holds no
 * context. What it is made from (tensors, texts) must not be written to while a loader runs over it. */
#ifndef GB_DATA_DATASET_H
#define GB_DATA_DATASET_H

#include <stdatomic.h>

#include "data/data.h"
#include "tensor/tensor.h"

#define GB_MAX_COLUMNS 4

/* One column of one sample. */
typedef struct gb_column {
  gb_dtype dtype;
  int ndim;                            /* at most GB_MAX_NDIM - 1: a batch has one more */
  int64_t shape[GB_MAX_NDIM];
  size_t bytes;
} gb_column;

/* One column of the file that samples were made from, as dataset:columns() tells of it. */
typedef struct gb_field {
  const char *name, *tensor;           /* tensor: where its values are, "x", "ids" or "y"; NULL: nowhere */
  bool is_category;
  double mean, std;                    /* of numbers; as learned from the data that was fitted */
  int64_t missing, unseen;             /* values of this data that were filled in; categories that the fitted data
                                          lacks */
  int64_t count;                       /* of categories, and these in the order of their ids */
  const char *const *words;
} gb_field;

/* All of them; counted, and after the dataset is made unchanging. */
typedef struct gb_fields {
  _Atomic int32_t refs;
  int count;
  const gb_field *field;
  void (*release)(struct gb_fields *fields);
} gb_fields;

void gb_fields_retain(gb_fields *fields);         /* NULL is fine; any thread */
void gb_fields_release(gb_fields *fields);

/* What the random part of a sample is a function of, beside the sample. stop: NULL, or the context whose wish to stop
 * ends a long read: the caller's, never that of another thread. */
typedef struct gb_draw { uint64_t seed, epoch; const gb_context *stop; } gb_draw;

typedef struct gb_dataset {
  _Atomic int32_t refs;
  int64_t count;
  int columns;
  gb_column column[GB_MAX_COLUMNS];
  /* Copy the samples indices[0 .. n-1] (checked: 0 .. count-1) into out[column], one behind the other. On failure the
   * text goes to error. Any thread, several at once; touches no context. */
  gb_status (*get_batch)(void *user, const int64_t *indices, int64_t n, void *const *out, char *error,
                         size_t error_size);
  /* NULL, or the same of samples that are random: read them by this one. */
  gb_status (*get_drawn)(void *user, const gb_draw *draw, const int64_t *indices, int64_t n, void *const *out,
                         char *error, size_t error_size);
  int64_t (*skipped)(void *user);      /* NULL, or how many samples could not be read and were passed over; any
                                          thread */
  void (*release)(void *user);         /* or NULL; any thread */
  void *user;
  gb_fields *fields;                   /* NULL: it was not made of such a file */
} gb_dataset;

/* A dataset from a table filled by the caller: count, columns, dtype, ndim and shape of each column, get_batch,
 * release, user. On failure user has been released. */
gb_status gb_dataset_new(gb_context *context, const gb_dataset *table, gb_dataset **out);
void gb_dataset_retain(gb_dataset *dataset);
void gb_dataset_release(gb_dataset *dataset);     /* NULL is fine; any thread */

/* Images [n, height, width] and labels [n] of uint8 from idx files: float32 [1, height, width] = (pixel / 255 - mean) /
 * std, and int64. labels_path NULL: images alone. */
gb_status gb_dataset_images(gb_context *context, const char *images_path, const char *labels_path, double mean,
                            double std, gb_dataset **out);
/* Row i of each of 1 .. GB_MAX_COLUMNS contiguous CPU tensors, which are held. */
gb_status gb_dataset_tensors(gb_context *context, gb_tensor *const *tensors, int count, gb_dataset **out);
/* Windows of a text: x = ids[i .. i+block-1], y = ids[i+1 .. i+block], int64, for i within ids first ..
 * first+count-1. */
gb_status gb_dataset_windows(gb_context *context, gb_text *text, int64_t first, int64_t count, int64_t block,
                             gb_dataset **out);
/* The same of a token file. */
gb_status gb_dataset_token_windows(gb_context *context, gb_tokens *tokens, int64_t first, int64_t count, int64_t block,
                                   gb_dataset **out);
/* The numbers 0 .. count-1 themselves, int64: an order for those who fetch their samples themselves. */
gb_status gb_dataset_indices(gb_context *context, int64_t count, gb_dataset **out);
/* Part of a dataset: a range, or a list of indices, which is copied. */
gb_status gb_dataset_range(gb_context *context, gb_dataset *of, int64_t first, int64_t count, gb_dataset **out);
gb_status gb_dataset_subset(gb_context *context, gb_dataset *of, const int64_t *indices, int64_t count,
                            gb_dataset **out);

/* concat.c: datasets one behind the other, which are held. All have samples of one form. */
gb_status gb_dataset_concat(gb_context *context, gb_dataset *const *list, int count, gb_dataset **out);
/* Have their samples as many columns, of the same dtypes and shapes? */
bool gb_dataset_alike(const gb_dataset *a, const gb_dataset *b);

/* get_batch, or get_drawn, with its indices checked. */
gb_status gb_dataset_draw(gb_dataset *dataset, const gb_draw *draw, const int64_t *indices, int64_t n,
                          void *const *out, char *error, size_t error_size);
/* The same with the draw of seed 0 and epoch 0. */
gb_status gb_dataset_read(gb_dataset *dataset, const int64_t *indices, int64_t n, void *const *out, char *error,
                          size_t error_size);
/* New tensors of one sample (without a batch dimension), one per column. A random one is drawn from the context's
 * random stream. */
gb_status gb_dataset_get(gb_context *context, gb_dataset *dataset, int64_t index, gb_tensor **out);

#endif
