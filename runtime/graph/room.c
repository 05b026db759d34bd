/* graph/room.c - opens and closes what the graph keeps with a context. */
#include "graph/room.h"

#include <stdlib.h>

#include "base/stack.h"
#include "graph/ops.h"

static uint64_t history(const gb_node *node) { return gb_node_history(node); }

/* Let go of a node that keeps the tensor's gradient for it. */
static void leave(gb_tensor *t) {
  if (t->node->retain[t->output] == t) t->node->retain[t->output] = NULL;
}

gb_status gb_graph_open(gb_context *context, const gb_op_impl *const *families) {
  static const gb_node_calls calls = { gb_node_release, history, leave };
  gb_graph_room *room = calloc(1, sizeof *room);
  if (!room) return GB_EMEMORY;
  context->graph = room;
  context->nodes = &calls;
  GB_TRY(gb_op_table(&room->infos, context->error, sizeof context->error));
  room->impl = calloc(GB_OP_COUNT, sizeof *room->impl);
  if (!room->impl) return GB_EMEMORY;
  for (; *families; families++)
    for (const gb_op_impl *impl = *families; impl->op != GB_OP_COUNT; impl++) room->impl[impl->op] = impl;
  return GB_OK;
}

void gb_graph_close(gb_context *context) {
  if (!context->graph) return;
  free(context->graph->impl);
  free(context->graph);
  context->graph = NULL;
}

gb_status gb_run_begin(gb_context *context, const char *name, const char **outer) {
  *outer = context->op;
  if (!context->op) context->op = name;
  gb_range_push(context, name);
  GB_TRY(gb_poll(context));
  if (gb_stack_left() >= GB_STACK_LEAST) return GB_OK;
  return gb_fail(context, GB_ESTATE, "this thread has only %zu KB of its stack left: nest fewer calls, or give it more",
                 gb_stack_left() >> 10);
}

void gb_run_end(gb_context *context, const char *outer) {
  gb_range_pop(context);
  context->op = outer;
}
