/* cuda/attend.h - our own attention, for what the library does not run: any float dtype, masks, dropout, and gradients
 * in a fixed order.
 *
 * It works by products of whole matrices, whose scores are stored. Gradients of up to 256 columns in one dtype go by
 * tiles, whose scores are not. */
#ifndef GB_CUDA_ATTEND_H
#define GB_CUDA_ATTEND_H

#include "cuda/call.h"

/* A tensor as [batch, heads, rows, columns]; strides in elements, 0 for dimensions of size 1 and those it does not
 * have. */
typedef struct gb_heads_view {
  char *data;
  gb_dtype dtype;
  bool aligned;                        /* rows lie in one piece, and begin and end at multiples of 16 bytes */
  int64_t stride[4];
} gb_heads_view;

/* Scores (scaled) of some heads of one batch and some of their queries: [heads, rows, tk] in float32 or float64 (lane),
 * one head behind the other. */
typedef struct gb_scores {
  gb_dtype lane, rounded;              /* rounded: the dtype that probabilities and their gradients are stored in */
  int64_t heads, rows, tk;
  int64_t first_row, first_head;       /* place of the first row in its head, and of the first head among all, batches
                                          included */
  int64_t tq;                          /* rows of a whole head */
  bool causal;
  int64_t window;                      /* a query sees keys less than so many positions away; 0: any */
  double dropout;
  gb_cuda_place place;                 /* of dropout */
  const char *mask;                    /* of the first head and row, or NULL; strides by head, row, key */
  gb_dtype mask_dtype;
  int64_t mask_stride[3];
  void *scores, *gradients;            /* backward: gradients of the probabilities */
  void *lse;                           /* lanes [heads of all, tq] */
  void *total;                         /* lanes [heads, rows]: the sum of a row's exponentials */
  const void *shift;                   /* backward: lanes [heads of all, tq], sum(grad * y) of every query */
  void *slopes;                        /* backward: lanes [heads of all, tq, tk], gradients of all scores; or NULL */
} gb_scores;

#define GB_ATTEND_COLUMNS 256 /* of a head, at most, for tiles */

/* The gradients of one attention by tiles: operands and results have one dtype, float32 or 16 bits. */
typedef struct gb_attend_tiles {
  /* mask: bool or float32; without data where there is none */
  gb_heads_view query, key, value, mask, grad, dquery, dkey, dvalue;
  int64_t batch, heads, key_heads, tq, tk;
  int e, ev;                           /* columns of query and key, and of value */
  bool causal;
  int window;                          /* as in gb_scores */
  float scale, keep;                   /* keep: the factor on elements that are not dropped */
  uint32_t drop_bound;                 /* of the probability of dropout, for gb_is_dropped */
  gb_cuda_place place;
  const float *lse, *shift;            /* [batch, heads, tq] */
} gb_attend_tiles;

#ifdef __cplusplus
extern "C" {
#endif

/* {---- attend.cu ---- */

/* Turn scores into exp(score - largest of the row), in `rounded`, in out [heads, rows, tk], dropped but not divided.
 * Their sums go to total, and log(total) + largest to lse unless it is NULL. */
void gb_scores_soften(gb_cuda_call *call, const gb_scores *s, void *out);
/* y = sums / total, scaled for dropout. sums are dense lanes [heads, rows, n]; y has strides by head, row, column. */
void gb_scores_divide(gb_cuda_call *call, const gb_scores *s, const void *sums, int64_t n, void *y, gb_dtype dtype,
                      const int64_t *stride);
/* Compute the probabilities again, dropped as in forward, into out, and the gradients of the scores into gradients_out.
 * Both in `rounded`. */
void gb_scores_soften_backward(gb_cuda_call *call, const gb_scores *s, void *out, void *gradients_out);
/* shift [rows of all heads] = sum(grad * y) of every query, in lanes; both are [.., heads, tq, n]. The order of a sum
 * hangs on whether both are aligned. */
void gb_attend_shift(gb_cuda_call *call, gb_dtype lane, const gb_heads_view *grad, const gb_heads_view *y, int64_t rows,
                     int64_t heads, int64_t tq, int64_t n,
                     void *shift);

/* ----} */

/* {---- attend_backward.cu ---- */
void gb_attend_run_tiles(gb_cuda_call *call, const gb_attend_tiles *a);
/* ----} */

/* The arguments that attention and its gradient share: GB_ATTENDED(call, op) of a call of either. */
typedef struct gb_attended {
  const gb_cuda_tensor *query, *key, *value, *mask;
  const gb_attr *is_causal, *scale, *dropout_p, *window;
} gb_attended;
#define GB_ATTENDED(call, op)                                                                      \
  (gb_attended){ .query = GB_CUDA_IN(call, op)->query, .key = GB_CUDA_IN(call, op)->key,           \
                 .value = GB_CUDA_IN(call, op)->value, .mask = GB_CUDA_IN(call, op)->mask,         \
                 .is_causal = &GB_ATTRS(call, op)->is_causal, .scale = &GB_ATTRS(call, op)->scale, \
                 .dropout_p = &GB_ATTRS(call, op)->dropout_p, .window = &GB_ATTRS(call, op)->window }
/* The window of a call: 0 where it takes in every key. */
static inline int64_t gb_attended_window(const gb_attended *in, int64_t tq, int64_t tk) {
  int64_t longest = tq > tk ? tq : tk;
  return in->window->given && in->window->integer < longest ? in->window->integer : 0;
}

/* {---- attend.c ---- */
gb_status gb_attend(gb_cuda_call *call);
gb_status gb_attend_backward(gb_cuda_call *call);
/* ----} */

#ifdef __cplusplus
}
#endif
#endif
