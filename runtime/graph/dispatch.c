/* graph/dispatch.c - the one road of an op: autocast, check, kernel, record, observe. Only this file knows the way.
 *
 * A cast by autocast is not a graph node: the node's edge keeps the original input and the dtype it was cast to, and
 * the cast operand is what backward saves. Kernels of the float32 class read 16-bit inputs directly, so nothing is cast
 * for them. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph/autograd.h"
#include "graph/ops.h"
#include "graph/rules.h"

_Thread_local gb_running gb_running_here;

/* One op's way: the call, and what it needs to be recorded. */
typedef struct road {
  gb_op_call call;
  const gb_op_impl *impl;
  gb_tensor **cast;                      /* what autocast made of them, counted; NULL where unchanged */
  gb_tensor *cast_room[GB_MAX_IN], *in_room[GB_MAX_IN];
  gb_attr attrs[GB_MAX_ATTRS];
  gb_node *node;
  gb_rebase rebase;                      /* of a view that is changed in place: what its history will need */
} road;

/* {==== before the kernel ==== */

/* The source of a copy may lie on another device than what it goes to; lengths are known on the host, and libraries
 * want them there. */
static bool may_lie_elsewhere(const gb_op_call *call, int input) {
  switch (call->op) {
    case GB_OP_copy: return input == GB_IN_AT(copy, source);
    case GB_OP_rnn: return input == GB_IN_AT(rnn, lengths);
    case GB_OP_rnn_backward: return input == GB_IN_AT(rnn_backward, lengths);
    case GB_OP_ctc_loss:
      return input == GB_IN_AT(ctc_loss, input_lengths) || input == GB_IN_AT(ctc_loss, target_lengths);
    default: return false;
  }
}

/* Check that no loan was revoked, and that all tensors lie on one device. Numbers and 0-d CPU tensors may join any. */
static gb_status find_device(gb_op_call *call) {
  const gb_tensor *first = NULL;
  char a[24], b[24];
  call->device = (gb_device){ GB_CPU, 0 };
  for (int i = 0; i < call->n_in; i++) {
    const gb_tensor *t = call->in[i];
    if (t) GB_TRY(gb_expect_context(call->context, t));
    if (t) GB_TRY(gb_check_loan(t));
    if (!t || t->wrapped || may_lie_elsewhere(call, i) ||
        (t->ndim == 0 && t->storage->device.type == GB_CPU && call->n_in > 1)) continue;
    gb_device device = t->storage->device;
    if (first && (device.type != call->device.type || device.index != call->device.index))
      return gb_call_fail(call, GB_EDEVICE, "all tensors must be on one device, found %s and %s; move one with "
                                            "x:to(device)",
                          gb_device_text(call->context, call->device, a, sizeof a),
                              gb_device_text(call->context, device, b, sizeof b));
    if (!first) first = t, call->device = device;
  }
  if (!first)
    for (int i = 0; i < call->n_in; i++)
      if (call->in[i]) { call->device = call->in[i]->storage->device; break; }
  return GB_OK;
}

static gb_status check_inputs(gb_op_call *call) {
  const gb_op_info *info = call->info;
  if (info->list < 0 ? call->n_in != info->n_in : call->n_in < info->n_in)
    return gb_call_fail(call, GB_EINVAL, info->list < 0 ? "takes %d tensors, got %d (%s)"
                        : "needs at least %d tensors, got %d (%s)", info->n_in,
                        call->n_in, GB_SIGNATURE(info));
  for (int i = 0; i < call->n_in; i++)
    if (!call->in[i] && !gb_op_input(info, i)->optional)
      return gb_call_fail(call, GB_EINVAL, "'%s' is missing (%s)", gb_op_input(info, i)->name, GB_SIGNATURE(info));
  return find_device(call);
}

/* What every check takes for granted of a value. */
static bool is_sound(gb_arg_type type, const gb_attr *a) {
  if (type == GB_ARG_INTS || type == GB_ARG_DIMS) return a->count >= 0 && a->count <= GB_MAX_NDIM;
  if (type == GB_ARG_CHOICE) return a->count == 1 || a->text;
  if (type == GB_ARG_TEXT) return a->text;
  if (type == GB_ARG_DTYPE) return a->integer >= GB_DTYPE_NONE && a->integer < GB_DTYPE_COUNT;
  return true;
}

/* Are these n bytes of the text the word? It may be written with '-' for '_', as PyTorch's "nearest-exact". */
static bool spells(const char *text, const char *word, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (text[i] != word[i] && !(text[i] == '-' && word[i] == '_')) return false;
  return true;
}

/* A choice's text becomes its word. One that comes from another call's attributes is a word already. */
static gb_status choose(gb_op_call *call, const gb_attr_info *info, gb_attr *a) {
  char text[64];
  snprintf(text, sizeof text, "%s", a->count == 1 ? gb_word_text(a->integer) : a->text);
  size_t n = strlen(text);
  for (const char *at = info->choices; *at; at += strcspn(at, "|"), at += *at == '|')
    if (strcspn(at, "|") == n && spells(text, at, n)) {
      memcpy(text, at, n);
      *a = gb_attr_word(gb_word_find(text));
      return GB_OK;
    }
  char choices[160];
  size_t used = 0;
  for (const char *at = info->choices; *at; at += strcspn(at, "|"), at += *at == '|') {
    int length = (int)strcspn(at, "|");
    const char *join = used == 0 ? "" : at[length] ? ", " : " or ";
    used += (size_t)snprintf(choices + used, sizeof choices - used, "%s'%.*s'", join, length, at);
  }
  return gb_call_fail(call, GB_EINVAL, "%s '%s' is unknown; it is %s", info->name, text, choices);
}

/* "at least 0", or "above 0 and at most 1". */
static const char *rule_text(const gb_rule *rule, char *text, size_t size) {
  size_t at = 0;
  text[0] = 0;
  if (rule->least > -INFINITY)
    at = (size_t)snprintf(text, size, "%s %.14g", rule->above ? "above" : "at least", rule->least);
  if (rule->most < INFINITY)
    snprintf(text + at, size - at, "%s%s %.14g", at ? " and " : "", rule->below ? "below" : "at most", rule->most);
  return text;
}

/* Numbers within their bounds, NaN in none; one of INTS stands for all of them. */
static gb_status keep_rule(gb_op_call *call, const gb_attr_info *info, gb_attr *a) {
  const gb_rule *rule = &info->rule;
  bool list = info->type == GB_ARG_INTS;
  if (list && rule->count > 0 && a->given) {
    if (a->count != 1 && a->count != rule->count)
      return gb_call_fail(call, GB_EINVAL, "'%s' has %d values, it takes 1%s%.0d", info->name, a->count,
                          rule->count > 1 ? " or " : "",
                          rule->count > 1 ? rule->count : 0);
    for (; a->count < rule->count; a->count++) a->ints[a->count] = a->ints[0];
  }
  if (!(rule->least > -INFINITY || rule->most < INFINITY) || !a->given) return GB_OK;
  for (int i = 0; i < (list ? a->count : 1); i++) {
    double value = info->type == GB_ARG_NUMBER ? a->number : list ? (double)a->ints[i] : (double)a->integer;
    bool least = rule->above ? value > rule->least : value >= rule->least,
        most = rule->below ? value < rule->most : value <= rule->most;
    char text[80], is[40];
    gb_attr number = info->type == GB_ARG_NUMBER ? *a : gb_attr_whole(list ? a->ints[i] : a->integer);
    if (!least || !most)
      return gb_call_fail(call, GB_EINVAL, "'%s' is %s, it must be %s", info->name,
                          gb_number_text(&number, is, sizeof is), rule_text(rule, text, sizeof text));
  }
  return GB_OK;
}

/* Is a word given where there could be integers? */
static bool is_word_for_ints(const gb_attr_info *info, const gb_attr *a) {
  return info->type == GB_ARG_INTS && info->choices && a->count == 0 && a->exact;
}

/* The word in `exact`, beside zeros. */
static gb_status choose_for_ints(gb_op_call *call, const gb_attr_info *info, gb_attr *a) {
  const int64_t zeros[GB_MAX_NDIM] = { 0 };
  gb_attr word = gb_attr_word(GB_WORD_UNKNOWN);
  word.integer = a->exact;
  GB_TRY(choose(call, info, &word));
  *a = gb_attr_ints(info->rule.count, zeros);
  a->exact = word.integer;
  return GB_OK;
}

static gb_status fill_attrs(road *r, const gb_attr *given) {
  gb_op_call *call = &r->call;
  const gb_op_info *info = call->info;
  call->attrs = r->attrs;
  for (int i = 0; i < info->n_attrs; i++) {
    const gb_attr_info *attr = &info->attrs[i];
    bool own = given && given[i].given;
    r->attrs[i] = own ? given[i] : attr->preset;
    if (!own && attr->required)
      return gb_call_fail(call, GB_EINVAL, "'%s' is missing (%s)", attr->name, GB_SIGNATURE(info));
    if (!own && attr->rule.count == 0) continue;
    if (!own && attr->required) return gb_call_fail(call, GB_EINVAL, "'%s' is missing", attr->name);
    if (own && !is_sound(attr->type, &given[i]))
      return gb_call_fail(call, GB_EINVAL, "'%s' is no value of its type (%s)", attr->name, GB_SIGNATURE(info));
    if (own && attr->type == GB_ARG_CHOICE) GB_TRY(choose(call, attr, &r->attrs[i]));
    if (own && is_word_for_ints(attr, &given[i])) GB_TRY(choose_for_ints(call, attr, &r->attrs[i]));
    GB_TRY(keep_rule(call, attr, &r->attrs[i]));
  }
  return GB_OK;
}

/* Does somebody keep a copy of x in this dtype? */
static bool has_copy(const gb_context *context, const gb_tensor *x, gb_dtype dtype) {
  const gb_weight_keeper *weights = context->graph->weights;
  return gb_is_16bit(dtype) && weights && weights->keeps(x);
}

/* Run the cast kernel, or take the weight's kept copy; neither leaves a node. */
static gb_status cast_input(gb_context *context, gb_tensor *x, gb_dtype dtype, gb_tensor **out) {
  if (has_copy(context, x, dtype)) return context->graph->weights->copy(context, x, dtype, out);
  bool grad = gb_set_grad_enabled(context, false);
  gb_status status = gb_op_cast(context, x, dtype, out);
  gb_set_grad_enabled(context, grad);
  return status;
}

/* Apply the row's class: casts for lower and widest, the result's dtype for float32, an error for banned. */
static gb_status autocast(road *r) {
  gb_op_call *call = &r->call;
  gb_modes *modes = call->context->modes;
  gb_autocast_plan plan;
  GB_TRY(gb_autocast_rule(call, modes->lower, &plan));
  call->result = plan.result;
  if (plan.cast == GB_DTYPE_NONE) return GB_OK;
  gb_op_call *outer = call->context->graph->casting;
  modes->autocast = false; /* the cast itself runs untouched */
  call->context->graph->casting = call;
  gb_status status = GB_OK;
  for (int i = 0; status == GB_OK && i < call->n_in; i++) {
    gb_tensor *x = call->in[i];
    if (!gb_autocast_eligible(x) || x->dtype == plan.cast || (call->in_place && i == 0)) continue;
    status = call->composite ? gb_op_cast(call->context, x, plan.cast, &r->cast[i])
                          : cast_input(call->context, x, plan.cast, &r->cast[i]);
    if (status == GB_OK) call->in[i] = r->cast[i];
  }
  modes->autocast = true;
  call->context->graph->casting = outer;
  return status;
}

/* Bring the source of a copy to where it goes. Numbers stay. */
static gb_status fetch_source(road *r) {
  gb_op_call *call = &r->call;
  gb_tensor *source = call->in[1], *here;
  gb_device device = source->storage->device;
  if (source->wrapped || (device.type == call->device.type && device.index == call->device.index)) return GB_OK;
  GB_TRY(gb_tensor_on(source, call->device, &here));
  gb_tensor_release(r->cast[1]);
  call->in[1] = r->cast[1] = here;
  return GB_OK;
}

/* A copy that is part of no graph. */
static gb_status clone_plain(gb_context *context, gb_tensor *x, gb_tensor **out) {
  bool grad = gb_set_grad_enabled(context, false);
  gb_status status = GB_RUN(context, clone, out, .x = x);
  gb_set_grad_enabled(context, grad);
  return status;
}

/* An in-place op may not read its destination through another view: such inputs are copied first. So are those of the
 * same view where a kernel takes several passes: clamp by tensors, and indices. */
static gb_status separate_aliases(road *r) {
  gb_op_call *call = &r->call;
  const gb_tensor *to = call->in[0];
  for (int i = 1; i < call->n_in; i++) {
    gb_tensor *x = call->in[i];
    if (!x || x->storage != to->storage) continue;
    bool same = x->offset == to->offset && x->ndim == to->ndim &&
        !memcmp(x->shape, to->shape, sizeof *x->shape * (size_t)x->ndim) &&
                !memcmp(x->stride, to->stride, sizeof *x->stride * (size_t)x->ndim);
    if (same && strcmp(call->info->family, "index") && call->op != GB_OP_clamp) continue;
    gb_tensor *copy;
    GB_TRY(clone_plain(call->context, x, &copy));
    gb_drop(&r->cast[i]);
    call->in[i] = r->cast[i] = copy;
  }
  return GB_OK;
}

/* ====} */

/* {==== record ==== */

/* In place, a row without a derivative is recorded too: the gradient of what it wrote over is zero. */
static gb_status no_gradient(gb_grad_call *grad) { return grad->need[0]
                                                   ? gb_op_zeros_like(grad->context, grad->out[0], &grad->in[0])
    : GB_OK; }

static bool wants_gradient(const road *r) {
  const gb_op_call *call = &r->call;
  if (!call->context->modes->grad) return false;
  if (call->in_place && !gb_dtype_is_float((gb_dtype)r->call.original[0]->dtype)) return false;
  if (call->info->derivative == GB_DERIVATIVE_NO) return call->in_place && gb_tensor_in_graph(r->call.original[0]);
  for (int i = 0; i < call->n_in; i++)
    if (r->call.original[i] && gb_is_float(r->call.original[i]->dtype) && gb_tensor_in_graph(r->call.original[i]))
      return true;
  return false;
}

/* Gradients are off: note that this op would have been recorded, for callers that must know what such a pass depends
 * on. */
static void note_untracked(const road *r) {
  for (int i = 0; i < r->call.n_in; i++)
    if (r->call.original[i] && gb_tensor_in_graph(r->call.original[i])) r->call.context->graph->untracked = true;
}

static bool other_needs(const road *r, int input) {
  for (int i = 0; i < r->call.n_in; i++)
    if (i != input && r->call.original[i] && gb_tensor_in_graph(r->call.original[i])) return true;
  return false;
}

/* Keep input i for backward: a weight by itself (its copy is found again), what will be written over as a copy,
 * anything else as an alias (a leaf too, since its storage may be exchanged before backward). */
static gb_status save_input(road *r, int i) {
  gb_saved *saved = &r->node->saved[i];
  gb_tensor *x = r->call.original[i], *operand = r->call.in[i];
  saved->version = gb_tensor_version(x);
  if (r->cast[i] && has_copy(r->call.context, x, (gb_dtype)operand->dtype)) {
    saved->kind = GB_SAVED_WEIGHT;
    saved->dtype = operand->dtype;
    saved->tensor = x;
    gb_tensor_retain(x);
    return GB_OK;
  }
  saved->kind = GB_SAVED_INPUT;
  if (r->cast[i]) saved->version = gb_tensor_version(operand);
  if (r->call.in_place && i == 0) {
    GB_TRY(clone_plain(r->call.context, x, &saved->tensor));
    saved->version = gb_tensor_version(saved->tensor);
  } else GB_TRY(gb_tensor_detach(operand, &saved->tensor));
  gb_storage_hold(saved->tensor->storage);
  return GB_OK;
}

/* Make the node before the kernel runs, so that a failure leaves nothing half done: edges and saved inputs. */
static gb_status make_node(road *r) {
  gb_op_call *call = &r->call;
  int n = call->n_in;
  r->node = gb_node_new(call->context, call->op, n, call->info->n_out - call->info->n_hidden, n + call->info->n_out,
                        call->info->n_attrs);
  if (!r->node) return call->context->error_code;
  r->node->gradient = call->info->derivative == GB_DERIVATIVE_NO ? no_gradient : r->impl->gradient;
  memcpy(r->node->attrs, r->attrs, sizeof *r->attrs * (size_t)call->info->n_attrs);
  for (int i = 0; i < n; i++) {
    gb_tensor *x = r->call.original[i];
    if (!x) continue;
    gb_node_edge(r->node, i, x, (gb_dtype)call->in[i]->dtype);
    int list = call->info->list;
    bool save = (r->impl->save_in >> (list >= 0 && i > list ? list : i)) & 1u;
    if (save && (!r->impl->save_other || other_needs(r, i))) GB_TRY(save_input(r, i));
  }
  return GB_OK;
}

/* Keep the outputs that backward needs as aliases: the node must not own its own result. */
static gb_status save_outputs(road *r) {
  gb_op_call *call = &r->call;
  for (int i = 0; i < call->info->n_out; i++) {
    gb_saved *saved = &r->node->saved[call->n_in + i];
    if (!call->out[i] || !((r->impl->save_out >> i) & 1u)) continue;
    GB_TRY(gb_tensor_detach(call->out[i], &saved->tensor));
    saved->kind = GB_SAVED_OUTPUT;
    gb_storage_hold(saved->tensor->storage);
  }
  return GB_OK;
}

/* In place, nothing may fail once the kernel has written, or values and history would differ. So allocate what the
 * record needs before. */
static gb_status reserve_in_place(road *r) {
  GB_TRY(save_outputs(r));
  return gb_rebase_reserve(&r->rebase, &r->call, r->call.original[0]);
}

/* Attach the outputs to the node. */
static gb_status record(road *r) {
  gb_op_call *call = &r->call;
  gb_node *node = r->node;
  node->rng_seed = call->rng_seed;
  node->rng_offset = call->rng_offset;
  if (!call->in_place) GB_TRY(save_outputs(r));
  for (int i = 0; i < call->info->n_out; i++) {
    gb_tensor *y = call->out[i];
    if (!y) continue;
    if (node->saved[call->n_in + i].kind != GB_SAVED_NONE) node->saved[call->n_in + i].version = gb_tensor_version(y);
    if (i < node->n_out && !call->in_place && gb_is_float(y->dtype)) gb_node_output(node, i, y);
  }
  if (call->in_place) gb_inplace_record(r->call.original[0], node, &r->rebase);
  return GB_OK;
}

/* ====} */

static gb_status observe(const gb_op_call *call) {
  for (gb_observer *o = call->context->graph->observers; o; o = o->next)
    if (o->op) GB_TRY(o->op(o->user, call));
  return GB_OK;
}

/* Every given output is one that the op writes, and no graph is to know of it. */
static gb_status check_given(const gb_op_call *call) {
  int visible = call->given ? call->info->n_out - call->info->n_hidden : 0;
  for (int i = 0; i < visible; i++)
    if (call->given[i] && (call->given[i] != call->out[i] || call->info->kind == GB_KIND_VIEW))
      return gb_call_fail(call, GB_EINVAL, "does not write its output %d, for which a tensor is given", i + 1);
  return GB_OK;
}

/* Success or not, memory was written. */
static void bump_written(const gb_op_call *call) {
  if (call->in_place) gb_tensor_bump(call->in[0]);
  if (call->in_place && (call->op == GB_OP_copy || call->op == GB_OP_fill))
    gb_recompute_wrote(call->context, call->in[0]);
  int visible = call->given ? call->info->n_out - call->info->n_hidden : 0;
  for (int i = 0; i < visible; i++)
    if (call->given[i]) gb_tensor_bump(call->given[i]);
}

/* Does the kernel read the values of input i? In place it may read its target, but what it does then is done anew each
 * time; a batch norm in training moves its running statistics along, which change no result. */
static bool reads_input(const gb_op_call *call, int i) {
  if (call->in_place && i == 0) return false;
  if (call->op != GB_OP_batch_norm || !GB_ATTRS(call, batch_norm)->training.integer) return true;
  return i != GB_IN_AT(batch_norm, running_mean) && i != GB_IN_AT(batch_norm, running_var);
}

/* Parts of the forward pass that recompute runs want to know what they read. */
static gb_status note_reads(const gb_op_call *call) {
  for (int i = 0; i < call->n_in; i++) {
    const gb_tensor *x = call->original[i];
    if (x && !x->wrapped && reads_input(call, i)) GB_TRY(gb_recompute_note(call->context, x));
  }
  return GB_OK;
}

/* Run the op itself. Composites run other ops; a view is its check; the rest have a kernel. */
static gb_status run(road *r) {
  gb_op_call *call = &r->call;
  gb_context *context = call->context;
  if (call->composite) {
    bool on = call->autocast = context->modes->autocast;
    gb_op_call *outer = context->graph->composite;
    if (!outer) context->graph->composite = call;
    context->modes->autocast = false;
    gb_status status = r->impl->compose(call);
    context->modes->autocast = on;
    context->graph->composite = outer;
    return status;
  }
  GB_TRY(r->impl->check(call));
  GB_TRY(check_given(call));
  if (call->info->kind == GB_KIND_VIEW) return GB_OK;
  if (call->in_place && r->node) GB_TRY(reserve_in_place(r));
  gb_backend *backend = gb_context_backend(context, call->device);
  if (!backend || !backend->run[call->op]) {
    char text[24];
    return gb_call_fail(call, GB_EUNSUPPORTED, "device %s has no kernel for this op; move the tensors to 'cpu'",
                        gb_device_text(context, call->device, text, sizeof text));
  }
  gb_running outer = gb_running_here;
  gb_running_here = (gb_running){ call, 0 };
  gb_status status = backend->run[call->op](call);
  gb_running_here = outer;
  if (atomic_load_explicit(&call->stopped, memory_order_relaxed))
    status = gb_fail(context, GB_EINTERRUPT, "interrupted");
  bump_written(call);
  return status;
}

/* Composites in place: compute, then round into the destination. */
static gb_status copy_back(road *r) {
  gb_op_call *call = &r->call;
  gb_tensor *result = call->out[0];
  call->out[0] = NULL;
  gb_status status = gb_call_fits_in_place(call, (gb_dtype)result->dtype);
  if (status == GB_OK)
    status = gb_apply_(call->context, GB_OP_copy, (gb_tensor *[]){ call->in[0], result }, 2, NULL);
  gb_tensor_release(result);
  return status;
}

/* In place the result has its tensor's dtype, so no other one may be asked for. */
static gb_status check_dtype_in_place(gb_op_call *call) {
  for (int i = 0; i < call->info->n_attrs; i++) {
    const gb_attr *dtype = &call->attrs[i];
    if (call->info->attrs[i].type != GB_ARG_DTYPE || !dtype->given || dtype->integer == (*call->in)->dtype)
      continue;
    return gb_call_fail(call, GB_EDTYPE, "in place, the result is %s as the tensor, but %s is '%s'; leave it out, or "
                                         "use the form without '_'",
                        gb_dtype_name((gb_dtype)(*call->in)->dtype), call->info->attrs[i].name,
                        gb_dtype_name((gb_dtype)dtype->integer));
  }
  return GB_OK;
}

static gb_status travel(road *r, const gb_attr *attrs) {
  gb_op_call *call = &r->call;
  gb_context *context = call->context;
  GB_TRY(check_inputs(call));
  GB_TRY(fill_attrs(r, attrs));
  call->composite = call->info->kind == GB_KIND_COMPOSITE || (r->impl->composed && r->impl->composed(call));
  if (context->modes->autocast) GB_TRY(autocast(r));
  /* kernels read the values of the inputs, as autocast left them, or write them */
  bool touches = !call->composite && call->info->kind != GB_KIND_VIEW, grad = context->modes->grad;
  for (int i = 0; i < call->n_in; i++) {
    gb_tensor *x = call->in[i], *original = r->call.original[i];
    if (touches && x && x->storage->away != GB_HERE) GB_TRY(gb_touch_values(x));
    if (grad && original && original->base) GB_TRY(gb_view_refresh(original));
  }
  if (touches && context->graph->reads) GB_TRY(note_reads(call));
  if (call->op == GB_OP_copy) GB_TRY(fetch_source(r));
  if (!context->modes->grad && !context->graph->untracked) note_untracked(r);
  bool composite = call->composite;
  call->needs_grad = !composite && wants_gradient(r);
  if (call->given && (composite || call->needs_grad))
    return gb_call_fail(call, GB_EINVAL, composite ? "runs other ops, and cannot write into a given output"
                                                   : "writes into a given output, which no graph records; call it "
                                                     "under no_grad");
  if (call->in_place) {
    GB_TRY(check_dtype_in_place(call));
    GB_TRY(gb_inplace_prepare(call, r->call.original[0]));
    if (!composite) GB_TRY(separate_aliases(r));
  }
  if (call->needs_grad) {
    if (!r->impl->gradient && call->info->derivative != GB_DERIVATIVE_NO)
      return gb_call_fail(call, GB_EAUTOGRAD, "has no gradient; call it under no_grad or detach its inputs");
    GB_TRY(make_node(r));
  }
  GB_TRY(run(r));
  if (composite && call->in_place) GB_TRY(copy_back(r));
  if (r->node) GB_TRY(record(r));
  return context->graph->observers ? observe(call) : GB_OK;
}

/* Run the op, give the visible outputs to the caller, and release everything else. */
static gb_status apply(gb_context *context, gb_op op, gb_tensor *const *in, int n_in, const gb_attr *attrs,
                       gb_tensor *const *given,
                       gb_tensor **out, bool in_place) {
  if (!context || op < 0 || op >= GB_OP_COUNT || n_in < 0 || (n_in && !in))
    return gb_refuse(context, "apply: there is no such op, or the inputs are NULL");
  const char *outer;
  const gb_op_info *info = &context->graph->infos[op];
  gb_status status = gb_run_begin(context, info->name, &outer);
  if (status != GB_OK) {
    gb_run_end(context, outer);
    return status;
  }
  road r;
  r.call = (gb_op_call){ .context = context, .info = info, .op = op, .n_in = n_in, .n_out = info->n_out, .original = in,
                      .given = given, .result = GB_DTYPE_NONE, .in_place = in_place };
  r.impl = context->graph->impl[op];
  r.node = NULL;
  r.rebase = (gb_rebase){ NULL, NULL };
  r.call.in = r.in_room;
  r.cast = r.cast_room;
  gb_block *room = NULL; /* lists of tensors may be longer than the room on the stack */
  if (!r.impl) status = gb_fail(context, GB_EUNSUPPORTED, "is not built in");
  if (n_in > GB_MAX_IN) {
    room = gb_context_alloc(context, (gb_device){ GB_CPU, 0 }, 2 * sizeof(gb_tensor *) * (size_t)n_in, GB_MEM_SCRATCH);
    if (room) r.call.in = gb_block_data(room), r.cast = r.call.in + n_in;
    else status = context->error_code;
  }
  if (status == GB_OK) {
    if (n_in) memcpy(r.call.in, in, sizeof *in * (size_t)n_in);
    if (n_in) memset(r.cast, 0, sizeof *r.cast * (size_t)n_in);
    status = travel(&r, attrs);
    for (int i = 0; i < n_in; i++)
      if (r.cast[i]) gb_tensor_release(r.cast[i]);
  }
  if (r.node) gb_node_release(r.node);
  gb_rebase_end(&r.rebase);
  int visible = info->n_out - info->n_hidden;
  for (int i = 0; i < info->n_out; i++) {
    if (status == GB_OK && i < visible && out) out[i] = r.call.out[i];
    else gb_tensor_release(r.call.out[i]);
  }
  if (room) gb_pool_free(context->pool[GB_CPU], room);
  gb_run_end(context, outer);
  return status;
}

gb_status gb_apply(gb_context *context, gb_op op, gb_tensor *const *in, int n_in, const gb_attr *attrs,
                   gb_tensor **out) {
  return apply(context, op, in, n_in, attrs, NULL, out, false);
}

gb_status gb_apply_out(gb_context *context, gb_op op, gb_tensor *const *in, int n_in, const gb_attr *attrs,
                       gb_tensor *const *given, gb_tensor **out) {
  return apply(context, op, in, n_in, attrs, given, out, false);
}

gb_status gb_apply_(gb_context *context, gb_op op, gb_tensor *const *in, int n_in, const gb_attr *attrs) {
  return apply(context, op, in, n_in, attrs, NULL, NULL, true);
}

/* {==== arguments by name ==== */

gb_status gb_run(gb_context *context, gb_op op, const void *arguments, gb_tensor **out) {
  return gb_run_out(context, op, arguments, NULL, out);
}

gb_status gb_run_out(gb_context *context, gb_op op, const void *arguments, gb_tensor *const *given, gb_tensor **out) {
  const gb_op_info *info = gb_op_get(context, op);
  const char *at = arguments;
  if (info->inputs_first) /* they lie there as apply wants them */
    return apply(context, op, arguments, info->n_in, (const void *)(at + sizeof(gb_tensor *) * (size_t)info->n_in),
                 given, out, !out);
  gb_tensor *in[GB_MAX_IN], *const *list = NULL;
  gb_attr attrs[GB_MAX_ATTRS];
  int n_in = 0, n_attrs = 0, count = 0;
  for (const gb_item *item = info->items; item->kind != GB_ITEM_END; item++) {
    if (item->kind == GB_ITEM_IN) memcpy(&in[n_in++], at, sizeof *in), at += sizeof *in;
    else if (item->kind == GB_ITEM_LIST) memcpy(&list, at, sizeof list), at += sizeof list;
    else if (item->kind == GB_ITEM_ATTR) memcpy(&attrs[n_attrs++], at, sizeof *attrs), at += sizeof *attrs;
  }
  memcpy(&count, at, sizeof count);
  if (info->list < 0) return apply(context, op, in, n_in, attrs, given, out, !out);
  if (count < 0 || count > INT_MAX / 2 || (count && !list))
    return gb_fail(context, GB_EINVAL, "%s: the list is NULL, or .count, %d, is out of range", info->name, count);
  gb_block *room = gb_context_alloc(context, (gb_device){ GB_CPU, 0 }, sizeof *in * (size_t)(n_in + count),
                                    GB_MEM_SCRATCH);
  if (!room) return context->error_code;
  gb_tensor **all = gb_block_data(room);
  for (int i = 0; i < n_in; i++) all[i] = in[i];
  for (int i = 0; i < count; i++) all[n_in + i] = list[i];
  gb_status status = apply(context, op, all, n_in + count, attrs, given, out, !out);
  gb_pool_free(context->pool[GB_CPU], room);
  return status;
}

gb_status gb_run_arguments(gb_context *context, int32_t *op, const char *name, const char *row, const void *arguments,
                           gb_tensor **out) {
  if (!context || !op || !name || !row || !arguments) return gb_refuse(context, "GB_RUN: an argument is NULL");
  int32_t known = __atomic_load_n(op, __ATOMIC_RELAXED); /* from 1 */
  if (known == 0) {
    gb_op id = gb_op_named(name);
    if (id < 0)
      return gb_fail(context, GB_EUNSUPPORTED, "this engine has no op '%s'; compile with its own gibbous_ops.h", name);
    if (strcmp(gb_op_get(context, id)->row, row))
      return gb_fail(context, GB_EUNSUPPORTED, "%s has other arguments in this engine (%s) than in the "
                                               "gibbous_ops.h that the caller was compiled with",
                     name, GB_SIGNATURE(gb_op_get(context, id)));
    __atomic_store_n(op, known = id + 1, __ATOMIC_RELAXED);
  }
  if (known < 0 || known > GB_OP_COUNT)
    return gb_fail(context, GB_EINVAL, "%s: the caller keeps %d as its id, which no op has; it begins as 0", name,
                   (int)known);
  return gb_run(context, known - 1, arguments, out);
}

/* ====} */
