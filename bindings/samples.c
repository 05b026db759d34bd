/* samples.c - what the Lua half of gb.data asks of the engine: lines of text, folders, orders, batches of given
 * samples; and NumPy's files. Most of what recipes see is in gibbous/datasets.lua, samplers.lua, lines.lua and
 * tables.lua, which have checked what they hand over. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "data/csv.h"
#include "data/lines.h"
#include "io/folder.h"
#include "io/npy.h"
#include "objects.h"
#include "reader.h"

/* {==== Lines ==== */

static void close_lines(void *lines) { gb_lines_close(lines); }
static const gbl_type lines_type;
static gb_lines *check_lines(lua_State *L) { return gbl_check_object(L, 1, &lines_type); }

/* lines(path): the lines of a file, an object with count() and read(i). */
static int open_lines(lua_State *L) {
  gb_context *context = gbl_context(L);
  const char *path = gbl_check_path(L, 1, "lines");
  gb_lines *lines = NULL;
  void **slot = gbl_new_object(L, &lines_type, 0);
  gb_status status = gb_lines_open(context, path, &lines);
  *slot = lines;
  gbl_check_status(L, status);
  return 1;
}

static int lines_count(lua_State *L) { return lua_pushinteger(L, gb_lines_count(check_lines(L))), 1; }

/* The position at argument 2, from 0; the Lua half asks for lines that are there. */
static int64_t check_line(lua_State *L, const gb_lines *lines) {
  int64_t i = luaL_checkinteger(L, 2);
  if (i < 1 || i > gb_lines_count(lines)) gbl_error(L, "there is no line %" PRId64, i);
  return i - 1;
}

/* The text of line i in a buffer that is pushed. */
static const char *push_buffer(lua_State *L, gb_lines *lines, int64_t i) {
  char *text = lua_newuserdatauv(L, gb_lines_bytes(lines, i) + 1, 0);
  gbl_charge(L, gb_lines_bytes(lines, i) / 32);
  gbl_check_status(L, gb_lines_read(lines, i, text));
  text[gb_lines_bytes(lines, i)] = '\0';
  return text;
}

/* read(i): the text of line i, and its number in the file. */
static int lines_read(lua_State *L) {
  gbl_enter(L);
  gb_lines *lines = check_lines(L);
  int64_t i = check_line(L, lines);
  const char *text = push_buffer(L, lines, i);
  lua_pushlstring(L, text, gb_lines_bytes(lines, i));
  lua_pushinteger(L, gb_lines_number(lines, i));
  return 2;
}

/* json(i): the value of line i as JSON, and the line's number. */
static int lines_json(lua_State *L) {
  gbl_enter(L);
  gb_lines *lines = check_lines(L);
  int64_t i = check_line(L, lines);
  const char *text = push_buffer(L, lines, i);
  char why[160];
  if (!gbl_push_parsed(L, text, gb_lines_bytes(lines, i), why, sizeof why))
    return gbl_error(L, "'%s', line %" PRId64 ": %s; each line holds one JSON value", gb_lines_path(lines),
                     gb_lines_number(lines, i), why);
  lua_pushinteger(L, gb_lines_number(lines, i));
  return 2;
}

static const luaL_Reg lines_methods[] = { { "count", lines_count }, { "read", lines_read }, { "json", lines_json },
                                          { NULL, NULL } };
static const gbl_type lines_type = { "gibbous.lines", close_lines, lines_methods, NULL, NULL };

/* latin1(text): the text in UTF-8. */
static int latin1(lua_State *L) {
  size_t length;
  const unsigned char *text = (const unsigned char *)luaL_checklstring(L, 1, &length);
  luaL_Buffer made;
  gbl_charge(L, length / 32);
  luaL_buffinit(L, &made);
  for (size_t i = 0; i < length; i++) {
    if (text[i] >= 0x80) luaL_addchar(&made, (char)(0xc0 | text[i] >> 6));
    luaL_addchar(&made, (char)(text[i] < 0x80 ? text[i] : 0x80 | (text[i] & 0x3f)));
  }
  luaL_pushresult(&made);
  return 1;
}

/* ====} */

/* {==== Folders ==== */

/* A folder and its names, while they are listed. */
typedef struct listing { gb_folder folder; gb_names names; } listing;

static void close_listing(void *object) {
  listing *l = object;
  gb_names_free(&l->names);
  gb_folder_close(&l->folder);
  gb_counted_free(l);
}
static const gbl_type names_type = { "gibbous.names", close_listing, NULL, NULL, NULL };

/* folder(path): the names of its files, sorted by bytes. */
static int folder(lua_State *L) {
  gb_context *context = gbl_context(L);
  const char *path = gbl_check_path(L, 1, "files");
  uint64_t steps = 0;
  void **slot = gbl_new_object(L, &names_type, 0);
  listing *l = gb_counted_alloc(context, sizeof *l);
  if (!l) return gbl_check_status(L, gb_error_code(context));
  *slot = l;
  l->folder.fd = -1;
  gbl_check_status(L, gb_folder_open(context, path, &l->folder));
  gbl_check_status(L, gb_folder_list(context, &l->folder, NULL, GB_FOLDER_FILES, NULL, &l->names));
  lua_newtable(L);
  for (int64_t i = 0; i < l->names.count; i++) {
    gbl_charge_step(L, &steps);
    lua_pushstring(L, gb_name(&l->names, i));
    lua_rawseti(L, -2, i + 1);
  }
  *slot = NULL; /* the folder is closed now, not when it is collected */
  close_listing(l);
  return 1;
}

/* ====} */

/* {==== Orders and batches ==== */

#define MOST_SAMPLES (INT_MAX / 2)

/* How many elements the list at index has, and that many charged. */
static int64_t check_count(lua_State *L, int index, const char *what) {
  luaL_checktype(L, index, LUA_TTABLE);
  lua_Unsigned n = lua_rawlen(L, index);
  if (n > MOST_SAMPLES) gbl_error(L, "%s has more than %d elements", what, MOST_SAMPLES);
  gbl_charge(L, n);
  return (int64_t)n;
}

/* Push positions, which are counted from 0, as a list. */
static void push_order(lua_State *L, const int64_t *order, int64_t n) {
  uint64_t steps = 0;
  lua_createtable(L, (int)n, 0);
  for (int64_t i = 0; i < n; i++) {
    gbl_charge_step(L, &steps);
    lua_pushinteger(L, order[i] + 1);
    lua_rawseti(L, -2, i + 1);
  }
}

/* weighted(weights, count, replacement, seed, epoch): positions. */
static int weighted(lua_State *L) {
  int64_t n = check_count(L, 1, "the list of weights"), count = luaL_checkinteger(L, 2);
  if (count < 1 || count > MOST_SAMPLES) return gbl_error(L, "a sampler draws 1 to %d samples", MOST_SAMPLES);
  gbl_charge(L, (uint64_t)count);
  double *weights = lua_newuserdatauv(L, sizeof *weights * 2 * ((size_t)n + 1), 0);
  int64_t *order = lua_newuserdatauv(L, sizeof *order * ((size_t)(n > count ? n : count) + 1), 0);
  for (int64_t i = 0; i < n; i++) {
    lua_rawgeti(L, 1, i + 1);
    weights[i] = lua_tonumber(L, -1);
    lua_pop(L, 1);
  }
  gb_stopper stop = gb_stopper_of(gbl_context(L));
  if (!gb_weighted((uint64_t)luaL_checkinteger(L, 4), (uint64_t)luaL_checkinteger(L, 5), weights, n, weights + n,
                   lua_toboolean(L, 3), count, order, &stop))
    gbl_check_status(L, gb_fail(gbl_context(L), GB_EINTERRUPT, "interrupted"));
  push_order(L, order, count);
  return 1;
}

/* bucketed(lengths, batch_size, window, shuffle, seed, epoch): positions. */
static int bucketed(lua_State *L) {
  int64_t n = check_count(L, 1, "the list of lengths");
  int64_t *lengths = lua_newuserdatauv(L, sizeof *lengths * 3 * ((size_t)n + 1), 0);
  gbl_charge(L, 16 * (uint64_t)n);
  for (int64_t i = 0; i < n; i++) {
    lua_rawgeti(L, 1, i + 1);
    lengths[i] = lua_tointeger(L, -1);
    lua_pop(L, 1);
  }
  gb_stopper stop = gb_stopper_of(gbl_context(L));
  if (!gb_bucketed((uint64_t)luaL_checkinteger(L, 5), (uint64_t)luaL_checkinteger(L, 6), lengths, n,
                   luaL_checkinteger(L, 2), luaL_checkinteger(L, 3), lua_toboolean(L, 4), lengths + n, lengths + 2 * n,
                   &stop))
    gbl_check_status(L, gb_fail(gbl_context(L), GB_EINTERRUPT, "interrupted"));
  push_order(L, lengths + 2 * n, n);
  return 1;
}

/* The position in the table at index, from 0, checked against count. */
static int64_t position_at(lua_State *L, int index, int64_t i, int64_t count) {
  int64_t position;
  lua_rawgeti(L, index, i + 1);
  if (!gbl_test_integer(L, -1, &position) || position < 1 || position > count)
    gbl_error(L, "DataLoader: element %" PRId64 " of a batch is %s, no position from 1 to %" PRId64, i + 1,
              lua_type(L, -1) == LUA_TNUMBER ? lua_tostring(L, -1) : luaL_typename(L, -1), count);
  lua_pop(L, 1);
  return position - 1;
}

/* read_batch(dataset, positions, seed, epoch): these samples as tensors with a first dimension more. positions nil: all
 * of them. What is random of them is a function of seed and epoch, 0 unless given. */
static int read_batch(lua_State *L) {
  gb_context *context = gbl_context(L);
  gb_dataset *dataset = gbl_check_dataset(L, 1);
  lua_settop(L, 4);
  gb_draw draw = { .seed = (uint64_t)luaL_optinteger(L, 3, 0), .epoch = (uint64_t)luaL_optinteger(L, 4, 0),
                   .stop = context };
  bool all = lua_isnil(L, 2);
  int64_t n = all ? dataset->count : check_count(L, 2, "a batch");
  int64_t *indices = lua_newuserdatauv(L, sizeof *indices * ((size_t)n + 1), 0);
  gbl_box *boxes[GB_MAX_COLUMNS];
  void *out[GB_MAX_COLUMNS];
  char error[256] = "";
  for (int64_t i = 0; i < n; i++) indices[i] = all ? i : position_at(L, 2, i, dataset->count);
  for (int c = 0; c < dataset->columns; c++) {
    const gb_column *column = &dataset->column[c];
    int64_t shape[GB_MAX_NDIM] = { n };
    memcpy(shape + 1, column->shape, (size_t)column->ndim * sizeof *shape);
    boxes[c] = gbl_new_tensor(L);
    gbl_check_status(L, gb_tensor_new(context, column->dtype, column->ndim + 1, shape, (gb_device){ GB_CPU, 0 },
                                      &boxes[c]->tensor));
    out[c] = gb_data(boxes[c]->tensor);
  }
  gb_status status = n ? gb_dataset_draw(dataset, &draw, indices, n, out, error, sizeof error) : GB_OK;
  if (status != GB_OK) gb_fail(context, status, "data loader: %s", error);
  gbl_check_status(L, status);
  return dataset->columns;
}

/* alike(a, b): have two datasets samples of one form? */
static int alike(lua_State *L) {
  lua_pushboolean(L, gb_dataset_alike(gbl_check_dataset(L, 1), gbl_check_dataset(L, 2)));
  return 1;
}

/* concat(datasets): one behind the other. */
static int concat(lua_State *L) {
  gb_context *context = gbl_context(L);
  int64_t n = check_count(L, 1, "the list of datasets");
  gb_dataset **list = lua_newuserdatauv(L, sizeof *list * ((size_t)n + 1), 0), *made = NULL;
  luaL_checkstack(L, 4, GBL_NO_STACK);
  for (int64_t i = 0; i < n; i++) {
    lua_rawgeti(L, 1, i + 1);
    list[i] = gbl_check_dataset(L, lua_gettop(L)); /* the table of ours keeps it */
    lua_pop(L, 1);
  }
  void **slot = gbl_new_dataset(L);
  gb_status status = gb_dataset_concat(context, list, (int)n, &made);
  *slot = made;
  gbl_check_status(L, status);
  return 1;
}

/* ====} */

/* type_name(value): as errors say it behind an article. */
static int type_name(lua_State *L) {
  luaL_checkany(L, 1);
  const char *name = gbl_type_name(L, 1);
  lua_pushstring(L, strncmp(name, "a ", 2) ? name : name + 2);
  return 1;
}

/* is_callable(value) */
static int is_callable(lua_State *L) { return lua_pushboolean(L, gbl_is_callable(L, 1)), 1; }

/* {==== What a table's columns are ==== */

/* The words of a category, from the list at the top, in a buffer that the table at `keep` holds. */
static void read_words(lua_State *L, gb_field *field, int keep) {
  int list = lua_gettop(L);
  field->count = check_count(L, list, "the list of categories");
  const char **words = lua_newuserdatauv(L, sizeof *words * ((size_t)field->count + 1), 0);
  lua_rawseti(L, keep, (lua_Integer)lua_rawlen(L, keep) + 1);
  for (int64_t i = 0; i < field->count; i++) {
    if (lua_rawgeti(L, list, i + 1) != LUA_TSTRING) gbl_error(L, "a category is no string");
    words[i] = lua_tostring(L, -1); /* the list keeps it */
    if (strlen(words[i]) != lua_rawlen(L, -1)) gbl_error(L, "the category '%s' holds a zero byte", words[i]);
    lua_pop(L, 1);
  }
  field->words = words;
}

/* csv_fitted(columns, standardize): an empty dataset that knows these columns, tables of our own. */
static int csv_fitted(lua_State *L) {
  gb_context *context = gbl_context(L);
  int64_t n = check_count(L, 1, "the list of columns");
  bool standardize = lua_toboolean(L, 2);
  lua_settop(L, 1);
  lua_newtable(L);
  gb_field *fields = lua_newuserdatauv(L, sizeof *fields * ((size_t)n + 1), 0);
  gb_dataset *made = NULL;
  for (int64_t i = 0; i < n; i++) {
    lua_rawgeti(L, 1, i + 1);
    int column = lua_gettop(L);
    fields[i] = (gb_field){ .name = "" };
    gbl_raw_field(L, column, "name"), fields[i].name = lua_tostring(L, -1);
    if (strlen(fields[i].name) != lua_rawlen(L, -1)) gbl_error(L, "the name of a column holds a zero byte");
    gbl_raw_field(L, column, "mean"), fields[i].mean = lua_tonumber(L, -1);
    gbl_raw_field(L, column, "std"), fields[i].std = lua_tonumber(L, -1);
    if (gbl_raw_field(L, column, "target") != LUA_TNIL && lua_toboolean(L, -1)) fields[i].tensor = "y";
    fields[i].is_category = gbl_raw_field(L, column, "categories") == LUA_TTABLE;
    if (fields[i].is_category) read_words(L, &fields[i], 2);
    lua_settop(L, column - 1);
  }
  void **slot = gbl_new_dataset(L);
  gb_status status = gb_csv_fitted(context, fields, (int)n, standardize, &made);
  *slot = made;
  gbl_check_status(L, status);
  return 1;
}

/* ====} */

/* {==== NumPy's files ==== */

static void close_zip(void *zip) { gb_zip_close(zip); }
static const gbl_type zip_type = { "gibbous.zip", close_zip, NULL, NULL, NULL };

static int load_npy(lua_State *L, gbl_call *call) {
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_npy_load(call->state->context, gbl_string(call, "path"), &box->tensor));
  gbl_finish_tensor(L);
  return 1;
}

/* Push the name of a member without its ending; false, and nothing is pushed: it is no array. */
static bool push_name(lua_State *L, const char *member) {
  size_t length = strlen(member);
  if (length <= 4 || strcmp(member + length - 4, ".npy") != 0) return false;
  lua_pushlstring(L, member, length - 4);
  return true;
}

static int load_npz(lua_State *L, gbl_call *call) {
  gb_context *context = call->state->context;
  const char *path = gbl_string(call, "path");
  gb_zip *zip = NULL;
  void **slot = gbl_new_object(L, &zip_type, 0);
  gb_status status = gb_zip_open(context, path, &zip);
  *slot = zip;
  gbl_check_status(L, status);
  lua_newtable(L);
  for (int64_t i = 0; i < gb_zip_count(zip); i++) {
    if (!push_name(L, gb_zip_name(zip, i))) continue;
    gbl_box *box = gbl_new_tensor(L);
    gbl_check_status(L, gb_npy_load_member(context, path, zip, i, &box->tensor));
    gbl_finish_tensor(L);
    lua_rawset(L, -3);
  }
  *slot = NULL; /* nothing can fail between here and the end */
  gb_zip_close(zip);
  return 1;
}

static int save_npy(lua_State *L, gbl_call *call) {
  gbl_check_status(L, gb_npy_save(call->state->context, gbl_string(call, "path"), gbl_tensor(call, "tensor")));
  return 0;
}

/* save_npz(path, names, tensors): lists of our own. */
static int save_npz(lua_State *L) {
  gb_context *context = gbl_context(L);
  const char *path = gbl_check_path(L, 1, "save_npz");
  int64_t n = check_count(L, 2, "the list of names");
  const char **names = lua_newuserdatauv(L, sizeof *names * ((size_t)n + 1), 0);
  gb_tensor **tensors = lua_newuserdatauv(L, sizeof *tensors * ((size_t)n + 1), 0);
  luaL_checkstack(L, 4, GBL_NO_STACK);
  for (int64_t i = 0; i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    names[i] = lua_tostring(L, -1); /* the lists keep both */
    if (strlen(names[i]) != lua_rawlen(L, -1))
      return gbl_error(L, "save_npz: the name '%s' holds a zero byte", names[i]);
    lua_rawgeti(L, 3, i + 1);
    tensors[i] = gbl_check_tensor(L, lua_gettop(L));
    lua_pop(L, 2);
  }
  gbl_check_status(L, gb_npz_save(context, path, names, tensors, n));
  return 0;
}

static const gbl_function readers[] = {
  { load_npy, GB_SANDBOX_FILES,
    "gb.data.npy(path: path) -> tensor: The array of a .npy file, as numpy.save writes it, on the CPU: floats, "
    "integers and booleans in any order of bytes and dimensions; uint16 becomes int32, uint32 and uint64 int64. "
    "Errors: a file that is damaged or of another kind, objects, structures, text, complex numbers. Example: local "
    "path = os.tmpname() gb.io.save_npy(path, gb.rand(2, 3)) print(gb.data.npy(path)) os.remove(path)" },
  { load_npz, GB_SANDBOX_FILES,
    "gb.data.npz(path: path) -> table: The arrays of a .npz archive by name, stored (numpy.savez) or deflated "
    "(numpy.savez_compressed), each as gb.data.npy has it; what is no array in it is passed over. Errors: as "
    "gb.data.npy, a check sum that is another, archives of 4 GiB and more (zip64). Example: local path = os.tmpname() "
    "gb.io.save_npz(path, { x = gb.rand(2, 3) }) print(gb.data.npz(path).x) os.remove(path)" },
  { NULL, 0, NULL },
};

static const gbl_function writers[] = {
  { save_npy, GB_SANDBOX_FILES,
    "gb.io.save_npy(path: path, tensor: tensor): Write a tensor as numpy.load reads it. The file appears whole or not "
    "at all. Errors: bfloat16, which NumPy does not have. Example: local path = os.tmpname() gb.io.save_npy(path, "
    "gb.rand(2, 3)) os.remove(path)" },
  { NULL, 0, NULL },
};

/* ====} */

static const luaL_Reg natives[] = {
  { "lines", open_lines }, { "latin1", latin1 }, { "folder", folder }, { "weighted", weighted },
  { "bucketed", bucketed }, { "read_batch", read_batch }, { "alike", alike }, { "concat", concat },
  { "csv_fitted", csv_fitted }, { "type_name", type_name }, { "is_callable", is_callable },
  { "save_npz", save_npz }, { NULL, NULL },
};

void gbl_open_samples(lua_State *L) {
  gbl_new_type(L, &lines_type);
  gbl_new_type(L, &names_type);
  gbl_new_type(L, &zip_type);
  gbl_push_module(L, "data");
  gbl_define(L, readers);
  lua_pop(L, 1);
  gbl_push_module(L, "io");
  gbl_define(L, writers);
  lua_pop(L, 1);
  gbl_push_module(L, "_native");
  gbl_set_functions(L, natives);
  lua_pop(L, 1);
}
