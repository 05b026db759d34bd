/* cpu/linalg.h - what the kernels of linear algebra share: a batch of matrices, each of which is one chunk's work. */
#ifndef GB_CPU_LINALG_H
#define GB_CPU_LINALG_H

#include "cpu/scratch.h"
#include "ops/linalg.h"

/* One op on all matrices of a batch: ndim, batch: the shape of the batch, which operands broadcast to. */
typedef struct gb_matrix_job {
  gb_op_call *call;
  int ndim;
  int64_t batch[GB_MAX_NDIM], count, per_chunk, work; /* work: of one matrix, as gb_work counts it */
  gb_scratch scratch;
  gb_matrix_fault (*one)(const struct gb_matrix_job *job, int64_t i, char *room);
  _Atomic(int64_t) bad;                               /* the first matrix that failed, and its fault; -1: none */
} gb_matrix_job;

/* Where matrix i of the batch begins in t, of which the last `own` dims belong to each matrix. */
static inline char *gb_matrix_at(const gb_matrix_job *job, const gb_tensor *t, int own, int64_t i) {
  int64_t offset = 0;
  for (int d = job->ndim - 1; d >= 0; d--) {
    int64_t at = i % job->batch[d];
    int dim = t->ndim - own - (job->ndim - d);
    i /= job->batch[d];
    if (dim >= 0 && t->shape[dim] != 1) offset += at * t->stride[dim];
  }
  return gb_data(t) + offset * (int64_t)gb_dtype_bytes((gb_dtype)t->dtype);
}

#endif
