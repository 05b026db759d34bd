/* tensor/dtype.c - names, sizes and promotion of dtypes; shapes that broadcast. */
#include <stdio.h>
#include <string.h>

#include "tensor/tensor.h"

static const struct { const char *name; uint8_t bytes, category; } dtypes[GB_DTYPE_COUNT] = {
#define GB_DTYPE_ROW(NAME, name, bytes, category) { #name, bytes, GB_CATEGORY_##category },
  GB_DTYPE_LIST(GB_DTYPE_ROW)
#undef GB_DTYPE_ROW
};

static bool known(gb_dtype dtype) { return dtype >= 0 && dtype < GB_DTYPE_COUNT; }

const char *gb_dtype_name(gb_dtype dtype) { return known(dtype) ? dtypes[dtype].name : "none"; }
size_t gb_dtype_bytes(gb_dtype dtype) { return known(dtype) ? dtypes[dtype].bytes : 0; }
int gb_dtype_category(gb_dtype dtype) { return known(dtype) ? dtypes[dtype].category : GB_CATEGORY_BOOL; }
bool gb_dtype_is_float(gb_dtype dtype) { return gb_dtype_category(dtype) == GB_CATEGORY_FLOAT; }

gb_dtype gb_dtype_from_name(const char *name) {
  for (int i = 0; name && i < GB_DTYPE_COUNT; i++)
    if (!strcmp(dtypes[i].name, name)) return (gb_dtype)i;
  return GB_DTYPE_NONE;
}

gb_dtype gb_promote(gb_dtype a, gb_dtype b) {
  if (a == b || b == GB_DTYPE_NONE) return a;
  if (a == GB_DTYPE_NONE) return b;
  int ca = gb_dtype_category(a), cb = gb_dtype_category(b);
  if (ca != cb) return ca > cb ? a : b;
  if (gb_is_16bit(a) && gb_is_16bit(b)) return GB_FLOAT32;
  if (ca == GB_CATEGORY_INT && (a == GB_UINT8 || b == GB_UINT8)) return a == GB_UINT8 ? b : a;
  return dtypes[a].bytes >= dtypes[b].bytes ? a : b;
}

/* PyTorch's combine_categories: the lower rank of tensors counts only where its category is higher. */
static gb_dtype combine(gb_dtype higher, gb_dtype lower) {
  if (higher == GB_DTYPE_NONE) return lower;
  if (lower == GB_DTYPE_NONE || gb_dtype_is_float(higher)) return higher;
  if (higher == GB_BOOL || gb_dtype_is_float(lower)) return gb_promote(higher, lower);
  return higher;
}

/* Do all have the first one's dtype, and is none a number of the language? Then it is the result's. */
static bool is_one_dtype(gb_tensor *const *tensors, int count) {
  for (int i = 0; i < count; i++)
    if (!tensors[i] || tensors[i]->wrapped || tensors[i]->dtype != tensors[0]->dtype) return false;
  return count > 0;
}

gb_dtype gb_result_type(gb_tensor *const *tensors, int count) {
  if (is_one_dtype(tensors, count)) return (gb_dtype)tensors[0]->dtype;
  gb_dtype dims = GB_DTYPE_NONE, zero = GB_DTYPE_NONE, wrapped = GB_DTYPE_NONE;
  for (int i = 0; i < count; i++) {
    const gb_tensor *t = tensors[i];
    if (!t) continue;
    gb_dtype dtype = (gb_dtype)t->dtype;
    if (t->wrapped) wrapped = gb_promote(wrapped, dtype == GB_FLOAT64 ? GB_FLOAT32 : dtype);
    else if (t->ndim == 0) zero = gb_promote(zero, dtype);
    else dims = gb_promote(dims, dtype);
  }
  return combine(dims, combine(zero, wrapped));
}

bool gb_broadcast(int *ndim, int64_t *shape, int other_ndim, const int64_t *other) {
  int n = *ndim > other_ndim ? *ndim : other_ndim;
  int64_t out[GB_MAX_NDIM];
  for (int i = 1; i <= n; i++) {
    int64_t a = i <= *ndim ? shape[*ndim - i] : 1, b = i <= other_ndim ? other[other_ndim - i] : 1;
    if (a != b && a != 1 && b != 1) return false;
    out[n - i] = a == 1 ? b : a;
  }
  memcpy(shape, out, (size_t)n * sizeof out[0]);
  *ndim = n;
  return true;
}

const char *gb_shape_text(int ndim, const int64_t *shape, char *buffer, size_t size) {
  if (ndim == 0) { snprintf(buffer, size, "scalar"); return buffer; }
  size_t used = 0;
  buffer[0] = 0;
  for (int i = 0; i < ndim && used < size; i++) used += (size_t)snprintf(buffer + used, size - used, "%s%lld", i ? "x" : "", (long long)shape[i]);
  return buffer;
}
