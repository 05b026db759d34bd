/* cpu/scratch.h - working memory of a kernel: bytes that all chunks share, and a room of its own for each thread, or
 * for each chunk where there are fewer of those; sums kept in parts. */
#ifndef GB_CPU_SCRATCH_H
#define GB_CPU_SCRATCH_H

#include "cpu/rows.h"

typedef struct gb_scratch {
  gb_block *block;
  char *shared, *rooms;
  size_t room_bytes;
  const gb_threads *threads;
  bool by_chunk;               /* a room for each chunk */
} gb_scratch;

/* Take `bytes` of a block that is being laid out, aligned for vectors; returns where they begin. */
static inline size_t gb_scratch_take(size_t *total, int64_t bytes) {
  size_t at = *total;
  *total += ((size_t)bytes + 63) & ~(size_t)63;
  return at;
}

/* How many rooms there are depends on the threads, so nothing that outlives a chunk may lie in one. */
static inline gb_status gb_scratch_open_rooms(gb_op_call *call, size_t shared, size_t room_bytes, size_t rooms,
                                              gb_scratch *out) {
  gb_block *block = gb_cpu_scratch(call, shared + room_bytes * rooms);
  if (!block) return GB_EMEMORY;
  char *data = gb_block_data(block);
  *out = (gb_scratch){ block, data, data + shared, room_bytes, call->context->threads, false };
  return GB_OK;
}

/* A room for each thread. */
static inline gb_status gb_scratch_open(gb_op_call *call, size_t shared, size_t room_bytes, gb_scratch *out) {
  return gb_scratch_open_rooms(call, shared, room_bytes, (size_t)gb_threads_count(call->context->threads), out);
}

/* The room of the running thread. */
static inline char *gb_scratch_room(const gb_scratch *s) { return s->rooms + s->room_bytes *
                                                           (size_t)gb_threads_current(s->threads); }

/* Rooms for so many chunks: one for each thread, or for each chunk where there are fewer of those (and one where there
 * is none). Rooms for long rows are large, and such rows few. */
static inline gb_status gb_scratch_open_chunks(gb_op_call *call, size_t shared, size_t room_bytes, int64_t chunks,
                                               gb_scratch *out) {
  const int64_t threads = gb_threads_count(call->context->threads);
  const bool by_chunk = chunks < threads;
  const int64_t rooms = by_chunk ? chunks + (chunks == 0) : threads;
  GB_TRY(gb_scratch_open_rooms(call, shared, room_bytes, (size_t)rooms, out));
  out->by_chunk = by_chunk;
  return GB_OK;
}

/* The room of a chunk that runs, where there are rooms for chunks. */
static inline char *gb_scratch_room_of(const gb_scratch *s, int64_t chunk) {
  return s->by_chunk ? s->rooms + s->room_bytes * (size_t)chunk : gb_scratch_room(s);
}

static inline void gb_scratch_close(gb_op_call *call, gb_scratch *s) { gb_cpu_scratch_free(call, s->block); }

#define gb_sum_parts GB_CPU_NAME(sum_parts)
/* `count` arrays of `numel` lanes lie one after another: add the others to the first, in their order. */
void gb_sum_parts(const gb_op_call *call, gb_lane lane, void *parts, int64_t numel, int64_t count);

#endif
