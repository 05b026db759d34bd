/* profile.c - a function run under a profile, and its events as plain tables; profile.lua makes gb.profile of them. */
#include "watch/profile.h"
#include "binding.h"
#include "objects.h"

static void release(void *object) { gb_profile_close(object); }

static const gbl_type profile_type = { "gibbous.profile", release, NULL, NULL, NULL };

/* { name, kind, phase, parent, module, node, start, end, line =, device =, kernel_start =, kernel_end =, live = } */
static void push_event(lua_State *L, const gb_context *context, const gb_profile_event *e) {
  static const char *const phases[GB_PROFILE_PHASES] = { "forward", "backward", "recompute", "step" };
  static const char *const kinds[] = { "range", "op", "view", "composite", "step" };
  char device[24];
  lua_createtable(L, 0, 12);
  lua_pushstring(L, e->name), gbl_set_raw(L, -2, "name");
  lua_pushstring(L, kinds[e->kind]), gbl_set_raw(L, -2, "kind");
  gbl_set_integer(L, "parent", e->parent + 1);
  gbl_set_integer(L, "module", e->module);
  gbl_set_number(L, "start", e->start);
  gbl_set_number(L, "finish", e->end);
  if (e->kind == GB_PROFILE_RANGE) return;
  lua_pushstring(L, phases[e->phase]), gbl_set_raw(L, -2, "phase");
  lua_pushstring(L, e->line), gbl_set_raw(L, -2, "line");
  if (e->node) gbl_set_integer(L, "node", (int64_t)e->node);
  lua_createtable(L, GB_MEM_CATEGORIES, 0);
  for (int i = 0; i < GB_MEM_CATEGORIES; i++) {
    lua_pushinteger(L, (lua_Integer)e->live[i]);
    lua_rawseti(L, -2, i + 1);
  }
  gbl_set_raw(L, -2, "live");
  if (!e->slot || e->kernel_end <= 0) return;
  lua_pushstring(L, gb_device_text(context, gb_slot_device(e->slot), device, sizeof device));
  gbl_set_raw(L, -2, "device");
  gbl_set_number(L, "kernel_start", e->kernel_start);
  gbl_set_number(L, "kernel_finish", e->kernel_end);
}

/* profile(fn, most): call fn() under a profile of at most so many events: the events, the seconds, and how many events
 * were lost. The profile ends with the call, also where that fails; the call cannot yield. */
static int run(lua_State *L) {
  gb_context *context = gbl_context(L);
  size_t most = (size_t)luaL_checkinteger(L, 2), lost;
  lua_settop(L, 1);
  gb_profile *profile = NULL;
  void **slot = gbl_new_object(L, &profile_type, 1);
  lua_pushthread(L);
  lua_setiuservalue(L, -2, 1);
  lua_insert(L, 1);
  lua_toclose(L, 1);
  gb_status status = gb_profile_begin(context, most, &profile);
  *slot = profile;
  gbl_check_status(L, status);
  gbl_get_state(L)->profiled = L;
  lua_call(L, 0, 0);
  gbl_enter(L);
  gb_profile_end(profile);
  gbl_check_status(L, gb_profile_read(profile));
  const gb_profile_event *events;
  size_t count = gb_profile_events(profile, &events, &lost);
  uint64_t steps = 0;
  lua_createtable(L, (int)count, 0);
  for (size_t i = 0; i < count; i++) {
    gbl_charge_step(L, &steps);
    push_event(L, context, &events[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_pushnumber(L, gb_profile_seconds(profile));
  lua_pushinteger(L, (lua_Integer)lost);
  return 3;
}

/* profile_module(number): what runs from now on belongs to this module; what was before. Nothing where no profile
 * runs. */
static int module(lua_State *L) {
  gb_profile *profile = gb_profile_running(gbl_context(L));
  lua_pushinteger(L, profile ? gb_profile_set_module(profile, (int32_t)luaL_checkinteger(L, 1)) : 0);
  return 1;
}

void gbl_open_profile(lua_State *L) {
  gbl_new_type(L, &profile_type);
  gbl_push_module(L, "_native");
  gbl_set_functions(L, (const luaL_Reg[]){ { "profile", run }, { "profile_module", module }, { NULL, NULL } });
  lua_pop(L, 1);
}
