/* watch/audit.c - see audit.h. Order within: memory, numbers, places of nodes, rows, life. */
#include "watch/audit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph/rules.h"
#include "step/weights.h"
#include "step/optim.h"
#include "step/passes.h"
#include "watch/room.h"

enum { PENDING = 256 };      /* results of the op numerics that lie on devices at once */

/* From the node with number `first` on, nodes were made there. */
typedef struct place { uint64_t first; int32_t module; char line[96]; } place;

/* Counted on a device, to be read. top: the largest element of a forward result, or NULL. */
typedef struct pending { int32_t numbers; gb_tensor *counts, *range, *top; } pending;

/* The scale of gradients with a tag: a tensor of the scaler, and its value once it was read. */
typedef struct scale { gb_grad_tag tag; gb_tensor *tensor; double value; } scale;

/* Counted memory that grows by doubling; items of one size. */
typedef struct list { void *items; size_t count, capacity; } list;

struct gb_audit {
  gb_context *context;       /* counted */
  gb_observer observer;
  int32_t module;
  gb_dtype format;           /* what results of 32 and 64 bits are asked about: the dtype of the last scope */
  list rows, numbers, places, pending, scales;
};

/* {==== memory ==== */

/* The next item of a list, zeroed and counted in; NULL: no memory. */
static void *append(gb_audit *audit, list *l, size_t size) {
  if (l->count == l->capacity) {
    size_t capacity = l->capacity ? 2 * l->capacity : 16;
    void *longer = gb_counted_resize(audit->context, l->items, capacity * size);
    if (!longer) return NULL;
    l->items = longer;
    l->capacity = capacity;
  }
  return memset((char *)l->items + l->count++ * size, 0, size);
}

static void *last(const list *l, size_t size) { return l->count ? (char *)l->items + (l->count - 1) * size : NULL; }

/* ====} */

/* {==== numbers ==== */

static gb_audit_numbers *numbers_at(const gb_audit *audit,
                                    int32_t at) { return (gb_audit_numbers *)audit->numbers.items + at; }

static void drop_pending(pending *p) {
  gb_tensor_release(p->counts);
  gb_tensor_release(p->range);
  gb_tensor_release(p->top);
}

/* Add what was counted once; waits for the device. */
static gb_status fold(gb_audit *audit, const pending *p) {
  int64_t counts[GB_NUMERICS_COUNTS];
  double range[GB_NUMERICS_RANGE], top = 0;
  GB_TRY(gb_tensor_read(p->counts, counts, sizeof counts));
  GB_TRY(gb_tensor_read(p->range, range, sizeof range));
  if (p->top) GB_TRY(gb_tensor_item(p->top, &top, NULL));
  gb_audit_numbers *n = numbers_at(audit, p->numbers);
  for (int i = 0; i < GB_NUMERICS_COUNTS; i++) n->counts[i] += counts[i];
  if (range[GB_NUMERICS_AMAX] > n->range[GB_NUMERICS_AMAX]) n->range[GB_NUMERICS_AMAX] = range[GB_NUMERICS_AMAX];
  double least = range[GB_NUMERICS_AMIN];
  if (least > 0 && (n->range[GB_NUMERICS_AMIN] == 0 || least < n->range[GB_NUMERICS_AMIN]))
    n->range[GB_NUMERICS_AMIN] = least;
  n->plus |= counts[GB_NUMERICS_NAN] > 0 || top == INFINITY;
  return GB_OK;
}

/* Read all that devices have counted. What fails is not tried again. */
static gb_status fold_all(gb_audit *audit) {
  gb_status status = GB_OK;
  pending *waiting = audit->pending.items;
  for (size_t i = 0; i < audit->pending.count; i++) {
    if (status == GB_OK) status = fold(audit, &waiting[i]);
    drop_pending(&waiting[i]);
  }
  audit->pending.count = 0;
  return status;
}

/* Count t's elements into the numbers at `at`; signs: its largest element too. */
static gb_status count(gb_audit *audit, int32_t at, gb_tensor *t, bool signs) {
  pending p = { .numbers = at };
  gb_tensor *out[GB_MAX_OUT] = { NULL };
  gb_attr format = gb_attr_int(numbers_at(audit, at)->format);
  GB_TRY(gb_apply(audit->context, GB_OP_numerics, &t, 1, &format, out));
  p.counts = out[0], p.range = out[1];
  gb_status status = signs ? GB_RUN(audit->context, amax, &p.top, .x = t) : GB_OK;
  if (status == GB_OK && t->storage->device.type == GB_CPU) status = fold(audit, &p);
  else if (status == GB_OK) {
    if (audit->pending.count >= PENDING) status = fold_all(audit);
    pending *kept = status == GB_OK ? append(audit, &audit->pending, sizeof p) : NULL;
    if (kept) {
      *kept = p;
      return GB_OK;
    }
    if (status == GB_OK) status = audit->context->error_code;
  }
  drop_pending(&p);
  return status;
}

/* Count t beneath the step. *at: -1, or the place to add to. */
static gb_status examine(gb_audit *audit, int32_t *at, gb_tensor *t, gb_dtype format, bool signs) {
  gb_context *context = audit->context;
  if (!t || t->numel == 0 || !gb_dtype_is_float((gb_dtype)t->dtype)) return GB_OK;
  if (*at < 0) {
    gb_audit_numbers *fresh = append(audit, &audit->numbers, sizeof *fresh);
    if (!fresh) return context->error_code;
    fresh->dtype = t->dtype;
    fresh->format = (int8_t)format;
    *at = (int32_t)(audit->numbers.count - 1);
  }
  bool untracked = context->graph->untracked;
  gb_beneath beneath;
  gb_beneath_begin(context, &beneath);
  gb_status status = count(audit, *at, t, signs);
  gb_beneath_end(context, &beneath);
  context->graph->untracked = untracked;
  if (status == GB_OK) numbers_at(audit, *at)->numel += t->numel;
  return status;
}

/* The format that numbers of this dtype are checked against: a 16-bit dtype itself, others the scopes'. */
static gb_dtype format_for(const gb_audit *audit, gb_dtype dtype) { return gb_is_16bit(dtype) ? dtype : audit->format; }

/* ====} */

/* {==== where nodes were made ==== */

/* Nodes from now on, this call's included, are of this module and line. */
static gb_status note_place(gb_audit *audit, const gb_op_call *call, const char *line) {
  const place *now = last(&audit->places, sizeof *now);
  if (now && now->module == audit->module && !strcmp(now->line, line)) return GB_OK;
  const gb_tensor *result = gb_call_result(call);
  bool recorded = call->needs_grad && result && result->node;
  place *p = append(audit, &audit->places, sizeof *p);
  if (!p) return audit->context->error_code;
  p->first = recorded ? result->node->sequence : audit->context->graph->sequence;
  p->module = audit->module;
  snprintf(p->line, sizeof p->line, "%s", line);
  return GB_OK;
}

/* Where the node with this number was made; NULL: before the audit. */
static const place *place_of(const gb_audit *audit, uint64_t sequence) {
  const place *places = audit->places.items;
  size_t low = 0, high = audit->places.count; /* those before low begin at most at sequence, those from high on after
                                                 it */
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (places[middle].first <= sequence) low = middle + 1;
    else high = middle;
  }
  return low ? &places[low - 1] : NULL;
}

/* ====} */

/* {==== what a call is ==== */

/* Into zeroed room, padding included: keys are compared as bytes. */
static gb_audit_tensor *describe_tensor(gb_audit_tensor *r, const gb_tensor *t, const gb_tensor *original) {
  r->before = original->dtype;
  r->after = t->dtype;
  r->ndim = t->ndim;
  memcpy(r->shape, t->shape, sizeof *r->shape * (size_t)t->ndim);
  return r;
}

/* The caller's input to the composite, if its part got a cast of it; else the part's own original. */
static const gb_tensor *original_of(const gb_op_call *call, int i) {
  const gb_op_call *around = call->context->graph->composite;
  for (int k = 0; around && k < around->n_in; k++)
    if (around->in[k] == call->in[i] && around->original[k] != call->in[i]) return around->original[k];
  return call->original[i];
}

static void describe_tensors(const gb_op_call *call, gb_audit_key *key) {
  for (int i = 0; i < call->n_in && key->n_in < GB_MAX_IN; i++) {
    if (!call->in[i] || call->in[i]->wrapped) continue;
    const gb_tensor *original = original_of(call, i);
    describe_tensor(&key->in[key->n_in++], call->in[i], original)->weight = gb_weight_is_cached(original);
  }
  for (int i = 0; i < call->info->n_out - call->info->n_hidden; i++)
    if (call->out[i]) describe_tensor(&key->out[key->n_out++], call->out[i], call->out[i]);
}

/* Did the caller name the dtype of what the op gives? */
static bool names_dtype(const gb_op_call *call) {
  if (call->op == GB_OP_cast) return true;
  for (int i = 0; i < call->info->n_attrs; i++)
    if (call->info->attrs[i].type == GB_ARG_DTYPE && !call->info->attrs[i].required && call->attrs[i].given)
      return true;
  return false;
}

/* The number of the scale that gradients with this tag carry; kept from the node of scale_loss, the first that has
 * it. */
static gb_status scale_of(gb_audit *audit, const gb_walk_place *at, int32_t *out) {
  const scale *known = audit->scales.items;
  *out = 0;
  if (!at->tag.scaler || at->settling) return GB_OK; /* on the way into a sum a scaler per loss takes its scale away */
  for (size_t i = 0; i < audit->scales.count; i++)
    if (known[i].tag.scaler == at->tag.scaler && known[i].tag.update == at->tag.update) {
      *out = (int32_t)i + 1;
      return GB_OK;
    }
  if (!at->node || at->node->op != GB_OP_scale_loss) return GB_OK;
  gb_tensor *tensor = at->node->saved[GB_IN_AT(scale_loss, scale)].tensor;
  if (!tensor) return GB_OK;
  scale *s = append(audit, &audit->scales, sizeof *s);
  if (!s) return audit->context->error_code;
  s->tag = at->tag;
  gb_tensor_retain(s->tensor = tensor);
  *out = (int32_t)audit->scales.count;
  return GB_OK;
}

static gb_status describe_backward(gb_audit *audit, const gb_walk_place *at, gb_audit_key *key) {
  const gb_node *node = at->node;
  key->phase = GB_AUDIT_BACKWARD;
  key->settling = at->settling;
  key->hook = at->hook;
  GB_TRY(scale_of(audit, at, &key->scale));
  if (!node) return GB_OK;
  snprintf(key->of, sizeof key->of, "%s", gb_node_name(node) ? gb_node_name(node) : "");
  const place *made = place_of(audit, node->sequence);
  key->module = made ? made->module : 0;
  snprintf(key->line, sizeof key->line, "%s", made ? made->line : "");
  return GB_OK;
}

/* What keys of every kind have: where it ran, and under what. */
static void describe_place(const gb_audit *audit, int32_t op, const char *line, bool autocast, gb_audit_key *key) {
  const gb_context *context = audit->context;
  memset(key, 0, sizeof *key);
  key->op = op;
  key->module = audit->module;
  snprintf(key->line, sizeof key->line, "%s", line);
  key->lower = (int8_t)(autocast ? context->modes->lower : GB_DTYPE_NONE);
  key->tf32 = context->tf32;
}

static gb_status describe(gb_audit *audit, const gb_op_call *call, const char *line, gb_audit_key *key) {
  const gb_context *context = audit->context;
  const gb_op_call *whole = context->graph->composite ? context->graph->composite : call;
  const gb_walk_place *at = context->graph->backward;
  bool on = context->graph->composite ? whole->autocast : context->modes->autocast;
  describe_place(audit, call->op, line, on, key);
  if (whole != call) snprintf(key->of, sizeof key->of, "%s", whole->info->name);
  key->named = names_dtype(call);
  key->in_place = call->in_place;
  describe_tensors(call, key);
  gb_products_of(call, &key->products);
  if (at && context->modes->recompute) key->phase = GB_AUDIT_RECOMPUTE;
  else if (at) return describe_backward(audit, at, key);
  return GB_OK;
}

/* Of a step: gradients go in, parameters and their 16-bit copies come out. */
static void describe_step(const gb_audit *audit, const gb_step_call *call, const char *line, gb_audit_key *key) {
  const gb_slab *slab = call->slab;
  describe_place(audit, (int32_t)call->step, line, audit->context->modes->autocast, key);
  key->phase = GB_AUDIT_STEP;
  if (!slab) return;
  describe_tensor(&key->in[key->n_in++], slab->gradients, slab->gradients);
  if (call->step != GB_STEP_UPDATE) return;
  snprintf(key->of, sizeof key->of, "%s", gb_optimizer_info_of(call->kind)->name);
  describe_tensor(&key->out[key->n_out++], slab->parameters, slab->parameters);
  for (int k = 0; k < GB_COPIES; k++)
    if (slab->copy[k]) describe_tensor(&key->out[key->n_out++], slab->copy[k], slab->copy[k]);
}

/* ====} */

/* {==== rows ==== */

/* The row of an equal call just before, or a new one; NULL: no memory. */
static gb_audit_row *row_for(gb_audit *audit, const gb_audit_key *key) {
  gb_audit_row *row = last(&audit->rows, sizeof *row);
  if (row && !memcmp(&row->key, key, sizeof *key)) return row;
  row = append(audit, &audit->rows, sizeof *row);
  if (!row) return NULL;
  memcpy(&row->key, key, sizeof *key); /* padding too */
  for (int i = 0; i < GB_MAX_OUT; i++) row->numbers[i] = -1;
  row->cast_numbers = -1;
  return row;
}

static int64_t bytes_of(const gb_tensor *t) { return t->numel * (int64_t)gb_dtype_bytes((gb_dtype)t->dtype); }

/* Did autocast bring input i to another dtype? */
static bool was_cast(const gb_op_call *call, int i) {
  return call->in[i] && call->op != GB_OP_copy && gb_autocast_eligible(call->original[i]) &&
      call->original[i]->dtype != call->in[i]->dtype;
}

/* Casts that ran for the call's inputs, or for the inputs of the composite whose first part this is; the others used
 * kept copies. */
static void count_casts(gb_audit_row *row, const gb_op_call *call) {
  gb_op_call *whole = call->context->graph->composite;
  int cast = 0;
  for (int i = 0; i < call->n_in; i++) cast += was_cast(call, i);
  row->casts += call->casts;
  row->cast_bytes += call->cast_bytes;
  row->reused += cast > call->casts ? cast - call->casts : 0;
  if (!whole) return;
  row->casts += whole->casts;
  row->cast_bytes += whole->cast_bytes;
  whole->casts = 0;
  whole->cast_bytes = 0;
}

/* In backward a cast brings a gradient to the dtype of its operand. It counts as made by autocast. */
static void count_gradient_cast(gb_audit_row *row, const gb_op_call *call) {
  row->casts++;
  row->cast_bytes += bytes_of(GB_IN(call, cast)->x) + bytes_of(GB_OUT(call, cast)->y);
}

/* The inputs before they were cast: what did the casts lose? */
static gb_status examine_casts(gb_audit *audit, gb_audit_row *row, const gb_op_call *call) {
  for (int i = 0; i < call->n_in; i++)
    if (was_cast(call, i) && gb_is_16bit((gb_dtype)call->in[i]->dtype))
      GB_TRY(examine(audit, &row->cast_numbers, call->original[i], (gb_dtype)call->in[i]->dtype, false));
  return GB_OK;
}

static gb_status examine_results(gb_audit *audit, gb_audit_row *row, const gb_op_call *call) {
  bool forward = row->key.phase == GB_AUDIT_FORWARD || row->key.phase == GB_AUDIT_RECOMPUTE;
  gb_dtype cast = call->op == GB_OP_cast ? (gb_dtype)GB_OUT(call, cast)->y->dtype : GB_DTYPE_NONE;
  if (gb_is_16bit(cast)) {
    row->of_source = true;
    return examine(audit, &row->numbers[0], GB_IN(call, cast)->x, cast, forward);
  }
  for (int i = 0, at = 0; i < call->info->n_out - call->info->n_hidden; i++) {
    gb_tensor *t = call->out[i];
    if (t) GB_TRY(examine(audit, &row->numbers[at++], t, format_for(audit, (gb_dtype)t->dtype), forward));
  }
  return GB_OK;
}

static gb_status add_row(gb_audit *audit, const gb_op_call *call, const gb_audit_key *key) {
  gb_audit_row *row = row_for(audit, key);
  if (!row) return audit->context->error_code;
  row->calls++;
  count_casts(row, call);
  if (key->phase == GB_AUDIT_BACKWARD && call->op == GB_OP_cast) count_gradient_cast(row, call);
  GB_TRY(examine_casts(audit, row, call));
  return examine_results(audit, row, call);
}

/* A cast for an input of the op that `casting` is: counted there. A kept copy is refreshed by a copy into it. */
static void note_cast(const gb_op_call *call, gb_op_call *casting) {
  const gb_tensor *from = call->in_place ? GB_IN(call, copy)->source : GB_IN(call, cast)->x, *to = gb_call_result(call);
  casting->casts++;
  casting->cast_bytes += bytes_of(from) + bytes_of(to);
}

/* An op ran. */
static gb_status look(void *user, const gb_op_call *call) {
  gb_audit *audit = user;
  gb_context *context = audit->context;
  char line[96];
  if (context->graph->unseen) return GB_OK;
  gb_where(context, line, sizeof line);
  if (!context->graph->backward || context->modes->recompute) GB_TRY(note_place(audit, call, line));
  if (context->graph->casting) {
    note_cast(call, context->graph->casting);
    return GB_OK;
  }
  if (call->info->kind == GB_KIND_VIEW || call->composite) return GB_OK;
  gb_audit_key key;
  GB_TRY(describe(audit, call, line, &key));
  if (key.lower != GB_DTYPE_NONE) audit->format = (gb_dtype)key.lower;
  return add_row(audit, call, &key);
}

/* A step ran. */
static gb_status look_at_step(void *user, const gb_step_call *call) {
  gb_audit *audit = user;
  char line[96];
  if (audit->context->graph->unseen) return GB_OK;
  gb_where(audit->context, line, sizeof line);
  gb_audit_key key;
  describe_step(audit, call, line, &key);
  gb_audit_row *row = row_for(audit, &key);
  if (!row) return audit->context->error_code;
  row->calls++;
  return GB_OK;
}

const char *gb_audit_name(const gb_audit *audit, const gb_audit_key *key) {
  return key->phase == GB_AUDIT_STEP ? gb_step_name((gb_step)key->op) : gb_op_get(audit->context, key->op)->name;
}

/* ====} */

/* {==== life ==== */

gb_status gb_audit_begin(gb_context *context, gb_audit **out) {
  if (context->watch->audit) return gb_fail(context, GB_ESTATE, "amp.audit: an audit runs already; audits do not nest");
  if (context->capturing)
    return gb_fail(context, GB_ESTATE, "amp.audit: a graph is being captured, and its values are not there yet; "
                                       "audit the step before");
  gb_audit *audit = gb_counted_alloc(context, sizeof *audit);
  if (!audit) return context->error_code;
  audit->context = context;
  audit->format = context->modes->autocast ? context->modes->lower : GB_FLOAT16;
  audit->observer = (gb_observer){ .name = "an audit", .op = look, .step = look_at_step, .user = audit };
  gb_observer_add(context, &audit->observer);
  context->watch->audit = audit;
  gb_context_retain(context);
  *out = audit;
  return GB_OK;
}

void gb_audit_end(gb_audit *audit) {
  if (audit->context->watch->audit != audit) return;
  gb_observer_remove(audit->context, &audit->observer);
  audit->context->watch->audit = NULL;
}

gb_status gb_audit_read(gb_audit *audit) {
  GB_TRY(fold_all(audit));
  scale *scales = audit->scales.items;
  for (size_t i = 0; i < audit->scales.count; i++) GB_TRY(gb_tensor_item(scales[i].tensor, &scales[i].value, NULL));
  return GB_OK;
}

void gb_audit_close(gb_audit *audit) {
  if (!audit) return;
  gb_context *context = audit->context;
  const scale *scales = audit->scales.items;
  pending *waiting = audit->pending.items;
  gb_audit_end(audit);
  for (size_t i = 0; i < audit->pending.count; i++) drop_pending(&waiting[i]);
  for (size_t i = 0; i < audit->scales.count; i++) gb_tensor_release(scales[i].tensor);
  gb_counted_free(audit->rows.items);
  gb_counted_free(audit->numbers.items);
  gb_counted_free(audit->places.items);
  gb_counted_free(audit->pending.items);
  gb_counted_free(audit->scales.items);
  gb_counted_free(audit);
  gb_context_release(context);
}

gb_audit *gb_audit_running(const gb_context *context) { return context->watch->audit; }

int32_t gb_audit_set_module(gb_audit *audit, int32_t module) {
  int32_t before = audit->module;
  audit->module = module;
  return before;
}

size_t gb_audit_rows(const gb_audit *audit, const gb_audit_row **out) {
  *out = audit->rows.items;
  return audit->rows.count;
}

const gb_audit_numbers *gb_audit_get_numbers(const gb_audit *audit, int32_t place_of_numbers) {
  return place_of_numbers < 0 ? NULL : numbers_at(audit, place_of_numbers);
}

double gb_audit_scale(const gb_audit *audit, int32_t number) { return number > 0
                                                               ? ((const scale *)audit->scales.items)[number - 1].value
    : 0; }

/* ====} */
