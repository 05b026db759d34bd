/* cuda/cache.h - a bounded table from keys of fixed size to what was prepared for them; what was used longest ago makes room.
 *
 * Keys are compared as bytes, so a key struct is zeroed before it is filled. */
#ifndef GB_CUDA_CACHE_H
#define GB_CUDA_CACHE_H

#include <stddef.h>
#include <stdint.h>

typedef struct gb_cache gb_cache;

/* At most `most` values, each let go of by release. NULL: out of memory. */
gb_cache *gb_cache_open(size_t key_bytes, int most, void (*release)(void *value));
void gb_cache_close(gb_cache *cache);                        /* NULL is fine */
void *gb_cache_find(gb_cache *cache, const void *key);       /* NULL: not there */
/* Keep a value for a key that is not there; it belongs to the cache from now on. */
void gb_cache_put(gb_cache *cache, const void *key, void *value);

#endif
