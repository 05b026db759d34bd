/* graph/backward.c - walking the graph: nodes in decreasing order of their numbers, from a heap.
 *
 * A node's number is larger than those of the nodes its inputs come from, so when it is taken from the heap every
 * gradient that can reach it has arrived. Sums are formed in that order, which is fixed, and a node's saved tensors are
 * freed as soon as it has run. */
#include <stdlib.h>
#include <string.h>

#include "graph/autograd.h"
#include "graph/finals.h"
#include "graph/gate.h"
#include "graph/parts.h"
#include "tensor/slab.h"

/* What has arrived at one node. Its number tells a node that was freed meanwhile from one made in the same place. */
typedef struct arrival { gb_node *node; uint64_t sequence; gb_tensor *grads[GB_MAX_OUT];
                         gb_parts *parts; /* of those of the grads that are being put together */
                         gb_tensor *low;  /* grads[0] in 16 bits, of this version of it; or NULL */
                         uint64_t low_version;
                         gb_gate *gate;   /* grads[0] has yet to go through it; or NULL */
                         gb_tensor *more; /* of a ReLU's node: yet to be added to grads[0]; or NULL */
                         bool useful, visited; } arrival;

/* The sum of what reached a leaf that has hooks: they are called with it once, at the end. */
typedef struct waiting { gb_tensor *leaf, *grad; } waiting;

/* The gradients that gb_grad waits for. Of inputs that are the same one, the first has it. */
typedef struct captures { gb_tensor **grads; gb_places of; } captures;

/* Places that a walk has from the beginning: most graphs of small models need no more, and for them malloc and clearing
 * are what costs. */
enum { FIRST_ARRIVALS = 32, FIRST_HEAP = 32 };

/* One walk; begins as zeros but for what it is asked to do. */
typedef struct walk {
  gb_context *context;
  bool retain_graph, create_graph;
  arrival *arrivals;         /* open addressing by node, capacity a power of two */
  size_t used, capacity;
  gb_node **heap;            /* largest sequence first; counted */
  size_t heap_used, heap_capacity;
  const captures *captures;  /* of gb_grad; NULL: accumulate into leaves */
  waiting *waiting;          /* both counted, in order of first arrival */
  size_t n_waiting, room_waiting;
  gb_places waits;           /* where in that list a leaf is */
  gb_walk_place place;
  gb_finals finals;          /* where somebody wants to know */
  /* While a node runs: the first of its gradients in 16 bits as well, and the version that it had when this was made */
  gb_tensor *low, *low_of;
  uint64_t low_version;
  gb_gate *gate;             /* while a node runs: as in its arrival */
  gb_tensor *more;
  arrival first_arrivals[FIRST_ARRIVALS];
  gb_node *first_heap[FIRST_HEAP];
} walk;

/* {==== arrivals and the heap ==== */

static size_t slot(const walk *w, const gb_node *node) {
  size_t at = (size_t)((uintptr_t)node >> 5) * 0x9E3779B97F4A7C15u >> 20 & (w->capacity - 1);
  while (w->arrivals[at].node && w->arrivals[at].node != node) at = (at + 1) & (w->capacity - 1);
  return at;
}

static gb_status grow_arrivals(walk *w) {
  arrival *old = w->arrivals;
  size_t old_capacity = w->capacity, capacity = old ? 2 * old_capacity : FIRST_ARRIVALS;
  arrival *fresh = old ? calloc(capacity, sizeof *fresh) : w->first_arrivals;
  if (!fresh) return gb_fail_memory(w->context, capacity * sizeof *fresh);
  w->arrivals = fresh;
  w->capacity = capacity;
  for (size_t i = 0; i < old_capacity; i++)
    if (old[i].node) w->arrivals[slot(w, old[i].node)] = old[i];
  if (old != w->first_arrivals) free(old);
  return GB_OK;
}

/* The place where node's gradients arrive, made on first use. */
static gb_status arrive(walk *w, gb_node *node, arrival **out) {
  if (2 * (w->used + 1) > w->capacity) GB_TRY(grow_arrivals(w));
  arrival *a = &w->arrivals[slot(w, node)];
  w->used += !a->node;
  if (!a->node || a->sequence != node->sequence) *a = (arrival){ .node = node, .sequence = node->sequence };
  *out = a;
  return GB_OK;
}

/* The place of a node that was met before, or NULL. */
static arrival *find_arrival(const walk *w, const gb_node *node) {
  arrival *a = w->capacity ? &w->arrivals[slot(w, node)] : NULL;
  return a && a->node && a->sequence == node->sequence ? a : NULL;
}

static gb_status grow_heap(walk *w) {
  gb_node **old = w->heap;
  size_t capacity = old ? 2 * w->heap_capacity : FIRST_HEAP;
  gb_node **fresh = old ? malloc(capacity * sizeof *fresh) : w->first_heap;
  if (!fresh) return gb_fail_memory(w->context, capacity * sizeof *fresh);
  if (old) memcpy(fresh, old, w->heap_used * sizeof *old);
  if (old != w->first_heap) free(old);
  w->heap = fresh;
  w->heap_capacity = capacity;
  return GB_OK;
}

static gb_status push(walk *w, gb_node *node) {
  if (w->heap_used == w->heap_capacity) GB_TRY(grow_heap(w));
  gb_node_retain(node);
  size_t at = w->heap_used++;
  for (; at > 0 && w->heap[(at - 1) / 2]->sequence < node->sequence; at = (at - 1) / 2)
    w->heap[at] = w->heap[(at - 1) / 2];
  w->heap[at] = node;
  return GB_OK;
}

static gb_node *pop(walk *w) {
  gb_node *top = w->heap[0], *last = w->heap[--w->heap_used];
  size_t at = 0, child;
  while ((child = 2 * at + 1) < w->heap_used) {
    if (child + 1 < w->heap_used && w->heap[child + 1]->sequence > w->heap[child]->sequence) child++;
    if (w->heap[child]->sequence <= last->sequence) break;
    w->heap[at] = w->heap[child];
    at = child;
  }
  w->heap[at] = last;
  return top;
}

static void walk_close(walk *w) {
  for (size_t i = 0; i < w->heap_used; i++) gb_node_release(w->heap[i]);
  for (size_t i = 0; i < w->capacity; i++) {
    arrival *a = &w->arrivals[i];
    for (int k = 0; a->node && k < GB_MAX_OUT; k++)
      if (a->grads[k]) gb_tensor_release(a->grads[k]);
    if (!a->node) continue;
    gb_parts_free(a->parts);
    gb_tensor_release(a->low);
    gb_tensor_release(a->more);
    gb_gate_release(a->gate);
  }
  for (size_t i = 0; i < w->n_waiting; i++) {
    gb_tensor_release(w->waiting[i].leaf);
    gb_tensor_release(w->waiting[i].grad);
  }
  free(w->waiting);
  gb_places_close(&w->waits);
  if (w->heap != w->first_heap) free(w->heap);
  if (w->arrivals != w->first_arrivals) free(w->arrivals);
}

/* ====} */

/* {==== sums ==== */

static gb_status unequal_tags(gb_context *context, gb_grad_tag a, gb_grad_tag b) {
  if (a.scaler != b.scaler)
    return gb_fail(context, GB_EAUTOGRAD, "backward: gradients of %s meet; scale every loss with the same scaler "
                                          "before backward%s, or zero the gradients in between",
                   a.scaler && b.scaler ? "two scalers" : "a scaled and an unscaled loss",
                   a.scaler && b.scaler ? ", or each with one of its own made with per_loss = true and call "
                                          "backward on each" : "");
  return gb_fail(context, GB_EAUTOGRAD, "backward: gradients scaled before and after scaler:update() meet; call "
                                        "update only where the gradients are zeroed next");
}

/* Nobody else can see this tensor's memory, so it may be written. */
static bool is_private(const gb_tensor *t) {
  return atomic_load(&t->refs) == 1 && atomic_load(&t->storage->refs) == 1 && !t->base && !t->node &&
      !t->storage->slab && gb_is_dense(t) &&
         !t->storage->release;
}

/* *sum += more, both gradients of one place; takes over neither. */
static gb_status add_to(walk *w, gb_tensor **sum, gb_tensor *more) {
  if (!*sum) {
    gb_tensor_retain(*sum = more);
    return GB_OK;
  }
  gb_grad_tag tag = gb_tag_of_sum((*sum)->tag, more->tag);
  if (!gb_tags_agree((*sum)->tag, more->tag)) return unequal_tags(w->context, (*sum)->tag, more->tag);
  if (!w->create_graph && is_private(*sum)) {
    (*sum)->tag = tag;
    return GB_RUN(w->context, add, NULL, .x = *sum, .y = more);
  }
  gb_tensor *total;
  GB_TRY(GB_RUN(w->context, add, &total, .x = *sum, .y = more));
  total->tag = tag;
  gb_tensor_release(*sum);
  *sum = total;
  return GB_OK;
}

/* *grad carries this tag; a tensor that others hold keeps its own, unless its history counts. */
static gb_status tag_gradient(gb_context *context, gb_tensor **grad, gb_grad_tag tag) {
  if (gb_same_tag((*grad)->tag, tag)) return GB_OK;
  if (atomic_load(&(*grad)->refs) > 1 && !context->modes->grad) {
    gb_tensor *alias;
    GB_TRY(gb_tensor_detach(*grad, &alias));
    gb_tensor_release(*grad);
    *grad = alias;
  }
  (*grad)->tag = tag;
  return GB_OK;
}

/* Take turns through a list of hooks, which they may change. */
static void begin_turn(gb_context *context, gb_hook *const *list, gb_hook_turn *turn) {
  *turn = (gb_hook_turn){ .list = list, .next = *list, .outer = context->turn };
  context->turn = turn;
}

static gb_hook *next_turn(gb_hook_turn *turn) {
  gb_hook *hook = turn->next;
  if (hook) turn->next = hook->next;
  return hook;
}

/* Before a recipe sees a gradient: memory of its own, where it lies beside others that make up a gradient with it. */
static gb_status set_apart(walk *w, gb_tensor **grad) {
  const gb_tensor *g = *grad;
  bool beside = g->storage->block && (size_t)g->numel * gb_bytes_of((gb_dtype)g->dtype) < g->storage->bytes &&
                atomic_load(&g->storage->refs) > 1;
  if (!beside || w->create_graph) return GB_OK;
  gb_tensor *copy = NULL;
  GB_TRY(GB_RUN(w->context, clone, &copy, .x = *grad));
  copy->tag = g->tag;
  gb_tensor_release(*grad);
  *grad = copy;
  return GB_OK;
}

/* A tensor that is no leaf and keeps its gradient has it for itself. */
static gb_status keep_gradient(walk *w, gb_tensor *keeper, gb_tensor *grad) {
  if (keeper->grad || w->create_graph) return add_to(w, &keeper->grad, grad);
  GB_TRY(GB_RUN(w->context, clone, &keeper->grad, .x = grad));
  keeper->grad->tag = grad->tag;
  return GB_OK;
}

gb_status gb_run_after_hooks(gb_context *context, gb_tensor *leaf) {
  gb_modes *modes = context->modes;
  gb_status status = GB_OK;
  gb_hook_turn turn;
  begin_turn(context, &leaf->hooks, &turn);
  for (gb_hook *hook; status == GB_OK && (hook = next_turn(&turn));) {
    gb_tensor *given = leaf;
    if (!hook->after) continue;
    gb_tensor_retain(given);
    status = hook->fn(context, hook->user, &given);
    context->modes = modes;
    gb_tensor_release(given);
  }
  context->turn = turn.outer;
  return status;
}

/* Run the hooks of one place in order; each may put another gradient in place of the one it got, and may remove any
 * hook. */
static gb_status run_hooks(gb_context *context, gb_hook *const *hooks, gb_tensor **grad) {
  gb_modes *modes = context->modes;
  gb_status status = GB_OK;
  gb_hook_turn turn;
  begin_turn(context, hooks, &turn);
  for (gb_hook *hook; status == GB_OK && (hook = next_turn(&turn));) {
    if (hook->after) continue;
    gb_grad_tag tag = (*grad)->tag;
    status = hook->fn(context, hook->user, grad);
    context->modes = modes;
    if (status == GB_OK) status = tag_gradient(context, grad, tag);
  }
  context->turn = turn.outer;
  return status;
}

/* The first gradient of an adopted parameter is written, later ones are added. Where their scales differ, whoever uses
 * the sum finds out: of two networks that are trained in turn, each leaves gradients in the other that are zeroed. */
static gb_status write_or_add(gb_context *context, gb_tensor *leaf, gb_tensor *grad) {
  gb_segment *segment = &leaf->slab->segments[leaf->segment];
  gb_grad_tag own = gb_tensor_tag(grad), tag = own;
  if (segment->has_grad) tag = gb_tag_of_sum(gb_tensor_tag(segment->grad), own);
  bool before = gb_set_grad_enabled(context, false);
  gb_status status = segment->has_grad ? GB_RUN(context, add, NULL, .x = segment->grad, .y = grad)
                                       : GB_RUN(context, copy, NULL, .x = segment->grad, .source = grad);
  gb_set_grad_enabled(context, before);
  GB_TRY(status);
  gb_tensor_put_tag(segment->grad, tag, grad);
  segment->has_grad = true;
  return GB_OK;
}

/* Adopted parameters are where the gradients of scalers per loss lose their scale. */
static gb_status accumulate_adopted(gb_context *context, gb_tensor *leaf, gb_tensor *grad) {
  gb_tensor *received;
  const gb_weight_keeper *weights = context->graph->weights;
  if (!weights) return write_or_add(context, leaf, grad);
  GB_TRY(weights->receive(context, grad, (gb_dtype)leaf->slab->segments[leaf->segment].grad->dtype, &received));
  gb_status status = write_or_add(context, leaf, received);
  gb_tensor_release(received);
  return status;
}

gb_status gb_accumulate_leaf(gb_context *context, gb_tensor *leaf, gb_tensor *grad, bool create_graph) {
  if (leaf->slab) return accumulate_adopted(context, leaf, grad);
  gb_grad_tag own = gb_tensor_tag(grad), tag = leaf->grad ? gb_tag_of_sum(gb_tensor_tag(leaf->grad), own) : own;
  gb_tensor *sum = NULL;
  /* Else what others hold keeps its values. */
  if (leaf->grad && !create_graph && gb_tags_agree(gb_tensor_tag(leaf->grad), tag)) {
    bool before = gb_set_grad_enabled(context, false);
    gb_status status = GB_RUN(context, add, NULL, .x = leaf->grad, .y = grad);
    gb_set_grad_enabled(context, before);
    gb_tensor_put_tag(leaf->grad, tag, grad);
    return status;
  }
  if (leaf->grad) GB_TRY(GB_RUN(context, add, &sum, .x = leaf->grad, .y = grad));
  else if (grad->dtype != leaf->dtype) GB_TRY(gb_op_cast(context, grad, (gb_dtype)leaf->dtype, &sum));
  else if (!create_graph && is_private(grad)) gb_tensor_retain(sum = grad); /* later sums are written into it */
  else GB_TRY(GB_RUN(context, clone, &sum, .x = grad));
  gb_tensor_put_tag(sum, tag, grad);
  gb_tensor_put_grad(leaf, sum);
  return GB_OK;
}

/* ====} */

/* {==== gradients of parts ==== */

/* The parts that the gradient of this output is being put together from, or NULL. */
static gb_parts *parts_of(const arrival *a, int output) {
  gb_parts *parts = a->parts;
  while (parts && parts->output != output) parts = parts->next;
  return parts;
}

/* What has arrived for an output becomes an ordinary gradient: all that no part has is zero. */
static gb_status whole_again(arrival *a, int output) {
  gb_parts **at = &a->parts;
  while (*at && (*at)->output != output) at = &(*at)->next;
  gb_parts *parts = *at;
  if (!parts) return GB_OK;
  GB_TRY(gb_parts_finish(parts, &a->grads[output]));
  *at = parts->next;
  parts->next = NULL;
  gb_parts_free(parts);
  return GB_OK;
}

/* Does a gradient lie in memory that has just the size of the whole, at the part's place in it? */
static bool lies_in_place(const gb_tensor *g, const gb_edge *edge, int64_t numel, const gb_part *part) {
  const gb_storage *storage = g->storage;
  if (!storage->block || g->offset != part->offset ||
      storage->bytes != (size_t)numel * gb_bytes_of(edge->dtype)) return false;
  for (int i = 0; i < g->ndim; i++)
    if (g->shape[i] > 1 && g->stride[i] != part->strides[i]) return false;
  return true;
}

/* A row-major tensor of the shape of the edge's input: over the memory of g where that lies in place, else new. */
static gb_status make_whole(gb_context *context, const gb_edge *edge, gb_tensor *g, bool in_place, gb_tensor **whole) {
  int64_t strides[GB_MAX_NDIM];
  gb_tensor *view;
  if (!in_place)
    return gb_tensor_new(context, (gb_dtype)edge->dtype, edge->ndim, edge->shape, edge->device, whole);
  gb_contiguous_strides(edge->ndim, edge->shape, strides);
  GB_TRY(gb_tensor_view(g, edge->ndim, edge->shape, strides, 0, &view));
  gb_status status = gb_tensor_detach(view, whole);
  gb_tensor_release(view);
  return status;
}

/* Write g, or add it, at its place. */
static gb_status write_part(gb_context *context, gb_tensor *whole, const gb_part *part, gb_tensor *g, bool add) {
  gb_tensor *place;
  GB_TRY(gb_tensor_view(whole, part->ndim, part->shape, part->strides, whole->offset + part->offset, &place));
  gb_status status = add ? GB_RUN(context, add, NULL, .x = place, .y = g)
                         : GB_RUN(context, copy, NULL, .x = place, .source = g);
  gb_tensor_release(place);
  return status;
}

/* The first part of a gradient that has not arrived in any other way. */
static gb_status begin_parts(walk *w, const gb_edge *edge, int64_t row, arrival *a, gb_tensor *g, bool in_place,
                             gb_parts **out) {
  gb_parts *parts = calloc(1, sizeof *parts);
  if (!parts) return gb_fail_memory(w->context, sizeof *parts);
  gb_status status = make_whole(w->context, edge, g, in_place, &a->grads[edge->output]);
  if (status != GB_OK) { free(parts); return status; }
  *parts = (gb_parts){ .next = a->parts, .output = edge->output, .row = row };
  a->grads[edge->output]->tag = g->tag;
  *out = a->parts = parts;
  return GB_OK;
}

/* See gb_grad_call. g's own memory may be that of the whole: kernels that make the gradients of all parts lay them so.
 */
static gb_status take_part(const gb_grad_call *grad, int i, const gb_part *part, gb_tensor *g, bool *done) {
  walk *w = grad->walk;
  const gb_edge *edge = &grad->node->edges[i];
  gb_row_part rows;
  arrival *a;
  int64_t numel = 1;
  *done = false;
  for (int d = 0; d < edge->ndim; d++) numel *= edge->shape[d];
  bool fits = edge->node && edge->cast == edge->dtype && g->dtype == edge->dtype &&
              g->storage->device.type == edge->device.type && g->storage->device.index == edge->device.index &&
              gb_same_tag(g->tag, grad->tag) && gb_find_row_part(part->ndim, part->shape, part->strides, &rows);
  if (!fits) return GB_OK;
  if (rows.rows == 1) rows.row = numel;
  gb_span span = { part->offset, part->offset + rows.count };
  if (rows.rows * rows.row != numel || span.to > rows.row) return GB_OK;
  GB_TRY(arrive(w, edge->node, &a));
  if (a->visited) return GB_OK;
  gb_parts *parts = parts_of(a, edge->output);
  gb_tensor **whole = &a->grads[edge->output];
  if (*whole && !parts) return GB_OK;
  gb_meeting meeting = parts ? gb_parts_meet(parts, span) : GB_APART;
  if (parts && (parts->row != rows.row || meeting == GB_ACROSS || !gb_same_tag((*whole)->tag, g->tag)))
    return whole_again(a, edge->output);
  bool in_place = meeting == GB_APART && lies_in_place(g, edge, numel, part) &&
                  (!*whole || (*whole)->storage == g->storage), first = true;
  for (int k = 0; k < GB_MAX_OUT; k++) first &= !a->grads[k];
  if (!parts) GB_TRY(begin_parts(w, edge, rows.row, a, g, in_place, &parts));
  if (first) GB_TRY(push(w, edge->node));
  if (!in_place) {
    GB_TRY(gb_parts_own(parts, whole));
    GB_TRY(write_part(w->context, *whole, part, g, meeting == GB_WITHIN));
  }
  *done = true;
  return meeting == GB_WITHIN ? GB_OK : gb_parts_put(w->context, parts, span);
}

/* ====} */

/* {==== gradients on their way through a ReLU ==== */

/* What has arrived becomes an ordinary gradient. */
static gb_status settle_arrival(walk *w, arrival *a) {
  if (a->gate) {
    gb_tensor *made;
    GB_TRY(gb_gate_open(a->gate, &made));
    gb_gate_release(a->gate);
    a->gate = NULL;
    gb_tensor_release(a->grads[0]);
    a->grads[0] = made;
  }
  if (!a->more) return GB_OK;
  GB_TRY(add_to(w, &a->grads[0], a->more));
  gb_drop(&a->more);
  return GB_OK;
}

static bool is_followed(const gb_context *context, gb_grad_tag tag) {
  for (const gb_observer *o = context->graph->observers; o; o = o->next)
    if (o->follows && o->follows(o->user, tag)) return true;
  return false;
}

/* Is only the result of the walk wanted? Who follows a gradient looks at each on its way, and may ask for it again; so
 * does anomaly mode. */
static bool is_plain(const walk *w, gb_grad_tag tag) {
  return !w->captures && !w->create_graph && !w->context->modes->anomaly && !is_followed(w->context, tag);
}

static bool is_seen(const gb_node *node) { return node->hooks[0] || node->retain[0]; }

/* Would a gradient of this kind reach the node before as it is? */
static bool passes(const gb_edge *edge, const gb_tensor *grad) {
  return edge->node && edge->output == 0 && edge->cast == edge->dtype && edge->dtype == grad->dtype &&
         edge->ndim == grad->ndim && edge->device.type == GB_CUDA && edge->device.type == grad->storage->device.type &&
         edge->device.index == grad->storage->device.index &&
         !memcmp(edge->shape, grad->shape, sizeof *grad->shape * (size_t)grad->ndim);
}

/* Is it a batch norm that ends with a ReLU of its own? */
static bool ends_with_relu(const gb_node *node) {
  return node->op == GB_OP_batch_norm && node->attrs[GB_ATTR_AT(batch_norm, activation)].integer == GB_WORD_relu;
}

/* Does it lead to a batch norm that makes the gradient of the ReLU behind it as well? */
static bool meets_batch_norm(const gb_edge *edge, const gb_tensor *grad) {
  if (!passes(edge, grad) || edge->node->op != GB_OP_batch_norm || is_seen(edge->node)) return false;
  if (ends_with_relu(edge->node)) return false;
  return edge->node->attrs[GB_ATTR_AT(batch_norm, training)].integer;
}

/* The same, or to the sum of one. */
static bool meets_gate(const gb_edge *edge, const gb_tensor *grad) {
  if (meets_batch_norm(edge, grad)) return true;
  if (!passes(edge, grad) || edge->node->op != GB_OP_add || is_seen(edge->node)) return false;
  bool any = false;
  for (int i = 0; i < 2; i++) {
    const gb_edge *e = &edge->node->edges[i];
    if ((e->node || e->leaf) && (e->cast != grad->dtype || e->ndim != grad->ndim ||
        memcmp(e->shape, grad->shape, sizeof *grad->shape * (size_t)grad->ndim))) return false;
    any |= meets_batch_norm(e, grad);
  }
  return any;
}

static bool is_empty(const arrival *a) {
  for (int k = 0; k < GB_MAX_OUT; k++)
    if (a->grads[k]) return false;
  return !a->visited;
}

/* Does the node take a gradient that has yet to go through a ReLU? */
static bool takes_gate(const gb_node *node) {
  return ((node->op == GB_OP_batch_norm && !ends_with_relu(node)) || node->op == GB_OP_add) && !is_seen(node);
}

/* A node's gradient stays on its way, and waits for whoever makes it, if the node is a ReLU before which a batch norm
 * does, or the sum that one was added in; *gate is a new reference, or NULL. */
static gb_status begin_gate(walk *w, const gb_grad_call *call, gb_gate **gate) {
  const gb_node *node = call->node;
  gb_tensor *grad = GB_GRAD_OUT(call, relu)->y;
  *gate = w->gate;
  if (w->gate && node->op == GB_OP_add) {
    w->gate->refs++;
    return GB_OK;
  }
  *gate = NULL;
  if (node->op != GB_OP_relu || !GB_NEEDS(call, relu, x) || !call->accumulator || !meets_gate(node->edges, grad))
    return GB_OK;
  arrival *a;
  GB_TRY(arrive(w, node->edges->node, &a));
  if (!is_empty(a)) return GB_OK;
  *gate = gb_gate_new(w->context, grad, w->more, GB_KEPT(call, relu)->y);
  return *gate ? GB_OK : w->context->error_code;
}

/* ====} */

/* {==== sums that gradients are put into ==== */

/* Where gradients of a leaf are summed up; NULL: nowhere yet. */
static gb_tensor *sum_of(const gb_tensor *leaf) {
  return leaf->slab ? leaf->slab->segments[leaf->segment].grad : leaf->grad;
}

/* What has arrived so far for the result that an edge leads to, if nothing but the walk sees it. */
static gb_tensor *arrived(const walk *w, const gb_edge *edge) {
  arrival *a = edge->node ? find_arrival(w, edge->node) : NULL;
  if (a && (whole_again(a, edge->output) != GB_OK || settle_arrival((walk *)w, a) != GB_OK))
    return NULL; /* handed over, it fails again */
  gb_tensor *sum = a ? a->grads[edge->output] : NULL;
  if (!sum || !is_private(sum)) return NULL;
  gb_drop(&a->low); /* the sum will be another one */
  return sum;
}

static gb_tensor *sum_for(const gb_grad_call *grad, int i) {
  const gb_edge *edge = &grad->node->edges[i];
  return edge->leaf ? sum_of(edge->leaf) : arrived(grad->walk, edge);
}

static bool receives(const gb_context *context, gb_grad_tag tag) {
  const gb_weight_keeper *weights = context->graph->weights;
  return weights && weights->receives(context, tag);
}

/* See gb_grad_call. What has hooks, meets another gradient of the same node, or loses its scale on the way has to be
 * handed over. */
static gb_tensor *accumulator(const gb_grad_call *grad, int i, bool *holds) {
  const gb_edge *edge = &grad->node->edges[i];
  const gb_tensor *leaf = edge->leaf;
  const gb_slab *slab = leaf ? leaf->slab : NULL;
  gb_tensor *sum = sum_for(grad, i);
  if (!sum || (leaf && leaf->hooks) || sum->node || (sum->base && !slab) || sum->dtype != grad->want[i]) return NULL;
  if (!gb_is_contiguous(sum) && !(grad->node->op == GB_OP_conv2d && gb_is_channels_last(sum))) return NULL;
  if (sum->storage->device.type != edge->device.type || sum->storage->device.index != edge->device.index) return NULL;
  if (slab && receives(grad->context, grad->tag)) return NULL;
  for (int k = 0; k < grad->n_in; k++)
    if (k != i && sum_for(grad, k) == sum) return NULL;
  *holds = !slab || slab->segments[leaf->segment].has_grad;
  return *holds && !gb_tags_agree(gb_tensor_tag(sum), grad->tag) ? NULL : sum;
}

bool gb_grad_may_write(const gb_grad_call *grad, int i) {
  return grad->accumulator && grad->out[i] && is_private(grad->out[i]);
}

gb_tensor *gb_grad_empty_sum(const gb_grad_call *grad, int i, gb_dtype dtype) {
  bool holds = false;
  gb_tensor *sum = grad->need[i] && grad->accumulator ? grad->accumulator(grad, i, &holds) : NULL;
  if (!sum || holds || sum->dtype != (int8_t)dtype) return NULL;
  for (int k = 0; k < grad->n_out; k++)
    if (grad->out[k] && grad->out[k]->storage == sum->storage) return NULL;
  for (int k = 0; k < grad->node->n_saved; k++)
    if (grad->saved[k] && grad->saved[k]->storage == sum->storage) return NULL;
  return sum;
}

/* A gradient was put there; what waits for a node has the tag already. */
static void settle(gb_tensor *leaf, gb_grad_tag tag) {
  if (!leaf) return;
  sum_of(leaf)->tag = tag;
  if (leaf->slab) leaf->slab->segments[leaf->segment].has_grad = true;
}

/* See gb_grad_call: an addition of something in 16 bits rounds its gradient to these. */
static gb_dtype low_before(const gb_grad_call *grad, int i) {
  const gb_edge *edge = &grad->node->edges[i];
  const gb_node *before = edge->node;
  if (!before || before->op != GB_OP_add || edge->dtype != GB_FLOAT32 || edge->cast != GB_FLOAT32)
    return GB_DTYPE_NONE;
  for (int k = 0; k < before->n_in; k++) {
    const gb_edge *e = &before->edges[k];
    if (e->node && gb_is_16bit((gb_dtype)e->cast) && e->ndim == edge->ndim &&
        !memcmp(e->shape, edge->shape, sizeof *e->shape * (size_t)e->ndim)) return (gb_dtype)e->cast;
  }
  return GB_DTYPE_NONE;
}

/* Keep a gradient in 16 bits beside the float32 that arrived for the node before; wide: what was handed over, or NULL
 * where it is in the sum. Of a sum with more in it, it is nothing. */
static void keep_low(walk *w, const gb_edge *edge, const gb_tensor *wide, gb_tensor **low) {
  arrival *a = *low && edge->node ? find_arrival(w, edge->node) : NULL;
  if (!a || !a->grads[0] || (wide && wide != a->grads[0])) return;
  gb_drop(&a->low);
  a->low = *low;
  *low = NULL;
  a->low_version = gb_tensor_version(a->grads[0]);
}

/* ====} */

/* {==== one node ==== */

const char *gb_node_name(const gb_node *node) { return node->op >= 0 ? node->context->graph->infos[node->op].name
                                                : node->name; }

static gb_status pass_gradient(gb_grad_call *grad) {
  gb_tensor_retain(*grad->in = *grad->out);
  return GB_OK;
}

/* With create_graph a saved tensor needs its history again: the value as a result of where the node's input came
 * from. */
static gb_status with_history(gb_node *node, int i, gb_tensor *value, gb_tensor **out) {
  if (i >= node->n_in) { /* an output of this very node */
    GB_TRY(gb_tensor_detach(value, out));
    if (i - node->n_in < node->n_out && gb_dtype_is_float((gb_dtype)value->dtype)) {
      gb_node_retain(node);
      gb_tensor_tie(*out);
      (*out)->node = node;
      (*out)->output = i - node->n_in;
    }
    return GB_OK;
  }
  const gb_edge *edge = &node->edges[i];
  if (!edge->node && !edge->leaf) { gb_tensor_retain(*out = value); return GB_OK; }
  if (edge->leaf && edge->leaf->storage == value->storage && edge->cast == edge->dtype)
    { gb_tensor_retain(*out = edge->leaf); return GB_OK; }
  GB_TRY(gb_tensor_detach(value, out));
  if (edge->node && edge->cast == edge->dtype) {
    gb_tensor_tie(*out);
    gb_node_retain((*out)->node = edge->node);
    (*out)->output = edge->output;
    return GB_OK;
  }
  gb_node *cast = gb_node_new(node->context, -1, 1, 1, 0, 0); /* the cast that autocast made, as a node */
  if (!cast) { gb_drop(out); return node->context->error_code; }
  cast->name = "cast";
  cast->gradient = pass_gradient;
  *cast->edges = *edge;
  cast->edges->cast = edge->dtype;
  if (edge->node) gb_node_retain(edge->node);
  else gb_tensor_retain(edge->leaf);
  gb_node_output(cast, 0, *out);
  gb_node_release(cast);
  return GB_OK;
}

static gb_status changed_since(const gb_node *node, const gb_saved *s) {
  return gb_fail(node->context, GB_EAUTOGRAD,
                 "backward: a tensor that %s needs was changed in place since (version %llu, now %llu); use the "
                 "form without '_' or clone it first",
                 gb_node_name(node), (unsigned long long)s->version, (unsigned long long)gb_tensor_version(s->tensor));
}

/* Bring back what the node saved: check versions, find weight copies, restore history. Fills saved[] with new
 * references. */
static gb_status unpack(walk *w, gb_node *node, gb_tensor **saved) {
  for (int i = 0; i < node->n_saved; i++) {
    gb_saved *s = &node->saved[i];
    if (s->kind == GB_SAVED_NONE) continue;
    if (gb_tensor_version(s->tensor) != s->version) return changed_since(node, s);
    if (s->kind == GB_SAVED_WEIGHT && w->create_graph) /* the parameter itself: a new graph must not keep a copy that
                                                          the next step refreshes */
      GB_TRY(gb_op_cast(w->context, s->tensor, (gb_dtype)s->dtype, &saved[i]));
    else if (s->kind == GB_SAVED_WEIGHT)
      GB_TRY(w->context->graph->weights->copy(w->context, s->tensor, (gb_dtype)s->dtype, &saved[i]));
    else if (w->create_graph) GB_TRY(with_history(node, i, s->tensor, &saved[i]));
    else gb_tensor_retain(saved[i] = s->tensor);
  }
  return GB_OK;
}

static gb_status zeros_for(gb_context *context, const gb_node *node, int i, gb_tensor **out) {
  GB_TRY(gb_tensor_new(context, (gb_dtype)node->out[i].dtype, node->out[i].ndim, node->out[i].shape,
                       node->out[i].device, out));
  gb_status status = GB_RUN(context, fill, NULL, .x = *out, .value = gb_attr_num(0));
  if (status != GB_OK) gb_drop(out);
  return status;
}

static bool same_shape(const gb_tensor *t, const gb_edge *edge) {
  return t->ndim == edge->ndim && !memcmp(t->shape, edge->shape, sizeof *t->shape * (size_t)t->ndim);
}

/* What stands for a tensor in the graph: itself, or for a result the byte of its node with the number of the output. */
static const void *key_of(const gb_node *node, int output) { return (const char *)node + output; }

/* Where the gradient that this key stands for goes; NULL: gb_grad waits for no such one. */
static gb_tensor **find_capture(const walk *w, const void *key) {
  const gb_place *place = w->captures ? gb_places_find(&w->captures->of, key) : NULL;
  return place ? &w->captures->grads[place->number] : NULL;
}

/* The dtype in which a gradient arrives: of the original input, or of the slab of an adopted parameter. */
static gb_dtype arriving(const gb_edge *edge) {
  const gb_slab *slab = edge->leaf ? edge->leaf->slab : NULL;
  return (gb_dtype)(slab ? slab->segments[edge->leaf->segment].grad->dtype : edge->dtype);
}

/* The dtype in which it should leave the node: rounded as casting by hand would round it; for a leaf as it arrives, so
 * that a weight's leaves the GEMM in float32, unrounded. */
static gb_dtype leaving(const gb_edge *edge) { return edge->leaf ? arriving(edge) : (gb_dtype)edge->cast; }

/* Round the gradient on its way, and bring it to the device of the original input. */
gb_status gb_edge_convert(gb_context *context, const gb_edge *edge, gb_tensor **grad) {
  gb_dtype steps[2] = { leaving(edge), arriving(edge) };
  for (int i = 0; i < 2; i++) {
    if ((*grad)->dtype == steps[i]) continue;
    gb_tensor *cast;
    GB_TRY(gb_op_cast(context, *grad, steps[i], &cast));
    cast->tag = (*grad)->tag;
    gb_tensor_release(*grad);
    *grad = cast;
  }
  if ((*grad)->storage->device.type == edge->device.type && (*grad)->storage->device.index == edge->device.index)
    return GB_OK;
  gb_tensor *home;
  GB_TRY(gb_op_to_device(context, *grad, edge->device, &home));
  home->tag = (*grad)->tag;
  gb_tensor_release(*grad);
  *grad = home;
  return GB_OK;
}

static gb_status settle_leaf(walk *w, gb_tensor *leaf, gb_tensor *grad) {
  if (!w->captures) {
    w->place.settling = true;
    gb_status status = gb_accumulate_leaf(w->context, leaf, grad, w->create_graph);
    w->place.settling = false;
    return status;
  }
  gb_tensor **capture = find_capture(w, leaf);
  return capture ? add_to(w, capture, grad) : GB_OK;
}

static gb_status grow_waiting(walk *w) {
  size_t room = w->room_waiting ? 2 * w->room_waiting : 16;
  waiting *more = realloc(w->waiting, room * sizeof *more);
  if (!more) return gb_fail_memory(w->context, room * sizeof *more);
  w->waiting = more;
  w->room_waiting = room;
  return GB_OK;
}

/* A gradient for a leaf: accumulated at once, or added to what waits for the leaf's hooks. */
static gb_status deliver_leaf(walk *w, gb_tensor *leaf, gb_tensor *grad) {
  if (!leaf->hooks) return settle_leaf(w, leaf, grad);
  if (w->n_waiting == w->room_waiting) GB_TRY(grow_waiting(w));
  gb_place *place;
  GB_TRY(gb_places_make(w->context, &w->waits, leaf, (int64_t)w->n_waiting, &place));
  if ((size_t)place->number < w->n_waiting) return add_to(w, &w->waiting[place->number].grad, grad);
  w->waiting[w->n_waiting++] = (waiting){ leaf, grad };
  gb_tensor_retain(leaf);
  gb_tensor_retain(grad);
  return GB_OK;
}

/* May a second gradient of a ReLU's result be added to the first by whoever makes that of what went in? */
static bool waits_to_be_added(walk *w, arrival *a, const gb_tensor *grad) {
  const gb_node *node = a->node;
  const gb_tensor *first = a->grads[0];
  if (!first || a->more || is_seen(node) || !is_plain(w, grad->tag)) return false;
  if (first->dtype != grad->dtype || !gb_same_tag(first->tag, grad->tag)) return false;
  if (!ends_with_relu(node) && (node->op != GB_OP_relu || !meets_gate(node->edges, grad))) return false;
  return !a->gate || settle_arrival(w, a) == GB_OK;
}

/* A gradient for an output of a node; the first makes the node wait in the heap. */
static gb_status deliver_node(walk *w, gb_node *node, int output, gb_tensor *grad) {
  arrival *a;
  GB_TRY(arrive(w, node, &a));
  if (a->visited)
    return gb_fail(w->context, GB_EAUTOGRAD, "recompute: the function that ran again used a result of its own first "
                                             "run, or one made after it");
  bool first = true;
  for (int k = 0; k < GB_MAX_OUT; k++) first &= !a->grads[k];
  GB_TRY(whole_again(a, output));
  gb_drop(&a->low);
  if (waits_to_be_added(w, a, grad)) {
    gb_tensor_retain(a->more = grad);
    return GB_OK;
  }
  GB_TRY(settle_arrival(w, a));
  GB_TRY(add_to(w, &a->grads[output], grad));
  return first ? push(w, node) : GB_OK;
}

/* The same of one that has yet to go through a ReLU. Where something arrived before, or the edge leads to a leaf, it is
 * made now. */
static gb_status deliver_gate(walk *w, const gb_edge *edge, gb_gate *gate) {
  arrival *a = NULL;
  bool waits = !gate->made && passes(edge, gate->grad);
  if (waits) GB_TRY(arrive(w, edge->node, &a));
  if (waits && is_empty(a)) {
    gb_tensor_retain(a->grads[edge->output] = gate->grad);
    gate->refs++;
    a->gate = gate;
    return push(w, edge->node);
  }
  gb_tensor *made;
  GB_TRY(gb_gate_open(gate, &made));
  gb_status status = gb_edge_convert(w->context, edge, &made);
  if (status == GB_OK && edge->leaf) status = deliver_leaf(w, edge->leaf, made);
  else if (status == GB_OK) status = deliver_node(w, edge->node, edge->output, made);
  gb_tensor_release(made);
  return status;
}

/* Call the hooks of leaves with the whole gradients, and accumulate. */
static gb_status settle_waiting(walk *w) {
  for (size_t i = 0; i < w->n_waiting; i++) {
    GB_TRY(set_apart(w, &w->waiting[i].grad));
    GB_TRY(run_hooks(w->context, &w->waiting[i].leaf->hooks, &w->waiting[i].grad));
    GB_TRY(settle_leaf(w, w->waiting[i].leaf, w->waiting[i].grad));
    if (!w->captures) GB_TRY(gb_run_after_hooks(w->context, w->waiting[i].leaf));
  }
  return GB_OK;
}

/* Send the gradient of input i on its way. */
static gb_status deliver(walk *w, gb_node *node, int i, gb_tensor **grad) {
  const gb_edge *edge = &node->edges[i];
  if (!same_shape(*grad, edge)) {
    char a[96], b[96];
    return gb_fail(w->context, GB_ESHAPE, "backward: %s gave input %d a gradient of shape %s, the input has %s",
                   gb_node_name(node), i + 1,
                   gb_shape_text((*grad)->ndim, (*grad)->shape, a, sizeof a),
                       gb_shape_text(edge->ndim, edge->shape, b, sizeof b));
  }
  if (w->low && *grad == w->low_of && gb_tensor_version(*grad) == w->low_version && edge->cast == w->low->dtype &&
      !edge->leaf) {
    w->low->tag = (*grad)->tag;
    gb_tensor_release(*grad);
    gb_tensor_retain(*grad = w->low);
  }
  GB_TRY(gb_edge_convert(w->context, edge, grad));
  return edge->leaf ? deliver_leaf(w, edge->leaf, *grad) : deliver_node(w, edge->node, edge->output, *grad);
}

/* The tag that a node's result carries: its gradients', or the scaler's where they cross its scale. */
static gb_status tag_of(walk *w, const gb_node *node, gb_tensor *const *grads, gb_grad_tag *tag) {
  bool any = false;
  *tag = (gb_grad_tag){ 0, 0 };
  for (int i = 0; i < node->n_out; i++) {
    if (!grads[i]) continue;
    if (any && !gb_same_tag(*tag, grads[i]->tag)) return unequal_tags(w->context, *tag, grads[i]->tag);
    *tag = grads[i]->tag;
    any = true;
  }
  if (node->op != GB_OP_scale_loss) return GB_OK;
  gb_grad_tag own = { (uint32_t)node->rng_seed, (uint32_t)node->rng_offset };
  if (gb_same_tag(*tag, own))
    return gb_fail(w->context, GB_EAUTOGRAD, "backward: a loss went through scaler:scale() twice; scale it once");
  if (tag->scaler) return unequal_tags(w->context, *tag, own);
  *tag = own;
  return GB_OK;
}

/* {---- gb.anomaly ---- */

/* The failure of a node's gradient, with the line that made the node. */
static gb_status tell_where(walk *w, const gb_node *node, gb_status status) {
  if (!w->context->modes->anomaly || !node->where || status == GB_EINTERRUPT || status == GB_ECALLBACK) return status;
  return gb_fail(w->context, status, "%s (in the gradient of %s, %s)", w->context->error, gb_node_name(node),
                 node->where);
}

/* Is an element NaN? Infinities are what a scale is halved for. */
static gb_status has_nan(gb_context *context, gb_tensor *t, bool *found) {
  gb_tensor *flags = NULL, *any = NULL;
  *found = false;
  if (t->numel == 0 || !gb_dtype_is_float((gb_dtype)t->dtype)) return GB_OK;
  gb_status status = GB_RUN(context, isnan, &flags, .x = t);
  if (status == GB_OK) status = GB_RUN(context, any, &any, .x = flags);
  if (status == GB_OK) status = gb_tensor_read(any, found, sizeof *found);
  gb_tensor_release(any);
  gb_tensor_release(flags);
  return status;
}

/* Gradients that the node made and that are no numbers are an error that names it. */
static gb_status check_numbers(walk *w, const gb_grad_call *call) {
  gb_context *context = w->context;
  bool found = false;
  int input = 0;
  gb_beneath beneath;
  gb_beneath_begin(context, &beneath);
  gb_status status = GB_OK;
  for (int i = 0; status == GB_OK && !found && i < call->n_in; i++) {
    if (!call->need[i] || !call->in[i]) continue;
    status = has_nan(context, call->in[i], &found);
    input = i + 1;
  }
  gb_beneath_end(context, &beneath);
  GB_TRY(status);
  if (!found) return GB_OK;
  const gb_node *node = call->node;
  return gb_fail(context, GB_EAUTOGRAD, "anomaly: the gradient of %s has NaN for its input %d%s%s%s",
                 gb_node_name(node), input, node->where ? " (" : "",
                 node->where ? node->where : "", node->where ? ")" : "");
}

/* ----} */

/* {---- observers of gradients ---- */

static gb_status show_gradient(const gb_grad_call *call) {
  for (const gb_observer *o = call->context->graph->observers; o; o = o->next)
    if (o->follows && o->follows(o->user, call->tag)) GB_TRY(o->gradient(o->user, call));
  return GB_OK;
}

/* ----} */

/* Call the gradient and send its results on. in[], need[], want[], saved[] are zeroed room. */
static gb_status run_gradient(walk *w, gb_node *node, gb_tensor **grads, gb_tensor **in, bool *need, int8_t *want,
                              gb_tensor **saved) {
  gb_context *context = w->context;
  gb_grad_tag tag;
  GB_TRY(tag_of(w, node, grads, &tag));
  w->place.tag = tag;
  bool any = false;
  for (int i = 0; i < node->n_in; i++) {
    const gb_edge *edge = &node->edges[i];
    need[i] = edge->leaf || edge->node;
    if (need[i] && w->captures) {
      const arrival *a = edge->node ? find_arrival(w, edge->node) : NULL;
      need[i] = edge->leaf ? find_capture(w, edge->leaf) != NULL : a && a->useful;
    }
    any |= need[i];
    want[i] = (int8_t)leaving(edge);
  }
  if (!any) return GB_OK;
  const bool fill = node->op >= 0 && !context->graph->impl[node->op]->takes_no_grad;
  for (int i = 0; fill && i < node->n_out; i++)
    if (!grads[i] && node->out[i].live) GB_TRY(zeros_for(context, node, i, &grads[i]));
  GB_TRY(unpack(w, node, saved));
  gb_grad_call call = { .context = context, .node = node, .attrs = node->attrs, .n_in = node->n_in,
                        .n_out = node->n_out, .out = grads, .in = in,
                        .need = need, .saved = saved, .want = want, .create_graph = w->create_graph,
                        .again = w->retain_graph, .tag = tag, .walk = w };
  if (is_plain(w, tag)) call.accumulator = accumulator, call.take_part = take_part, call.low = low_before;
  if (w->create_graph && node->op >= 0 && context->graph->infos[node->op].derivative == GB_DERIVATIVE_ONCE)
    return gb_fail(context, GB_EAUTOGRAD, "%s has no second derivative; call backward or gb.grad without create_graph",
                   gb_node_name(node));
  gb_modes *modes = context->modes;
  gb_gate *gate = NULL;
  if (node->op == GB_OP_batch_norm) call.gate = w->gate;
  if (ends_with_relu(node)) call.more = w->more;
  gb_status status = begin_gate(w, &call, &gate);
  if (status == GB_OK && w->more && !gate && !call.more) status = add_to(w, &grads[0], w->more);
  if (!call.more) gb_drop(&w->more);
  if (status == GB_OK && !gate) status = node->gradient(&call);
  context->modes = modes;
  if (status != GB_OK) return tell_where(w, node, status);
  bool settled = call.settled & 1u;
  if (modes->anomaly) GB_TRY(check_numbers(w, &call));
  if (is_followed(context, tag)) GB_TRY(show_gradient(&call));
  for (int i = 0; i < node->n_in && call.settled; i++, call.settled >>= 1)
    if (call.settled & 1u) settle(node->edges[i].leaf, tag);
  for (int i = 0; i < node->n_out; i++) gb_drop(&grads[i]); /* what was passed on is the receiver's alone */
  for (int i = 0; i < node->n_saved; i++) gb_drop(&saved[i]); /* before more memory is asked for */
  if (!w->retain_graph) {
    for (int i = 0; i < node->n_saved; i++) node->ran |= node->saved[i].kind != GB_SAVED_NONE;
    gb_node_drop_saved(node);
  }
  for (int i = 0; status == GB_OK && gate && i < node->n_in; i++)
    if (need[i]) status = deliver_gate(w, &node->edges[i], gate);
  gb_gate_release(gate);
  for (int i = 0; status == GB_OK && i < node->n_in; i++) {
    if (!need[i] || !in[i]) continue;
    status = tag_gradient(context, &in[i], tag);
    if (status == GB_OK) status = deliver(w, node, i, &in[i]);
    if (status != GB_OK) break;
    if (i == 0) keep_low(w, &node->edges[0], in[0], &call.lowered);
    gb_drop(&in[i]);
  }
  if (status == GB_OK && settled) keep_low(w, &node->edges[0], NULL, &call.lowered);
  gb_drop(&call.lowered);
  return status;
}

/* ====} */

/* {==== Which nodes count, and recompute ==== */

/* For gb_grad: mark the nodes from which an input can be reached, so that nothing else is computed. */
static gb_status mark_useful(walk *w, gb_tensor *const *tensors, int n) {
  walk sorter = { .context = w->context };
  gb_node **order = NULL; /* every reachable node; filled by a worklist */
  size_t used = 0, capacity = 0;
  gb_status status = GB_OK;
  for (int pass = -n; status == GB_OK && (pass < 0 || (size_t)pass < used); pass++) {
    gb_node *from = pass < 0 ? NULL : order[pass];
    int edges = from ? from->n_in : 1;
    for (int i = 0; status == GB_OK && i < edges; i++) {
      gb_node *node = from ? from->edges[i].node : tensors[pass + n] ? tensors[pass + n]->node : NULL;
      if (!node || find_arrival(w, node)) continue;
      arrival *a;
      status = arrive(w, node, &a);
      if (status == GB_OK && used == capacity) {
        capacity = capacity ? 2 * capacity : 64;
        gb_node **more = realloc(order, capacity * sizeof *order);
        if (!more) status = gb_fail_memory(w->context, capacity * sizeof *order);
        else order = more;
      }
      if (status == GB_OK) order[used++] = node;
    }
  }
  /* Inputs have smaller numbers than users, so going up in number settles every node after its inputs. A heap sorts
   * them. */
  for (size_t i = 0; status == GB_OK && i < used; i++) status = push(&sorter, order[i]);
  for (size_t i = used; status == GB_OK && i-- > 0;) order[used - 1 - i] = pop(&sorter);
  for (size_t i = used; status == GB_OK && i-- > 0;) {
    gb_node *node = order[i];
    arrival *a = find_arrival(w, node);
    a->useful = node->rerun != NULL; /* what it will need shows when it runs again */
    for (int k = 0; k < node->n_out; k++) a->useful |= find_capture(w, key_of(node, k)) != NULL;
    for (int k = 0; k < node->n_in && !a->useful; k++) {
      const gb_edge *edge = &node->edges[k];
      a->useful = edge->leaf ? find_capture(w, edge->leaf) != NULL : edge->node &&
          find_arrival(w, edge->node)->useful;
    }
    gb_node_release(node); /* push had retained it */
  }
  walk_close(&sorter);
  free(order);
  return status;
}

/* Bring back the inputs of a node of recompute, with the history that they had. */
static gb_status unpack_inputs(gb_node *node, gb_tensor **in) {
  for (int i = 0; i < node->n_in; i++) {
    const gb_saved *s = &node->saved[i];
    if (gb_tensor_version(s->tensor) != s->version) return changed_since(node, s);
    GB_TRY(with_history(node, i, s->tensor, &in[i]));
  }
  return GB_OK;
}

/* The gradient of output i goes on into the graph of what the second run gave for it. */
static gb_status enter(walk *w, const gb_node *node, int i, gb_tensor *t, gb_tensor *grad) {
  GB_TRY(gb_view_refresh(t));
  if (t->dtype != node->out[i].dtype || t->ndim != node->out[i].ndim ||
      memcmp(t->shape, node->out[i].shape, sizeof *t->shape * (size_t)t->ndim)) {
    char a[96], b[96];
    return gb_fail(w->context, GB_EAUTOGRAD, "recompute: output %d was %s %s at first and %s %s when the function "
                                             "ran again", i + 1,
                   gb_dtype_name((gb_dtype)node->out[i].dtype),
                       gb_shape_text(node->out[i].ndim, node->out[i].shape, a, sizeof a),
                   gb_dtype_name((gb_dtype)t->dtype), gb_shape_text(t->ndim, t->shape, b, sizeof b));
  }
  if (t->node) return deliver_node(w, t->node, t->output, grad);
  return t->requires_grad ? deliver_leaf(w, t, grad) : GB_OK;
}

/* Let go of all that a node of recompute keeps. */
static void forget(gb_node *node) {
  gb_node_drop_saved(node);
  node->ran = true;
  node->release(node->user);
  node->release = NULL;
}

/* A node of recompute: make its outputs again and let their gradients go on from there. The nodes made now have larger
 * numbers than all that wait, so they are next, in the order in which they would have run without recompute: sums are
 * formed alike, to the bit. */
static gb_status run_again(walk *w, gb_node *node, gb_tensor **grads) {
  size_t bytes = sizeof(gb_tensor *) * ((size_t)node->n_in + 1);
  if (node->running)
    return gb_fail(w->context, GB_EAUTOGRAD, "recompute: a function that runs again for its gradient asked for that "
                                             "same gradient; take it outside");
  gb_tensor **in = calloc(1, bytes), *out[GB_MAX_OUT] = { NULL };
  if (!in) return gb_fail_memory(w->context, bytes);
  gb_modes *modes = w->context->modes;
  gb_status status = unpack_inputs(node, in);
  node->running = true; /* a walk within would run it again without end, or let go of what it runs from */
  if (status == GB_OK) status = node->rerun(node, in, out);
  node->running = false;
  w->context->modes = modes;
  for (int i = 0; i < node->n_in; i++) gb_tensor_release(in[i]);
  free(in);
  if (!w->retain_graph) forget(node);
  if (status == GB_OK && w->captures) status = mark_useful(w, out, node->n_out);
  for (int i = 0; i < node->n_out; i++) {
    if (status == GB_OK && grads[i] && out[i]) status = enter(w, node, i, out[i], grads[i]);
    gb_drop(&grads[i]); /* what was passed on is the receiver's alone */
    gb_tensor_release(out[i]);
  }
  return status;
}

/* ====} */

/* {==== the walk ==== */

/* Hooks, retained gradients and captures of what arrived; then the gradient itself. */
static gb_status visit(walk *w, gb_node *node, gb_tensor **grads) {
  gb_context *context = w->context;
  w->place = (gb_walk_place){ .node = node };
  for (int i = 0; i < node->n_out; i++) {
    if (!grads[i]) continue;
    if (node->hooks[i] || node->op < 0) GB_TRY(set_apart(w, &grads[i]));
    w->place.hook = true;
    GB_TRY(run_hooks(context, &node->hooks[i], &grads[i]));
    w->place.hook = false;
    gb_tensor **capture = find_capture(w, key_of(node, i));
    if (capture) gb_tensor_retain(*capture = grads[i]);
    gb_tensor *keeper = node->retain[i];
    if (keeper && !w->captures) {
      gb_tensor_tie(keeper);
      GB_TRY(keep_gradient(w, keeper, grads[i]));
    }
  }
  if (node->ran)
    return gb_fail(context, GB_EAUTOGRAD, "backward: the graph of %s was freed by an earlier backward; pass "
                                          "retain_graph = true to the first one", gb_node_name(node));
  if (node->rerun) return run_again(w, node, grads);
  size_t n_in = (size_t)node->n_in, n_saved = (size_t)node->n_saved;
  size_t bytes = n_in * (sizeof(gb_tensor *) + 2) + n_saved * sizeof(gb_tensor *);
  void *stack[96];
  void *room = bytes <= sizeof stack ? stack : malloc(bytes);
  if (!room) return gb_fail_memory(context, bytes);
  memset(room, 0, bytes);
  gb_tensor **in = room, **saved = in + n_in;
  bool *need = (bool *)(saved + n_saved);
  gb_status status = run_gradient(w, node, grads, in, need, (int8_t *)(need + n_in), saved);
  for (size_t i = 0; i < n_in + n_saved; i++) gb_tensor_release(in[i]);
  if (room != (void *)stack) free(room);
  return status;
}

/* The gradient to start from: the caller's, or 1. */
static gb_status seed(walk *w, gb_tensor *tensor, gb_tensor *gradient) {
  gb_context *context = w->context;
  char a[96], b[96];
  if (!gb_tensor_in_graph(tensor))
    return gb_fail(context, GB_EAUTOGRAD, "backward: the tensor does not require gradients: nothing it was computed "
                                          "from does, or it was computed under no_grad");
  gb_tensor *first = gradient;
  if (gradient) {
    GB_TRY(gb_expect_context(context, gradient));
    if (gradient->ndim != tensor->ndim || memcmp(gradient->shape, tensor->shape,
                                                 sizeof *tensor->shape * (size_t)tensor->ndim))
      return gb_fail(context, GB_ESHAPE, "backward: the gradient has shape %s, the tensor %s",
                     gb_shape_text(gradient->ndim, gradient->shape, a, sizeof a),
                     gb_shape_text(tensor->ndim, tensor->shape, b, sizeof b));
    gb_tensor_retain(first);
    gb_grad_tag tag = gb_tensor_tag(gradient);
    GB_TRY(tag_gradient(context, &first, tag.scaler == GB_TAG_ZERO ? (gb_grad_tag){ 0, 0 } : tag));
  } else {
    if (tensor->numel != 1)
      return gb_fail(context, GB_EAUTOGRAD, "backward: the tensor has shape %s; give a gradient of that shape, or "
                                            "reduce it to one element (sum, mean)",
                     gb_shape_text(tensor->ndim, tensor->shape, b, sizeof b));
    GB_TRY(gb_tensor_new(context, (gb_dtype)tensor->dtype, tensor->ndim, tensor->shape, tensor->storage->device,
                         &first));
    gb_status status = GB_RUN(context, fill, NULL, .x = first, .value = gb_attr_num(1));
    if (status != GB_OK) { gb_drop(&first); return status; }
  }
  gb_status status = GB_OK;
  if (first->dtype != tensor->dtype) {
    gb_tensor *cast = NULL;
    status = gb_op_cast(context, first, (gb_dtype)tensor->dtype, &cast);
    if (status == GB_OK) cast->tag = first->tag;
    gb_drop(&first);
    first = cast;
  }
  if (status == GB_OK) status = tensor->node ? deliver_node(w, tensor->node, tensor->output, first)
      : deliver_leaf(w, tensor, first);
  gb_drop(&first);
  return status;
}

static gb_status go(walk *w) {
  while (w->heap_used) {
    GB_TRY(gb_poll(w->context));
    gb_node *node = pop(w);
    arrival *a = &w->arrivals[slot(w, node)];
    gb_tensor *grads[GB_MAX_OUT];
    gb_status status = GB_OK;
    for (int i = 0; status == GB_OK && a->parts && i < GB_MAX_OUT; i++) status = whole_again(a, i);
    bool rectifies = node->op == GB_OP_relu || ends_with_relu(node);
    bool on_the_way = a->gate ? takes_gate(node) && !a->gate->made : rectifies && !is_seen(node);
    if (status == GB_OK && !on_the_way) status = settle_arrival(w, a);
    memcpy(grads, a->grads, sizeof grads);
    memset(a->grads, 0, sizeof a->grads);
    a->visited = true;
    w->low = a->low;
    w->low_of = w->low ? grads[0] : NULL;
    w->low_version = a->low_version;
    w->gate = a->gate;
    w->more = a->more;
    a->low = a->more = NULL;
    a->gate = NULL;
    if (status == GB_OK) status = visit(w, node, grads);
    gb_drop(&w->low);
    gb_drop(&w->more);
    gb_gate_release(w->gate);
    w->gate = NULL;
    for (int i = 0; i < GB_MAX_OUT; i++)
      if (grads[i]) gb_tensor_release(grads[i]);
    if (status == GB_OK && w->finals.uses.capacity) status = gb_finals_pass(w->context, &w->finals, node);
    w->place.node = NULL;
    gb_node_release(node);
    GB_TRY(status);
  }
  return GB_OK;
}

/* Walk with gradients recorded only if asked, and autocast off: every dtype is in the graph. */
static gb_status walk_run(walk *w, gb_tensor *const *tensors, gb_tensor *const *gradients, int n) {
  gb_context *context = w->context;
  gb_modes *outer = context->modes, inner = *outer;
  const char *op = context->op;
  inner.grad = w->create_graph;
  inner.autocast = false;
  context->modes = &inner;
  context->op = NULL;
  gb_status status = GB_OK;
  gb_range_push(context, "backward");
  gb_walk_place *around = context->graph->backward;
  context->graph->backward = &w->place;
  for (int i = 0; status == GB_OK && i < n; i++) status = gb_view_refresh(tensors[i]);
  if (status == GB_OK && w->captures) status = mark_useful(w, tensors, n);
  else if (status == GB_OK && context->graph->watch && !around && !w->create_graph)
    status = gb_finals_count(context, &w->finals, tensors[0]);
  for (int i = 0; status == GB_OK && i < n; i++) status = seed(w, tensors[i], gradients ? gradients[i] : NULL);
  if (status == GB_OK) status = go(w);
  if (status == GB_OK) status = settle_waiting(w);
  context->graph->backward = around;
  gb_range_pop(context);
  context->modes = outer;
  context->op = op;
  gb_finals_close(&w->finals);
  walk_close(w);
  return status;
}

gb_status gb_backward(gb_tensor *tensor, gb_tensor *gradient, bool retain_graph, bool create_graph) {
  if (!tensor) return GB_EINVAL;
  walk w = { .context = gb_tensor_context(tensor), .retain_graph = retain_graph || create_graph,
             .create_graph = create_graph };
  return walk_run(&w, &tensor, &gradient, 1);
}

/* Find the first of the inputs that are the same one, and enter it by its key. */
static gb_status find_inputs(gb_context *context, gb_tensor *const *inputs, int n, gb_places *of, int *first) {
  for (int i = 0; i < n; i++) {
    gb_tensor *input = inputs[i];
    gb_place *place;
    if (!gb_tensor_in_graph(input))
      return gb_fail(context, GB_EAUTOGRAD, "grad: input %d does not require gradients", i + 1);
    GB_TRY(gb_view_refresh(input));
    GB_TRY(gb_places_make(context, of, input->node ? key_of(input->node, input->output) : input, i, &place));
    first[i] = (int)place->number;
  }
  return GB_OK;
}

gb_status gb_grad(gb_tensor *const *tensors, gb_tensor *const *gradients, int n_tensors, gb_tensor *const *inputs,
                  int n_inputs,
                  bool retain_graph, bool create_graph, bool allow_unused, gb_tensor **grads) {
  gb_context *context = tensors && n_tensors > 0 ? gb_tensor_context(tensors[0]) : NULL;
  if (!context || n_inputs < 0 || (n_inputs && (!inputs || !grads)))
    return gb_refuse(context, "grad: inputs or grads is NULL, or n_inputs negative");
  for (int i = 0; i < n_tensors; i++) GB_TRY(gb_expect_context(context, tensors[i]));
  for (int i = 0; i < n_inputs; i++) GB_TRY(gb_expect_context(context, inputs[i]));
  captures captured = { .grads = calloc((size_t)n_inputs + 1, sizeof *captured.grads) };
  int *first = calloc((size_t)n_inputs + 1, sizeof *first);
  gb_status status = captured.grads && first ? find_inputs(context, inputs, n_inputs, &captured.of, first)
                                             : gb_fail_memory(context, sizeof *captured.grads * (size_t)n_inputs);
  walk w = { .context = context, .retain_graph = retain_graph || create_graph, .create_graph = create_graph,
             .captures = &captured };
  if (status == GB_OK) status = walk_run(&w, tensors, gradients, n_tensors);
  for (int i = 0; status == GB_OK && i < n_inputs; i++) {
    if (first[i] < i) gb_tensor_retain(captured.grads[i] = captured.grads[first[i]]);
    if (!captured.grads[i] && !allow_unused)
      status = gb_fail(context, GB_EAUTOGRAD, "grad: input %d was not used to compute the outputs; pass "
                                              "allow_unused = true to get nil for it", i + 1);
  }
  for (int i = 0; i < n_inputs; i++) {
    if (status == GB_OK) grads[i] = captured.grads[i];
    else if (captured.grads) gb_tensor_release(captured.grads[i]);
  }
  gb_places_close(&captured.of);
  free(captured.grads);
  free(first);
  return status;
}

/* ====} */

gb_tensor *gb_tensor_grad(gb_tensor *tensor) {
  if (!tensor) return NULL;
  gb_tensor *grad = tensor->grad;
  if (tensor->slab) {
    gb_segment *segment = &tensor->slab->segments[tensor->segment];
    grad = segment->has_grad ? segment->grad : NULL;
  }
  if (grad) gb_tensor_retain(grad);
  return grad;
}

/* As in PyTorch, of the tensor's dtype; that of a 16-bit one may be float32 too, which an optimizer makes it anyway. */
static bool fits_grad(const gb_tensor *tensor, const gb_tensor *grad) {
  return grad->dtype == tensor->dtype || (gb_is_16bit((gb_dtype)tensor->dtype) && grad->dtype == GB_FLOAT32);
}

gb_status gb_tensor_set_grad(gb_tensor *tensor, gb_tensor *grad) {
  gb_context *context = gb_tensor_context(tensor);
  if (!tensor) return GB_EINVAL;
  if (grad) GB_TRY(gb_expect_context(context, grad));
  if (grad && (grad->ndim != tensor->ndim || memcmp(grad->shape, tensor->shape,
                                                    sizeof *grad->shape * (size_t)grad->ndim))) {
    char a[96], b[96];
    return gb_fail(context, GB_ESHAPE, "grad: the gradient has shape %s, the tensor %s",
                   gb_shape_text(grad->ndim, grad->shape, a, sizeof a),
                   gb_shape_text(tensor->ndim, tensor->shape, b, sizeof b));
  }
  if (grad && !fits_grad(tensor, grad))
    return gb_fail(context, GB_EDTYPE, "grad: the gradient is %s, the tensor %s; convert it with g:to('%s')",
                   gb_dtype_name((gb_dtype)grad->dtype),
                   gb_dtype_name((gb_dtype)tensor->dtype), gb_dtype_name((gb_dtype)tensor->dtype));
  if (tensor->slab) {
    gb_segment *segment = &tensor->slab->segments[tensor->segment];
    if (grad == segment->grad) { segment->has_grad = true; return GB_OK; }
    segment->has_grad = false;
    return grad ? accumulate_adopted(context, tensor, grad) : GB_OK;
  }
  if (grad) gb_tensor_retain(grad);
  gb_tensor_put_grad(tensor, grad);
  return GB_OK;
}

gb_status gb_tensor_set_requires_grad(gb_tensor *tensor, bool requires_grad) {
  gb_context *context = gb_tensor_context(tensor);
  if (!tensor) return GB_EINVAL;
  if (tensor->node) {
    if (requires_grad) return GB_OK;
    return gb_fail(context, GB_EAUTOGRAD, "requires_grad_: only a leaf can stop requiring gradients; use detach()");
  }
  if (requires_grad && !gb_dtype_is_float((gb_dtype)tensor->dtype))
    return gb_fail(context, GB_EDTYPE, "requires_grad_: only floating tensors have gradients, this one is %s",
                   gb_dtype_name((gb_dtype)tensor->dtype));
  tensor->requires_grad = requires_grad;
  tensor->was_leaf |= requires_grad;
  return GB_OK;
}
