/* limits.c - reads the options that say what a run may use, and sets them.
 *
 * Lua's bytes are counted by an allocator in front of Lua's own. Lua collects and asks once more when it refuses; what
 * is refused twice, or is more than all there is, stops the run as Ctrl-C would (bindings/interrupt.h), so no pcall
 * goes on without memory. Tensors have a limit of their own, of the same size. */
#include "limits.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* {==== Reading ==== */

/* A whole number from 1 on, at most 1024. */
static bool read_count(const char *text, int *out) {
  char *end;
  long value = strtol(text, &end, 10);
  *out = (int)value;
  return value > 0 && value <= 1024 && !*end;
}

/* A number of bytes, with K, M or G for powers of 1024. */
static bool read_bytes(const char *text, size_t *out) {
  static const char units[] = "KMG";
  char *end;
  errno = 0;
  double value = strtod(text, &end);
  const char *unit = *end ? strchr(units, *end) : NULL;
  for (const char *u = units; unit && u <= unit; u++) value *= 1024;
  if (unit) end++;
  if (end == text || *end || errno || !(value >= 1) || value > 9e18) return false;
  *out = (size_t)value;
  return true;
}

/* A positive number of seconds. */
static bool read_seconds(const char *text, double *out) {
  char *end;
  *out = strtod(text, &end);
  return end != text && !*end && *out > 0 && isfinite(*out);
}

/* Say what an option takes. */
static bool refuse(const options *o, const char *name, const char *wanted, const char *got) {
  char text[200];
  snprintf(text, sizeof text, "%s takes %s, not '%.80s'", name, wanted, got);
  options_complain(o, text);
  return false;
}

bool limits_read(limits *l, const options *o) {
  *l = (limits){ .most = 0 };
  gb_context_options_init(&l->engine, sizeof l->engine);
  if (o->threads && !read_count(o->threads, &l->engine.threads))
    return refuse(o, "--threads", "a number of threads, 1 .. 1024", o->threads);
  if (o->memory && !read_bytes(o->memory, &l->most))
    return refuse(o, "--memory", "a number of bytes, such as 500K, 200M or 2G", o->memory);
  if (o->time && !read_seconds(o->time, &l->seconds))
    return refuse(o, "--time", "a number of seconds above 0", o->time);
  l->engine.tensor_bytes = l->most;
  l->engine.plugins = o->no_environment ? NULL : getenv("GIBBOUS_PLUGINS");
  return true;
}

/* ====} */

/* {==== Setting ==== */

/* As Lua's own allocator, within the limit. */
static void *count_memory(void *user, void *block, size_t before, size_t bytes) {
  limits *l = user;
  if (!block) before = 0; /* then it is a type */
  bool grows = bytes > before;
  if (grows && l->most && l->state && (bytes - before > l->most || l->used > l->most - (bytes - before))) {
    if (l->refused == bytes || bytes > l->most) gbl_interrupt_request(l->state, GB_ELUABYTES);
    l->refused = bytes;
    return NULL;
  }
  void *fresh = l->next(l->user, block, before, bytes);
  if (bytes && !fresh) return NULL;
  l->used += bytes - before;
  if (grows) l->refused = 0;
  return fresh;
}

void limits_watch(limits *l, lua_State *L) {
  l->next = lua_getallocf(L, &l->user);
  l->used = (size_t)lua_gc(L, LUA_GCCOUNT) * 1024 + (size_t)lua_gc(L, LUA_GCCOUNTB);
  if (l->most) lua_setallocf(L, count_memory, l);
}

/* gb.set_default_device(name). */
static void set_device(lua_State *L, const char *name) {
  gb_context *context = gbl_context(L);
  gb_device device;
  if (gb_device_parse(context, name, &device) != GB_OK) luaL_error(L, "--device: %s", gb_error(context));
  lua_getglobal(L, "gb");
  lua_getfield(L, -1, "set_default_device");
  lua_pushstring(L, name);
  lua_call(L, 1, 0);
  lua_pop(L, 1);
}

void limits_begin(limits *l, lua_State *L, const options *o) {
  l->state = gbl_get_state(L);
  l->state->interrupt.limits_tensors = l->most != 0;
  if (l->seconds > 0) gbl_interrupt_count(L, 0, l->seconds);
  if (o->device) set_device(L, o->device);
}

/* ====} */
