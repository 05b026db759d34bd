/* data.c - native datasets, texts and the native loader as Lua objects. The DataLoader that recipes see is in gibbous/data.lua. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"
#include "host.h"
#include "data/loader.h"
#include "objects.h"

/* {==== datasets ==== */

static void release_dataset(void *dataset) { gb_dataset_release(dataset); }
static const gbl_type dataset_type;

static gb_dataset *check_dataset(lua_State *L) { return gbl_check_object(L, 1, &dataset_type); }

static int dataset_length(lua_State *L) {
  lua_pushinteger(L, check_dataset(L)->count);
  return 1;
}

/* dataset:get(i: int) -> tensors: The tensors of sample i (from 1, -1 is the last). Example: local dataset = gb.data.TensorDataset(gb.rand(8, 4))
 * local row = dataset:get(1) */
static int dataset_get(lua_State *L) {
  gb_context *context = gbl_context(L);
  gb_dataset *dataset = check_dataset(L);
  int64_t i = gbl_position(L, gbl_check_integer(L, 2, "get", "i"), "get", "i");
  if (i < 0) i += dataset->count;
  if (i < 0 || i >= dataset->count) return gbl_error(L, "get: there is no sample %d among %d", (int)lua_tointeger(L, 2), (int)dataset->count);
  gb_tensor *columns[GB_MAX_COLUMNS] = { NULL };
  gbl_box *boxes[GB_MAX_COLUMNS];
  for (int c = 0; c < dataset->columns; c++) boxes[c] = gbl_new_tensor(L);
  gbl_check_status(L, gb_dataset_get(context, dataset, i, columns));
  for (int c = 0; c < dataset->columns; c++) boxes[c]->tensor = columns[c];
  return dataset->columns;
}

/* Give the object at the top of the stack what was made; raise the failure. */
static int finish_dataset(lua_State *L, void **slot, gb_dataset *dataset, gb_status status) {
  *slot = dataset;
  gbl_check_status(L, status);
  return 1;
}

/* dataset:subset(first, last?: int) -> dataset: The samples first .. last, both included, from 1; or those of a list of positions. Example: local
 * half = gb.data.TensorDataset(gb.rand(8, 4)):subset(1, 4) */
static int dataset_subset(lua_State *L) {
  gb_context *context = gbl_context(L);
  gb_dataset *of = check_dataset(L), *made = NULL;
  if (lua_istable(L, 2)) {
    lua_Integer n = (lua_Integer)lua_rawlen(L, 2); /* a __len could promise more than memory has bytes */
    int64_t *indices = lua_newuserdatauv(L, sizeof *indices * (size_t)(n + 1), 0);
    for (lua_Integer i = 0; i < n; i++) {
      lua_rawgeti(L, 2, i + 1);
      indices[i] = gbl_position(L, gbl_check_integer(L, lua_gettop(L), "subset", "position"), "subset", "position");
      if (indices[i] < 0) indices[i] += of->count;
      lua_pop(L, 1);
    }
    void **slot = gbl_new_object(L, &dataset_type, 0);
    gb_status status = gb_dataset_subset(context, of, indices, n, &made);
    return finish_dataset(L, slot, made, status);
  }
  int64_t first = gbl_check_integer(L, 2, "subset", "first"), last = gbl_check_integer(L, 3, "subset", "last");
  if (first < 1 || last < first - 1 || last > of->count)
    return gbl_error(L, "subset: positions %d .. %d do not lie within 1 .. %d", (int)first, (int)last, (int)of->count);
  void **slot = gbl_new_object(L, &dataset_type, 0);
  gb_status status = gb_dataset_range(context, of, first - 1, last - first + 1, &made);
  return finish_dataset(L, slot, made, status);
}

static const luaL_Reg dataset_methods[] = { { "__len", dataset_length }, { "get", dataset_get }, { "subset", dataset_subset }, { NULL, NULL } };
static const gbl_type dataset_type = { "gibbous.dataset", release_dataset, dataset_methods, NULL };

/* gb.data.TensorDataset(xs...: tensor) -> dataset: Sample i is row i of each tensor. Errors: different numbers of rows. Example: local dataset =
 * gb.data.TensorDataset(gb.rand(8, 4), gb.arange(8)) */
static int tensor_dataset(lua_State *L) {
  gb_context *context = gbl_context(L);
  int n = lua_gettop(L);
  if (n < 1 || n > GB_MAX_COLUMNS) return gbl_error(L, "TensorDataset takes 1 to %d tensors, got %d", GB_MAX_COLUMNS, n);
  gb_tensor *columns[GB_MAX_COLUMNS];
  for (int i = 0; i < n; i++) {
    gbl_box *box = gbl_new_tensor(L);
    gbl_check_status(L, gb_op_contiguous(context, gbl_check_tensor(L, i + 1), &box->tensor));
    columns[i] = box->tensor;
  }
  gb_dataset *made = NULL;
  void **slot = gbl_new_object(L, &dataset_type, 0);
  gb_status status = gb_dataset_tensors(context, columns, n, &made);
  return finish_dataset(L, slot, made, status);
}

/* gb.data.idx(images: string, labels?: string, options?: table) -> dataset: Files in MNIST's format, gzipped or not: images scaled to 0 .. 1,
 * then normalised; labels as int64. options: mean = 0, std = 1. Errors: a file that is not of this format, or damaged. */
static int idx(lua_State *L) {
  static const char *const known[] = { "mean", "std", NULL };
  gb_context *context = gbl_context(L);
  const char *images = luaL_checkstring(L, 1), *labels = luaL_optstring(L, 2, NULL);
  gbl_check_options(L, 3, "data.idx", known);
  double mean = gbl_option_number(L, 3, "data.idx", "mean", 0), std = gbl_option_number(L, 3, "data.idx", "std", 1);
  if (std == 0) return gbl_error(L, "data.idx: std must not be 0");
  gb_dataset *made = NULL;
  void **slot = gbl_new_object(L, &dataset_type, 0);
  gb_status status = gb_dataset_images(context, images, labels, mean, std, &made);
  return finish_dataset(L, slot, made, status);
}

static int is_dataset(lua_State *L) {
  lua_pushboolean(L, gbl_test_object(L, 1, &dataset_type) != NULL);
  return 1;
}

/* ====} */

/* {==== texts and token files ==== */

/* Part of a text or of a token file: ids first .. first + count - 1. */
typedef struct text_part { gb_text *text; gb_tokens *tokens; int64_t first, count; } text_part;

static void release_text(void *object) {
  text_part *part = object;
  gb_text_release(part->text);
  gb_tokens_release(part->tokens);
  gb_counted_free(part);
}

static const gbl_type text_type, tokens_type;
static text_part *check_text(lua_State *L) { return gbl_check_object(L, 1, &text_type); }

/* A text or a token file. */
static text_part *check_part(lua_State *L) {
  text_part *tokens = gbl_test_object(L, 1, &tokens_type);
  return tokens ? tokens : check_text(L);
}

/* Push an object for a part yet to be filled. */
static text_part *push_part(lua_State *L, const gbl_type *type) {
  void **slot = gbl_new_object(L, type, 0);
  gb_context *context = gbl_context(L);
  text_part *part = gb_counted_alloc(context, sizeof *part);
  if (!part) gbl_check_status(L, gb_error_code(context));
  *slot = part;
  return part;
}

/* Push ids first .. first + count - 1 of what part is a part of. */
static void push_range(lua_State *L, const text_part *of, int64_t first, int64_t count) {
  text_part *part = push_part(L, of->tokens ? &tokens_type : &text_type);
  *part = (text_part){ of->text, of->tokens, first, count };
  if (part->text) gb_text_retain(part->text);
  if (part->tokens) gb_tokens_retain(part->tokens);
}

/* gb.data.text(path: string, options?: table) -> text: A file as a sequence of ids, one for each character, or byte. options: kind = "characters"
 * or "bytes", vocabulary (a string of the characters in the order of their ids). Errors: a character that the vocabulary lacks. */
static int text_open(lua_State *L) {
  static const char *const known[] = { "kind", "vocabulary", NULL };
  gb_context *context = gbl_context(L);
  const char *path = luaL_checkstring(L, 1);
  gbl_check_options(L, 2, "data.text", known);
  const char *kind = gbl_option_string(L, 2, "data.text", "kind", "characters");
  const char *vocabulary = gbl_option_string(L, 2, "data.text", "vocabulary", NULL);
  size_t bytes_of_vocabulary = 0;
  if (vocabulary) {
    lua_getfield(L, 2, "vocabulary");
    vocabulary = lua_tolstring(L, -1, &bytes_of_vocabulary); /* which may hold a NUL */
  }
  bool bytes = !strcmp(kind, "bytes");
  if (!bytes && strcmp(kind, "characters")) return gbl_error(L, "data.text: kind is 'characters' or 'bytes', not '%s'", kind);
  text_part *part = push_part(L, &text_type);
  gbl_check_status(L, gb_text_open(context, path, bytes ? GB_TEXT_BYTES : GB_TEXT_CHARACTERS, vocabulary, bytes_of_vocabulary, &part->text));
  part->count = gb_text_length(part->text);
  return 1;
}

/* gb.data.tokens(path: string, options?: table) -> tokens: A file of token ids, read window by window; with 16 bits also one with llm.c's header.
 * options: dtype = "uint16" (the default), "int32" or "uint8". */
static int tokens_open(lua_State *L) {
  static const char *const known[] = { "dtype", NULL };
  static const char *const names[GB_TOKEN_KINDS] = { "uint8", "uint16", "int32" };
  gb_context *context = gbl_context(L);
  const char *path = luaL_checkstring(L, 1);
  gbl_check_options(L, 2, "data.tokens", known);
  const char *dtype = gbl_option_string(L, 2, "data.tokens", "dtype", "uint16");
  int kind = 0;
  while (kind < GB_TOKEN_KINDS && strcmp(names[kind], dtype)) kind++;
  if (kind == GB_TOKEN_KINDS) return gbl_error(L, "data.tokens: dtype is 'uint8', 'uint16' or 'int32', not '%s'", dtype);
  text_part *part = push_part(L, &tokens_type);
  gbl_check_status(L, gb_tokens_open(context, path, (gb_token_kind)kind, &part->tokens));
  part->count = gb_tokens_length(part->tokens);
  return 1;
}

static int part_length(lua_State *L) { return lua_pushinteger(L, check_part(L)->count), 1; }
/* text:vocabulary_size() -> int: How many ids there are. */
static int text_vocabulary_size(lua_State *L) { return lua_pushinteger(L, gb_text_vocabulary_size(check_text(L)->text)), 1; }

/* text:vocabulary() -> string: The characters in the order of their ids; nil for bytes. */
static int text_vocabulary(lua_State *L) {
  size_t bytes;
  const char *vocabulary = gb_text_vocabulary(check_text(L)->text, &bytes);
  if (vocabulary) lua_pushlstring(L, vocabulary, bytes);
  else lua_pushnil(L);
  return 1;
}

/* text:encode(string: string) -> tensor: The ids of a string, an int64 vector. Errors: a character that the vocabulary lacks. */
static int text_encode(lua_State *L) {
  gb_context *context = gbl_context(L);
  text_part *part = check_text(L);
  size_t bytes;
  const char *string = luaL_checklstring(L, 2, &bytes);
  int64_t *ids = lua_newuserdatauv(L, sizeof *ids * (bytes + 1), 0), count;
  gbl_check_status(L, gb_text_encode(context, part->text, string, bytes, ids, &count));
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_tensor_new(context, GB_INT64, 1, &count, (gb_device){ GB_CPU, 0 }, &box->tensor));
  gbl_check_status(L, gb_tensor_write(box->tensor, ids, sizeof *ids * (size_t)count));
  gbl_finish_tensor(L);
  return 1;
}

/* What the engine decoded, until Lua has its copy. */
static const gbl_type decoded_type = { "gibbous.decoded", free, (const luaL_Reg[]){ { NULL, NULL } }, NULL };

/* text:decode(ids: tensor) -> string: The string of an integer tensor. Errors: an id that the vocabulary lacks. */
static int text_decode(lua_State *L) {
  gb_context *context = gbl_context(L);
  text_part *part = check_text(L);
  gb_tensor *t = gbl_check_tensor(L, 2);
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_op_cast(context, t, GB_INT64, &box->tensor));
  size_t size = sizeof(int64_t) * (size_t)t->numel, bytes;
  int64_t *ids = lua_newuserdatauv(L, size + 1, 0);
  gbl_check_status(L, gb_tensor_read(box->tensor, ids, size));
  void **slot = gbl_new_object(L, &decoded_type, 0);
  char *string = NULL;
  gb_status status = gb_text_decode(context, part->text, ids, t->numel, &string, &bytes);
  *slot = string;
  gbl_check_status(L, status);
  lua_pushlstring(L, string, bytes);
  return 1;
}

/* text:split(share: number) -> text, text: The first share of the ids, and the rest. */
static int part_split(lua_State *L) {
  text_part *part = check_part(L);
  double share = gbl_check_number(L, 2, "split", "share");
  if (!(share > 0 && share < 1)) return gbl_error(L, "split: the share lies between 0 and 1, got %g", share);
  int64_t n = (int64_t)(share * (double)part->count);
  push_range(L, part, part->first, n);
  push_range(L, part, part->first + n, part->count - n);
  return 2;
}

/* text:windows(block: int) -> dataset: Samples x = ids[i .. i+block-1], y = the ids one further. */
static int part_windows(lua_State *L) {
  gb_context *context = gbl_context(L);
  text_part *part = check_part(L);
  int64_t block = gbl_check_integer(L, 2, "windows", "block");
  gb_dataset *made = NULL;
  void **slot = gbl_new_object(L, &dataset_type, 0);
  gb_status status = part->tokens ? gb_dataset_token_windows(context, part->tokens, part->first, part->count, block, &made)
                                  : gb_dataset_windows(context, part->text, part->first, part->count, block, &made);
  return finish_dataset(L, slot, made, status);
}

static const luaL_Reg text_methods[] = {
  { "__len", part_length }, { "vocabulary_size", text_vocabulary_size }, { "vocabulary", text_vocabulary }, { "encode", text_encode },
  { "decode", text_decode }, { "split", part_split }, { "windows", part_windows }, { NULL, NULL },
};
static const luaL_Reg tokens_methods[] = { { "__len", part_length }, { "split", part_split }, { "windows", part_windows }, { NULL, NULL } };
static const gbl_type text_type = { "gibbous.text", release_text, text_methods, NULL };
static const gbl_type tokens_type = { "gibbous.tokens", release_text, tokens_methods, NULL };

/* ====} */

/* {==== the native loader ==== */

static void release_loader(void *loader) { gb_loader_close(loader); }
static const gbl_type loader_type;
static gb_loader *check_loader(lua_State *L) { return gbl_check_object(L, 1, &loader_type); }

/* loader(dataset, { batch_size, shuffle, drop_last, prefetch, seed, batches }): the options were checked by the Lua half. */
static int loader_new(lua_State *L) {
  const char *who = "DataLoader";
  gb_context *context = gbl_context(L);
  gb_dataset *dataset = check_dataset(L);
  gb_loader_options options;
  gb_loader_options_init(&options);
  options.batch_size = gbl_option_integer(L, 2, who, "batch_size", 1);
  options.shuffle = gbl_option_boolean(L, 2, who, "shuffle", false);
  options.drop_last = gbl_option_boolean(L, 2, who, "drop_last", false);
  int64_t prefetch = gbl_option_integer(L, 2, who, "prefetch", options.prefetch);
  if (gbl_in_sandbox(L) && prefetch > 0) prefetch = 0; /* the same batches, without a thread for each loader */
  options.prefetch = prefetch < 0 ? -1 : prefetch > INT_MAX ? INT_MAX : (int)prefetch; /* out of range: the engine turns it down */
  options.seed = (uint64_t)gbl_option_integer(L, 2, who, "seed", 0);
  options.random_batches = gbl_option_integer(L, 2, who, "batches", 0);
  gb_loader *loader = NULL;
  void **slot = gbl_new_object(L, &loader_type, 0);
  gb_status status = gb_loader_open(context, dataset, &options, &loader);
  *slot = loader;
  gbl_check_status(L, status);
  return 1;
}

/* loader:next(): the columns of the next batch, or nil at the end of an epoch. */
static int loader_next(lua_State *L) {
  gbl_enter(L);
  gb_loader *loader = check_loader(L);
  int columns = gb_loader_dataset(loader)->columns;
  gb_tensor *batch[GB_MAX_COLUMNS] = { NULL };
  gbl_box *boxes[GB_MAX_COLUMNS];
  for (int c = 0; c < columns; c++) boxes[c] = gbl_new_tensor(L);
  gbl_check_status(L, gb_loader_next(loader, batch));
  if (!batch[0]) return lua_pushnil(L), 1;
  for (int c = 0; c < columns; c++) boxes[c]->tensor = batch[c];
  return columns;
}

static int loader_batches(lua_State *L) { return lua_pushinteger(L, gb_loader_batches(check_loader(L))), 1; }

static int loader_seek(lua_State *L) {
  gbl_enter(L);
  gb_loader_position position = { gbl_check_integer(L, 2, "seek", "epoch"), gbl_check_integer(L, 3, "seek", "batch") };
  gbl_check_status(L, gb_loader_set_position(check_loader(L), position));
  return 0;
}

static const luaL_Reg loader_methods[] = { { "next", loader_next }, { "seek", loader_seek }, { "batches", loader_batches }, { NULL, NULL } };
static const gbl_type loader_type = { "gibbous.loader", release_loader, loader_methods, NULL };

/* shuffled(n, seed, epoch): positions 1 .. n in the order that a native loader would use. */
static int shuffled(lua_State *L) {
  int64_t n = luaL_checkinteger(L, 1);
  if (n < 0 || n >= INT_MAX) return gbl_error(L, "DataLoader: %" PRId64 " samples cannot be shuffled; there may be %d", n, INT_MAX - 1);
  gbl_charge(L, (uint64_t)n);
  int64_t *order = lua_newuserdatauv(L, sizeof *order * (size_t)(n + 1), 0);
  gb_permutation((uint64_t)luaL_checkinteger(L, 2), (uint64_t)luaL_checkinteger(L, 3), n, order);
  lua_createtable(L, (int)n, 0);
  for (int64_t i = 0; i < n; i++) {
    lua_pushinteger(L, order[i] + 1);
    lua_seti(L, -2, i + 1);
  }
  return 1;
}

/* ====} */

void gbl_open_data(lua_State *L) {
  gbl_new_type(L, &dataset_type);
  gbl_new_type(L, &text_type);
  gbl_new_type(L, &tokens_type);
  gbl_new_type(L, &decoded_type);
  gbl_new_type(L, &loader_type);
  gbl_push_module(L, "data");
  gbl_set_functions(L, (const luaL_Reg[]){ { "TensorDataset", tensor_dataset }, { "idx", idx }, { "text", text_open }, { "tokens", tokens_open }, { NULL, NULL } });
  lua_pop(L, 1);
  gbl_push_module(L, "_native");
  gbl_set_functions(L, (const luaL_Reg[]){ { "is_dataset", is_dataset }, { "loader", loader_new }, { "shuffled", shuffled }, { NULL, NULL } });
  lua_pop(L, 1);
}
