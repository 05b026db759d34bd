/* data/loader.h - batches of a dataset, made ahead of time by one thread, which may have helpers.
 *
 * What a batch holds is a function of (dataset, options, epoch, batch): neither prefetching nor threads change it, and
 * the position is two numbers that can be saved and set, so a run resumes with the very batch it would have seen. The
 * loader's thread fills plain buffers and never touches a context; batches are tensors over those buffers, which are
 * used again when the tensors are gone. */
#ifndef GB_DATA_LOADER_H
#define GB_DATA_LOADER_H

#include "data/dataset.h"

typedef struct gb_loader gb_loader;

typedef struct gb_loader_options {
  int64_t batch_size;
  bool shuffle;                /* a new order each epoch, from (seed, epoch) */
  bool drop_last;              /* leave out a last batch that is not full */
  uint64_t seed;
  int prefetch;                /* batches made ahead, at most GB_LOADER_MOST_PREFETCH; 0: made when asked for, without a
                                  thread */
  int workers;                 /* threads that share the samples of a batch, at most GB_LOADER_MOST_WORKERS; 0 and 1:
                                  the one that makes it */
  bool pinned;                 /* batches lie in page-locked memory where there is a CUDA device, so that their copies
                                  to it need no other on the way */
  int64_t random_batches;      /* above 0: an epoch is so many batches of samples drawn at random, with replacement */
} gb_loader_options;

#define GB_LOADER_MOST_PREFETCH 64
#define GB_LOADER_MOST_WORKERS 64

/* The next batch: number `batch` of epoch `epoch`, both from 0. batch == gb_loader_batches: the epoch's end is next. */
typedef struct gb_loader_position { int64_t epoch, batch; } gb_loader_position;

/* {32, false, false, 0, 2, 0, false, 0} */
void gb_loader_options_init(gb_loader_options *options);

/* The dataset is held. */
gb_status gb_loader_open(gb_context *context, gb_dataset *dataset, const gb_loader_options *options, gb_loader **out);
/* Joins the threads. Tensors of batches live on. NULL is fine. */
void gb_loader_close(gb_loader *loader);

int64_t gb_loader_batches(const gb_loader *loader);      /* in an epoch */
gb_dataset *gb_loader_dataset(const gb_loader *loader);  /* borrowed */
bool gb_loader_is_pinned(const gb_loader *loader);       /* are its batches in page-locked memory? */
const gb_loader_options *gb_loader_get_options(const gb_loader *loader);

/* The next batch: out[column] are new CPU tensors [n, ...]. At the end of an epoch out[0] is NULL and the position
 * moves to the next epoch. After a failure the position is unchanged, and the next call tries the same batch again. */
gb_status gb_loader_next(gb_loader *loader, gb_tensor **out);

gb_loader_position gb_loader_get_position(const gb_loader *loader);
gb_status gb_loader_set_position(gb_loader *loader, gb_loader_position position);

#endif
