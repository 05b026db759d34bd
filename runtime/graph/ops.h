/* graph/ops.h - what the table of ops, dispatch and the families share. */
#ifndef GB_GRAPH_OPS_H
#define GB_GRAPH_OPS_H

#include "gibbous_ops.h"
#include "graph/node.h"
#include "graph/number.h"
#include "graph/room.h"
#include "op_ids.h"
#include "tensor/context.h"
#include "tensor/tensor.h"

/* {==== the table ==== */

typedef enum gb_op_kind { GB_KIND_KERNEL, GB_KIND_VIEW, GB_KIND_COMPOSITE, GB_KIND_BACKWARD } gb_op_kind;
typedef enum gb_op_class { GB_CLASS_KEEP, GB_CLASS_LOWER, GB_CLASS_FLOAT32, GB_CLASS_WIDEST,
                           GB_CLASS_BANNED } gb_op_class;
typedef enum gb_op_derivative { GB_DERIVATIVE_NO, GB_DERIVATIVE_ONCE, GB_DERIVATIVE_TWICE } gb_op_derivative;
enum { GB_WHERE_NONE = 0, GB_WHERE_GB = 1, GB_WHERE_METHOD = 2, GB_WHERE_F = 4, GB_WHERE_INPLACE = 8 };

/* How an attribute is read. */
typedef enum gb_arg_type {
  GB_ARG_INT,      /* an integer                                    attr.integer */
  GB_ARG_DIM,      /* a dimension: from 1 in Lua, from 0 here, negative from the end (-1 is the last)  attr.integer */
  GB_ARG_INTS,     /* an integer or a list of them                  attr.ints, attr.count. In its place attr.exact may
                      be a GB_WORD, with a count of 0; from dispatch on there are zeros beside it */
  GB_ARG_DIMS,     /* a dimension or a list of them                 attr.ints, attr.count */
  GB_ARG_NUMBER,   /* attr.number; attr.whole and attr.exact where it came as an integer: see number.h */
  GB_ARG_BOOL,     /* attr.integer */
  GB_ARG_DTYPE,    /* attr.integer, a gb_dtype */
  GB_ARG_CHOICE,   /* attr.text as it is given; from dispatch on attr.integer, a GB_WORD, and attr.count is 1 */
  GB_ARG_TEXT,     /* attr.text, which is the caller's: of composites only, since a node would keep it */
} gb_arg_type;

enum { GB_IN_OPTIONAL = 1, GB_IN_NUMBER = 2 }; /* of an input: it may be absent; it may be a Lua number */

#define GB_MAX_IN 12 /* of a row without a list */

typedef struct gb_input_info { const char *name; bool optional, list, number; } gb_input_info;

/* What the rules of an attribute allow. */
typedef struct gb_rule { double least, most; bool above, below; int8_t count; } gb_rule;

typedef struct gb_attr_info {
  const char *name, *choices; /* choices: "none|mean|sum" */
  gb_arg_type type;
  bool required, positional;
  gb_rule rule;              /* above, below: the bound itself is not allowed; count: of ints, 0: any */
  gb_attr preset;
} gb_attr_info;

/* An argument of a row as ops.def has it. */
typedef struct gb_item { char kind; int8_t flags; const char *name, *facts; } gb_item;
enum { GB_ITEM_END, GB_ITEM_IN, GB_ITEM_LIST, GB_ITEM_ATTR, GB_ITEM_NAMED, GB_ITEM_OUT };

/* A row of ops.def, its arguments taken apart. */
typedef struct gb_op_info {
  gb_op op;
  const char *name, *family, *doc;
  gb_op_kind kind;
  gb_op_class autocast;
  gb_op_derivative derivative;
  int where;
  const gb_item *items;
  const char *row;           /* its arguments as they stand in ops.def */
  int n_in, n_attrs, n_out, n_hidden;      /* n_in counts a list as one; n_out counts the hidden ones too */
  int list;                  /* the input that is a list, the last one; -1: none */
  const gb_input_info *in;   /* n_in */
  const gb_attr_info *attrs; /* n_attrs */
  struct { bool is_attr; int8_t index; } position[GB_MAX_IN + GB_MAX_ATTRS]; /* positional arguments in order */
  int n_positions;
  bool inputs_first;         /* the inputs come before the attributes, and none is a list */
  bool takes_tensors;        /* and they may be all that is given: no attribute is required */
} gb_op_info;

/* What the row says of input i of a call, of which a list takes all from its place on. */
static inline const gb_input_info *gb_op_input(const gb_op_info *info,
                                               int i) { return &info->in[info->list >= 0 &&
                                                                         i > info->list ? info->list : i]; }
/* "x, y|number, weight?, xs..., shape: ints; stride: ints = 1, eps: number = 1e-5 -> y, mean", for messages and help.
 * Before ';' come positional arguments, after it named options, after '->' what the caller gets. */
const char *gb_op_signature(const gb_op_info *info, char *text, size_t size);
#define GB_SIGNATURE(info) gb_op_signature((info), (char[640]){ 0 }, 640)

/* The whole table, taken apart once per process; GB_OP_COUNT rows. */
gb_status gb_op_table(const gb_op_info **out, char *error, size_t size);
static inline const gb_op_info *gb_op_get(const gb_context *context, int op) { return &context->graph->infos[op]; }
/* A choice's word, by its text and by its enumerator; GB_WORD_UNKNOWN when there is none. */
int gb_word_find(const char *text);
const char *gb_word_text(int64_t word);

/* ====} */

/* {==== one call ==== */

/* One call of one op on its way through dispatch. */
typedef struct gb_op_call {
  gb_context *context;
  const gb_op_info *info;
  gb_op op;
  int n_in, n_out;
  gb_tensor *const *original;  /* the caller's inputs */
  gb_tensor **in;              /* as the kernel sees them: cast by autocast; NULL where optional and absent */
  gb_tensor *out[GB_MAX_OUT];
  gb_tensor *const *given;     /* tensors that outputs are written into; NULL: none, or where the op makes its own */
  const gb_attr *attrs;        /* n_attrs of the row, defaults filled in */
  gb_device device;            /* where it runs */
  gb_dtype result;             /* float32 class under autocast: the dtype of floating results; else GB_DTYPE_NONE */
  bool needs_grad;             /* a node will be recorded: make the hidden outputs */
  bool in_place;
  bool composite;              /* it runs other ops: by its kind, or by its attributes */
  bool autocast;               /* of a composite: it was called inside a scope */
  int32_t casts;               /* counted during an audit: casts of inputs without a kept copy, */
  int64_t cast_bytes;          /* and what they read and wrote */
  uint64_t rng_seed, rng_offset; /* set by gb_call_random */
  atomic_bool stopped;         /* the kernel was interrupted half way; its results are incomplete */
} gb_op_call;

/* What runs on this thread: the call whose kernel, or chunk of one, it is, and what was done since the last look for a
 * stop (base/piece.h). No call: nothing does, or what must not be done in part. */
typedef struct gb_running { gb_op_call *call; int64_t work; } gb_running;
extern _Thread_local gb_running gb_running_here;

/* What a family gives for an op. A list of these, ended by {GB_OP_COUNT}, per family. */
typedef struct gb_op_impl {
  gb_op op;
  gb_status (*check)(gb_op_call *call);       /* shapes, dtypes, devices; allocates the outputs */
  gb_gradient_fn gradient;                 /* NULL: not differentiable */
  uint32_t save_in, save_out;              /* bit i: input or output i is needed by backward */
  bool save_other;                         /* input i is needed only when another input needs a gradient (x * y) */
  bool takes_no_grad;                      /* gradient does without those of outputs that none came to: no zeros are
                                              made for them */
  gb_status (*compose)(gb_op_call *call);     /* COMPOSITE: runs other ops, sets call->out */
  bool (*composed)(const gb_op_call *call);   /* of an op with a kernel: with these attributes it is composed */
} gb_op_impl;

/* What it gives, the first where there are several: in place that is its first input. */
static inline gb_tensor *gb_call_result(const gb_op_call *call) { return call->in_place ? call->in[0] : call->out[0]; }

/* {---- for checks ---- */

/* Allocate output i, contiguous; in an in-place call check it against in[0] instead. dtype NONE: call->result, or the
 * promoted dtype. */
gb_status gb_call_output(gb_op_call *call, int i, int ndim, const int64_t *shape, gb_dtype dtype);
/* As above, in the dense layout of `like`. */
gb_status gb_call_output_like(gb_op_call *call, int i, const gb_tensor *like, gb_dtype dtype);
/* As gb_call_output with strides (dense in some order of the dims). */
gb_status gb_call_output_strided(gb_op_call *call, int i, int ndim, const int64_t *shape, const int64_t *strides,
                                 gb_dtype dtype);
/* Can a result of dtype be stored in the tensor that an in-place call goes into? */
gb_status gb_call_fits_in_place(const gb_op_call *call, gb_dtype dtype);
/* Output i is input x itself; where a node is recorded, a view of it, so that x keeps its own history. */
gb_status gb_call_output_alias(gb_op_call *call, int i, gb_tensor *x);
/* The dtype that a floating result has: call->result if set, else `natural`. */
gb_dtype gb_call_dtype(const gb_op_call *call, gb_dtype natural);
/* Take a place in the random stream for this call. */
void gb_call_random(gb_op_call *call);
/* Fail with a text that names the op: `return gb_call_fail(...)`. */
#define gb_call_fail(call, status, ...) gb_fail((call)->context, status, __VA_ARGS__)
/* Turn a dim that counts from the end into one from 0, or fail in Lua's counting (from 1). */
gb_status gb_call_dim(gb_op_call *call, int64_t dim, int ndim, int *out);
gb_status gb_require_float(gb_op_call *call, int input);
gb_status gb_require_integer(gb_op_call *call, int input);
/* A number that is stored in a tensor of an integer dtype is in its range; as in PyTorch, unsigned ones count down from
 * 0 too. */
gb_status gb_require_fits(gb_op_call *call, const gb_attr *number, gb_dtype dtype);
/* The same of inputs that are numbers of the language. */
gb_status gb_require_input_fits(gb_op_call *call, int input, gb_dtype dtype);
/* A number that is an input, as an attribute would hold it. */
gb_attr gb_number_of(const gb_tensor *wrapped);
/* A number as a message shows it. */
const char *gb_number_text(const gb_attr *number, char *buffer, size_t size);
gb_status gb_require_ndim(gb_op_call *call, int input, int least, int most);

/* ----} */

/* Where a view lies in a row-major tensor of the shape that its input had. */
typedef struct gb_part { int ndim; const int64_t *shape, *strides; int64_t offset; } gb_part;

/* One call of one node's gradient. Set grad->in[i] (new reference) for every i with need[i] that is not settled. Its
 * dtype may be any float: the caller converts it to the edge's. */
typedef struct gb_grad_call {
  gb_context *context;
  gb_node *node;
  const gb_attr *attrs;
  int n_in, n_out;
  gb_tensor **out;             /* gradients of the outputs; NULL: zero (never all of them) */
  gb_tensor **in;
  const bool *need;
  gb_tensor **saved;           /* as the row saved them: inputs at 0 .., outputs at n_in .. ; NULL where not saved */
  /* dtype the gradient should leave in: float32 for a float32 weight (unrounded), else the dtype of the operand */
  const int8_t *want;
  bool create_graph;
  bool again;                  /* backward may come once more, so that what was saved stays as it is */
  gb_grad_tag tag;             /* of the gradients */
  /* The memory that the gradient of input i, which is needed, would be added to next, and whether it holds a sum to add
   * to; NULL: the gradient has to be handed over. It lies row after row, that of a convolution's weight also
   * channels-last. What is put there is not handed over: in[i] stays NULL and bit i of settled is set. NULL: never. */
  gb_tensor *(*accumulator)(const struct gb_grad_call *grad, int i, bool *holds);
  /* Put the gradient g of a part of input i beside those of other parts; *done: it is there, and bit i of settled is to
   * be set. NULL: never. */
  gb_status (*take_part)(const struct gb_grad_call *grad, int i, const gb_part *part, gb_tensor *g, bool *done);
  /* The 16-bit dtype that what comes before input i wants its gradient in, beside the float32 in which it goes on; or
   * GB_DTYPE_NONE. NULL: never. What was made in it is `lowered`, a new reference, the same numbers as in[i], or as
   * the sum has them if i is settled; i is 0. */
  gb_dtype (*low)(const struct gb_grad_call *grad, int i);
  gb_tensor *lowered;
  /* The first output's gradient has yet to go through this ReLU, and out[0] is what goes in; or NULL. Of batch_norm
   * only. */
  struct gb_gate *gate;
  gb_tensor *more;             /* to be added to out[0] before its own ReLU, or NULL. Of batch_norm only. */
  struct walk *walk;           /* for the accumulator, take_part and gb_grad_may_write */
  uint32_t settled;
} gb_grad_call;

/* May the gradient of output i be written over, since nobody else will look at it? */
bool gb_grad_may_write(const gb_grad_call *grad, int i);
/* An empty sum that the gradient of input i, of this dtype, is written into as it is made; NULL: it is handed over. It
 * is no memory that is read. */
gb_tensor *gb_grad_empty_sum(const gb_grad_call *grad, int i, gb_dtype dtype);

/* {---- arguments by name ----
 * GB_IN(call, linear)->weight, GB_ATTRS(call, linear)->activation, GB_OUT(call, linear)->y: tensors and attributes of a
 * call, in checks and in
 * kernels. GB_LIST(call, cat, xs) is the list, of GB_LIST_COUNT(call, cat, xs) tensors. GB_IN_AT(linear, weight) is the
 * number of an input, for what
 * takes one; 1u << GB_IN_AT(...) its bit among what is saved. A function that serves several rows names one of them:
 * the
 * arguments it reads must stand at the same places in all (gb_same_... in its file asserts it). */
#define GB_IN(call, op) ((gb_in_##op *)(void *)(call)->in)
#define GB_ORIGINAL(call, op) ((const gb_in_##op *)(const void *)(call)->original)
#undef GB_ATTRS
#define GB_ATTRS(call, op) ((const gb_attrs_##op *)(const void *)(call)->attrs)
#define GB_OUT(call, op) ((gb_out_##op *)(void *)(call)->out)
#define GB_IN_AT(op, name) ((int)(offsetof(gb_in_##op, name) / sizeof(gb_tensor *)))
#define GB_OUT_AT(op, name) ((int)(offsetof(gb_out_##op, name) / sizeof(gb_tensor *)))
#define GB_ATTR_AT(op, name) ((int)(offsetof(gb_attrs_##op, name) / sizeof(gb_attr)))
#define GB_SAVE_IN(op, name) (1u << GB_IN_AT(op, name))
#define GB_SAVE_OUT(op, name) (1u << GB_OUT_AT(op, name))
#define GB_LIST(call, op, name) ((call)->in + GB_IN_AT(op, name))
#define GB_LIST_COUNT(call, op, name) ((call)->n_in - GB_IN_AT(op, name))
/* Of a gradient: what was saved of the inputs and of the outputs, the gradients of the outputs, those to be made of the
 * inputs, and whether one is needed. */
#define GB_SAVED(grad, op) ((const gb_in_##op *)(const void *)(grad)->saved)
#define GB_KEPT(grad, op) ((const gb_out_##op *)(const void *)((grad)->saved + (grad)->n_in))
#define GB_GRAD_OUT(grad, op) ((const gb_out_##op *)(const void *)(grad)->out)
#define GB_GRAD_IN(grad, op) ((gb_in_##op *)(void *)(grad)->in)
#define GB_NEEDS(grad, op, name) ((grad)->need[GB_IN_AT(op, name)])
/* Where that gradient goes: the shape and the dtype that the input had. */
#define GB_EDGE(grad, op, name) (&(grad)->node->edges[GB_IN_AT(op, name)])
#define GB_WANTS(grad, op, name) ((gb_dtype)(grad)->want[GB_IN_AT(op, name)])
/* Inside the engine ids are known: no look-up. */
#undef GB_RUN
#define GB_RUN(context, op, out, ...) gb_run((context), GB_OP_##op, &(gb_arguments_##op){ __VA_ARGS__ }, (out))
/* `arguments`: a struct gb_arguments_... of the op. out NULL: in place. */
gb_status gb_run(gb_context *context, gb_op op, const void *arguments, gb_tensor **out);
/* given: as gb_apply_out's, the first member of a struct of outputs. */
#define GB_RUN_OUT(context, op, given, out, ...)                                                                       \
  gb_run_out((context), GB_OP_##op, &(gb_arguments_##op){ __VA_ARGS__ }, (given), (out))
gb_status gb_run_out(gb_context *context, gb_op op, const void *arguments, gb_tensor *const *given, gb_tensor **out);
/* ----} */

/* {---- for gradients and composites: ops by name, status returned ---- */

/* As gb_apply, but outputs for which a tensor is given (visible ones; NULL: none) are written into it: it has the
 * shape, the dtype and the layout that the op would have made, shares memory with no input, and belongs to no graph.
 * out[] has new references to these too. */
gb_status gb_apply_out(gb_context *context, gb_op op, gb_tensor *const *in, int n_in, const gb_attr *attrs,
                       gb_tensor *const *given, gb_tensor **out);

/* x op number, e.g. GB_OP_mul */
gb_status gb_op_number(gb_context *c, gb_op op, gb_tensor *x, double number, gb_tensor **out);
gb_status gb_op_cast(gb_context *c, gb_tensor *x, gb_dtype dtype, gb_tensor **out);
/* Sum x down to a shape that it was broadcast from. Consumes nothing; *out may be x itself, retained. */
gb_status gb_sum_to(gb_context *c, gb_tensor *x, int ndim, const int64_t *shape, gb_tensor **out);
gb_status gb_op_contiguous(gb_context *c, gb_tensor *x, gb_tensor **out);
/* The same elements, in the same dense layout, in the memory of another device; part of no graph. */
gb_status gb_tensor_on(gb_tensor *x, gb_device device, gb_tensor **out);
/* The same as a step of the graph: gradients come back to x's device. */
gb_status gb_op_to_device(gb_context *c, gb_tensor *x, gb_device device, gb_tensor **out);
gb_status gb_op_zeros_like(gb_context *c, const gb_tensor *like, gb_tensor **out);
/* Release and set to NULL. */
void gb_drop(gb_tensor **tensor);

/* ----} */
/* ====} */

#endif
