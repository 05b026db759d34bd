/* cuda/attend.h - attention by products, for what the library does not run: any float dtype, masks, dropout, and gradients in a fixed order. */
#ifndef GB_CUDA_ATTEND_H
#define GB_CUDA_ATTEND_H

#include "cuda/call.h"

/* Scores (scaled) of some heads of one batch and some of their queries: [heads, rows, tk] in float32 or float64 (lane), one head behind the other. */
typedef struct gb_scores {
  gb_dtype lane, rounded;              /* rounded: the dtype that probabilities and their gradients are stored in */
  int64_t heads, rows, tk;
  int64_t first_row, first_head;       /* place of the first row in its head, and of the first head among all, batches included */
  int64_t tq;                          /* rows of a whole head */
  bool causal;
  double dropout;
  gb_cuda_place place;                 /* of dropout */
  const char *mask;                    /* of the first head and row, or NULL; strides by head, row, key */
  gb_dtype mask_dtype;
  int64_t mask_stride[3];
  void *scores, *gradients;            /* backward: gradients of the probabilities */
  void *lse;                           /* lanes [heads of all, tq] */
  void *total, *shift;                 /* lanes [heads, rows]: the sum of a row's exponentials; backward, sum(grad * y) */
} gb_scores;

#ifdef __cplusplus
extern "C" {
#endif

/* {---- attend.cu ---- */

/* Scores become exponentials less the row's largest, in `rounded`, in out [heads, rows, tk], dropped but not divided; their sums go to total, and
 * the logs of these and of what was taken off to lse unless it is NULL. */
void gb_scores_soften(gb_cuda_call *call, const gb_scores *s, void *out);
/* y = sums / total, and what dropout owes: sums are dense lanes [heads, rows, n]; y by strides of head, row, column. */
void gb_scores_divide(gb_cuda_call *call, const gb_scores *s, const void *sums, int64_t n, void *y, gb_dtype dtype, const int64_t *stride);
/* The probabilities again, dropped as forward dropped them, in out; the gradients of the scores in gradients_out. Both in `rounded`. */
void gb_scores_soften_backward(gb_cuda_call *call, const gb_scores *s, void *out, void *gradients_out);
/* shift = sum(grad * y) of every row: dense [heads * rows, n] of two dtypes. */
void gb_scores_shift(gb_cuda_call *call, const gb_scores *s, const void *grad, gb_dtype grad_dtype, const void *y, gb_dtype y_dtype, int64_t n);

/* ----} */

/* {---- attend.c ---- */
gb_status gb_attend(gb_cuda_call *call);
gb_status gb_attend_backward(gb_cuda_call *call);
/* ----} */

#ifdef __cplusplus
}
#endif
#endif
