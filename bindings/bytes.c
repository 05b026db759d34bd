/* bytes.c - gb.from_bytes and gb.to_bytes: a Lua string as the memory of a tensor, and back.
 *
 * Bytes are those of memory: row-major, in this machine's order (little-endian). Both ways copy. Device memory goes through the CPU. */
#include <inttypes.h>

#include "binding.h"

/* Of bytes moved for one instruction that a limit counts. */
#define BYTES_PER_INSTRUCTION 16

/* The shape at arg, or all elements in one dimension; *next is the argument behind it. */
static int check_shape_of(lua_State *L, int arg, size_t length, gb_dtype dtype, int64_t shape[GB_MAX_NDIM], int *next) {
  int ndim = gbl_check_shape(L, arg, "from_bytes", shape, next);
  size_t width = gb_dtype_bytes(dtype);
  if (*next > arg) return ndim;
  if (lua_isnoneornil(L, arg)) *next = arg + 1;
  if (length % width)
    gbl_error(L, "from_bytes: %zu bytes are no whole number of %s elements, which take %zu bytes each", length, gb_dtype_name(dtype), width);
  shape[0] = (int64_t)(length / width);
  return 1;
}

/* The string must have the bytes of the shape, no more and no fewer. */
static void check_length(lua_State *L, size_t length, gb_dtype dtype, int ndim, const int64_t *shape) {
  int64_t bytes = (int64_t)gb_dtype_bytes(dtype);
  bool fits = true;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] < 0) gbl_error(L, "from_bytes: sizes are 0 or more, got %" PRId64, shape[d]);
    fits &= !__builtin_mul_overflow(bytes, shape[d], &bytes);
  }
  for (int d = 0; d < ndim; d++)
    if (!shape[d]) bytes = 0, fits = true;
  if (!fits) gbl_error(L, "from_bytes: the shape has more elements than memory can hold");
  if ((uint64_t)bytes != length)
    gbl_error(L, "from_bytes: the shape takes %" PRId64 " bytes of %s, the string has %zu", bytes, gb_dtype_name(dtype), length);
}

/* A bool is a byte of 0 or 1; kernels rely on it. */
static void check_bools(lua_State *L, const char *bytes, size_t length) {
  for (size_t i = 0; i < length; i++)
    if ((unsigned char)bytes[i] > 1)
      gbl_error(L, "from_bytes: byte %zu of a bool tensor is %d; it must be 0 or 1 (read it as uint8, and :ne(0))", i + 1,
                (unsigned char)bytes[i]);
}

/* gb.from_bytes(bytes: string, dtype: string, shape?: list, options?: options) -> tensor: A new tensor whose memory is a copy of the string:
 * row-major, little-endian. Without a shape it has one dimension. options: device. Errors: a string that is longer or shorter than the shape, a
 * byte of a bool that is neither 0 nor 1. Example: local x = gb.from_bytes(string.pack("<fff", 1, 2, 3), "float32") */
static int from_bytes(lua_State *L) {
  static const char *const known[] = { "device", NULL };
  gbl_state *state = gbl_enter(L);
  size_t length;
  int64_t shape[GB_MAX_NDIM] = { 0 };
  int next;
  if (lua_type(L, 1) != LUA_TSTRING) return gbl_error(L, "from_bytes: 'bytes' must be a string, got %s", gbl_type_name(L, 1));
  const char *bytes = lua_tolstring(L, 1, &length); /* argument 1 keeps it */
  gb_dtype dtype = gbl_check_dtype(L, 2, "from_bytes");
  int ndim = check_shape_of(L, 3, length, dtype, shape, &next);
  gbl_check_options(L, next, "from_bytes", known);
  gb_device device = gbl_option_device(L, next, "from_bytes", "device", state->default_device);
  if (lua_gettop(L) > next) return gbl_error(L, "from_bytes: too many arguments; the device goes in a table");
  check_length(L, length, dtype, ndim, shape);
  gbl_charge(L, length / BYTES_PER_INSTRUCTION);
  if (dtype == GB_BOOL) check_bools(L, bytes, length);
  gbl_soft_mark(L, state);
  gbl_box *box = gbl_new_tensor(L);
  state->context->op = "from_bytes";
  gb_status status = gb_tensor_new(state->context, dtype, ndim, shape, device, &box->tensor);
  state->context->op = NULL;
  gbl_check_status(L, status);
  gbl_check_status(L, gb_tensor_write(box->tensor, bytes, length));
  return 1;
}

static size_t bytes_of(const gb_tensor *x) { return (size_t)gb_tensor_numel(x) * gb_dtype_bytes(gb_tensor_dtype(x)); }

/* gb.to_bytes(x: tensor) -> string: The elements of x as a string, row-major and little-endian whatever its layout and device are. Errors: a
 * string that would be longer than the limit on Lua's memory. Example: local text = gb.to_bytes(gb.tensor({ 72, 105 }, { dtype = "uint8" })) */
static int to_bytes(lua_State *L) {
  gbl_enter(L);
  size_t bytes = bytes_of(gbl_check_tensor(L, 1));
  luaL_Buffer text;
  if (lua_gettop(L) > 1) return gbl_error(L, "to_bytes: too many arguments; it takes one tensor");
  gbl_charge(L, bytes / BYTES_PER_INSTRUCTION);
  char *to = luaL_buffinitsize(L, &text, bytes);
  gb_tensor *x = gbl_check_tensor(L, 1); /* again: Lua may have collected, and a finaliser may have freed it */
  gbl_check_status(L, gb_tensor_read(x, to, bytes));
  luaL_pushresultsize(&text, bytes);
  return 1;
}

void gbl_open_bytes(lua_State *L) {
  gbl_set_functions(L, (const luaL_Reg[]){ { "from_bytes", from_bytes }, { "to_bytes", to_bytes }, { NULL, NULL } });
}
