/* graph/parts.c - gradients of parts, side by side. See parts.h. */
#include "graph/parts.h"

#include <stdlib.h>
#include <string.h>

#include "graph/ops.h"

bool gb_find_row_part(int ndim, const int64_t *shape, const int64_t *strides, gb_row_part *part) {
  int order[GB_MAX_NDIM], n = 0, k = 0;
  for (int i = 0; i < ndim; i++) { /* by stride, the smallest first */
    if (shape[i] == 0) return false;
    if (shape[i] == 1) continue;
    int at = n++;
    for (; at > 0 && strides[order[at - 1]] > strides[i]; at--) order[at] = order[at - 1];
    order[at] = i;
  }
  *part = (gb_row_part){ .rows = 1, .count = 1 };
  for (; k < n && strides[order[k]] == part->count; k++) part->count *= shape[order[k]];
  if (k < n) part->row = strides[order[k]];
  for (; k < n && strides[order[k]] == part->row * part->rows; k++) part->rows *= shape[order[k]];
  return k == n && (part->rows == 1 || part->row >= part->count);
}

gb_meeting gb_parts_meet(const gb_parts *parts, gb_span span) {
  for (size_t i = 0; i < parts->n_spans; i++) {
    gb_span s = parts->spans[i];
    if (s.from <= span.from && span.to <= s.to) return GB_WITHIN;
    if (s.from < span.to && span.from < s.to) return GB_ACROSS;
  }
  return GB_APART;
}

gb_status gb_parts_put(gb_context *context, gb_parts *parts, gb_span span) {
  if (parts->n_spans == parts->room) {
    size_t room = parts->room ? 2 * parts->room : 4;
    gb_span *spans = realloc(parts->spans, room * sizeof *spans);
    if (!spans) return gb_fail_memory(context, room * sizeof *spans);
    parts->spans = spans;
    parts->room = room;
  }
  gb_span *s = parts->spans;
  size_t at = parts->n_spans;
  while (at > 0 && s[at - 1].from > span.from) at--;
  bool joins_before = at > 0 && s[at - 1].to == span.from, joins_after = at < parts->n_spans && s[at].from == span.to;
  size_t after = parts->n_spans - at;
  if (joins_before && joins_after) {
    s[at - 1].to = s[at].to;
    memmove(s + at, s + at + 1, (after - 1) * sizeof *s);
    parts->n_spans--;
  } else if (joins_before) s[at - 1].to = span.to;
  else if (joins_after) s[at].from = span.from;
  else {
    memmove(s + at + 1, s + at, after * sizeof *s);
    s[at] = span;
    parts->n_spans++;
  }
  return GB_OK;
}

/* A span of every row, as a view. */
static gb_status view_of(const gb_parts *parts, gb_tensor *whole, gb_span span, gb_tensor **out) {
  int64_t shape[2] = { whole->numel / parts->row, span.to - span.from }, strides[2] = { parts->row, 1 };
  return gb_tensor_view(whole, 2, shape, strides, whole->offset + span.from, out);
}

/* The same span of another tensor of this shape. */
static gb_status copy_span(const gb_parts *parts, gb_tensor *to, gb_tensor *from, gb_span span) {
  gb_tensor *source = NULL, *target = NULL;
  gb_status status = view_of(parts, from, span, &source);
  if (status == GB_OK) status = view_of(parts, to, span, &target);
  if (status == GB_OK) status = GB_RUN(gb_tensor_context(to), copy, NULL, .x = target, .source = source);
  gb_tensor_release(target);
  gb_tensor_release(source);
  return status;
}

gb_status gb_parts_own(const gb_parts *parts, gb_tensor **whole) {
  gb_tensor *shared = *whole, *own;
  if (atomic_load(&shared->storage->refs) == 1) return GB_OK;
  GB_TRY(gb_tensor_new(gb_tensor_context(shared), (gb_dtype)shared->dtype, shared->ndim, shared->shape,
                       shared->storage->device, &own));
  own->tag = shared->tag;
  gb_status status = GB_OK;
  for (size_t i = 0; status == GB_OK && i < parts->n_spans; i++)
    status = copy_span(parts, own, shared, parts->spans[i]);
  if (status != GB_OK) { gb_drop(&own); return status; }
  gb_tensor_release(shared);
  *whole = own;
  return GB_OK;
}

/* Zeros in a span of every row. */
static gb_status clear(const gb_parts *parts, gb_tensor *whole, gb_span span) {
  gb_tensor *place;
  GB_TRY(view_of(parts, whole, span, &place));
  gb_status status = GB_RUN(gb_tensor_context(whole), fill, NULL, .x = place, .value = gb_attr_num(0));
  gb_tensor_release(place);
  return status;
}

gb_status gb_parts_finish(const gb_parts *parts, gb_tensor **whole) {
  int64_t at = 0;
  for (size_t i = 0; i <= parts->n_spans; i++) {
    gb_span gap = { at, i < parts->n_spans ? parts->spans[i].from : parts->row };
    if (i < parts->n_spans) at = parts->spans[i].to;
    if (gap.from == gap.to) continue;
    GB_TRY(gb_parts_own(parts, whole));
    GB_TRY(clear(parts, *whole, gap));
  }
  return GB_OK;
}

void gb_parts_free(gb_parts *parts) {
  while (parts) {
    gb_parts *next = parts->next;
    free(parts->spans);
    free(parts);
    parts = next;
  }
}
