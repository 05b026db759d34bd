/* logger.c - files of a run for the Lua half: event files, files that grow line by line, and pictures as PNG.
 * logger.lua makes gb.Logger of them. */
#include <stdlib.h>
#include <string.h>

#include "binding.h"
#include "io/append.h"
#include "io/events.h"
#include "io/file.h"
#include "io/png_write.h"
#include "objects.h"

/* Text at arg, which must hold no NUL: a tag of an event file. */
static const char *check_tag(lua_State *L, int arg) {
  size_t length;
  const char *tag = luaL_checklstring(L, arg, &length);
  if (strlen(tag) != length) gbl_error(L, "a tag holds a NUL: '%s'...", tag);
  return tag;
}

/* {==== event files ==== */

static void close_events(void *events) { gb_events_close(events); }
static const gbl_type events_type = { "gibbous.events", close_events, (const luaL_Reg[]){ { NULL, NULL } }, NULL,
                                      NULL };

/* events_open(folder) -> events, path */
static int events_open(lua_State *L) {
  gb_context *context = gbl_context(L);
  void **slot = gbl_new_object(L, &events_type, 0);
  gb_events *events = NULL;
  gb_status status = gb_events_open(context, luaL_checkstring(L, 1), &events);
  *slot = events;
  gbl_check_status(L, status);
  lua_pushstring(L, gb_events_path(events));
  return 2;
}

static gb_events *check_events(lua_State *L) {
  gbl_context(L);
  return gbl_check_object(L, 1, &events_type);
}

/* events_scalars(events, step, tags, values): two lists of equal length, ours. */
static int events_scalars(lua_State *L) {
  gb_events *events = check_events(L);
  int n = (int)lua_rawlen(L, 3);
  const char **tags = lua_newuserdatauv(L, sizeof *tags * ((size_t)n + 1), 0);
  double *values = lua_newuserdatauv(L, sizeof *values * ((size_t)n + 1), 0);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 3, i + 1);
    tags[i] = check_tag(L, -1); /* the list keeps it */
    lua_rawgeti(L, 4, i + 1);
    values[i] = luaL_checknumber(L, -1);
    lua_pop(L, 2);
  }
  return gbl_check_status(L, gb_events_scalars(events, luaL_checkinteger(L, 2), tags, values, n));
}

/* events_histogram(events, step, tag, tensor): a float64 tensor. */
static int events_histogram(lua_State *L) {
  gb_events *events = check_events(L);
  gb_tensor *x = gbl_check_tensor(L, 4);
  size_t count = (size_t)x->numel;
  double *values = lua_newuserdatauv(L, sizeof *values * (count + 1), 0);
  gbl_check_status(L, gb_tensor_read(x, values, sizeof *values * count));
  return gbl_check_status(L, gb_events_histogram(events, luaL_checkinteger(L, 2), check_tag(L, 3), values, count));
}

/* events_counts(events, step, tag, least, counts): a list of whole numbers. */
static int events_counts(lua_State *L) {
  gb_events *events = check_events(L);
  size_t n = lua_rawlen(L, 5);
  int64_t *counts = lua_newuserdatauv(L, sizeof *counts * (n + 1), 0);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, 5, (lua_Integer)i + 1);
    counts[i] = luaL_checkinteger(L, -1);
    lua_pop(L, 1);
  }
  return gbl_check_status(L, gb_events_counts(events, luaL_checkinteger(L, 2), check_tag(L, 3), luaL_checkinteger(L, 4),
                                              counts, n));
}

/* events_text(events, step, tag, text) */
static int events_text(lua_State *L) {
  gb_events *events = check_events(L);
  size_t length;
  const char *text = luaL_checklstring(L, 4, &length);
  return gbl_check_status(L, gb_events_text(events, luaL_checkinteger(L, 2), check_tag(L, 3), text, length));
}

/* events_hparams(events, names, values, metrics): lists of ours; a value is a string, a number or a boolean. */
static int events_hparams(lua_State *L) {
  gb_events *events = check_events(L);
  int n = (int)lua_rawlen(L, 2), n_metrics = (int)lua_rawlen(L, 4);
  gb_hparam *params = lua_newuserdatauv(L, sizeof *params * ((size_t)n + 1), 0);
  const char **metrics = lua_newuserdatauv(L, sizeof *metrics * ((size_t)n_metrics + 1), 0);
  for (int i = 0; i < n; i++) {
    gb_hparam *p = &params[i];
    lua_rawgeti(L, 2, i + 1);
    *p = (gb_hparam){ .name = check_tag(L, -1), .type = GB_HPARAM_NUMBER };
    int type = lua_rawgeti(L, 3, i + 1);
    if (type == LUA_TSTRING) p->type = GB_HPARAM_TEXT, p->text = lua_tolstring(L, -1, &p->length);
    else if (type == LUA_TBOOLEAN) p->type = GB_HPARAM_BOOL, p->number = lua_toboolean(L, -1);
    else p->number = luaL_checknumber(L, -1);
    lua_pop(L, 2);
  }
  for (int i = 0; i < n_metrics; i++) {
    lua_rawgeti(L, 4, i + 1);
    metrics[i] = check_tag(L, -1);
    lua_pop(L, 1);
  }
  return gbl_check_status(L, gb_events_hparams(events, params, n, metrics, n_metrics));
}

static int events_flush(lua_State *L) { return gbl_check_status(L, gb_events_flush(check_events(L))); }

/* ====} */

/* {==== pictures ==== */

/* The pixels of a uint8 tensor [height, width, channels], in a buffer that is pushed. */
static const uint8_t *push_pixels(lua_State *L, int arg, int64_t shape[3]) {
  gb_tensor *x = gbl_check_tensor(L, arg);
  size_t bytes = (size_t)x->numel;
  uint8_t *pixels = lua_newuserdatauv(L, bytes + 1, 0);
  memcpy(shape, x->shape, 3 * sizeof *shape);
  gbl_check_status(L, gb_tensor_read(x, pixels, bytes));
  return pixels;
}

/* png_save(path, pixels) */
static int png_save(lua_State *L) {
  gb_context *context = gbl_context(L);
  int64_t shape[3];
  const uint8_t *pixels = push_pixels(L, 2, shape);
  return gbl_check_status(L, gb_png_save(context, luaL_checkstring(L, 1), pixels, shape[1], shape[0], (int)shape[2]));
}

/* events_image(events, step, tag, pixels) */
static int events_image(lua_State *L) {
  gb_events *events = check_events(L);
  const char *tag = check_tag(L, 3);
  lua_Integer step = luaL_checkinteger(L, 2);
  int64_t shape[3];
  const uint8_t *pixels = push_pixels(L, 4, shape);
  uint8_t *png = NULL;
  size_t bytes = 0;
  gb_context *context = gbl_context(L);
  gbl_check_status(L, gb_png_encode(context, pixels, shape[1], shape[0], (int)shape[2], &png, &bytes));
  gb_status status = gb_events_image(events, step, tag, shape[1], shape[0], (int)shape[2], png, bytes);
  gb_counted_free(png);
  return gbl_check_status(L, status);
}

/* ====} */

/* {==== files that grow, and whole ones ==== */

static void close_append(void *file) { gb_append_close(file); }
static const gbl_type append_type = { "gibbous.append", close_append, (const luaL_Reg[]){ { NULL, NULL } }, NULL,
                                      NULL };

static int append_open(lua_State *L) {
  gb_context *context = gbl_context(L);
  void **slot = gbl_new_object(L, &append_type, 0);
  gb_append *file = NULL;
  gb_status status = gb_append_open(context, luaL_checkstring(L, 1), false, &file);
  *slot = file;
  gbl_check_status(L, status);
  return 1;
}

static gb_append *check_append(lua_State *L) {
  gbl_context(L);
  return gbl_check_object(L, 1, &append_type);
}

static int append_write(lua_State *L) {
  gb_append *file = check_append(L);
  size_t length;
  const char *text = luaL_checklstring(L, 2, &length);
  return gbl_check_status(L, gb_append_write(file, text, length));
}

static int append_cut(lua_State *L) {
  return gbl_check_status(L, gb_append_cut(check_append(L), (uint64_t)luaL_checkinteger(L, 2)));
}

static int append_flush(lua_State *L) { return gbl_check_status(L, gb_append_flush(check_append(L))); }

/* read_file(path) -> string */
static int read_file(lua_State *L) {
  gb_context *context = gbl_context(L);
  const char *path = gbl_check_path(L, 1, "read");
  gb_file_reader *file;
  gbl_check_status(L, gb_file_open(context, path, &file));
  size_t bytes = (size_t)gb_file_size(file);
  gb_file_close(file);
  char *room = lua_newuserdatauv(L, bytes + 1, 0);
  gbl_check_status(L, gb_file_open(context, path, &file));
  gb_status status = gb_file_read(file, 0, room, bytes);
  gb_file_close(file);
  gbl_check_status(L, status);
  lua_pushlstring(L, room, bytes);
  return 1;
}

/* write_file(path, text): it appears whole or not at all. */
static int write_file(lua_State *L) {
  gb_context *context = gbl_context(L);
  size_t length;
  const char *text = luaL_checklstring(L, 2, &length);
  gb_file_writer *file = NULL;
  gbl_check_status(L, gb_file_create(context, gbl_check_path(L, 1, "write"), &file));
  gb_status status = gb_file_write(file, text, length);
  if (status == GB_OK) status = gb_file_commit(file);
  else gb_file_abandon(file);
  return gbl_check_status(L, status);
}

/* ====} */

void gbl_open_logger(lua_State *L) {
  gbl_new_type(L, &events_type);
  gbl_new_type(L, &append_type);
  gbl_push_module(L, "_native");
  gbl_set_functions(L, (const luaL_Reg[]){
    { "events_open", events_open }, { "events_scalars", events_scalars }, { "events_histogram", events_histogram },
    { "events_counts", events_counts }, { "events_text", events_text }, { "events_hparams", events_hparams },
    { "events_image", events_image }, { "events_flush", events_flush }, { "png_save", png_save },
    { "append_open", append_open }, { "append_write", append_write }, { "append_cut", append_cut },
    { "append_flush", append_flush }, { "read_file", read_file }, { "write_file", write_file }, { NULL, NULL } });
  lua_pop(L, 1);
}
