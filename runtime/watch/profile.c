/* watch/profile.c - see profile.h. Order within: marks, ranges, what ran, life. */
#include "watch/profile.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "graph/rules.h"
#include "step/passes.h"
#include "watch/room.h"

struct gb_profile {
  gb_context *context;           /* counted */
  gb_observer observer;
  gb_backend ranges, *outer;     /* what ranges are told to while it runs: this; and what was before */
  gb_profile_event *events;
  size_t count, most, lost;
  size_t ignored;                /* open ranges that found no room */
  int32_t open, module;          /* the innermost event that has not ended; -1: none */
  double began, seconds;
  void *origin[GB_DEVICE_SLOTS]; /* of the devices' clocks: the mark at the beginning; NULL: a device without marks */
};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* {==== marks ==== */

/* The device at this slot, where it can be marked. */
static gb_backend *marked(const gb_profile *profile, int slot) {
  gb_backend *backend = slot ? profile->context->backend[slot] : NULL;
  return backend && backend->mark ? backend : NULL;
}

/* A mark in the row of the device's kernels, or NULL: what cannot be marked has no time. */
static void *mark(gb_profile *profile, int slot) {
  gb_backend *backend = marked(profile, slot);
  void *made = NULL;
  return backend && backend->mark(backend->state, &made) == GB_OK ? made : NULL;
}

static void unmark(gb_profile *profile, int slot, void **at) {
  gb_backend *backend = marked(profile, slot);
  if (backend && *at) backend->unmark(backend->state, *at);
  *at = NULL;
}

/* The marks of an event become times. */
static gb_status read_marks(gb_profile *profile, gb_profile_event *e) {
  gb_backend *backend = marked(profile, e->slot);
  if (!backend || !e->marks[0] || !e->marks[1] || !profile->origin[e->slot]) return GB_OK;
  GB_TRY(backend->between(backend->state, profile->origin[e->slot], e->marks[0], &e->kernel_start));
  return backend->between(backend->state, profile->origin[e->slot], e->marks[1], &e->kernel_end);
}

/* The device that an op may run on whose range begins: the first that can be marked. */
static int likely_slot(const gb_profile *profile) {
  for (int slot = 1; slot < GB_DEVICE_SLOTS; slot++)
    if (profile->origin[slot]) return slot;
  return 0;
}

/* ====} */

/* {==== ranges ==== */

static void push(void *state, const char *name) {
  gb_profile *profile = state;
  if (profile->outer) profile->outer->range_push(profile->outer->state, name);
  if (profile->ignored || profile->count == profile->most) {
    profile->ignored++;
    profile->lost++;
    return;
  }
  gb_profile_event *e = &profile->events[profile->count];
  memset(e, 0, sizeof *e);
  snprintf(e->name, sizeof e->name, "%s", name);
  e->parent = profile->open;
  e->module = profile->module;
  e->end = -1;
  profile->open = (int32_t)profile->count++;
  int slot = likely_slot(profile);
  if (slot) e->slot = slot, e->marks[0] = mark(profile, slot);
  e->start = now() - profile->began;
}

static void pop(void *state) {
  gb_profile *profile = state;
  if (profile->outer) profile->outer->range_pop(profile->outer->state);
  if (profile->ignored) {
    profile->ignored--;
    return;
  }
  if (profile->open < 0) return; /* it began before the profile */
  gb_profile_event *e = &profile->events[profile->open];
  e->end = now() - profile->began;
  if (e->marks[0] && !e->marks[1]) unmark(profile, e->slot, &e->marks[0]);
  if (!e->marks[0]) e->slot = 0;
  profile->open = e->parent;
}

/* ====} */

/* {==== what ran ==== */

static gb_profile_event *innermost(gb_profile *profile) {
  return profile->ignored || profile->open < 0 ? NULL : &profile->events[profile->open];
}

/* What is known of an event when its op or step is through. */
static void describe(gb_profile *profile, gb_profile_event *e) {
  gb_memory_stats stats;
  gb_memory_get_stats(profile->context, &stats);
  for (int i = 0; i < GB_MEM_CATEGORIES; i++) e->live[i] = (int64_t)stats.current[i];
  gb_where(profile->context, e->line, sizeof e->line);
}

/* An op ran: it is the innermost event. */
static gb_status look(void *user, const gb_op_call *call) {
  gb_profile *profile = user;
  const gb_context *context = profile->context;
  gb_profile_event *e = innermost(profile);
  if (!e || context->graph->unseen) return GB_OK;
  const gb_walk_place *at = context->graph->backward;
  const gb_tensor *result = gb_call_result(call);
  int slot = gb_device_slot(call->device);
  e->kind = call->composite ? GB_PROFILE_COMPOSITE : call->info->kind == GB_KIND_VIEW ? GB_PROFILE_VIEW : GB_PROFILE_OP;
  e->phase = !at ? GB_PROFILE_FORWARD : context->modes->recompute ? GB_PROFILE_RECOMPUTE : GB_PROFILE_BACKWARD;
  if (e->phase == GB_PROFILE_BACKWARD) e->node = at->node && !at->settling ? at->node->sequence + 1 : 0;
  else if (call->needs_grad && result && result->node) e->node = result->node->sequence + 1;
  if (e->marks[0] && e->slot == slot && e->kind == GB_PROFILE_OP) e->marks[1] = mark(profile, slot);
  describe(profile, e);
  return GB_OK;
}

/* A step of a backend ran. */
static gb_status look_at_step(void *user, const gb_step_call *call) {
  gb_profile *profile = user;
  gb_profile_event *e = innermost(profile);
  if (!e || profile->context->graph->unseen) return GB_OK;
  e->kind = GB_PROFILE_STEP;
  e->phase = GB_PROFILE_UPDATE;
  if (e->marks[0] && e->slot == gb_device_slot(call->device)) e->marks[1] = mark(profile, e->slot);
  describe(profile, e);
  return GB_OK;
}

/* ====} */

/* {==== life ==== */

gb_status gb_profile_begin(gb_context *context, size_t most, gb_profile **out) {
  if (context->watch->profile)
    return gb_fail(context, GB_ESTATE, "profile: a profile runs already; profiles do not nest");
  if (context->capturing)
    return gb_fail(context, GB_ESTATE, "profile: a graph is being captured, and nothing runs meanwhile; profile a "
                                       "replay, or the step before");
  if (most > GB_PROFILE_MOST)
    return gb_fail(context, GB_EINVAL, "profile: 'events' is %zu, it may be at most %d", most, GB_PROFILE_MOST);
  gb_profile *profile = gb_counted_alloc(context, sizeof *profile);
  if (!profile) return context->error_code;
  profile->events = gb_counted_resize(context, NULL, most * sizeof *profile->events);
  if (!profile->events) {
    gb_counted_free(profile);
    return context->error_code;
  }
  profile->context = context;
  gb_context_retain(context);
  profile->most = most;
  profile->open = -1;
  for (int slot = 1; slot < GB_DEVICE_SLOTS; slot++) {
    if (!marked(profile, slot)) continue;
    gb_synchronize(context, gb_slot_device(slot));
    profile->origin[slot] = mark(profile, slot);
  }
  profile->outer = context->ranges;
  profile->ranges = (gb_backend){ .name = "profile", .state = profile, .range_push = push, .range_pop = pop };
  profile->observer = (gb_observer){ .name = "a profile", .op = look, .step = look_at_step, .user = profile };
  context->ranges = &profile->ranges;
  gb_observer_add(context, &profile->observer);
  context->watch->profile = profile;
  profile->began = now();
  *out = profile;
  return GB_OK;
}

void gb_profile_end(gb_profile *profile) {
  if (profile->context->watch->profile != profile) return;
  profile->seconds = now() - profile->began;
  gb_observer_remove(profile->context, &profile->observer);
  profile->context->ranges = profile->outer;
  profile->context->watch->profile = NULL;
  for (size_t i = 0; i < profile->count; i++)
    if (profile->events[i].end < 0) profile->events[i].end = profile->seconds;
}

gb_status gb_profile_read(gb_profile *profile) {
  for (int slot = 1; slot < GB_DEVICE_SLOTS; slot++)
    if (profile->origin[slot]) GB_TRY(gb_synchronize(profile->context, gb_slot_device(slot)));
  for (size_t i = 0; i < profile->count; i++) GB_TRY(read_marks(profile, &profile->events[i]));
  return GB_OK;
}

void gb_profile_close(gb_profile *profile) {
  if (!profile) return;
  gb_context *context = profile->context;
  gb_profile_end(profile);
  for (size_t i = 0; i < profile->count; i++)
    for (int k = 0; k < 2; k++) unmark(profile, profile->events[i].slot, &profile->events[i].marks[k]);
  for (int slot = 1; slot < GB_DEVICE_SLOTS; slot++) unmark(profile, slot, &profile->origin[slot]);
  gb_counted_free(profile->events);
  gb_counted_free(profile);
  gb_context_release(context);
}

gb_profile *gb_profile_running(const gb_context *context) { return context->watch->profile; }

size_t gb_profile_events(const gb_profile *profile, const gb_profile_event **out, size_t *lost) {
  *out = profile->events;
  *lost = profile->lost;
  return profile->count;
}

double gb_profile_seconds(const gb_profile *profile) { return profile->seconds; }

int32_t gb_profile_set_module(gb_profile *profile, int32_t module) {
  int32_t before = profile->module;
  profile->module = module;
  return before;
}

/* ====} */
