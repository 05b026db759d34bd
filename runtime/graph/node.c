/* graph/node.c - the life of graph nodes, hooks, custom functions, and the history of tensors changed in place.
 *
 * A node is one block: the node, its edges, its outputs, its saved tensors and its attributes. Releasing is iterative
 * (gb_bury), so a graph of a million nodes does not recurse. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "graph/autograd.h"

/* {==== life ==== */

static size_t node_bytes(int n_in, int room_out, int n_saved, int n_attrs) {
  return sizeof(gb_node) + sizeof(gb_edge) * (size_t)n_in + sizeof(gb_node_out) * (size_t)room_out + sizeof(gb_saved) *
      (size_t)n_saved +
         sizeof(gb_attr) * (size_t)n_attrs;
}

/* The recipe's line that runs now; NULL where nobody knows, or there is no memory for it. */
static char *line_of(const gb_context *context) {
  char text[96];
  gb_where(context, text, sizeof text);
  return *text ? strdup(text) : NULL;
}

gb_node *gb_node_new(gb_context *context, int op, int n_in, int n_out, int n_saved, int n_attrs) {
  int room_out = n_out < GB_MAX_OUT ? n_out : GB_MAX_OUT;
  size_t bytes = node_bytes(n_in, room_out, n_saved, n_attrs);
  if (!gb_context_count(context, bytes)) return NULL;
  gb_node *node = gb_cell_new(&context->cells, bytes);
  if (!node) {
    gb_context_uncount(context, bytes);
    gb_fail_memory(context, bytes);
    return NULL;
  }
  *node = (gb_node){ .refs = 1, .op = (int16_t)op, .n_in = n_in, .n_out = (int16_t)n_out, .room_out = (int8_t)room_out,
                     .n_saved = n_saved, .n_attrs = n_attrs,
                     .sequence = context->graph->sequence++, .context = context };
  memset(node + 1, 0, bytes - sizeof *node);
  node->edges = (gb_edge *)(node + 1);
  node->out = (gb_node_out *)(node->edges + n_in);
  node->saved = (gb_saved *)(node->out + room_out);
  node->attrs = (gb_attr *)(node->saved + n_saved);
  if (context->modes->anomaly) node->where = line_of(context);
  return node;
}

void gb_node_retain(gb_node *node) { atomic_fetch_add_explicit(&node->refs, 1, memory_order_relaxed); }

static void drop_saved(gb_saved *saved) {
  if (saved->kind == GB_SAVED_NONE) return;
  gb_tensor *tensor = saved->tensor;
  if (saved->kind != GB_SAVED_WEIGHT && tensor) gb_storage_drop(tensor->storage);
  saved->kind = GB_SAVED_NONE;
  saved->tensor = NULL;
  gb_tensor_release(tensor);
}

void gb_node_drop_saved(gb_node *node) {
  for (int i = 0; i < node->n_saved; i++) drop_saved(&node->saved[i]);
}

static void bury(gb_grave *grave) {
  gb_node *node = (gb_node *)((char *)grave - offsetof(gb_node, grave));
  gb_node_drop_saved(node);
  for (int i = 0; i < node->n_in; i++) {
    if (node->edges[i].node) gb_node_release(node->edges[i].node);
    if (node->edges[i].leaf) gb_tensor_release(node->edges[i].leaf);
  }
  for (int i = 0; i < node->room_out; i++)
    if (node->hooks[i]) gb_hooks_free(node->context, node->hooks[i]);
  if (node->release) node->release(node->user);
  free(node->where);
  size_t bytes = node_bytes(node->n_in, node->room_out, node->n_saved, node->n_attrs);
  gb_context_uncount(node->context, bytes);
  gb_cell_free(&node->context->cells, node, bytes);
}

/* The context is kept by something else, since the last storage may go with a node: by who runs it, or by the tensor
 * that lets go of its node. */
void gb_node_release(gb_node *node) {
  if (!node || !gb_refs_drop(&node->refs)) return;
  node->grave.bury = bury;
  gb_bury(node->context, &node->grave);
}

void gb_node_edge(gb_node *node, int i, gb_tensor *x, gb_dtype cast) {
  gb_edge *edge = &node->edges[i];
  edge->dtype = x->dtype;
  edge->cast = (int8_t)cast;
  edge->ndim = x->ndim;
  edge->device = x->storage->device;
  memcpy(edge->shape, x->shape, sizeof edge->shape);
  if (!gb_is_float(x->dtype)) return;
  if (x->node) {
    edge->node = x->node;
    edge->output = x->output;
    gb_node_retain(x->node);
  } else if (x->requires_grad) {
    edge->leaf = x;
    gb_tensor_retain(x);
  }
}

static void copy_edge(gb_edge *to, const gb_edge *from) {
  *to = *from;
  if (to->node) gb_node_retain(to->node);
  if (to->leaf) gb_tensor_retain(to->leaf);
}

static void copy_saved(gb_saved *to, const gb_saved *from) {
  *to = *from;
  if (from->kind == GB_SAVED_NONE) return;
  gb_tensor_retain(to->tensor);
  if (from->kind != GB_SAVED_WEIGHT) gb_storage_hold(to->tensor->storage);
}

gb_node *gb_node_again(const gb_node *node, const gb_attr *attrs) {
  gb_node *again = gb_node_new(node->context, node->op, node->n_in, node->n_out, node->n_saved, node->n_attrs);
  if (!again) return NULL;
  again->gradient = node->gradient;
  memcpy(again->attrs, attrs, sizeof *attrs * (size_t)node->n_attrs);
  memcpy(again->out, node->out, sizeof *node->out * (size_t)node->room_out);
  for (int i = 0; i < node->n_in; i++) {
    copy_edge(&again->edges[i], &node->edges[i]);
    copy_saved(&again->saved[i], &node->saved[i]);
  }
  return again;
}

/* What node's output i looks like, for zeros where no gradient comes. */
static void describe_output(gb_node *node, int i, const gb_tensor *t) {
  node->out[i].live = true;
  node->out[i].dtype = t->dtype;
  node->out[i].ndim = t->ndim;
  node->out[i].device = t->storage->device;
  memcpy(node->out[i].shape, t->shape, sizeof t->shape);
}

void gb_node_output(gb_node *node, int i, gb_tensor *t) {
  gb_node *old = t->node;
  describe_output(node, i, t);
  gb_node_retain(node);
  if (t->retain_grad) { /* goes along with the tensor */
    if (old && old->retain[t->output] == t) old->retain[t->output] = NULL;
    node->retain[i] = t;
  }
  gb_tensor_tie(t);
  t->node = node;
  t->output = i;
  if (t->base) t->view_version = gb_history(t->base);
  if (old) gb_node_release(old);
}

/* ====} */

/* {==== hooks ==== */

/* The list that holds t's hooks: on its node, so that they stay with the value, or on the leaf. */
static gb_hook **hooks_of(gb_tensor *t) { return t->node ? &t->node->hooks[t->output] : &t->hooks; }

/* Put a hook at the end of a list, also of one that runs and whose last hook runs just now. */
static void append_hook(gb_context *context, gb_hook **list, gb_hook *hook) {
  if (!*list) *list = hook;
  else (*list)->last->next = hook;
  (*list)->last = hook;
  for (gb_hook_turn *turn = context->turn; turn; turn = turn->outer)
    if (turn->list == list && !turn->next) turn->next = hook;
}

static gb_status add_hook(gb_tensor *t, gb_hook made, int64_t *id) {
  gb_context *context = gb_tensor_context(t);
  GB_TRY(gb_view_refresh(t));
  if (!gb_tensor_in_graph(t))
    return gb_fail(context, GB_EAUTOGRAD, "register_hook: the tensor does not require gradients");
  if (!gb_context_count(context, GB_HOOK_BYTES)) return GB_EMEMORY;
  gb_hook *hook = calloc(1, sizeof *hook);
  if (!hook) {
    gb_context_uncount(context, GB_HOOK_BYTES);
    return gb_fail_memory(context, sizeof *hook);
  }
  made.id = ++context->graph->next_hook;
  *hook = made;
  gb_tensor_tie(t);
  append_hook(context, hooks_of(t), hook);
  *id = hook->id;
  return GB_OK;
}

gb_status gb_tensor_register_hook(gb_tensor *t, gb_hook_fn fn, void *user, void (*release)(void *), int64_t *id) {
  return add_hook(t, (gb_hook){ .fn = fn, .release = release, .user = user }, id);
}

gb_status gb_tensor_register_after_hook(gb_tensor *t, gb_hook_fn fn, void *user, void (*release)(void *), int64_t *id) {
  if (t->node)
    return gb_fail(gb_tensor_context(t), GB_EAUTOGRAD, "register_post_accumulate_grad_hook: the tensor is a result of "
                   "ops; gradients are added up in leaves, such as parameters");
  return add_hook(t, (gb_hook){ .fn = fn, .release = release, .user = user, .after = true }, id);
}

void gb_tensor_remove_hook(gb_tensor *t, int64_t id) {
  gb_hook **list = hooks_of(t), *hook = *list, *before = NULL;
  while (hook && hook->id != id) before = hook, hook = hook->next;
  if (!hook) return;
  for (gb_hook_turn *turn = gb_tensor_context(t)->turn; turn; turn = turn->outer)
    if (turn->next == hook) turn->next = hook->next;
  if (hook == (*list)->last) (*list)->last = before;
  if (before) before->next = hook->next;
  else if ((*list = hook->next)) (*list)->last = hook->last;
  gb_hook_free(gb_tensor_context(t), hook);
}

gb_status gb_tensor_retain_grad(gb_tensor *t) {
  GB_TRY(gb_view_refresh(t));
  if (!gb_tensor_in_graph(t))
    return gb_fail(gb_tensor_context(t), GB_EAUTOGRAD, "retain_grad: the tensor does not require gradients");
  if (!t->node) return GB_OK; /* leaves keep theirs anyway */
  t->retain_grad = true;
  t->node->retain[t->output] = t;
  return GB_OK;
}

/* ====} */

/* {==== custom functions ==== */

/* What a custom node keeps. */
typedef struct custom { gb_custom_backward_fn fn; void *user; void (*release)(void *user); } custom;

static gb_status custom_gradient(gb_grad_call *grad) {
  custom *c = grad->node->user;
  return c->fn(grad->context, c->user, grad->out, grad->n_out, grad->in, grad->n_in);
}

static void custom_release(void *user) {
  custom *c = user;
  if (c->release) c->release(c->user);
  gb_counted_free(c);
}

gb_status gb_custom_function(gb_context *context, const char *name, gb_tensor *const *in, int n_in, gb_tensor **out,
                             int n_out,
                             gb_custom_backward_fn fn, void *user, void (*release)(void *user)) {
  custom *c = gb_counted_alloc(context, sizeof *c);
  gb_node *node = c ? gb_node_new(context, -1, n_in, n_out, 0, 0) : NULL;
  if (!node) {
    gb_status failed = context->error_code;
    gb_counted_free(c);
    if (release) release(user);
    return failed;
  }
  *c = (custom){ fn, user, release };
  node->user = c;
  node->release = custom_release;
  node->gradient = custom_gradient;
  node->name = name;
  gb_status status = n_out <= GB_MAX_OUT ? GB_OK : gb_fail(context, GB_EINVAL, "%s: a function has at most %d "
                                                                               "outputs, not %d", name, GB_MAX_OUT,
      n_out);
  for (int i = 0; status == GB_OK && i < n_in; i++)
    if (in[i]) gb_node_edge(node, i, in[i], (gb_dtype)in[i]->dtype);
  for (int i = 0; status == GB_OK && i < n_out; i++)
    if (gb_dtype_is_float((gb_dtype)out[i]->dtype)) gb_node_output(node, i, out[i]);
  gb_node_release(node);
  return status;
}

/* ====} */

/* {==== in place ==== */

/* The place of a view in its base is known only if the base covers a whole span of memory. */
static gb_status no_place(gb_context *context) {
  return gb_fail(context, GB_EAUTOGRAD, "a view of a tensor with gaps in its memory, or the tensor itself, is "
                                        "changed in place while gradients are "
                                        "recorded; use the form without '_', or clone first");
}

gb_status gb_inplace_prepare(gb_op_call *call, gb_tensor *t) {
  if (!call->context->modes->grad) return GB_OK;
  const gb_tensor *base = t->base;
  if ((t->requires_grad && !t->node) || (base && base->requires_grad && !base->node))
    return gb_call_fail(call, GB_EAUTOGRAD, "a leaf that requires gradients%s is changed in place; do it under "
                                            "no_grad, or on a clone",
                        base ? " (of which this is a view)" : "");
  /* a cycle would never be freed */
  if (call->needs_grad && ((t->was_leaf && !t->node) || (base && base->was_leaf && !base->node)))
    return gb_call_fail(call, GB_EAUTOGRAD, "a tensor that once required gradients%s is changed in place by what "
                                            "requires them; clone it first",
                        base ? " (of which this is a view)" : "");
  if (base && base->node && !t->node)
    return gb_call_fail(call, GB_EAUTOGRAD, "a view that was made under no_grad, of a tensor with a history, is "
                                            "changed in place; make the view "
                                            "where gradients are recorded, or change it under no_grad");
  if (base && call->needs_grad && !gb_is_dense(base)) return no_place(call->context);
  return GB_OK;
}

/* The attributes of these nodes: how the view lies in the base, and the base's own strides. */
typedef struct place { gb_attrs_as_strided view; gb_attr base_strides; } place;
enum { PLACE_ATTRS = sizeof(place) / sizeof(gb_attr) };
static const place *place_in(const gb_node *node) { return (const place *)(const void *)node->attrs; }

/* The inputs of a base whose view was replaced. */
enum { OLD_BASE, NEW_VIEW, REPLACED_INPUTS };

/* Set them in a new node. */
static void set_place(gb_node *node, const gb_tensor *base, const gb_tensor *view) {
  *(place *)(void *)node->attrs = (place){
    .view = { .shape = gb_attr_ints(view->ndim, view->shape), .strides = gb_attr_ints(view->ndim, view->stride),
              .offset = gb_attr_int(view->offset - base->offset) },
    .base_strides = gb_attr_ints(base->ndim, base->stride) };
}

/* The gradient of the base with only the view's place filled. */
static gb_status spread(gb_context *c, const gb_node *node, int ndim, const int64_t *shape, gb_tensor *grad,
                        gb_tensor **out) {
  const place *p = place_in(node);
  return GB_RUN(c, as_strided_backward, out, .grad = grad, .shape = gb_attr_ints(ndim, shape),
                .strides = p->base_strides, .view_shape = p->view.shape,
                .view_strides = p->view.strides, .view_offset = p->view.offset);
}

/* The gradient of the view: its place in the gradient of the base, which is laid out as the base is. */
static gb_status pick(gb_context *c, const gb_node *node, gb_tensor *grad, gb_tensor **out) {
  gb_tensor *layout, *whole = NULL;
  const place *p = place_in(node);
  GB_TRY(gb_tensor_new_as(c, (gb_dtype)grad->dtype, grad->ndim, grad->shape, p->base_strides.ints,
                          grad->storage->device, GB_MEM_OTHER, &layout));
  gb_status status = GB_RUN(c, copy, &whole, .x = layout, .source = grad);
  gb_tensor_release(layout);
  if (status == GB_OK)
    status = GB_RUN(c, as_strided, out, .x = whole, .shape = p->view.shape, .strides = p->view.strides,
                    .offset = p->view.offset);
  gb_tensor_release(whole);
  return status;
}

/* true at the view's place, in the shape of the base's gradient. */
static gb_status place_of(gb_context *c, const gb_node *node, const gb_tensor *grad, gb_tensor **out) {
  gb_tensor *ones, *whole = NULL;
  const gb_attr *shape = &place_in(node)->view.shape;
  GB_TRY(gb_tensor_new(c, GB_FLOAT32, shape->count, shape->ints, grad->storage->device, &ones));
  gb_status status = GB_RUN(c, fill, NULL, .x = ones, .value = gb_attr_num(1));
  if (status == GB_OK) status = spread(c, node, grad->ndim, grad->shape, ones, &whole);
  if (status == GB_OK) status = gb_op_cast(c, whole, GB_BOOL, out);
  gb_tensor_release(ones);
  gb_tensor_release(whole);
  return status;
}

/* base' = base with its view replaced by v: the base keeps the gradient outside the view, v gets the one inside. */
static gb_status replace_gradient(gb_grad_call *grad) {
  gb_tensor *inside = NULL, *mask = NULL, *whole = *grad->out;
  gb_context *c = grad->context;
  gb_status status = GB_OK;
  if (grad->need[OLD_BASE]) {
    status = place_of(c, grad->node, whole, &mask);
    if (status == GB_OK)
      status = GB_RUN(c, masked_fill, &grad->in[OLD_BASE], .x = whole, .mask = mask, .value = gb_attr_num(0));
    gb_drop(&mask);
  }
  if (status == GB_OK && grad->need[NEW_VIEW]) status = pick(c, grad->node, whole, &inside);
  if (status == GB_OK && grad->need[NEW_VIEW]) status = GB_RUN(c, clone, &grad->in[NEW_VIEW], .x = inside);
  gb_drop(&inside);
  return status;
}

/* The gradient of a view that was rebuilt from its base. */
static gb_status rebuilt_gradient(gb_grad_call *grad) {
  const gb_edge *edge = grad->node->edges;
  return spread(grad->context, grad->node, edge->ndim, edge->shape, *grad->out, grad->in);
}

/* Make t, a view, a result of its base's present history, by this node. */
static void rebuild_view(gb_tensor *t, gb_node *node) {
  node->name = "view";
  node->gradient = rebuilt_gradient;
  set_place(node, t->base, t);
  gb_node_edge(node, 0, t->base, (gb_dtype)t->dtype);
  gb_node_output(node, 0, t);
}

gb_status gb_view_refresh(gb_tensor *t) {
  if (!t->base || !t->base->node || t->view_version == gb_history(t->base) || t->requires_grad) return GB_OK;
  gb_context *context = gb_tensor_context(t);
  if (!gb_is_dense(t->base)) return no_place(context);
  gb_node *node = gb_node_new(context, -1, 1, 1, 0, PLACE_ATTRS);
  if (!node) return context->error_code;
  rebuild_view(t, node);
  gb_node_release(node);
  return GB_OK;
}

/* t, a view, became output 0 of node: its base becomes the old base with that view replaced, and the view one of the
 * new base. */
static void rebase(gb_tensor *t, gb_node *node, gb_rebase *nodes) {
  gb_tensor *base = t->base;
  gb_node *replaced = nodes->base;
  replaced->name = "view changed in place";
  replaced->gradient = replace_gradient;
  set_place(replaced, base, t);
  describe_output(node, 0, t);
  gb_node_edge(replaced, OLD_BASE, base, (gb_dtype)base->dtype);
  gb_edge *edge = &replaced->edges[NEW_VIEW];
  *edge = (gb_edge){ .node = node, .dtype = t->dtype, .cast = t->dtype, .ndim = t->ndim, .device = t->storage->device };
  memcpy(edge->shape, t->shape, sizeof edge->shape);
  gb_node_retain(node);
  gb_node_output(replaced, 0, base);
  rebuild_view(t, nodes->view);
}

gb_status gb_rebase_reserve(gb_rebase *nodes, gb_op_call *call, const gb_tensor *t) {
  if (!t->base) return GB_OK;
  nodes->base = gb_node_new(call->context, -1, REPLACED_INPUTS, 1, 0, PLACE_ATTRS);
  if (nodes->base) nodes->view = gb_node_new(call->context, -1, 1, 1, 0, PLACE_ATTRS);
  return nodes->view ? GB_OK : call->context->error_code;
}

void gb_rebase_end(gb_rebase *nodes) {
  if (nodes->base) gb_node_release(nodes->base);
  if (nodes->view) gb_node_release(nodes->view);
}

void gb_inplace_record(gb_tensor *t, gb_node *node, gb_rebase *nodes) {
  if (t->base) rebase(t, node, nodes);
  else gb_node_output(node, 0, t);
}

/* ====} */
