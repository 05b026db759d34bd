/* tensor/dtype.c - names, sizes and promotion of dtypes; shapes that broadcast. */
#include <stdio.h>
#include <string.h>

#include "tensor/tensor.h"

static const char *const names[GB_DTYPE_COUNT] = {
#define NAME_OF(NAME, name, ...) #name,
  GB_DTYPE_LIST(NAME_OF)
#undef NAME_OF
};

static bool known(gb_dtype dtype) { return dtype >= 0 && dtype < GB_DTYPE_COUNT; }

const char *gb_dtype_name(gb_dtype dtype) { return known(dtype) ? names[dtype] : "none"; }
size_t gb_dtype_bytes(gb_dtype dtype) { return known(dtype) ? gb_bytes_of(dtype) : 0; }
int gb_dtype_category(gb_dtype dtype) { return known(dtype) ? gb_format_of(dtype)->category : GB_CATEGORY_BOOL; }
bool gb_dtype_is_float(gb_dtype dtype) { return known(dtype) && gb_is_float(dtype); }

gb_dtype gb_dtype_from_name(const char *name) {
  for (int i = 0; name && i < GB_DTYPE_COUNT; i++)
    if (*names[i] == *name && !strcmp(names[i], name)) return (gb_dtype)i;
  return GB_DTYPE_NONE;
}

/* Does f hold every value of g, of the same category? */
static bool holds(const gb_format *f, const gb_format *g) {
  return f->category == g->category && f->digits >= g->digits && f->least <= g->least && f->most >= g->most;
}

gb_dtype gb_promote(gb_dtype a, gb_dtype b) {
  if (a == b || b == GB_DTYPE_NONE) return a;
  if (a == GB_DTYPE_NONE) return b;
  const gb_format *fa = gb_format_of(a), *fb = gb_format_of(b), *best = NULL;
  gb_dtype result = a;
  if (fa->category != fb->category) return fa->category > fb->category ? a : b;
  for (int i = 0; i < GB_DTYPE_COUNT; i++) {
    const gb_format *f = gb_format_of((gb_dtype)i);
    if (holds(f, fa) && holds(f, fb) && (!best || f->bytes < best->bytes)) best = f, result = (gb_dtype)i;
  }
  return result;
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
  for (int i = 0; i < ndim && used < size; i++)
    used += (size_t)snprintf(buffer + used, size - used, "%s%lld", i ? "x" : "", (long long)shape[i]);
  return buffer;
}
