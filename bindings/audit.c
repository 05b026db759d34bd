/* audit.c - a step run under an audit, and its rows as plain tables; audit.lua makes gb.amp.audit of them. */
#include "watch/audit.h"
#include "binding.h"
#include "objects.h"

static void release(void *object) { gb_audit_close(object); }

static const gbl_type audit_type = { "gibbous.audit", release, NULL, NULL, NULL };

/* {==== rows as tables: the table to set fields of is at the top ==== */

/* Texts that are empty, flags that are off and dtypes that are not given are absent. */
static void set_text(lua_State *L, const char *name, const char *value) {
  lua_pushstring(L, *value ? value : NULL);
  gbl_set_raw(L, -2, name);
}

static void set_flag(lua_State *L, const char *name, bool value) {
  if (!value) return;
  lua_pushboolean(L, true);
  gbl_set_raw(L, -2, name);
}

static void set_dtype(lua_State *L, const char *name, int dtype) {
  if (dtype == GB_DTYPE_NONE) return;
  gbl_push_dtype_name(L, (gb_dtype)dtype);
  gbl_set_raw(L, -2, name);
}

/* { dtype =, before = (where a cast changed it), weight =, shape = } */
static void push_tensor(lua_State *L, const gb_audit_tensor *t) {
  lua_createtable(L, 0, 4);
  set_dtype(L, "dtype", t->after);
  if (t->before != t->after) set_dtype(L, "before", t->before);
  set_flag(L, "weight", t->weight);
  lua_createtable(L, t->ndim, 0);
  for (int i = 0; i < t->ndim; i++) {
    lua_pushinteger(L, t->shape[i]);
    lua_rawseti(L, -2, i + 1);
  }
  gbl_set_raw(L, -2, "shape");
}

static void set_tensors(lua_State *L, const char *name, const gb_audit_tensor *tensors, int count) {
  lua_createtable(L, count, 0);
  for (int i = 0; i < count; i++) {
    push_tensor(L, &tensors[i]);
    lua_rawseti(L, -2, i + 1);
  }
  gbl_set_raw(L, -2, name);
}

/* { batch =, m =, n =, k =, checked = { { name, size }, ... } } */
static void push_product(lua_State *L, const gb_product_shape *p) {
  lua_createtable(L, 0, 5);
  gbl_set_integer(L, "batch", p->batch);
  gbl_set_integer(L, "m", p->m);
  gbl_set_integer(L, "n", p->n);
  gbl_set_integer(L, "k", p->k);
  lua_createtable(L, p->n_checked, 0);
  for (int i = 0; i < p->n_checked; i++) {
    lua_createtable(L, 2, 0);
    lua_pushstring(L, p->checked[i].name);
    lua_rawseti(L, -2, 1);
    lua_pushinteger(L, p->checked[i].size);
    lua_rawseti(L, -2, 2);
    lua_rawseti(L, -2, i + 1);
  }
  gbl_set_raw(L, -2, "checked");
}

static void set_products(lua_State *L, const gb_product_list *list) {
  if (!list->count) return;
  lua_createtable(L, list->count, 3);
  set_dtype(L, "dtype", list->dtype);
  set_flag(L, "mixed", list->mixed);
  set_flag(L, "copied", list->copied);
  for (int i = 0; i < list->count; i++) {
    push_product(L, &list->shapes[i]);
    lua_rawseti(L, -2, i + 1);
  }
  gbl_set_raw(L, -2, "products");
}

/* As native.numerics gives it, and plus = true where that is so. */
static void push_numbers(lua_State *L, const gb_audit_numbers *n) {
  gbl_push_numerics(L, (gb_dtype)n->dtype, (gb_dtype)n->format, n->numel, n->counts, n->range);
  set_flag(L, "plus", n->plus);
}

/* Numbers of the results, in their order; an integer result has false in its place. */
static void set_numbers(lua_State *L, const gb_audit *audit, const gb_audit_row *row) {
  lua_createtable(L, row->key.n_out, 0);
  for (int i = 0; i < row->key.n_out; i++) {
    const gb_audit_numbers *n = gb_audit_get_numbers(audit, row->numbers[i]);
    if (n) push_numbers(L, n);
    else lua_pushboolean(L, false);
    lua_rawseti(L, -2, i + 1);
  }
  gbl_set_raw(L, -2, "numbers");
  if (row->cast_numbers < 0) return;
  push_numbers(L, gb_audit_get_numbers(audit, row->cast_numbers));
  gbl_set_raw(L, -2, "cast_numbers");
}

static void push_row(lua_State *L, const gb_audit *audit, const gb_audit_row *row) {
  static const char *const phases[GB_AUDIT_PHASES] = { "forward", "backward", "recompute", "step" };
  const gb_audit_key *key = &row->key;
  lua_createtable(L, 0, 20);
  set_text(L, "phase", phases[key->phase]);
  set_text(L, "op", gb_audit_name(audit, key));
  set_text(L, "of", key->of);
  set_text(L, "line", key->line);
  if (key->module) gbl_set_integer(L, "module", key->module);
  set_dtype(L, "scope", key->lower);
  set_flag(L, "named", key->named);
  set_flag(L, "in_place", key->in_place);
  set_flag(L, "tf32", key->tf32);
  set_flag(L, "settling", key->settling);
  set_flag(L, "hook", key->hook);
  set_flag(L, "of_source", row->of_source);
  gbl_set_integer(L, "calls", row->calls);
  gbl_set_integer(L, "casts", row->casts);
  gbl_set_integer(L, "reused", row->reused);
  gbl_set_integer(L, "cast_bytes", row->cast_bytes);
  if (key->scale) gbl_set_number(L, "scale", gb_audit_scale(audit, key->scale));
  set_tensors(L, "inputs", key->in, key->n_in);
  set_tensors(L, "outputs", key->out, key->n_out);
  set_products(L, &key->products);
  set_numbers(L, audit, row);
}

/* ====} */

/* audit(step, ...): call step(...) under an audit; the rows. The audit ends with the call, also where that fails, and
 * the call cannot yield: nobody could say whose ops came in between. */
static int run(lua_State *L) {
  gb_context *context = gbl_context(L);
  int arguments = lua_gettop(L) - 1;
  gb_audit *audit = NULL;
  void **slot = gbl_new_object(L, &audit_type, 1);
  lua_pushthread(L);
  lua_setiuservalue(L, -2, 1);
  lua_insert(L, 1);
  lua_toclose(L, 1);
  gb_status status = gb_audit_begin(context, &audit);
  *slot = audit;
  gbl_check_status(L, status);
  gbl_get_state(L)->audited = L;
  lua_call(L, arguments, 0);
  gbl_enter(L);
  gb_audit_end(audit);
  gbl_check_status(L, gb_audit_read(audit));
  const gb_audit_row *rows;
  size_t count = gb_audit_rows(audit, &rows);
  lua_createtable(L, (int)count, 0);
  for (size_t i = 0; i < count; i++) {
    push_row(L, audit, &rows[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

/* audit_module(number): what runs from now on belongs to this module; what was before. Nothing where no audit runs. */
static int module(lua_State *L) {
  gb_audit *audit = gb_audit_running(gbl_context(L));
  lua_pushinteger(L, audit ? gb_audit_set_module(audit, (int32_t)luaL_checkinteger(L, 1)) : 0);
  return 1;
}

void gbl_open_audit(lua_State *L) {
  gbl_new_type(L, &audit_type);
  gbl_push_module(L, "_native");
  gbl_set_functions(L, (const luaL_Reg[]){ { "audit", run }, { "audit_module", module }, { NULL, NULL } });
  lua_pop(L, 1);
}
