/* watch/trace.c - the armed half of the skip report: see trace.h.
 *
 * A check that fails, for want of memory or by an interrupt, finds nothing. But a check waits for the device, and a
 * wait reports what earlier kernels found wrong in data. That failure is passed on, since it is reported only once. */
#include "watch/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/ops.h"
#include "watch/room.h"

/* {==== checks ==== */

/* Is every element of flags true? Releases flags. */
static bool all_true(gb_trace *trace, gb_tensor *flags) {
  gb_tensor *all = NULL;
  bool yes = true;
  gb_status status = GB_RUN(trace->context, all, &all, .x = flags);
  if (status == GB_OK) status = gb_tensor_read(all, &yes, sizeof yes);
  if (status != GB_OK) yes = true;
  if (status != GB_OK && status != GB_EMEMORY && status != GB_EINTERRUPT) trace->failure = status;
  gb_tensor_release(all);
  gb_tensor_release(flags);
  return yes;
}

/* Finite, or minus infinity where that is allowed. */
static bool is_fine(gb_trace *trace, gb_tensor *t, bool minus_infinity) {
  gb_context *context = trace->context;
  /* while a graph is captured nothing is there */
  if (!t || t->numel == 0 || !gb_dtype_is_float((gb_dtype)t->dtype) || context->capturing) return true;
  gb_beneath beneath;
  gb_beneath_begin(context, &beneath);
  bool fine = true;
  gb_tensor *flags = NULL;
  gb_status status = minus_infinity ? gb_op_number(context, GB_OP_lt, t, INFINITY, &flags)
                                    : GB_RUN(context, isfinite, &flags, .x = t);
  if (status == GB_OK) fine = all_true(trace, flags);
  gb_beneath_end(context, &beneath);
  return fine;
}

/* What a check found, reported once; its text is the context's. */
static gb_status failure_of(gb_trace *trace) {
  gb_status failure = trace->failure;
  trace->failure = GB_OK;
  return failure;
}

/* True also if that could not be found out. */
static bool is_finite(gb_trace *trace, gb_tensor *t) { return is_fine(trace, t, false); }

/* ====} */

/* {==== the forward pass ==== */

/* Nodes from this number on were made by this line. Without memory they count to the line before. */
static void note_line(gb_trace *trace, uint64_t sequence, const char *text) {
  if (trace->n_lines > 0 && !strcmp(trace->lines[trace->n_lines - 1].text, text)) return;
  if (trace->n_lines == trace->capacity) {
    size_t capacity = trace->capacity ? 2 * trace->capacity : 64;
    gb_trace_line *longer = realloc(trace->lines, capacity * sizeof *longer);
    if (!longer) return;
    trace->lines = longer;
    trace->capacity = capacity;
  }
  gb_trace_line *line = &trace->lines[trace->n_lines++];
  line->first = sequence;
  snprintf(line->text, sizeof line->text, "%s", text);
}

/* An op ran: note its line, and whether its result is the first that is not finite. */
static gb_status look(void *user, const gb_op_call *call) {
  gb_trace *trace = user;
  if (trace->context->graph->unseen || trace->context->graph->backward) return GB_OK; /* a walk asks for itself */
  char line[96];
  gb_where(trace->context, line, sizeof line);
  const gb_tensor *result = gb_call_result(call);
  if (call->needs_grad && result && result->node) note_line(trace, result->node->sequence, line);
  if (trace->forward[0] || call->info->kind == GB_KIND_VIEW) return GB_OK;
  int visible = call->info->n_out - call->info->n_hidden;
  for (int i = 0; i < visible; i++)
    if (!is_fine(trace, call->out[i], true)) {
      snprintf(trace->forward, sizeof trace->forward, "%s%s%s%s", call->info->name, *line ? " (" : "", line,
               *line ? ")" : "");
      break;
    }
  return failure_of(trace);
}

static bool follows(void *user, gb_grad_tag tag) {
  const gb_trace *trace = user;
  return !trace->scaler || trace->scaler == tag.scaler;
}

/* If the loss is not finite, that is the cause. */
static gb_status look_at_loss(gb_context *context, uint32_t id, gb_tensor *loss) {
  gb_trace *trace = &context->watch->trace;
  if (!trace->owner || !follows(trace, (gb_grad_tag){ .scaler = id })) return GB_OK;
  if (!trace->cause[0] && !is_finite(trace, loss))
    snprintf(trace->cause, sizeof trace->cause, "%s, in the forward pass: the loss is not finite at any scale",
             trace->forward[0] ? trace->forward : "the loss");
  return failure_of(trace);
}

/* ====} */

/* {==== backward ==== */

/* A node is the cause: `what` (such as "the gradient of"), its name and line, and the end of the text. */
static void found(gb_trace *trace, const char *what, const gb_node *node, const char *end) {
  const char *line = "";
  for (size_t i = 0; i < trace->n_lines && trace->lines[i].first <= node->sequence; i++) line = trace->lines[i].text;
  snprintf(trace->cause, sizeof trace->cause, "%s %s%s%s%s%s", what, gb_node_name(node), *line ? " (" : "", line,
           *line ? ")" : "", end);
}

/* Are the gradients finite in the form in which they would be sent on? */
static gb_status is_sent_finite(gb_trace *trace, const gb_grad_call *call, bool *finite) {
  *finite = true;
  for (int i = 0; *finite && i < call->n_in; i++) {
    if (!call->need[i] || !call->in[i]) continue;
    gb_tensor *sent = call->in[i];
    gb_tensor_retain(sent);
    gb_status status = gb_edge_convert(trace->context, &call->node->edges[i], &sent);
    if (status == GB_OK) *finite = is_finite(trace, sent);
    gb_tensor_release(sent);
    GB_TRY(status);
  }
  return GB_OK;
}

/* The same gradient from incoming ones of half the size: it is linear in them. in[] is zeroed room. */
static gb_status is_half_finite(gb_trace *trace, const gb_grad_call *call, gb_tensor **in, bool *finite) {
  gb_tensor *halves[GB_MAX_OUT] = { NULL };
  gb_status status = GB_OK;
  for (int i = 0; status == GB_OK && i < call->n_out; i++)
    if (call->out[i]) status = gb_op_number(trace->context, GB_OP_mul, call->out[i], 0.5, &halves[i]);
  gb_grad_call again = *call;
  again.out = halves;
  again.in = in;
  again.create_graph = false;
  if (status == GB_OK) status = call->node->gradient(&again);
  if (status == GB_OK) status = is_sent_finite(trace, &again, finite);
  for (int i = 0; i < call->n_out; i++) gb_tensor_release(halves[i]);
  for (int i = 0; i < call->n_in; i++) gb_tensor_release(in[i]);
  return status;
}

/* Did this node make the first value that is not finite? A custom function is not called twice. */
static gb_status examine(gb_trace *trace, const gb_grad_call *call) {
  const gb_node *node = call->node;
  if (trace->cause[0]) return GB_OK;
  for (int i = 0; i < call->n_out; i++)
    if (call->out[i] && !is_finite(trace, call->out[i])) {
      found(trace, "the sum of the gradients (or a hook on it) of the result of", node, "");
      return GB_OK;
    }
  bool finite, half = false;
  GB_TRY(is_sent_finite(trace, call, &finite));
  if (finite) return GB_OK;
  if (node->op >= 0) {
    gb_tensor **room = calloc((size_t)call->n_in + 1, sizeof *room);
    if (!room) return gb_fail_memory(trace->context, sizeof *room * (size_t)call->n_in);
    gb_status status = is_half_finite(trace, call, room, &half);
    free(room);
    GB_TRY(status);
  }
  found(trace, "the gradient of", node,
        node->op < 0 ? "" : half ? ", finite at half the scale" : ", not finite at half the scale either");
  return GB_OK;
}

/* A gradient ran. What fails for want of memory finds nothing, and backward goes on. */
static gb_status look_at_gradient(void *user, const gb_grad_call *call) {
  gb_trace *trace = user;
  gb_beneath beneath;
  gb_beneath_begin(trace->context, &beneath);
  (void)examine(trace, call);
  gb_beneath_end(trace->context, &beneath);
  return failure_of(trace);
}

/* ====} */

/* {==== whose ==== */

static void end(gb_trace *trace) {
  if (!trace->owner) return;
  gb_observer_remove(trace->context, &trace->observer);
  free(trace->lines);
  *trace = (gb_trace){ .owner = NULL };
}

static void arm(gb_context *context, const struct gb_scaler *owner, uint32_t id) {
  gb_trace *trace = &context->watch->trace;
  if (trace->owner == owner) return;
  end(trace);
  trace->context = context;
  trace->owner = owner;
  trace->scaler = id;
  trace->observer = (gb_observer){ .op = look, .follows = follows, .gradient = look_at_gradient, .user = trace };
  gb_observer_add(context, &trace->observer);
}

static void disarm(gb_context *context, const struct gb_scaler *owner) {
  if (context->watch->trace.owner == owner) end(&context->watch->trace);
}

static void restart(gb_context *context, const struct gb_scaler *owner) {
  gb_trace *trace = &context->watch->trace;
  if (trace->owner != owner) return;
  trace->n_lines = 0;
  trace->forward[0] = trace->cause[0] = 0;
}

static const char *cause_of(const gb_context *context, const struct gb_scaler *owner) {
  const gb_trace *trace = &context->watch->trace;
  return trace->owner == owner ? trace->cause : "";
}

const gb_skip_tracer gb_trace_of_skips = { arm, disarm, restart, look_at_loss, cause_of };

/* ====} */
