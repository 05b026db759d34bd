/* cuda/rnn.h - the seam to the library's recurrent layers: rnn.c runs them by cuDNN, all layers and directions in one
 * call. layers.c brings ops to it. Where it does not run them, nn's layers go by the op `recurrent`.
 *
 * Operands are dense, in the network's dtype: x [time, batch, input], y [time, batch, directions * state], h [layers *
 * directions, batch, state] and c the same of `hidden`. Weights lie in one vector, as the library wants them. */
#ifndef GB_CUDA_RNN_H
#define GB_CUDA_RNN_H

#include "cuda/call.h"
#include "ops/rnn.h"

/* One pass. Forward: y, last_h and last_c, and the reserve where there is to be a backward pass. Backward: dx, dh and
 * dc, and dpacked where it is wanted; it writes over the reserve. c, last_c, grad_c and dc: of an LSTM. h and c are
 * NULL where they are 0, and then dh and dc are. */
typedef struct gb_rnn_run {
  gb_rnn rnn;
  const int64_t *lengths;              /* on the host; NULL: all are `time` */
  const void *x, *h, *c, *packed, *grad, *grad_h, *grad_c; /* a gradient is NULL where it is 0; not grad itself */
  void *y, *last_h, *last_c, *reserve, *dx, *dh, *dc, *dpacked;
} gb_rnn_run;

typedef struct gb_rnns gb_rnns;

/* Does the library run these layers? Then what it takes; else the reason is told once. */
bool gb_rnns_have(struct gb_cuda *cuda, const gb_rnn *rnn, gb_rnn_room *room);
void gb_rnns_close(gb_rnns *rnns); /* NULL is fine */
/* Where weight `which` begins among those packed at `packed`; its rows follow each other. */
gb_status gb_rnn_place(gb_cuda_call *call, const gb_rnn *rnn, void *packed, int64_t which, char **place);
gb_status gb_rnn_forward(gb_cuda_call *call, const gb_rnn_run *run);
gb_status gb_rnn_backward(gb_cuda_call *call, const gb_rnn_run *run);

#endif
