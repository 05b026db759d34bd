/* data.c - native datasets, texts and the native loader as Lua objects. The DataLoader that recipes see is in
 * gibbous/data.lua. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "data/loader.h"
#include "data/readers.h"
#include "host.h"
#include "objects.h"
#include "reader.h"

/* {==== datasets ==== */

static void release_dataset(void *dataset) { gb_dataset_release(dataset); }
static const gbl_type dataset_type;

static int dataset_length(lua_State *L) {
  lua_pushinteger(L, ((const gb_dataset *)gbl_check_object(L, 1, &dataset_type))->count);
  return 1;
}

static int dataset_text(lua_State *L) {
  const gb_dataset *dataset = gbl_test_object(L, 1, &dataset_type);
  if (dataset) lua_pushfstring(L, "dataset (%I samples of %d tensors)", (LUAI_UACINT)dataset->count, dataset->columns);
  else lua_pushliteral(L, "dataset (closed)");
  return 1;
}

/* A position from 0 among count samples, negative ones counted from the end. */
static int64_t check_sample(const gbl_call *call, int64_t position, int64_t count) {
  int64_t i = position < 0 ? position + count : position;
  if (i < 0 || i >= count)
    gbl_refuse(call, "there is no sample %" PRId64 " among %" PRId64, position < 0 ? position : position + 1, count);
  return i;
}

static int dataset_get(lua_State *L, gbl_call *call) {
  gb_dataset *dataset = gbl_object(call, "self");
  int64_t i = check_sample(call, gbl_integer(call, "i"), dataset->count);
  gb_tensor *columns[GB_MAX_COLUMNS] = { NULL };
  gbl_box *boxes[GB_MAX_COLUMNS];
  for (int c = 0; c < dataset->columns; c++) boxes[c] = gbl_new_tensor(L);
  gbl_check_status(L, gb_dataset_get(call->state->context, dataset, i, columns));
  for (int c = 0; c < dataset->columns; c++) boxes[c]->tensor = columns[c];
  return dataset->columns;
}

/* Give the object at the top of the stack what was made; raise the failure. */
static int finish_dataset(lua_State *L, void **slot, gb_dataset *dataset, gb_status status) {
  *slot = dataset;
  gbl_check_status(L, status);
  return 1;
}

/* The samples of a list of positions. */
static int subset_of_list(lua_State *L, gbl_call *call, gb_dataset *of, const gbl_value *list) {
  int64_t *indices = lua_newuserdatauv(L, sizeof *indices * ((size_t)list->count + 1), 0);
  gb_dataset *made = NULL;
  uint64_t steps = 0;
  for (int i = 0; i < list->count; i++) {
    int64_t position;
    gbl_charge_step(L, &steps);
    lua_rawgeti(L, list->index, i + 1);
    if (!gbl_test_integer(L, lua_gettop(L), &position))
      gbl_refuse(call, "[%d] of the list is %s, no position", i + 1, gbl_type_name(L, -1));
    if (position == 0) gbl_refuse(call, "position 0: positions count from 1, and -1 is the last");
    indices[i] = check_sample(call, position > 0 ? position - 1 : position, of->count);
    lua_pop(L, 1);
  }
  void **slot = gbl_new_object(L, &dataset_type, 0);
  gb_status status = gb_dataset_subset(call->state->context, of, indices, list->count, &made);
  return finish_dataset(L, slot, made, status);
}

static int dataset_subset(lua_State *L, gbl_call *call) {
  gb_dataset *of = gbl_object(call, "self"), *made = NULL;
  const gbl_value *which = gbl_argument(call, "first"), *until = gbl_argument(call, "last");
  if (!strcmp(which->kind, "list")) {
    if (until->given) return gbl_refuse(call, "a list of positions has no last");
    return subset_of_list(L, call, of, which);
  }
  int64_t first = which->integer, last = until->integer;
  if (!until->given) return gbl_refuse(call, "'last' is missing: the samples first .. last, or a list of positions");
  if (first < 1 || last < first - 1 || last > of->count)
    return gbl_refuse(call, "positions %" PRId64 " .. %" PRId64 " do not lie within 1 .. %" PRId64, first, last,
                      of->count);
  void **slot = gbl_new_object(L, &dataset_type, 0);
  gb_status status = gb_dataset_range(call->state->context, of, first - 1, last - first + 1, &made);
  return finish_dataset(L, slot, made, status);
}

/* Push the categories of a column in the order of their ids. */
static void push_words(lua_State *L, const gb_field *field, uint64_t *steps) {
  lua_newtable(L);
  for (int64_t i = 0; i < field->count; i++) {
    gbl_charge_step(L, steps);
    lua_pushstring(L, field->words[i]);
    lua_rawseti(L, -2, i + 1);
  }
}

/* Push what is known of one column. */
static void push_field(lua_State *L, const gb_field *field, uint64_t *steps) {
  lua_createtable(L, 0, 6);
  lua_pushstring(L, field->name), gbl_set_raw(L, -2, "name");
  lua_pushstring(L, field->is_category ? "category" : "number"), gbl_set_raw(L, -2, "kind");
  if (field->tensor) lua_pushstring(L, field->tensor), gbl_set_raw(L, -2, "tensor");
  lua_pushinteger(L, field->missing), gbl_set_raw(L, -2, "missing");
  if (!field->is_category) {
    lua_pushnumber(L, field->mean), gbl_set_raw(L, -2, "mean");
    lua_pushnumber(L, field->std), gbl_set_raw(L, -2, "std");
    return;
  }
  lua_pushinteger(L, field->unseen), gbl_set_raw(L, -2, "unseen");
  push_words(L, field, steps);
  gbl_set_raw(L, -2, "categories");
}

static int dataset_columns(lua_State *L, gbl_call *call) {
  const gb_fields *fields = ((const gb_dataset *)gbl_object(call, "self"))->fields;
  uint64_t steps = 0;
  luaL_checkstack(L, 8, GBL_NO_STACK);
  lua_newtable(L);
  for (int i = 0; fields && i < fields->count; i++) {
    gbl_charge_step(L, &steps);
    push_field(L, &fields->field[i], &steps);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int dataset_classes(lua_State *L, gbl_call *call) {
  const gb_fields *fields = ((const gb_dataset *)gbl_object(call, "self"))->fields;
  uint64_t steps = 0;
  luaL_checkstack(L, 8, GBL_NO_STACK);
  for (int i = 0; fields && i < fields->count; i++) {
    const gb_field *field = &fields->field[i];
    if (!field->is_category || !field->tensor || strcmp(field->tensor, "y")) continue;
    push_words(L, field, &steps);
    return 1;
  }
  return lua_newtable(L), 1;
}

static int dataset_skipped(lua_State *L, gbl_call *call) {
  const gb_dataset *dataset = gbl_object(call, "self");
  return lua_pushinteger(L, dataset->skipped ? dataset->skipped(dataset->user) : 0), 1;
}

static const gbl_function dataset_functions[] = {
  { dataset_get, GB_SANDBOX_STRICT,
    "dataset:get(i: position) -> tensors: The tensors of sample i (from 1, -1 is the last). Example: local dataset = "
    "gb.data.TensorDataset(gb.rand(8, 4)) local row = dataset:get(1)" },
  { dataset_columns, GB_SANDBOX_STRICT,
    "dataset:columns() -> list: What gb.data.csv learned, a table for each column of the file that is used: name, "
    "kind (\"number\" or "
    "\"category\"), tensor (\"x\", \"ids\" or \"y\", in whose order the columns stand), mean and std of numbers, "
    "categories in the order "
    "of their ids, and how many values of this file were missing or unseen in the fitted data. Empty for any other "
    "dataset. Example: "
    "print(#gb.data.TensorDataset(gb.rand(8, 4)):columns())" },
  { dataset_classes, GB_SANDBOX_STRICT,
    "dataset:classes() -> list: The names of the classes that y counts from 0: of gb.data.images the folders, of "
    "gb.data.csv the categories of the target. Empty for any other dataset. Example: "
    "print(#gb.data.TensorDataset(gb.rand(8, 4)):classes())" },
  { dataset_skipped, GB_SANDBOX_STRICT,
    "dataset:skipped() -> int: How many files gb.data.images with skip_bad has passed over so far, since they could "
    "not be read. Example: print(gb.data.TensorDataset(gb.rand(8, 4)):skipped())" },
  { dataset_subset, GB_SANDBOX_STRICT,
    "dataset:subset(first: int|list, last?: int) -> dataset: The samples first .. last, both included, from 1; or "
    "those of a list of "
    "positions. Example: local half = gb.data.TensorDataset(gb.rand(8, 4)):subset(1, 4)" },
  { NULL, 0, NULL },
};

static const luaL_Reg dataset_events[] = { { "__len", dataset_length }, { "__tostring", dataset_text },
                                           { NULL, NULL } };
static const gbl_type dataset_type = {
  "gibbous.dataset", release_dataset, dataset_events, dataset_functions,
  "dataset:close(): Release the dataset now instead of when it is collected. Example: "
  "gb.data.TensorDataset(gb.rand(8, 4)):close()",
};

static int tensor_dataset(lua_State *L, gbl_call *call) {
  const gbl_value *xs = gbl_argument(call, "xs");
  if (xs->count < 1 || xs->count > GB_MAX_COLUMNS)
    return gbl_refuse(call, "takes 1 to %d tensors, got %d", GB_MAX_COLUMNS, xs->count);
  gb_tensor *columns[GB_MAX_COLUMNS];
  for (int i = 0; i < xs->count; i++) {
    gbl_box *box = gbl_new_tensor(L);
    gbl_check_status(L, gb_op_contiguous(call->state->context, xs->tensors[i], &box->tensor));
    columns[i] = box->tensor;
  }
  gb_dataset *made = NULL;
  void **slot = gbl_new_object(L, &dataset_type, 0);
  gb_status status = gb_dataset_tensors(call->state->context, columns, xs->count, &made);
  return finish_dataset(L, slot, made, status);
}

/* {---- readers: data/readers.h ---- */

/* dataset_readers() -> list: the records of all readers. */
static int dataset_readers(lua_State *L) {
  lua_newtable(L);
  for (int i = 0; gb_readers[i]; i++) {
    lua_pushstring(L, gb_readers[i]->text);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* The table at index, one of our own, as a list of options in a buffer that the table at `keep` holds. nested: a list
 * in an option, which holds no others: what is neither a number, bool, string nor dataset is of no kind there, and the
 * reader says so. */
static void read_options(lua_State *L, int table, int keep, bool nested, gb_option *out) {
  uint64_t steps = 0;
  size_t count = 0;
  luaL_checkstack(L, 8, GBL_NO_STACK);
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1), count++) gbl_charge_step(L, &steps);
  if (count > INT_MAX / 2) gbl_error(L, "an option has too many elements");
  gb_option *list = lua_newuserdatauv(L, sizeof *list * (count + 1), 0), *at = list;
  memset(list, 0, sizeof *list * (count + 1));
  lua_rawseti(L, keep, (lua_Integer)lua_rawlen(L, keep) + 1);
  out->kind = GB_OPTION_LIST;
  out->list = list;
  out->count = (int)count;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1), at++) {
    int value = lua_gettop(L), type = lua_type(L, value);
    if (lua_type(L, value - 1) == LUA_TSTRING) at->name = gbl_check_name(L, value - 1, "data");
    else if (!gbl_test_integer(L, value - 1, &at->position))
      gbl_error(L, "the keys of an option are names or positions");
    if (type == LUA_TNUMBER) at->kind = GB_OPTION_NUMBER, at->number = lua_tonumber(L, value);
    else if (type == LUA_TBOOLEAN) at->kind = GB_OPTION_BOOL, at->number = lua_toboolean(L, value);
    else if (type == LUA_TSTRING) at->kind = GB_OPTION_STRING, at->string = lua_tolstring(L, value, &at->length);
    else if (type == LUA_TTABLE && !nested) read_options(L, value, keep, true, at);
    else if (luaL_testudata(L, value, dataset_type.name))
      at->kind = GB_OPTION_DATASET, at->dataset = gbl_check_object(L, value, &dataset_type);
    else if (luaL_testudata(L, value, gbl_transform_type.name))
      at->kind = GB_OPTION_TRANSFORM, at->transform = gbl_check_object(L, value, &gbl_transform_type);
  }
}

/* read_dataset(number, paths..., options): the dataset of a reader; the Lua half has checked all. */
static int read_dataset(lua_State *L) {
  gb_context *context = gbl_context(L);
  const gb_reader *reader = gb_readers[luaL_checkinteger(L, 1) - 1];
  gb_reading given = { .path = { NULL } };
  int last = lua_gettop(L);
  for (int i = 2; i < last && i - 2 < GB_READER_PATHS; i++) given.path[i - 2] = lua_tostring(L, i);
  luaL_checktype(L, last, LUA_TTABLE);
  lua_newtable(L);
  read_options(L, last, last + 1, false, &given.options);
  gb_dataset *made = NULL;
  void **slot = gbl_new_object(L, &dataset_type, 0);
  gb_status status = reader->open(context, &given, &made);
  return finish_dataset(L, slot, made, status);
}

/* ----} */

gb_dataset *gbl_check_dataset(lua_State *L, int arg) { return gbl_check_object(L, arg, &dataset_type); }
void **gbl_new_dataset(lua_State *L) { return gbl_new_object(L, &dataset_type, 0); }

/* is_dataset(value), for the Lua half. */
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

static int text_open(lua_State *L, gbl_call *call) {
  const gbl_value *vocabulary = gbl_argument(call, "vocabulary");
  gb_text_kind kind = strcmp(gbl_string(call, "kind"), "bytes") ? GB_TEXT_CHARACTERS : GB_TEXT_BYTES;
  text_part *part = push_part(L, &text_type);
  gbl_check_status(L, gb_text_open(call->state->context, gbl_string(call, "path"), kind, vocabulary->string,
                                   vocabulary->length, &part->text));
  part->count = gb_text_length(part->text);
  return 1;
}

static int tokens_open(lua_State *L, gbl_call *call) {
  static const char *const names[GB_TOKEN_KINDS] = { "uint8", "uint16", "int32" };
  const char *dtype = gbl_string(call, "dtype");
  int kind = 0;
  while (strcmp(names[kind], dtype)) kind++; /* the signature has no other words */
  text_part *part = push_part(L, &tokens_type);
  gbl_check_status(L, gb_tokens_open(call->state->context, gbl_string(call, "path"), (gb_token_kind)kind,
                                     &part->tokens));
  part->count = gb_tokens_length(part->tokens);
  return 1;
}

/* Of a text or a token file. */
static int part_length(lua_State *L) {
  const text_part *part = gbl_test_object(L, 1, &tokens_type);
  if (!part) part = gbl_check_object(L, 1, &text_type);
  return lua_pushinteger(L, part->count), 1;
}

static int part_text(lua_State *L) {
  const text_part *part = gbl_test_object(L, 1, &tokens_type);
  const char *kind = luaL_testudata(L, 1, "gibbous.tokens") ? "token file" : "text";
  if (!part) part = gbl_test_object(L, 1, &text_type);
  if (part) lua_pushfstring(L, "%s (%I ids)", kind, (LUAI_UACINT)part->count);
  else lua_pushfstring(L, "%s (closed)", kind);
  return 1;
}

static gb_text *text_of(const gbl_call *call) { return ((const text_part *)gbl_object(call, "self"))->text; }

static int text_vocabulary_size(lua_State *L,
                                gbl_call *call) { return lua_pushinteger(L, gb_text_vocabulary_size(text_of(call))),
                                                  1; }

static int text_vocabulary(lua_State *L, gbl_call *call) {
  size_t bytes;
  const char *vocabulary = gb_text_vocabulary(text_of(call), &bytes);
  if (vocabulary) lua_pushlstring(L, vocabulary, bytes);
  else lua_pushnil(L);
  return 1;
}

static int text_encode(lua_State *L, gbl_call *call) {
  gb_context *context = call->state->context;
  const gbl_value *string = gbl_argument(call, "string");
  gbl_charge(L, string->length);
  int64_t *ids = lua_newuserdatauv(L, sizeof *ids * (string->length + 1), 0), count;
  gbl_check_status(L, gb_text_encode(context, text_of(call), string->string, string->length, ids, &count));
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_tensor_new(context, GB_INT64, 1, &count, (gb_device){ GB_CPU, 0 }, &box->tensor));
  gbl_check_status(L, gb_tensor_write(box->tensor, ids, sizeof *ids * (size_t)count));
  gbl_finish_tensor(L);
  return 1;
}

/* What the engine decoded, until Lua has its copy. */
static const gbl_type decoded_type = { "gibbous.decoded", free, NULL, NULL, NULL };

static int text_decode(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "ids");
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_op_cast(call->state->context, t, GB_INT64, &box->tensor));
  size_t size = sizeof(int64_t) * (size_t)t->numel, bytes;
  gbl_charge(L, (uint64_t)t->numel);
  int64_t *ids = lua_newuserdatauv(L, size + 1, 0);
  gbl_check_status(L, gb_tensor_read(box->tensor, ids, size));
  void **slot = gbl_new_object(L, &decoded_type, 0);
  char *string = NULL;
  gb_status status = gb_text_decode(call->state->context, text_of(call), ids, t->numel, &string, &bytes);
  *slot = string;
  gbl_check_status(L, status);
  lua_pushlstring(L, string, bytes);
  return 1;
}

static int part_split(lua_State *L, gbl_call *call) {
  const text_part *part = gbl_object(call, "self");
  double share = gbl_number(call, "share");
  if (!(share > 0 && share < 1)) return gbl_refuse(call, "the share lies between 0 and 1, got %g", share);
  int64_t n = (int64_t)(share * (double)part->count);
  push_range(L, part, part->first, n);
  push_range(L, part, part->first + n, part->count - n);
  return 2;
}

static int part_windows(lua_State *L, gbl_call *call) {
  gb_context *context = call->state->context;
  const text_part *part = gbl_object(call, "self");
  int64_t block = gbl_integer(call, "block");
  gb_dataset *made = NULL;
  void **slot = gbl_new_object(L, &dataset_type, 0);
  gb_status status = part->tokens ? gb_dataset_token_windows(context, part->tokens, part->first, part->count, block,
                                                             &made)
                                  : gb_dataset_windows(context, part->text, part->first, part->count, block, &made);
  return finish_dataset(L, slot, made, status);
}

static const gbl_function text_functions[] = {
  { text_vocabulary_size, GB_SANDBOX_FILES, "text:vocabulary_size() -> int: How many ids there are." },
  { text_vocabulary, GB_SANDBOX_FILES, "text:vocabulary() -> string: The characters in the order of their ids; nil "
                                       "for bytes." },
  { text_encode, GB_SANDBOX_FILES,
    "text:encode(string: string) -> tensor: The ids of a string, an int64 vector. Errors: a character that the "
    "vocabulary lacks." },
  { text_decode, GB_SANDBOX_FILES,
    "text:decode(ids: tensor) -> string: The string of an integer tensor. Errors: an id that the vocabulary lacks." },
  { part_split, GB_SANDBOX_FILES,
    "text:split(share: number) -> text, text: The first share of the ids, and the rest." },
  { part_windows, GB_SANDBOX_FILES,
    "text:windows(block: int) -> dataset: Samples x = ids[i .. i+block-1], y = the ids one further." },
  { NULL, 0, NULL },
};

static const gbl_function tokens_functions[] = {
  { part_split, GB_SANDBOX_FILES, "tokens:split(share: number) -> tokens, tokens: The first share of the ids, and "
                                  "the rest." },
  { part_windows, GB_SANDBOX_FILES,
    "tokens:windows(block: int) -> dataset: Samples x = ids[i .. i+block-1], y = the ids one further." },
  { NULL, 0, NULL },
};

static const luaL_Reg part_events[] = { { "__len", part_length }, { "__tostring", part_text }, { NULL, NULL } };
static const gbl_type text_type = {
  "gibbous.text", release_text, part_events, text_functions,
      "text:close(): Release the text now instead of when it is collected.",
};
static const gbl_type tokens_type = {
  "gibbous.tokens", release_text, part_events, tokens_functions,
      "tokens:close(): Release the file now instead of when it is collected.",
};

/* ====} */

/* {==== the native loader ==== */

static void release_loader(void *loader) { gb_loader_close(loader); }
static const gbl_type loader_type;
static gb_loader *check_loader(lua_State *L) { return gbl_check_object(L, 1, &loader_type); }

/* loader(dataset, batch_size, shuffle, drop_last, prefetch, seed, batches, workers, pinned): what the Lua half has
 * checked. */
static int loader_new(lua_State *L) {
  gb_context *context = gbl_context(L);
  gb_dataset *dataset = gbl_check_object(L, 1, &dataset_type);
  gb_loader_options options;
  gb_loader_options_init(&options);
  options.batch_size = luaL_checkinteger(L, 2);
  options.shuffle = lua_toboolean(L, 3);
  options.drop_last = lua_toboolean(L, 4);
  lua_Integer prefetch = luaL_checkinteger(L, 5);
  lua_Integer workers = luaL_optinteger(L, 8, 0);
  /* the same batches, without threads for each loader */
  if (gbl_in_sandbox(L)) prefetch = prefetch > 0 ? 0 : prefetch, workers = workers > 0 ? 0 : workers;
  /* out of range: the engine turns it down */
  options.prefetch = prefetch < 0 ? -1 : prefetch > INT_MAX ? INT_MAX : (int)prefetch;
  options.workers = workers < 0 ? -1 : workers > INT_MAX ? INT_MAX : (int)workers;
  options.seed = (uint64_t)luaL_checkinteger(L, 6);
  options.random_batches = luaL_optinteger(L, 7, 0);
  options.pinned = lua_toboolean(L, 9);
  gb_loader *loader = NULL;
  void **slot = gbl_new_object(L, &loader_type, 0);
  gb_status status = gb_loader_open(context, dataset, &options, &loader);
  *slot = loader;
  gbl_check_status(L, status);
  return 1;
}

/* loader:next(device): the columns of the next batch, or nil at the end of an epoch. With a device they are moved
 * there, and what they lay in is free for another batch at once. */
static int loader_next(lua_State *L) {
  gbl_enter(L);
  gb_device device = lua_isnoneornil(L, 2) ? (gb_device){ GB_CPU, 0 } : gbl_check_device(L, 2);
  gb_loader *loader = check_loader(L);
  int columns = gb_loader_dataset(loader)->columns;
  gb_tensor *batch[GB_MAX_COLUMNS] = { NULL };
  gbl_box *boxes[GB_MAX_COLUMNS];
  for (int c = 0; c < columns; c++) boxes[c] = gbl_new_tensor(L);
  gbl_check_status(L, gb_loader_next(loader, batch));
  if (!batch[0]) return lua_pushnil(L), 1;
  for (int c = 0; c < columns; c++) boxes[c]->tensor = batch[c];
  for (int c = 0; c < columns && device.type != GB_CPU; c++) {
    gb_tensor *moved = NULL;
    gbl_check_status(L, gb_op_to_device(gbl_context(L), batch[c], device, &moved));
    boxes[c]->tensor = moved;
    gb_tensor_release(batch[c]);
  }
  return columns;
}

static int loader_batches(lua_State *L) { return lua_pushinteger(L, gb_loader_batches(check_loader(L))), 1; }

static int loader_pinned(lua_State *L) { return lua_pushboolean(L, gb_loader_is_pinned(check_loader(L))), 1; }

static int loader_seek(lua_State *L) {
  gbl_enter(L);
  gb_loader_position position = { gbl_check_integer(L, 2, "seek", "epoch"), gbl_check_integer(L, 3, "seek", "batch") };
  gbl_check_status(L, gb_loader_set_position(check_loader(L), position));
  return 0;
}

static const luaL_Reg loader_methods[] = { { "next", loader_next }, { "seek", loader_seek },
                                           { "batches", loader_batches }, { "pinned", loader_pinned },
                                           { NULL, NULL } };
static const gbl_type loader_type = { "gibbous.batches", release_loader, loader_methods, NULL, NULL };

/* shuffled(n, seed, epoch): positions 1 .. n in the order that a native loader would use. */
static int shuffled(lua_State *L) {
  int64_t n = luaL_checkinteger(L, 1);
  if (n < 0 || n >= INT_MAX)
    return gbl_error(L, "%" PRId64 " samples cannot be shuffled; there may be %d. Draw them at random (DataLoader with "
                     "batches = n), or cut them as they lie (tokens:split, dataset:subset)", n, INT_MAX - 1);
  gbl_charge(L, (uint64_t)n);
  int64_t *order = lua_newuserdatauv(L, sizeof *order * (size_t)(n + 1), 0);
  gb_stopper stop = gb_stopper_of(gbl_context(L));
  if (!gb_permutation((uint64_t)luaL_checkinteger(L, 2), (uint64_t)luaL_checkinteger(L, 3), n, order, &stop))
    gbl_check_status(L, gb_fail(gbl_context(L), GB_EINTERRUPT, "interrupted"));
  lua_createtable(L, (int)n, 0);
  uint64_t steps = 0;
  for (int64_t i = 0; i < n; i++) {
    gbl_charge_step(L, &steps);
    lua_pushinteger(L, order[i] + 1);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* ====} */

static const gbl_function functions[] = {
  { tensor_dataset, GB_SANDBOX_STRICT,
    "gb.data.TensorDataset(xs...: tensor) -> dataset: Sample i is row i of each tensor. Errors: different numbers "
    "of rows. Example: "
    "local dataset = gb.data.TensorDataset(gb.rand(8, 4), gb.arange(8))" },
  { text_open, GB_SANDBOX_FILES,
    "gb.data.text(path: path; kind: \"characters\"|\"bytes\" = \"characters\", vocabulary?: string) -> text: A file "
    "as a sequence of "
    "ids, one for each character, or byte; the vocabulary is a string of the characters in the order of their ids. "
    "Errors: a character "
    "that the vocabulary lacks." },
  { tokens_open, GB_SANDBOX_FILES,
    "gb.data.tokens(path: path; dtype: \"uint8\"|\"uint16\"|\"int32\" = \"uint16\") -> tokens: A file of token ids of "
    "any size, of which each window is read when it is wanted; with 16 bits also one with llm.c's header. Errors: a "
    "length that is no whole number of ids; a file that becomes shorter, when a window is read." },
  { NULL, 0, NULL },
};

void gbl_open_data(lua_State *L) {
  gbl_new_type(L, &dataset_type);
  gbl_new_type(L, &text_type);
  gbl_new_type(L, &tokens_type);
  gbl_new_type(L, &decoded_type);
  gbl_new_type(L, &loader_type);
  gbl_push_module(L, "data");
  gbl_define(L, functions);
  lua_pop(L, 1);
  gbl_push_module(L, "_native");
  gbl_set_functions(L, (const luaL_Reg[]){ { "is_dataset", is_dataset }, { "loader", loader_new },
                                           { "shuffled", shuffled },
                                           { "dataset_readers", dataset_readers }, { "read_dataset", read_dataset },
                                               { NULL, NULL } });
  lua_pop(L, 1);
}
