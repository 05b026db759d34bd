/* graph/chain.h - several ops in a row, for composites and gradients.
 *
 * A chain owns what its steps make and remembers the first failure: a step after a failure does nothing and gives NULL,
 * so an expression is written down as it reads and its status asked once, at the end. Tensors handed in are
 * borrowed. */
#ifndef GB_GRAPH_CHAIN_H
#define GB_GRAPH_CHAIN_H

#include "graph/ops.h"

/* Room for the gradient of a product over 2^32 elements, the longest chain there is. */
#define GB_CHAIN_ROOM 384

typedef struct gb_chain {
  gb_context *context;
  gb_status status;
  int count;
  gb_tensor *made[GB_CHAIN_ROOM];
} gb_chain;

void gb_chain_begin(gb_chain *chain, gb_context *context);
/* Let go of every step; when all went well *out is a new reference to result, else the status of the step that
 * failed. */
gb_status gb_chain_end(gb_chain *chain, gb_tensor *result, gb_tensor **out);

gb_tensor *gb_chain_1(gb_chain *chain, gb_op op, gb_tensor *x, const gb_attr *attrs);
gb_tensor *gb_chain_2(gb_chain *chain, gb_op op, gb_tensor *x, gb_tensor *y, const gb_attr *attrs);
/* GB_CHAIN(chain, softmax, .x = x, .dim = gb_attr_int(-1)): any op with one visible output, its arguments by name. */
#define GB_CHAIN(chain, op, ...) gb_chain_run((chain), GB_OP_##op, &(gb_arguments_##op){ __VA_ARGS__ })
gb_tensor *gb_chain_run(gb_chain *chain, gb_op op, const void *arguments);
/* The same of an op with two: the second goes to *second. */
gb_tensor *gb_chain_pair(gb_chain *chain, gb_op op, const void *arguments, gb_tensor **second);
/* A number as an input of ops that take one in place of a tensor. */
gb_tensor *gb_chain_wrap(gb_chain *chain, double number);
gb_tensor *gb_chain_number(gb_chain *chain, gb_op op, gb_tensor *x, double number);
gb_tensor *gb_chain_cast(gb_chain *chain, gb_tensor *x, gb_dtype dtype);
/* x in float32 when it is a 16-bit float, else x. */
gb_tensor *gb_chain_widen(gb_chain *chain, gb_tensor *x);
/* Zeros like x. */
gb_tensor *gb_chain_zeros(gb_chain *chain, const gb_tensor *x);
/* x without its history: what is made of it has no gradient by x. */
gb_tensor *gb_chain_detach(gb_chain *chain, gb_tensor *x);
/* A 0-d input of the host's, a number for example, on the call's device; any other as it is. */
gb_tensor *gb_chain_here(gb_chain *chain, const gb_op_call *call, gb_tensor *x);
/* A new tensor full of one value. */
gb_tensor *gb_chain_full(gb_chain *chain, gb_dtype dtype, int ndim, const int64_t *shape, gb_device device,
                         double value);

#endif
