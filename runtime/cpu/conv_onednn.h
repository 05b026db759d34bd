/* cpu/conv_onednn.h - convolutions of float32, or of bfloat16 by the processor's unit for it, by oneDNN, one batch
 * slice at a time, on the calling thread only.
 *
 * Images are channels-last in memory, [n][h][w][c]; weights are [o][kh][kw][c / groups] outside and in a layout of
 * oneDNN's choice inside. Whatever oneDNN cannot do, or would do slowly, is NULL here and is left to the plain
 * convolution; so is everything in a build without it, and where the library cannot be opened. */
#ifndef GB_CPU_CONV_ONEDNN_H
#define GB_CPU_CONV_ONEDNN_H

#include "ops/conv.h"

typedef enum gb_onednn_kind { GB_ONEDNN_FORWARD, GB_ONEDNN_BACKWARD_INPUT, GB_ONEDNN_BACKWARD_WEIGHT } gb_onednn_kind;

struct gb_onednn;

/* One kind of convolution of one shape: compiled code that any number of threads may run at once. */
typedef struct gb_onednn_conv gb_onednn_conv;

/* The convolution of s->n images, from those that the backend keeps, or made now; NULL: not handled. Owned by the
 * backend, valid until the next call. Called between parallel loops only. half: of bfloat16 operands, which gives
 * float32 too, and takes what is below 2^-126 for zero, in operands and in sums; the bias is float32. */
const gb_onednn_conv *gb_onednn_find(gb_context *context, gb_onednn_kind kind, const gb_conv_sizes *s, bool bias,
                                     bool half);
/* Bytes of the weight, or of its gradient, in oneDNN's layout. */
size_t gb_onednn_weight_bytes(const gb_onednn_conv *conv);
/* Bytes of working memory, aligned to 64, that each thread brings to run, pack and unpack. */
size_t gb_onednn_scratch_bytes(const gb_onednn_conv *conv);

/* The weight into, or its gradient out of, oneDNN's layout. These and run give false when oneDNN fails, which it does
 * only for memory. */
bool gb_onednn_pack(const gb_onednn_conv *conv, const void *weight, void *packed, void *scratch);
bool gb_onednn_unpack(const gb_onednn_conv *conv, const void *packed, void *weight, void *scratch);
/* y = x * weight + bias forward, x's from y's and weight's gradients backward, or weight's from x and y's: the kind
 * says which is written. */
bool gb_onednn_run(const gb_onednn_conv *conv, void *x, void *packed, const float *bias, void *y, void *scratch);

/* The version of the library that serves, which is opened for it; or NULL, and why it does not: *why is NULL where the
 * build has no part for it. Any thread. */
const char *gb_onednn_version(const char **why);
/* Why what wanted the library so far went without it; NULL: nothing did. Any thread. */
const char *gb_onednn_trouble(void);

/* Free what a backend kept; NULL is fine. */
void gb_onednn_close(struct gb_onednn *onednn);

#endif
