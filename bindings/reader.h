/* reader.h - public functions as records, and the one reader of what a recipe hands them.
 *
 * A record is one text: "gb.nn.utils.clip(x: tensor, most: number; dim: dim = -1) -> tensor: What it does. Errors: what
 * it turns down. Example: one line of Lua". The part in parentheses is the signature; the reader reads by it, help(),
 * the reference, editors' types and completion show the rest. A path with ':' is a method; its first argument, self, is
 * of the path's kind.
 *
 * Grammar of a signature: arguments `name`, `name?` (may be left out), `name...` (all that follow), each with `: kind`
 * (a tensor without one) and perhaps `= default`; kinds may be joined by `|`, and a kind in quotes is a word that is
 * allowed. What follows `;` is named: it goes into a table after the positional arguments, in which those that may be
 * left out can be named too.
 *
 * Read first, then act: all that a call needs is read before its body runs, past metatables, and stays on the stack of
 * the call or in tables and buffers there, so neither a weak table nor a collection takes it away. While a body runs
 * that holds objects, or that may call the recipe (`calls`), its objects are pinned (closing one is an error) and its
 * tensors retained. */
#ifndef GB_BINDINGS_READER_H
#define GB_BINDINGS_READER_H

#include "binding.h"
#include "gibbous_lua.h"

enum { GBL_MOST_ARGUMENTS = 24 };

/* One argument that was read. What a member means depends on the kind; see the table of kinds in reader.c. */
typedef struct gbl_value {
  const char *kind;              /* of the kinds its argument may have, the one it has */
  bool given;                    /* false: it was nil or left out; a default stands in the members below */
  int index;                     /* its place on the stack, 0 where it is not there */
  int64_t integer;               /* int, size, count; dim and position from 0, or negative from the end; bool 0 or 1 */
  double number;                 /* number, and those above */
  const char *string;            /* string, path, words; ends with NUL, may hold more */
  size_t length;                 /* of string */
  gb_dtype dtype;
  gb_device device;
  gb_tensor *tensor;             /* borrowed: the call holds it */
  gb_tensor **tensors;           /* tensors: as many as count; borrowed */
  int count;                     /* of tensors, ints, list, and of `name...` */
  int64_t ints[GB_MAX_NDIM];     /* ints, sizes; dims from 0, or negative */
  void *object;                  /* of a userdata of ours, or the native one of an object of the Lua half; NULL where
                                    that has none */
  int native;                    /* where that userdata lies on the stack, */
  int own;                       /* and what the Lua half keeps of its object, a table that no recipe reaches */
} gbl_value;

typedef struct gbl_signature gbl_signature;
typedef struct gbl_call gbl_call;
/* What a function does, with its arguments read. Returns the number of results, which are at the top of the stack. */
typedef int (*gbl_body)(lua_State *L, gbl_call *call);

enum { GBL_CALLS = 8 };          /* beside a level: the body may run functions of the recipe, through the engine */

typedef struct gbl_function {
  gbl_body body;
  int level;                     /* the strictest sandbox that has it, perhaps | GBL_CALLS */
  const char *text;
} gbl_function;

struct gbl_call {
  lua_State *L;
  gbl_state *state;
  const gbl_function *function;  /* NULL of a function in Lua */
  const gbl_signature *signature;
  int top;                       /* of the stack when the call began: its arguments are 1 .. top */
  gbl_value value[GBL_MOST_ARGUMENTS];
};

/* {==== Defining ==== */

/* Set the functions, up to one without a body, into the table at the top of the stack by the last part of their
 * paths. */
void gbl_define(lua_State *L, const gbl_function *functions);
/* Note the records, up to NULL, of what is no function of gbl_define but is there for every sandbox: fields, and
 * methods set otherwise. */
void gbl_describe(lua_State *L, const char *const *texts);
/* Push a table from the paths of all records to their levels, of chunks that have not run too. */
void gbl_push_levels(lua_State *L);
/* How long the list of records is, and make it as short again: for a chunk that failed. */
int gbl_count_records(lua_State *L);
void gbl_drop_records(lua_State *L, int count);
/* Add to the native functions of the Lua half: define(text, level, fn) -> function, describe(text, level), own(object,
 * kind, private), private(object, kind), records(). */
void gbl_open_reader(lua_State *L);

/* ====} */

/* {==== Reading ==== */

/* The argument of that name. A name that the signature lacks is a fault of ours, and an error. */
const gbl_value *gbl_argument(const gbl_call *call, const char *name);
static inline bool gbl_given(const gbl_call *call, const char *name) { return gbl_argument(call, name)->given; }
static inline gb_tensor *gbl_tensor(const gbl_call *call, const char *name) { return gbl_argument(call, name)->tensor; }
static inline int64_t gbl_integer(const gbl_call *call, const char *name) { return gbl_argument(call, name)->integer; }
static inline double gbl_number(const gbl_call *call, const char *name) { return gbl_argument(call, name)->number; }
static inline bool gbl_boolean(const gbl_call *call,
                               const char *name) { return gbl_argument(call, name)->integer != 0; }
static inline const char *gbl_string(const gbl_call *call,
                                     const char *name) { return gbl_argument(call, name)->string; }
static inline void *gbl_object(const gbl_call *call, const char *name) { return gbl_argument(call, name)->object; }
/* Raise "function: text". */
int gbl_refuse(const gbl_call *call, const char *format, ...) GB_PRINTF(2, 3);
/* The function's name, as errors say it. */
const char *gbl_who(const gbl_call *call);

/* Raise where the value at index is gb or a module of it: the recipe wrote gb:zeros(2) for gb.zeros(2). */
void gbl_check_dot(lua_State *L, int index, const char *who);

/* {---- tables that lie on the stack: raw ---- */

/* Push table[name], and tell its type. */
int gbl_raw_field(lua_State *L, int table, const char *name);
/* Push a copy of the table at index, of its first level or of all levels, without metatables. Errors: nesting that is
 * too deep. */
void gbl_push_copy(lua_State *L, int index, bool deep, const char *who);

/* ----} */

/* Push what the Lua half keeps of this object, a table that no recipe reaches; false, and nothing is pushed, where it
 * is no object of this kind. A kind of NULL stands for all. A string with a dash stands for the precision of this name
 * where one is asked for; an unknown one is an error. */
bool gbl_push_private(lua_State *L, int index, const char *kind);
/* Make the table at index an object of this kind, and push the empty table that is kept for it. */
void gbl_own(lua_State *L, int index, const char *kind);

/* ====} */

#endif
