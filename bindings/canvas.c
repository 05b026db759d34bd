/* canvas.c - pictures that are drawn, for the Lua half: plot.lua draws curves with it. Colors are 0xRRGGBB. */
#include "io/canvas.h"

#include "binding.h"
#include "io/png_write.h"
#include "objects.h"

static void close_canvas(void *canvas) { gb_canvas_close(canvas); }
static const gbl_type canvas_type = { "gibbous.canvas", close_canvas, (const luaL_Reg[]){ { NULL, NULL } }, NULL,
                                      NULL };

/* canvas_open(width, height) */
static int canvas_open(lua_State *L) {
  gb_context *context = gbl_context(L);
  void **slot = gbl_new_object(L, &canvas_type, 0);
  gb_canvas *canvas = NULL;
  gb_status status = gb_canvas_open(context, (int)luaL_checkinteger(L, 1), (int)luaL_checkinteger(L, 2), &canvas);
  *slot = canvas;
  gbl_check_status(L, status);
  return 1;
}

static gb_canvas *check_canvas(lua_State *L) {
  gbl_context(L);
  return gbl_check_object(L, 1, &canvas_type);
}

static gb_ink check_ink(lua_State *L, int arg) {
  lua_Integer color = luaL_checkinteger(L, arg);
  return (gb_ink){ (uint8_t)(color >> 16), (uint8_t)(color >> 8), (uint8_t)color, luaL_optnumber(L, arg + 1, 1) };
}

/* canvas_clip(canvas, left, top, right, bottom) */
static int canvas_clip(lua_State *L) {
  gb_canvas_clip(check_canvas(L), luaL_checknumber(L, 2), luaL_checknumber(L, 3), luaL_checknumber(L, 4),
                 luaL_checknumber(L, 5));
  return 0;
}

/* canvas_stroke(canvas, points, width, color, alpha): a list x1, y1, x2, y2, ... of ours. */
static int canvas_stroke(lua_State *L) {
  gb_canvas *canvas = check_canvas(L);
  size_t n = lua_rawlen(L, 2);
  double *points = lua_newuserdatauv(L, sizeof *points * (n + 1), 0);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, 2, (lua_Integer)i + 1);
    points[i] = luaL_checknumber(L, -1);
    lua_pop(L, 1);
  }
  return gbl_check_status(L, gb_canvas_stroke(canvas, points, n / 2, luaL_checknumber(L, 3), check_ink(L, 4)));
}

/* canvas_fill(canvas, left, top, right, bottom, color, alpha) */
static int canvas_fill(lua_State *L) {
  gb_canvas_fill(check_canvas(L), luaL_checknumber(L, 2), luaL_checknumber(L, 3), luaL_checknumber(L, 4),
                 luaL_checknumber(L, 5), check_ink(L, 6));
  return 0;
}

/* canvas_text(canvas, x, y, size, turned, text, color) */
static int canvas_text(lua_State *L) {
  gb_canvas *canvas = check_canvas(L);
  return gbl_check_status(L, gb_canvas_text(canvas, luaL_checknumber(L, 2), luaL_checknumber(L, 3),
                                            luaL_checknumber(L, 4), lua_toboolean(L, 5), luaL_checkstring(L, 6),
                                            check_ink(L, 7)));
}

/* text_width(text, size) */
static int text_width(lua_State *L) {
  lua_pushnumber(L, gb_canvas_text_width(luaL_checkstring(L, 1), luaL_checknumber(L, 2)));
  return 1;
}

/* canvas_image(canvas, left, top, right, bottom, pixels): uint8 [height, width, 3]. */
static int canvas_image(lua_State *L) {
  gb_canvas *canvas = check_canvas(L);
  gb_tensor *x = gbl_check_tensor(L, 6);
  uint8_t *pixels = lua_newuserdatauv(L, (size_t)x->numel + 1, 0);
  gbl_check_status(L, gb_tensor_read(x, pixels, (size_t)x->numel));
  gb_canvas_image(canvas, luaL_checknumber(L, 2), luaL_checknumber(L, 3), luaL_checknumber(L, 4),
                  luaL_checknumber(L, 5), pixels, (int)x->shape[1], (int)x->shape[0]);
  return 0;
}

/* canvas_save(canvas, path) */
static int canvas_save(lua_State *L) {
  int width, height;
  const uint8_t *pixels = gb_canvas_pixels(check_canvas(L), &width, &height);
  return gbl_check_status(L, gb_png_save(gbl_context(L), luaL_checkstring(L, 2), pixels, width, height, 3));
}

/* Text that becomes Lua's, where Lua has the memory. */
typedef struct loan { const char *text; size_t bytes; } loan;

static int push_text(lua_State *L) {
  const loan *from = lua_touserdata(L, 1);
  lua_pushlstring(L, from->text, from->bytes);
  return 1;
}

/* canvas_show(canvas, "kitty" or "sixel"): the text that draws it on such a terminal. */
static int canvas_show(lua_State *L) {
  gb_canvas *canvas = check_canvas(L);
  char *text = NULL;
  size_t bytes = 0;
  bool kitty = *luaL_checkstring(L, 2) == 'k';
  gbl_check_status(L, kitty ? gb_canvas_kitty(canvas, &text, &bytes) : gb_canvas_sixel(canvas, &text, &bytes));
  lua_pushcfunction(L, push_text);
  lua_pushlightuserdata(L, &(loan){ text, bytes });
  int status = lua_pcall(L, 1, 1, 0);
  gb_counted_free(text);
  return status == LUA_OK ? 1 : lua_error(L);
}

void gbl_open_canvas(lua_State *L) {
  gbl_new_type(L, &canvas_type);
  gbl_push_module(L, "_native");
  gbl_set_functions(L, (const luaL_Reg[]){
    { "canvas_open", canvas_open }, { "canvas_clip", canvas_clip }, { "canvas_stroke", canvas_stroke },
    { "canvas_fill", canvas_fill }, { "canvas_text", canvas_text }, { "text_width", text_width },
    { "canvas_image", canvas_image }, { "canvas_save", canvas_save },
    { "canvas_show", canvas_show }, { NULL, NULL } });
  lua_pop(L, 1);
}
