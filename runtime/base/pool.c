/* base/pool.c - the caching pool: free blocks in two-level size classes over large segments.
 *
 * A class is a power of two of 256-byte units cut in 16 (Masmano et al., "TLSF: a new dynamic memory allocator for
 * real-time systems", ECRTS 2004, section 3): two bit scans find a block. Its own class is looked through first, so
 * that the sizes of a training loop, which come again and again, find the very blocks that were freed. Requests up to
 * SMALL_MOST come from segments of their own, so that a small tensor that lives long does not hold a large segment.
 * What describes a block lies outside it: the memory may be a device's. A block that cannot be split for want of memory
 * for its description is handed out whole. Blocks of the smallest sizes are not merged when they are freed: they wait,
 * as they are, for the next request of their size. A larger request beside them merges all of them first, so that it
 * finds the places that it would have found without. */
#include "base/pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/lock.h"

#define UNIT ((size_t)256)
#define SEGMENT_UNIT ((size_t)2 << 20)
#define SEGMENT_GROWTH_MOST ((size_t)32 << 20)
#define SMALL_MOST ((size_t)1 << 20)
#define FINE 16          /* classes per power of two */
#define FINE_BITS 4
#define LEVELS 56
#define LOOK_AT_MOST 32  /* blocks of the request's own class */
#define WAITING_SIZES 16 /* units of 256 bytes up to which blocks wait */
#define WAITING_MOST 192 /* of each size */

typedef struct segment {
  size_t bytes;
  int area;                          /* which bins its blocks go to */
  gb_block *first;
  struct gb_pool *pool;
  struct segment *previous, *next;
} segment;

struct gb_block {
  char *data;
  size_t bytes;
  gb_memory_category category;
  bool used;
  segment *segment;
  gb_block *before, *after;          /* neighbours in the segment */
  gb_block *previous, *next;         /* in the bin of its class; next also links spare descriptions, and blocks that
                                        wait */
};

/* The free blocks of one area, by class, with bits for the classes that have any. */
typedef struct bins {
  uint64_t levels;
  uint16_t fine[LEVELS];
  gb_block *head[LEVELS][FINE];
} bins;

enum { AREA_SMALL, AREA_LARGE, AREAS };

struct gb_pool {
  atomic_bool locked;
  gb_alloc_fn alloc;
  gb_free_fn free;
  void *user;
  gb_budget *budget;                 /* NULL: none */
  bool kept;                         /* free segments stay */
  bool clears;                       /* new segments are cleared */
  uint64_t fail_after;
  gb_memory_stats stats;
  segment *segments;
  gb_block *spare;                   /* descriptions not in use */
  /* freed blocks that count as used by their neighbours, by size */
  struct { gb_block *first; int count; } waiting[WAITING_SIZES];
  int waiting_count;                 /* of all sizes */
  bins bins[AREAS];
};

/* {==== The lock ==== */

static void lock(gb_pool *pool) { gb_lock(&pool->locked); }
static void unlock(gb_pool *pool) { gb_unlock(&pool->locked); }

/* ====} */

/* {==== Classes ==== */

/* The class that a block of so many bytes belongs to. */
static void class_of(size_t bytes, int *level, int *fine) {
  uint64_t units = bytes / UNIT;
  int log = 63 - __builtin_clzll(units);
  *level = log < FINE_BITS ? 0 : log - FINE_BITS + 1;
  *fine = log < FINE_BITS ? (int)units : (int)(units >> (log - FINE_BITS)) & (FINE - 1);
}

/* Put a free block in front of its class. */
static void bin_insert(gb_pool *pool, gb_block *block) {
  bins *b = &pool->bins[block->segment->area];
  int level, fine;
  class_of(block->bytes, &level, &fine);
  block->previous = NULL;
  block->next = b->head[level][fine];
  if (block->next) block->next->previous = block;
  b->head[level][fine] = block;
  b->fine[level] |= (uint16_t)(1u << fine);
  b->levels |= (uint64_t)1 << level;
}

/* Take a free block out of its class. */
static void bin_remove(gb_pool *pool, gb_block *block) {
  bins *b = &pool->bins[block->segment->area];
  int level, fine;
  class_of(block->bytes, &level, &fine);
  if (block->next) block->next->previous = block->previous;
  if (block->previous) block->previous->next = block->next;
  else b->head[level][fine] = block->next;
  if (b->head[level][fine]) return;
  b->fine[level] &= (uint16_t)~(1u << fine);
  if (!b->fine[level]) b->levels &= ~((uint64_t)1 << level);
}

/* The best of the first blocks of the request's own class, or NULL. */
static gb_block *best_of_class(gb_block *head, size_t bytes) {
  gb_block *best = NULL;
  int looks = LOOK_AT_MOST;
  for (gb_block *block = head; block && looks--; block = block->next) {
    if (block->bytes < bytes || (best && best->bytes <= block->bytes)) continue;
    best = block;
    if (best->bytes == bytes) break;
  }
  return best;
}

/* A free block of at least so many bytes, or NULL. Every block of a higher class is large enough. */
static gb_block *bin_find(const bins *b, size_t bytes) {
  int level, fine;
  class_of(bytes, &level, &fine);
  gb_block *block = best_of_class(b->head[level][fine], bytes);
  if (block) return block;
  unsigned above = b->fine[level] & ~((2u << fine) - 1);
  if (!above) {
    uint64_t levels = b->levels & ~(((uint64_t)2 << level) - 1);
    if (!levels) return NULL;
    level = __builtin_ctzll(levels);
    above = b->fine[level];
  }
  return b->head[level][__builtin_ctz(above)];
}

/* ====} */

/* {==== Segments and blocks ==== */

/* A description, unset but for its links; NULL: no memory. */
static gb_block *describe(gb_pool *pool) {
  gb_block *block = pool->spare;
  if (block) pool->spare = block->next;
  else block = malloc(sizeof *block);
  if (block) block->before = block->after = block->previous = block->next = NULL;
  return block;
}

static void forget(gb_pool *pool, gb_block *block) {
  block->next = pool->spare;
  pool->spare = block;
}

/* Give a segment, all of it free and out of the bins, back to the system. */
static void segment_free(gb_pool *pool, segment *s) {
  if (s->next) s->next->previous = s->previous;
  if (s->previous) s->previous->next = s->next;
  else pool->segments = s->next;
  pool->stats.reserved -= s->bytes;
  pool->free(pool->user, s->first->data, s->bytes);
  forget(pool, s->first);
  free(s);
}

/* Put the block behind `block`, free and out of the bins, into it. */
static void merge_after(gb_pool *pool, gb_block *block) {
  gb_block *gone = block->after;
  block->bytes += gone->bytes;
  block->after = gone->after;
  if (block->after) block->after->before = block;
  forget(pool, gone);
}

/* Put a block that nobody uses into the bins, as one with its free neighbours. */
static void merge(gb_pool *pool, gb_block *block) {
  block->used = false;
  if (block->after && !block->after->used) {
    bin_remove(pool, block->after);
    merge_after(pool, block);
  }
  if (block->before && !block->before->used) {
    block = block->before;
    bin_remove(pool, block);
    merge_after(pool, block);
  }
  bin_insert(pool, block);
}

/* Which list blocks of so many bytes wait in; -1: none. */
static int waiting_of(size_t bytes) { return bytes <= WAITING_SIZES * UNIT ? (int)(bytes / UNIT) - 1 : -1; }

/* A block that waits for a request of this size, or NULL. */
static gb_block *take_waiting(gb_pool *pool, int size) {
  gb_block *block = size < 0 ? NULL : pool->waiting[size].first;
  if (!block) return NULL;
  pool->waiting[size].first = block->next;
  pool->waiting[size].count--;
  pool->waiting_count--;
  return block;
}

/* Merge all blocks that wait. */
static void merge_waiting(gb_pool *pool) {
  for (int i = 0; pool->waiting_count; i++)
    for (gb_block *block; (block = take_waiting(pool, i));) merge(pool, block);
}

/* Give every segment that is one free block back to the system, unless they are kept. */
static void flush(gb_pool *pool) {
  merge_waiting(pool);
  if (pool->kept) return;
  for (segment *s = pool->segments, *next; s; s = next) {
    next = s->next;
    if (s->first->used || s->first->after) continue;
    bin_remove(pool, s->first);
    segment_free(pool, s);
  }
}

/* Round up; the caller has made sure that it does not wrap. */
static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/* Memory for a segment: grows with the pool, falls back to what is needed, then to what is needed after a flush. */
static void *segment_memory(gb_pool *pool, size_t bytes, size_t *got) {
  size_t growth = pool->stats.reserved / 4 < SEGMENT_GROWTH_MOST ? pool->stats.reserved / 4 : SEGMENT_GROWTH_MOST;
  *got = round_up(bytes > growth ? bytes : growth, SEGMENT_UNIT);
  void *memory = pool->alloc(pool->user, *got, UNIT);
  if (memory) return memory;
  *got = bytes;
  memory = pool->alloc(pool->user, bytes, UNIT);
  if (memory) return memory;
  flush(pool);
  return pool->alloc(pool->user, bytes, UNIT);
}

/* A new segment as one free block, not in the bins; NULL: no memory. */
static gb_block *segment_new(gb_pool *pool, size_t bytes, int area) {
  gb_block *block = describe(pool);
  segment *s = malloc(sizeof *s);
  size_t got = 0;
  void *memory = block && s ? segment_memory(pool, bytes, &got) : NULL;
  if (!memory) {
    if (block) forget(pool, block);
    free(s);
    return NULL;
  }
  if (pool->clears) memset(memory, 0, got);
  *s = (segment){ .bytes = got, .area = area, .pool = pool, .first = block, .next = pool->segments };
  if (s->next) s->next->previous = s;
  pool->segments = s;
  *block = (gb_block){ .data = memory, .bytes = got, .segment = s };
  pool->stats.system_allocations++;
  pool->stats.reserved += got;
  if (pool->stats.reserved > pool->stats.peak_reserved) pool->stats.peak_reserved = pool->stats.reserved;
  return block;
}

/* Cut what is too much off a block, as a free block behind it. */
static void split(gb_pool *pool, gb_block *block, size_t bytes) {
  gb_block *rest = block->bytes > bytes ? describe(pool) : NULL;
  if (!rest) return;
  *rest = (gb_block){ .data = block->data + bytes, .bytes = block->bytes - bytes, .segment = block->segment,
                      .before = block, .after = block->after };
  if (rest->after) rest->after->before = rest;
  block->after = rest;
  block->bytes = bytes;
  bin_insert(pool, rest);
}

/* ====} */

/* {==== Counting ==== */

static void count_in(gb_pool *pool, gb_memory_category category, size_t bytes) {
  size_t now = pool->stats.current[category] += bytes;
  if (now > pool->stats.peak[category]) pool->stats.peak[category] = now;
}

static void count_total(gb_pool *pool, size_t bytes) {
  size_t now = pool->stats.current_total += bytes;
  if (now > pool->stats.peak_total) pool->stats.peak_total = now;
}

/* ====} */

/* {==== The budget ==== */

bool gb_budget_take(gb_budget *budget, size_t bytes) {
  if (!budget->limit) return true;
  size_t used = atomic_load_explicit(&budget->used, memory_order_relaxed);
  bool fits;
  do {
    fits = bytes <= budget->limit && used <= budget->limit - bytes;
  } while (fits && !atomic_compare_exchange_weak_explicit(&budget->used, &used, used + bytes, memory_order_relaxed,
                                                          memory_order_relaxed));
  if (!fits) atomic_store_explicit(&budget->refused, true, memory_order_relaxed);
  return fits;
}

/* What a block has beyond the request that was allowed: counted without asking. */
static void charge(gb_budget *budget, size_t bytes) {
  if (budget->limit) atomic_fetch_add_explicit(&budget->used, bytes, memory_order_relaxed);
}

void gb_budget_give_back(gb_budget *budget, size_t bytes) {
  if (budget->limit) atomic_fetch_sub_explicit(&budget->used, bytes, memory_order_relaxed);
}

/* ====} */

/* {==== The pool ==== */

gb_pool *gb_pool_open(gb_alloc_fn alloc, gb_free_fn free_memory, void *user, gb_budget *budget) {
  gb_pool *pool = calloc(1, sizeof *pool);
  if (!pool) return NULL;
  atomic_init(&pool->locked, false);
  pool->alloc = alloc;
  pool->free = free_memory;
  pool->user = user;
  pool->budget = budget;
  return pool;
}

void gb_pool_close(gb_pool *pool) {
  if (!pool) return;
  pool->kept = false;
  flush(pool);
  while (pool->spare) {
    gb_block *next = pool->spare->next;
    free(pool->spare);
    pool->spare = next;
  }
  free(pool);
}

/* One cut off a free block, or off a new segment. */
static gb_block *take_free(gb_pool *pool, size_t bytes) {
  int area = bytes <= SMALL_MOST ? AREA_SMALL : AREA_LARGE;
  if (area == AREA_SMALL && waiting_of(bytes) < 0) merge_waiting(pool);
  gb_block *block = bin_find(&pool->bins[area], bytes);
  if (!block && pool->waiting_count) { /* before the system is asked for more */
    merge_waiting(pool);
    block = bin_find(&pool->bins[area], bytes);
  }
  if (block) bin_remove(pool, block);
  else if (!(block = segment_new(pool, bytes, area))) return NULL;
  split(pool, block, bytes);
  return block;
}

/* A block of exactly this many units, or a little more; the lock is held. */
static gb_block *take(gb_pool *pool, size_t bytes, gb_memory_category category) {
  if (pool->fail_after && --pool->fail_after == 0) return NULL;
  gb_block *block = take_waiting(pool, waiting_of(bytes));
  if (!block) block = take_free(pool, bytes);
  if (!block) return NULL;
  block->used = true;
  block->category = category;
  pool->stats.allocations++;
  count_in(pool, category, block->bytes);
  count_total(pool, block->bytes);
  return block;
}

gb_block *gb_pool_alloc(gb_pool *pool, size_t bytes, gb_memory_category category) {
  if (bytes > SIZE_MAX / 2) return NULL;
  lock(pool);
  bytes = round_up(bytes ? bytes : 1, UNIT);
  bool allowed = !pool->budget || gb_budget_take(pool->budget, bytes);
  gb_block *block = allowed ? take(pool, bytes, category) : NULL;
  if (pool->budget && allowed)
    block ? charge(pool->budget, block->bytes - bytes) : gb_budget_give_back(pool->budget, bytes);
  unlock(pool);
  return block;
}

void gb_pool_free(gb_pool *pool, gb_block *block) {
  if (!block) return;
  pool = block->segment->pool; /* where it came from, whichever pool serves now */
  lock(pool);
  pool->stats.current[block->category] -= block->bytes;
  pool->stats.current_total -= block->bytes;
  if (pool->budget) gb_budget_give_back(pool->budget, block->bytes);
  int size = waiting_of(block->bytes);
  if (size < 0 || pool->waiting[size].count == WAITING_MOST) merge(pool, block);
  else {
    block->next = pool->waiting[size].first;
    pool->waiting[size].first = block;
    pool->waiting[size].count++;
    pool->waiting_count++;
  }
  unlock(pool);
}

void *gb_block_data(const gb_block *block) { return block->data; }
size_t gb_block_bytes(const gb_block *block) { return block->bytes; }
static gb_block *find(const gb_pool *pool, const void *data) {
  for (const segment *s = pool->segments; s; s = s->next)
    for (gb_block *block = s->first; block; block = block->after)
      if (block->used && block->data == data) return block;
  return NULL;
}

gb_block *gb_pool_find(gb_pool *pool, const void *data) {
  lock(pool);
  gb_block *block = find(pool, data);
  unlock(pool);
  return block;
}

bool gb_block_is_from(const gb_block *block, const gb_pool *pool) { return block->segment->pool == pool; }

void gb_pool_set_category(gb_pool *pool, gb_block *block, gb_memory_category category) {
  pool = block->segment->pool;
  lock(pool);
  pool->stats.current[block->category] -= block->bytes;
  block->category = category;
  count_in(pool, category, block->bytes);
  unlock(pool);
}

void gb_pool_flush(gb_pool *pool) {
  lock(pool);
  flush(pool);
  unlock(pool);
}

void gb_pool_keep(gb_pool *pool, bool keep) {
  lock(pool);
  pool->kept = keep;
  unlock(pool);
}

void gb_pool_clear(gb_pool *pool) { pool->clears = true; }

void gb_pool_stats(gb_pool *pool, gb_memory_stats *out) {
  lock(pool);
  *out = pool->stats;
  unlock(pool);
}

void gb_pool_reset_peaks(gb_pool *pool) {
  lock(pool);
  for (int i = 0; i < GB_MEM_CATEGORIES; i++) pool->stats.peak[i] = pool->stats.current[i];
  pool->stats.peak_total = pool->stats.current_total;
  pool->stats.peak_reserved = pool->stats.reserved;
  unlock(pool);
}

void gb_pool_fail_after(gb_pool *pool, uint64_t n) {
  lock(pool);
  pool->fail_after = n;
  unlock(pool);
}

/* ====} */
