/* gibbous_ops.h - typed calls of ops, with arguments by name:
 *
 *     gb_tensor *y;
 *     gb_status status = GB_RUN(context, softmax, &y, .x = x, .dim = gb_attr_int(-1));
 *
 * The names are those of the table of ops. What is left out has its default; an op that gains an option breaks no
 * caller. Values of attributes are made by gb_attr_int (ints, bools, dtypes, dims from 0), gb_attr_num, gb_attr_whole,
 * gb_attr_ints and gb_attr_text. Tensors are borrowed. The results are new references, written one after another from
 * `out` on: of an op with several, give the first member of its struct of outputs,
 *
 *     gb_out_max best = { 0 };
 *     GB_RUN(context, max, &best.values, .x = x, .dim = gb_attr_int(0));
 *
 * A list of tensors is a pointer, with .count. out NULL: in place, into the first tensor.
 * An engine with another table than this header refuses the call (GB_EUNSUPPORTED, with the names). */
#ifndef GIBBOUS_OPS_H
#define GIBBOUS_OPS_H

#include <stddef.h>

#include "gibbous.h"

#ifdef __cplusplus
extern "C" {
#endif

/* {==== one struct per op: inputs, attributes, outputs, and the arguments of a call ==== */

#define GB_TAKE_IN(name, text, flags) gb_tensor *name;
#define GB_TAKE_LIST(name, text) gb_tensor *name; /* the first of them */
#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc) \
  __extension__ typedef struct gb_in_##name { arguments } gb_in_##name;
#include "graph/ops.def"

#define GB_TAKE_ATTR(type, name, text, facts) gb_attr name;
#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc) \
  __extension__ typedef struct gb_attrs_##name { arguments } gb_attrs_##name;
#include "graph/ops.def"

#define GB_TAKE_OUT(name, text, kept) gb_tensor *name;
#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc) \
  __extension__ typedef struct gb_out_##name { arguments } gb_out_##name;
#include "graph/ops.def"

/* In the order of the row, which gb_run_arguments knows. */
#define GB_TAKE_IN(name, text, flags) gb_tensor *name;
#define GB_TAKE_LIST(name, text) gb_tensor *const *name;
#define GB_TAKE_ATTR(type, name, text, facts) gb_attr name;
#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc) \
  typedef struct gb_arguments_##name { arguments int count; } gb_arguments_##name;
#include "graph/ops.def"

/* ====} */

/* {==== calls ==== */

/* What GB_RUN calls. `op` is the id that `name` has in this process, looked up on the first call (0 before); `row` is
 * the row that the caller was compiled with; `arguments` is its struct of arguments. */
GB_API gb_status gb_run_arguments(gb_context *context, int32_t *op, const char *name, const char *row,
                                  const void *arguments, gb_tensor **out);

#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc)                                    \
  static inline gb_status gb_run_##name(gb_context *context, const gb_arguments_##name *given, gb_tensor **out) { \
    static int32_t op;                                                                                            \
    return gb_run_arguments(context, &op, #name, #arguments, given, out);                                         \
  }
#include "graph/ops.def"

#define GB_RUN(context, op, out, ...) gb_run_##op((context), &(gb_arguments_##op){ __VA_ARGS__ }, (out))

/* ====} */

#ifdef __cplusplus
}
#endif
#endif
