/* bytes.c - gb.from_bytes and gb.to_bytes: a Lua string as the memory of a tensor, and back.
 *
 * Bytes are those of memory: row-major, in this machine's order (little-endian). Both ways copy. Device memory goes
 * through the CPU. */
#include <inttypes.h>

#include "reader.h"

/* Of bytes moved for one instruction that a limit counts. */
#define BYTES_PER_INSTRUCTION 16

/* The shape that was given, or all elements in one dimension. */
static int shape_of(const gbl_call *call, size_t length, gb_dtype dtype, int64_t shape[GB_MAX_NDIM]) {
  const gbl_value *given = gbl_argument(call, "shape");
  size_t width = gb_dtype_bytes(dtype);
  if (!given->given && length % width)
    gbl_refuse(call, "%zu bytes are not a whole number of %s elements, which take %zu bytes each", length,
               gb_dtype_name(dtype), width);
  shape[0] = (int64_t)(length / width);
  for (int d = 0; d < given->count; d++) shape[d] = given->ints[d];
  return given->given ? given->count : 1;
}

/* The string must have the bytes of the shape, no more and no fewer. */
static void check_length(const gbl_call *call, size_t length, gb_dtype dtype, int ndim, const int64_t *shape) {
  int64_t bytes = (int64_t)gb_dtype_bytes(dtype);
  bool fits = true;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] < 0) gbl_refuse(call, "sizes are 0 or more, got %" PRId64, shape[d]);
    fits &= !__builtin_mul_overflow(bytes, shape[d], &bytes);
  }
  for (int d = 0; d < ndim; d++)
    if (!shape[d]) bytes = 0, fits = true;
  if (!fits) gbl_refuse(call, "the shape has more elements than memory can hold");
  if ((uint64_t)bytes != length)
    gbl_refuse(call, "the shape takes %" PRId64 " bytes of %s, the string has %zu", bytes, gb_dtype_name(dtype),
               length);
}

/* A bool is a byte of 0 or 1; kernels rely on it. */
static void check_bools(const gbl_call *call, const char *bytes, size_t length) {
  for (size_t i = 0; i < length; i++)
    if ((unsigned char)bytes[i] > 1)
      gbl_refuse(call, "byte %zu of a bool tensor is %d; it must be 0 or 1 (read it as uint8, and :ne(0))", i + 1,
                (unsigned char)bytes[i]);
}

static int from_bytes(lua_State *L, gbl_call *call) {
  const gbl_value *bytes = gbl_argument(call, "bytes"), *on = gbl_argument(call, "device");
  gbl_state *state = call->state;
  int64_t shape[GB_MAX_NDIM] = { 0 };
  gb_dtype dtype = gbl_argument(call, "dtype")->dtype;
  int ndim = shape_of(call, bytes->length, dtype, shape);
  check_length(call, bytes->length, dtype, ndim, shape);
  gbl_charge(L, bytes->length / BYTES_PER_INSTRUCTION);
  if (dtype == GB_BOOL) check_bools(call, bytes->string, bytes->length);
  gbl_soft_mark(L, state);
  gbl_box *box = gbl_new_tensor(L);
  state->context->op = gbl_who(call);
  gb_status status = gb_tensor_new(state->context, dtype, ndim, shape, on->given ? on->device : state->default_device,
                                   &box->tensor);
  state->context->op = NULL;
  gbl_check_status(L, status);
  gbl_check_status(L, gb_tensor_write(box->tensor, bytes->string, bytes->length));
  return 1;
}

static int to_bytes(lua_State *L, gbl_call *call) {
  gb_tensor *x = gbl_tensor(call, "x"); /* what a finaliser frees while the buffer is made stays until the next call */
  size_t bytes = (size_t)gb_tensor_numel(x) * gb_dtype_bytes(gb_tensor_dtype(x));
  luaL_Buffer text;
  gbl_charge(L, bytes / BYTES_PER_INSTRUCTION);
  char *to = luaL_buffinitsize(L, &text, bytes);
  gbl_check_status(L, gb_tensor_read(x, to, bytes));
  luaL_pushresultsize(&text, bytes);
  return 1;
}

static const gbl_function functions[] = {
  { from_bytes, GB_SANDBOX_STRICT,
    "gb.from_bytes(bytes: string, dtype: dtype, shape?: sizes; device?: device) -> tensor: A new tensor whose "
    "memory is a copy of the "
    "string: row-major, little-endian. Without a shape it has one dimension. Errors: a string that is longer or "
    "shorter than the "
    "shape, a byte of a bool that is neither 0 nor 1. Example: local x = gb.from_bytes(string.pack(\"<fff\", 1, 2, "
    "3), \"float32\")" },
  { to_bytes, GB_SANDBOX_STRICT,
    "gb.to_bytes(x: tensor) -> string: The elements of x as a string, row-major and little-endian whatever its "
    "layout and device are. "
    "Errors: a string that would be longer than the limit on Lua's memory. "
    "Example: local text = gb.to_bytes(gb.tensor({ 72, 105 }, { dtype = \"uint8\" }))" },
  { NULL, 0, NULL },
};

void gbl_open_bytes(lua_State *L) { gbl_define(L, functions); }
