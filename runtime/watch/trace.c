/* watch/trace.c - the armed half of the skip report: see trace.h.
 *
 * A check that fails, for want of memory or by an interrupt, finds nothing. But a check waits for the device, and a
 * wait reports what earlier kernels found wrong in data. That failure is passed on, since it is reported only once. */
#include "watch/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* {==== checks ==== */

/* Is every element of flags true? Releases flags. */
static bool all_true(gb_trace *trace, gb_tensor *flags) {
  gb_tensor *all = NULL;
  bool yes = true;
  gb_status status = gb_op_1(trace->context, GB_OP_all, flags, NULL, &all);
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
  if (!t || t->numel == 0 || !gb_dtype_is_float((gb_dtype)t->dtype) || context->capture) return true; /* while a graph is captured nothing is there */
  gb_beneath beneath;
  gb_beneath_begin(context, &beneath);
  bool fine = true;
  gb_tensor *flags = NULL;
  gb_status status = minus_infinity ? gb_op_number(context, GB_OP_lt, t, INFINITY, &flags) : gb_op_1(context, GB_OP_isfinite, t, NULL, &flags);
  if (status == GB_OK) fine = all_true(trace, flags);
  gb_beneath_end(context, &beneath);
  return fine;
}

gb_status gb_trace_failure(gb_trace *trace) {
  gb_status failure = trace->failure;
  trace->failure = GB_OK;
  return failure;
}

bool gb_trace_finite(gb_trace *trace, gb_tensor *t) { return is_fine(trace, t, false); }

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
static gb_status look(void *user, const gb_call *call) {
  gb_trace *trace = user;
  if (trace->context->unseen || trace->context->backward) return GB_OK; /* a walk asks for itself */
  char line[96];
  gb_where(trace->context, line, sizeof line);
  const gb_tensor *result = call->in_place ? call->in[0] : call->out[0];
  if (call->needs_grad && result && result->node) note_line(trace, result->node->sequence, line);
  if (trace->forward[0] || call->info->kind == GB_KIND_VIEW) return GB_OK;
  int visible = call->info->n_out - call->info->n_hidden;
  for (int i = 0; i < visible; i++)
    if (!is_fine(trace, call->out[i], true)) {
      snprintf(trace->forward, sizeof trace->forward, "%s%s%s%s", call->info->name, *line ? " (" : "", line, *line ? ")" : "");
      break;
    }
  return gb_trace_failure(trace);
}

void gb_trace_loss(gb_trace *trace, gb_tensor *loss) {
  if (trace->cause[0] || gb_trace_finite(trace, loss)) return;
  snprintf(trace->cause, sizeof trace->cause, "%s, in the forward pass: the loss is not finite at any scale",
           trace->forward[0] ? trace->forward : "the loss");
}

/* ====} */

void gb_trace_found(gb_trace *trace, const char *what, const char *op, uint64_t sequence, const char *end) {
  const char *line = "";
  for (size_t i = 0; i < trace->n_lines && trace->lines[i].first <= sequence; i++) line = trace->lines[i].text;
  snprintf(trace->cause, sizeof trace->cause, "%s %s%s%s%s%s", what, op, *line ? " (" : "", line, *line ? ")" : "", end);
}

void gb_trace_restart(gb_trace *trace) {
  trace->n_lines = 0;
  trace->forward[0] = trace->cause[0] = 0;
}

void gb_trace_arm(gb_trace *trace, gb_context *context, uint32_t scaler) {
  if (context->trace == trace) return;
  if (context->trace) gb_trace_disarm(context->trace);
  trace->context = context;
  trace->scaler = scaler;
  trace->observer = (gb_observer){ .op = look, .user = trace };
  gb_observer_add(context, &trace->observer);
  context->trace = trace;
}

void gb_trace_disarm(gb_trace *trace) {
  gb_context *context = trace->context;
  if (!context) return;
  gb_observer_remove(context, &trace->observer);
  context->trace = NULL;
  free(trace->lines);
  *trace = (gb_trace){ .context = NULL };
}
