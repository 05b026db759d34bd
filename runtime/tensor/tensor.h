/* tensor/tensor.h - storage, tensors and 16-bit weight copies.
 *
 * A tensor is a view (shape, strides, offset) of a counted storage, whose version counts every in-place change of a
 * tensor or of any of its views (parameters in one slab have storages, and so versions, of their own). A view keeps its
 * base, the root of the chain of views. */
#ifndef GB_TENSOR_TENSOR_H
#define GB_TENSOR_TENSOR_H

#include <stdatomic.h>

#include "base/formats.h"
#include "base/pool.h"
#include "base/strides.h"
#include "gibbous.h"

struct gb_node;
struct gb_slab;
struct gb_tensor;

gb_status gb_refuse_tensor(gb_context *context, const struct gb_tensor *tensor); /* see gb_expect_context */

/* Drop one reference; true if it was the last. A sole holder need not count it down, since nobody else can take
 * another. */
static inline bool gb_refs_drop(_Atomic int32_t *refs) {
  return atomic_load_explicit(refs, memory_order_acquire) == 1 ||
      atomic_fetch_sub_explicit(refs, 1, memory_order_acq_rel) == 1;
}

/* Who owns the memory: we do, for as long as the storage lives, or it is a loan. */
typedef enum gb_loan { GB_OWNED, GB_LENT, GB_REVOKED } gb_loan;

/* Where the values of a weight are whose optimizer is shared out between processes (step/split.h). WATCHED: here, and
 * who reads them is noted, as READ. AWAY: some are with other processes, and here is a 16-bit copy of all. PART: of a
 * gradient, which others have the rest of, and to which nobody gets a pointer. */
typedef enum gb_away { GB_HERE, GB_WATCHED, GB_READ, GB_AWAY, GB_PART } gb_away;

/* Bytes on one device. data moves when a slab adopts the storage, so nobody keeps it across calls. */
typedef struct gb_storage {
  _Atomic int32_t refs;
  _Atomic int32_t saved;             /* nodes that hold it for backward; above 0 its bytes count as GB_MEM_SAVED */
  gb_context *context;               /* counted: the context's memory goes with the last storage */
  gb_device device;
  void *data;
  size_t bytes;
  gb_block *block;                   /* from the pool; NULL when the memory belongs to a slab or to somebody else */
  gb_memory_category category;       /* what it counts as while nothing has saved it */
  struct gb_storage *slab;           /* the storage whose block this one lies in, counted; or NULL */
  uint64_t version;                  /* in-place changes of the tensor and its views that lie here */
  uint64_t born;                     /* the context's count of recomputed parts when it was made */
  gb_loan loan;
  gb_away away;
  _Atomic int32_t exports;           /* DLPack structs that point here: the memory must not move */
  atomic_bool exposed;               /* the host has had a pointer to it, and may write without changing version */
  void (*release)(void *user);       /* called with the last reference when the memory is somebody else's; or NULL */
  union {
    void *user;
    double number;                   /* of a number of the calling language: data points here */
    int64_t integer;
  };
} gb_storage;

/* A 16-bit copy of a float32 parameter: raw storage in the parameter's layout, never a graph tensor. */
typedef struct gb_weight_copy {
  gb_tensor *tensor;                 /* same shape and strides as the parameter */
  uint64_t version;                  /* of the parameter when the copy was made; another one: stale */
} gb_weight_copy;

/* The scale a gradient carries: which scaler (0: none) at which of its updates. A parameter's gradient that adds up
 * several scales has GB_TAG_MIXED as its scaler, and says by update what met: it may be zeroed, but not be used. What a
 * recipe has zeroed by hand has GB_TAG_ZERO, until it is written: zeros have any scale. */
typedef struct gb_grad_tag { uint32_t scaler, update; } gb_grad_tag;
#define GB_TAG_MIXED UINT32_MAX
#define GB_TAG_ZERO (UINT32_MAX - 1)
enum { GB_MIX_UPDATES, GB_MIX_SCALERS, GB_MIX_UNSCALED };

static inline bool gb_same_tag(gb_grad_tag a, gb_grad_tag b) { return a.scaler == b.scaler && a.update == b.update; }

/* Do two gradients have a scale in common? */
static inline bool gb_tags_agree(gb_grad_tag a, gb_grad_tag b) {
  return gb_same_tag(a, b) || a.scaler == GB_TAG_ZERO || b.scaler == GB_TAG_ZERO;
}

/* The tag of the sum of two gradients. */
static inline gb_grad_tag gb_tag_of_sum(gb_grad_tag a, gb_grad_tag b) {
  if (gb_tags_agree(a, b)) return a.scaler == GB_TAG_ZERO ? b : a;
  if (a.scaler == GB_TAG_MIXED) return a;
  if (b.scaler == GB_TAG_MIXED) return b;
  if (a.scaler == b.scaler) return (gb_grad_tag){ GB_TAG_MIXED, GB_MIX_UPDATES };
  return (gb_grad_tag){ GB_TAG_MIXED, a.scaler && b.scaler ? GB_MIX_SCALERS : GB_MIX_UNSCALED };
}

/* Called with each gradient that reaches a tensor; may put another in *grad (ownership both ways). */
typedef gb_status (*gb_hook_fn)(gb_context *context, void *user, gb_tensor **grad);
typedef struct gb_hook {
  gb_hook_fn fn;
  void (*release)(void *user);
  void *user;
  int64_t id;
  bool after;              /* of a leaf: called with the leaf, when its gradient has been added up */
  struct gb_hook *next;
  struct gb_hook *last;    /* of the list, in its first hook; elsewhere without meaning */
} gb_hook;
/* Bytes that a hook counts towards the limit on tensor bytes, its callback included. */
#define GB_HOOK_BYTES (2 * sizeof(gb_hook))
void gb_hook_free(gb_context *context, gb_hook *hook);
void gb_hooks_free(gb_context *context, gb_hook *hook); /* the whole list */
/* The hook that comes next in a list that runs: one that goes meanwhile is passed over. Of the last one, next is NULL,
 * and what is appended comes after it. */
typedef struct gb_hook_turn {
  gb_hook *const *list;
  gb_hook *next;
  struct gb_hook_turn *outer;
} gb_hook_turn;

/* What is freed once all that is being freed now is done, so that freeing a chain takes no more stack than freeing one
 * link. */
typedef struct gb_grave {
  void (*bury)(struct gb_grave *);   /* frees what the grave is the first or a known part of */
  struct gb_grave *next;
} gb_grave;
/* Bury now, or as soon as the burial that is under way, further up the stack or on another thread, comes to it. The
 * caller, or what is buried, keeps the context until this returns. */
void gb_bury(gb_context *context, gb_grave *grave);

struct gb_tensor {
  _Atomic int32_t refs;
  int8_t dtype, ndim;
  bool requires_grad;                /* asked for by the user, on a leaf */
  bool was_leaf;                     /* it has required gradients at some time: graphs from then may hold this tensor */
  bool is_parameter;                 /* nn.Parameter: its 16-bit copies are kept even when it is frozen */
  bool wrapped;                      /* a Lua number: never promotes a tensor of the same category */
  bool retain_grad;
  atomic_bool is_tied;               /* it stands in the context's list of tensors with a gradient, a graph or hooks */
  int64_t shape[GB_MAX_NDIM], stride[GB_MAX_NDIM];
  int64_t offset;                    /* of the first element in the storage, in elements */
  int64_t numel;
  gb_storage *storage;
  gb_tensor *base;                   /* root of a view, counted; NULL for a root */

  struct gb_node *node;              /* what computed it, counted; NULL for a leaf */
  int output;                        /* which of the node's outputs it is */
  uint64_t view_version;             /* of a view: the history of its base when node was valid; if it differs, node is
                                        rebuilt when asked for */
  gb_tensor *grad;                   /* accumulated gradient, or NULL */
  gb_grad_tag tag;                   /* of a gradient: the scale it carries */
  gb_grad_tag before_zero;           /* where it was zeroed by hand: the tag until then, */
  uint64_t zeroed;                   /* and its version since */
  gb_hook *hooks;

  gb_weight_copy copies[GB_COPIES];  /* a slot for each dtype of base/formats.h that a float32 weight is copied to */
  struct gb_slab *slab;              /* parameters an optimizer adopted: where its gradient lies */
  int64_t segment;

  void *binding;                     /* for the language on top: its value for this tensor, not counted */
  union {
    struct { gb_tensor *before, *after; } tied; /* neighbours in the context's list, while is_tied */
    gb_grave grave;                  /* once the last reference went */
  };
};

static inline gb_tensor *gb_tensor_root(const gb_tensor *t) { return t->base ? t->base : (gb_tensor *)t; }
static inline uint64_t gb_tensor_version(const gb_tensor *t) { return t->storage->version; }

/* Its values are zeros, written by hand. */
static inline void gb_tensor_tag_zero(gb_tensor *t) {
  if (t->tag.scaler != GB_TAG_ZERO) t->before_zero = t->tag;
  t->tag.scaler = GB_TAG_ZERO;
  t->zeroed = gb_tensor_version(t);
}

/* The scale that a gradient carries now: zeros that were written since, be it through a view, have that of before. */
static inline gb_grad_tag gb_tensor_tag(const gb_tensor *t) {
  return t->tag.scaler == GB_TAG_ZERO && gb_tensor_version(t) != t->zeroed ? t->before_zero : t->tag;
}

/* A sum that was just written carries this tag. Where it still is zeros they are those of `more`. */
static inline void gb_tensor_put_tag(gb_tensor *sum, gb_grad_tag tag, const gb_tensor *more) {
  sum->tag = tag;
  sum->before_zero = more->before_zero;
  sum->zeroed = gb_tensor_version(sum);
}

/* Another tensor of the same values carries the same scale. */
static inline void gb_tensor_copy_tag(gb_tensor *to, const gb_tensor *from) {
  gb_tensor_put_tag(to, gb_tensor_tag(from), from);
}

static inline void gb_tensor_bump(gb_tensor *t) { t->storage->version++; }
/* Its values were multiplied by the engine: zeros still have any scale. */
static inline void gb_tensor_bump_scaled(gb_tensor *t) {
  bool is_zero = gb_tensor_tag(t).scaler == GB_TAG_ZERO;
  gb_tensor_bump(t);
  if (is_zero) t->zeroed = gb_tensor_version(t);
}
/* Does a result of this tensor need a gradient: is it a leaf that asks for one, or computed from one? */
static inline bool gb_tensor_in_graph(const gb_tensor *t) { return t->requires_grad || t->node; }

/* The bytes that a shape needs, or an error where it is negative, too deep or too large. */
gb_status gb_shape_bytes(gb_context *context, gb_dtype dtype, int ndim, const int64_t *shape, size_t *bytes);
/* As gb_tensor_new, counted under a category. strides NULL: contiguous; otherwise dense in some order (not checked). */
gb_status gb_tensor_new_as(gb_context *context, gb_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides,
                           gb_device device,
                           gb_memory_category category, gb_tensor **out);
/* A tensor with the shape, device and dense layout of `like` (its strides when dense in memory, else contiguous), in
 * dtype. */
gb_status gb_tensor_new_like(const gb_tensor *like, gb_dtype dtype, gb_memory_category category, gb_tensor **out);
/* A tensor over memory of the caller: data stays valid until release(user) is called. Contiguous, on the CPU. */
gb_status gb_tensor_over(gb_context *context, void *data, gb_dtype dtype, int ndim, const int64_t *shape,
                         void (*release)(void *), void *user,
                         gb_tensor **out);
/* GB_EINVAL where the tensor is NULL or of another context. */
static inline gb_status gb_expect_context(gb_context *context, const gb_tensor *tensor) {
  return tensor && tensor->storage->context == context ? GB_OK : gb_refuse_tensor(context, tensor);
}
/* GB_ESTATE where the tensor's memory was a loan and is revoked: its data must not be touched. */
gb_status gb_check_loan(const gb_tensor *tensor);
/* Before values are read or written: as gb_check_loan, and GB_ESTATE where some of them are with other processes. */
gb_status gb_touch_values(const gb_tensor *tensor);
/* Before the host gets a pointer to them: the same, and GB_ESTATE where they are a part. From then on they may change
 * without a word. */
gb_status gb_expose_values(const gb_tensor *tensor);
/* A view of `of`'s storage; keeps the root of `of` as base, carries no history. */
gb_status gb_tensor_view(gb_tensor *of, int ndim, const int64_t *shape, const int64_t *strides, int64_t offset,
                         gb_tensor **out);
/* Give a leaf the data of another tensor of the same shape (of another dtype, device or layout). It stays the same
 * tensor: parameters keep their identity when a model moves. Its gradient and 16-bit copies are dropped. An error for a
 * parameter that an optimizer adopted. */
gb_status gb_tensor_set_data(gb_tensor *tensor, gb_tensor *data);
/* The same elements without history and without a base (the same version counter). */
gb_status gb_tensor_detach(gb_tensor *of, gb_tensor **out);

/* A 0-d float64, int64 or bool tensor that stands for a number of the calling language. */
gb_status gb_tensor_wrap_number(gb_context *context, double number, gb_tensor **out);
gb_status gb_tensor_wrap_integer(gb_context *context, int64_t integer, gb_tensor **out);

/* Before a tensor gets a gradient, a node or hooks, on the thread that runs the context: from now on closing the
 * context takes these from it. Nothing else that a tensor holds can lead back to it, so nothing else can keep tensors
 * alive in a ring. */
void gb_tensor_tie_new(gb_tensor *tensor);
static inline void gb_tensor_tie(gb_tensor *tensor) { if (!tensor->is_tied) gb_tensor_tie_new(tensor); }
/* Take gradient, graph and hooks from every tensor of the context: what only they kept goes. */
void gb_context_untie(gb_context *context);
/* Put grad, a new reference or NULL, in the place of the tensor's gradient; for tensors that no optimizer adopted. */
void gb_tensor_put_grad(gb_tensor *tensor, gb_tensor *grad);

void gb_storage_retain(gb_storage *storage);
void gb_storage_release(gb_storage *storage);
void gb_storage_hold(gb_storage *storage);    /* a node saved it */
void gb_storage_drop(gb_storage *storage);

static inline char *gb_data(const gb_tensor *t) { return (char *)t->storage->data + t->offset *
                                                  (int64_t)gb_bytes_of(t->dtype); }

bool gb_is_contiguous(const gb_tensor *t);
/* Every element of a span of memory exactly once, in some order of the dims. */
bool gb_is_dense(const gb_tensor *t);
/* NCHW logical, channels last in memory (N, H, W, C dense). */
bool gb_is_channels_last(const gb_tensor *t);
void gb_contiguous_strides(int ndim, const int64_t *shape, int64_t *strides);
/* "64x1x28x28"; "scalar" for a 0-d tensor. */
const char *gb_shape_text(int ndim, const int64_t *shape, char *buffer, size_t size);

/* {==== dtypes ==== */

int gb_dtype_category(gb_dtype dtype);
/* PyTorch's result type of two dtypes: that of the wider category; of one category the narrowest dtype that holds what
 * both hold (float16 with bfloat16: float32). */
gb_dtype gb_promote(gb_dtype a, gb_dtype b);
/* PyTorch's result type of tensors: dimensioned tensors before 0-d ones before wrapped numbers, within a category.
 * NULLs are skipped. */
gb_dtype gb_result_type(gb_tensor *const *tensors, int count);

/* ====} */

/* Broadcast two shapes (PyTorch's rule). false: they do not fit. */
bool gb_broadcast(int *ndim, int64_t *shape, int other_ndim, const int64_t *other);

#endif
