/* capture.c - a captured training step as an object of the Lua half: cuda.lua makes gb.cuda.graph of it. */
#include "binding.h"
#include "objects.h"
#include "step/capture.h"

static void release(void *object) { gb_capture_close(object); }

static const gbl_type capture_type;

/* capture_begin(device): ops on it are noted from here on; the object ends or repeats what was. */
static int begin(lua_State *L) {
  gb_context *context = gbl_context(L);
  gb_device device = gbl_check_device(L, 1);
  gb_capture *made;
  void **slot = gbl_new_object(L, &capture_type, 0);
  gbl_check_status(L, gb_capture_begin(context, device, &made));
  *slot = made;
  return 1;
}

/* capture:finish(succeeded): make a graph of what was noted and run it, or forget it. */
static int finish(lua_State *L) {
  gbl_enter(L);
  gb_capture *capture = gbl_check_object(L, 1, &capture_type);
  if (lua_toboolean(L, 2)) gbl_check_status(L, gb_capture_end(capture));
  else gb_capture_abandon(capture);
  return 0;
}

static int replay(lua_State *L) {
  gbl_enter(L);
  gbl_check_status(L, gb_capture_replay(gbl_check_object(L, 1, &capture_type)));
  return 0;
}

static const luaL_Reg methods[] = { { "finish", finish }, { "replay", replay }, { NULL, NULL } };
static const gbl_type capture_type = { "gibbous.capture", release, methods, NULL, NULL };

void gbl_open_capture(lua_State *L) {
  gbl_new_type(L, &capture_type);
  gbl_push_module(L, "_native");
  gbl_set_functions(L, (const luaL_Reg[]){ { "capture_begin", begin }, { NULL, NULL } });
  lua_pop(L, 1);
}
