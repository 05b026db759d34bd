/* cuda/cache.h - a bounded table from keys of fixed size to what was prepared for them; what was used longest ago makes
 * room.
 *
 * Keys are compared as bytes, so a key struct is zeroed before it is filled. What a capture used must outlive the
 * table's forgetting: a graph's kernels may lie in code that a library unloads with its plan. So while a keeper is
 * named, all that is found or put is held by it too. So is what would be released then: kernels launched before may
 * still run, and nobody can wait for them during a capture. */
#ifndef GB_CUDA_CACHE_H
#define GB_CUDA_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gb_cache gb_cache;
typedef struct gb_keeper gb_keeper;

/* At most `most` values; release frees each. NULL: out of memory. */
gb_cache *gb_cache_open(size_t key_bytes, int most, void (*release)(void *value));
/* Before a value that made room is released, call wait(state): until nothing runs that may use it. */
void gb_cache_wait_by(gb_cache *cache, void (*wait)(void *state), void *state);
/* Nothing that its values are used by runs any more. NULL is fine; what keepers hold stays. */
void gb_cache_close(gb_cache *cache);
void *gb_cache_find(gb_cache *cache, const void *key);       /* NULL: not there */
/* Keep a value for a new key; the cache owns it from now on. Without memory for it, it is freed at the next put. */
void gb_cache_put(gb_cache *cache, const void *key, void *value);

gb_keeper *gb_keeper_open(void);                             /* NULL: out of memory */
/* Lets go of all it holds, which nothing uses any more unless another keeper is named; NULL is fine. */
void gb_keeper_close(gb_keeper *keeper);
/* From now on the keeper also holds what this thread finds and puts; NULL: no keeper. */
void gb_keeper_name(gb_keeper *keeper);
/* Could everything be held? */
bool gb_keeper_is_whole(const gb_keeper *keeper);

#endif
