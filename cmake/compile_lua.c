/* compile_lua.c - at build time, writes a C file with the Lua half of the library as bytecode, in the form of
 * embed.cmake: a host then opens in a third of the time. It is linked with the very Lua that will read the bytecode; a
 * build that cannot tell that embeds text. Lines and names stay, for error messages.
 *
 *   compile_lua OUTPUT TABLE ROOT FILE... */
#include <lauxlib.h>
#include <lua.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_END "native.settle()\n" /* the last statement of every chunk, see bindings/late.c; as in embed.cmake */

static int write_bytes(lua_State *L, const void *bytes, size_t count, void *file) {
  (void)L;
  for (size_t i = 0; i < count; i++) fprintf(file, "%d,", ((const unsigned char *)bytes)[i]);
  return fputc('\n', file) == EOF;
}

/* One array of bytes; false: a message was printed. */
static int compile(lua_State *L, FILE *out, const char *root, const char *file, int index) {
  size_t length = 0;
  luaL_Buffer text;
  lua_pushfstring(L, "%s/%s", root, file);
  FILE *in = fopen(lua_tostring(L, -1), "rb");
  if (!in) return fprintf(stderr, "compile_lua: cannot read %s\n", file), 0;
  luaL_buffinit(L, &text);
  do {
    char *room = luaL_prepbuffer(&text);
    length = fread(room, 1, LUAL_BUFFERSIZE, in);
    luaL_addsize(&text, length);
  } while (length > 0);
  fclose(in);
  luaL_addstring(&text, CHUNK_END);
  luaL_pushresult(&text);
  const char *bytes = lua_tolstring(L, -1, &length);
  lua_pushfstring(L, "=gibbous/%s", file);
  if (luaL_loadbufferx(L, bytes, length, lua_tostring(L, -1), "t") != LUA_OK)
    return fprintf(stderr, "compile_lua: %s\n", lua_tostring(L, -1)), 0;
  fprintf(out, "static const unsigned char chunk%d[] = {\n", index);
  int failed = lua_dump(L, write_bytes, out, 0);
  fprintf(out, "};\n");
  lua_settop(L, 0);
  return !failed;
}

int main(int argc, char **argv) {
  FILE *out = argc > 3 ? fopen(argv[1], "wb") : NULL;
  lua_State *L = luaL_newstate();
  int good = out && L;
  if (good) fprintf(out, "/* Made by cmake/compile_lua.c. */\n#include \"embedded.h\"\n\n");
  for (int i = 4; good && i < argc; i++) good = compile(L, out, argv[3], argv[i], i);
  if (good) fprintf(out, "extern const gbl_chunk %s[];\nconst gbl_chunk %s[] = {\n", argv[2], argv[2]);
  for (int i = 4; good && i < argc; i++)
    fprintf(out, "  { \"%.*s\", (const char *)chunk%d, sizeof chunk%d },\n", (int)(strlen(argv[i]) - strlen(".lua")),
            argv[i], i, i);
  if (good) fprintf(out, "  { NULL, NULL, 0 }\n};\n");
  if (out && fclose(out)) good = 0;
  if (L) lua_close(L);
  if (!good) fprintf(stderr, "compile_lua: nothing was written\n");
  return !good;
}
