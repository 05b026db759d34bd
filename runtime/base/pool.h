/* base/pool.h - the caching pool that every tensor's memory comes from.
 *
 * Size classes over large segments; blocks are aligned to 256 bytes and padded to a multiple of it. A freed block goes
 * back to the pool, neighbours are merged, and whole free segments are returned to the system only by gb_pool_flush or
 * under memory pressure. Byte counts are kept by category, in blocks as handed out. One lock; any thread may allocate
 * and free. The memory beneath comes from a pair of callbacks, so the pool serves every device. Backends give memory
 * that holds nothing of other contexts: a recipe sees with gb.empty what is there. */
#ifndef GB_BASE_POOL_H
#define GB_BASE_POOL_H

#include <stdatomic.h>

#include "gibbous.h"

typedef struct gb_pool gb_pool;
typedef struct gb_block gb_block; /* one allocation */

/* A limit shared by several pools, and by bytes outside of them that belong to the same work (graph nodes, descriptions
 * of tensors). Begins as zeros and its limit. Any thread may take and give back. With limit 0 nothing is counted. */
typedef struct gb_budget {
  size_t limit;                    /* most bytes; 0: none */
  atomic_size_t used;
  atomic_bool refused;             /* a request was over the limit; stays set until somebody clears it, even if other
                                      threads succeed meanwhile */
} gb_budget;
bool gb_budget_take(gb_budget *budget, size_t bytes); /* false, and nothing is counted: over the limit */
void gb_budget_give_back(gb_budget *budget, size_t bytes);

/* budget: where the blocks in use are counted; it outlives the pool. NULL: nowhere. Returns NULL if there is no memory
 * for the pool itself. */
gb_pool *gb_pool_open(gb_alloc_fn alloc, gb_free_fn free, void *user, gb_budget *budget);
/* Every block must have been freed. */
void gb_pool_close(gb_pool *pool);

/* A block of at least `bytes` (0 gives the smallest size), or NULL: over the budget, or the system has no memory even
 * after cached segments were flushed. */
gb_block *gb_pool_alloc(gb_pool *pool, size_t bytes, gb_memory_category category);
void gb_pool_free(gb_pool *pool, gb_block *block); /* returns it to the pool that it came from, if that is another
                                                      one */
void *gb_block_data(const gb_block *block);
size_t gb_block_bytes(const gb_block *block);     /* as counted: padded */
/* The block in use whose memory begins there, or NULL: for memory that goes by its address. It looks at all blocks. */
gb_block *gb_pool_find(gb_pool *pool, const void *data);
bool gb_block_is_from(const gb_block *block, const gb_pool *pool);
/* Move a block's bytes to another category. */
void gb_pool_set_category(gb_pool *pool, gb_block *block, gb_memory_category category);

void gb_pool_flush(gb_pool *pool);                /* give free segments back to the system */
/* keep: free memory stays in the pool, under memory pressure too, until this is called with false. Nothing is flushed
 * meanwhile. */
void gb_pool_keep(gb_pool *pool, bool keep);
/* Clear what the callback gives from now on, memory of the CPU from who may not do it. */
void gb_pool_clear(gb_pool *pool);
void gb_pool_stats(gb_pool *pool, gb_memory_stats *out);
void gb_pool_reset_peaks(gb_pool *pool);

/* Test hook: the n-th allocation from now (1 is the next) fails once; 0 turns it off. */
void gb_pool_fail_after(gb_pool *pool, uint64_t n);

#endif
