/* cuda/cache.c - a hash table of chains over a fixed number of slots. See cache.h. */
#include "cuda/cache.h"

#include <stdlib.h>
#include <string.h>

/* A value and its holders: the table, and keepers. */
typedef struct kept { void *value; void (*release)(void *value); int refs; } kept;
typedef struct slot { kept *kept; uint64_t used; int next; } slot; /* next: in the chain, -1 at its end */

struct gb_cache {
  size_t key_bytes;
  int most, count;
  void (*release)(void *value), (*wait)(void *state);
  void *state;                         /* for wait */
  uint64_t clock;
  slot *slots;
  int *heads;                          /* 2 * most chains */
  char *keys;
  void *orphan;                        /* a value without a slot, until the next put; or NULL */
};

struct gb_keeper {
  kept **items;
  size_t count, capacity;
  bool lacks;                          /* memory for one */
};

static _Thread_local gb_keeper *named;

/* {==== keepers ==== */

static void let_go(kept *k) {
  if (!k || --k->refs > 0) return;
  k->release(k->value);
  free(k);
}

/* Held once by the keeper that is named. */
static void keep(kept *k) {
  if (!named) return;
  for (size_t i = 0; i < named->count; i++)
    if (named->items[i] == k) return;
  if (named->count == named->capacity) {
    size_t capacity = named->capacity ? 2 * named->capacity : 32;
    kept **longer = realloc(named->items, capacity * sizeof *longer);
    if (!longer) {
      named->lacks = true;
      return;
    }
    named->items = longer;
    named->capacity = capacity;
  }
  named->items[named->count++] = k;
  k->refs++;
}

/* The keeper that is named takes over what nobody else holds. */
static void hand_over(kept *k) {
  if (k->refs == 1) keep(k);
  let_go(k);
}

gb_keeper *gb_keeper_open(void) { return calloc(1, sizeof(gb_keeper)); }

void gb_keeper_close(gb_keeper *keeper) {
  if (!keeper) return;
  if (named == keeper) named = NULL;
  for (size_t i = 0; i < keeper->count; i++) hand_over(keeper->items[i]);
  free(keeper->items);
  free(keeper);
}

void gb_keeper_name(gb_keeper *keeper) { named = keeper; }
bool gb_keeper_is_whole(const gb_keeper *keeper) { return !keeper->lacks; }

/* ====} */

gb_cache *gb_cache_open(size_t key_bytes, int most, void (*release)(void *value)) {
  gb_cache *cache = calloc(1, sizeof *cache);
  if (!cache) return NULL;
  size_t n = (size_t)most;
  *cache = (gb_cache){ .key_bytes = key_bytes, .most = most, .release = release,
                       .slots = calloc(n, sizeof *cache->slots),
                       .heads = malloc(2 * n * sizeof *cache->heads), .keys = malloc(n * key_bytes) };
  if (!cache->slots || !cache->heads || !cache->keys) { gb_cache_close(cache); return NULL; }
  for (int i = 0; i < 2 * most; i++) cache->heads[i] = -1;
  return cache;
}

void gb_cache_wait_by(gb_cache *cache, void (*wait)(void *state), void *state) {
  cache->wait = wait;
  cache->state = state;
}

void gb_cache_close(gb_cache *cache) {
  if (!cache) return;
  for (int i = 0; i < cache->count; i++) let_go(cache->slots[i].kept);
  if (cache->orphan) cache->release(cache->orphan);
  free(cache->slots);
  free(cache->heads);
  free(cache->keys);
  free(cache);
}

static char *key_at(const gb_cache *cache, int i) { return cache->keys + (size_t)i * cache->key_bytes; }

/* The chain that a key belongs to (Fowler, Noll and Vo's hash, 64 bits). */
static int *chain_of(const gb_cache *cache, const void *key) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < cache->key_bytes; i++) hash = (hash ^ ((const unsigned char *)key)[i]) * 0x100000001b3u;
  return &cache->heads[(hash ^ hash >> 32) % (2 * (uint64_t)cache->most)];
}

void *gb_cache_find(gb_cache *cache, const void *key) {
  for (int i = *chain_of(cache, key); i >= 0; i = cache->slots[i].next) {
    if (memcmp(key_at(cache, i), key, cache->key_bytes)) continue;
    cache->slots[i].used = ++cache->clock;
    keep(cache->slots[i].kept);
    return cache->slots[i].kept->value;
  }
  return NULL;
}

/* Until nothing uses what is released next. While a keeper is named nobody can wait, and it takes that over. */
static void settle(const gb_cache *cache) {
  if (cache->wait && !named) cache->wait(cache->state);
}

/* The slot that was used longest ago, taken out of its chain and empty. */
static int make_room(gb_cache *cache) {
  int oldest = 0;
  for (int i = 1; i < cache->most; i++)
    if (cache->slots[i].used < cache->slots[oldest].used) oldest = i;
  int *link = chain_of(cache, key_at(cache, oldest));
  while (*link != oldest) link = &cache->slots[*link].next;
  *link = cache->slots[oldest].next;
  if (cache->slots[oldest].kept->refs == 1) settle(cache);
  hand_over(cache->slots[oldest].kept);
  return oldest;
}

/* A value for which there was no memory to keep it. While a keeper is named nobody can wait until nothing uses it, so
 * it stays. */
static void drop_orphan(gb_cache *cache) {
  if (!cache->orphan || named) return;
  settle(cache);
  cache->release(cache->orphan);
  cache->orphan = NULL;
}

void gb_cache_put(gb_cache *cache, const void *key, void *value) {
  kept *made = malloc(sizeof *made);
  drop_orphan(cache);
  if (!made) {
    if (cache->orphan) cache->release(cache->orphan); /* no memory twice, within one capture */
    cache->orphan = value;
    if (named) named->lacks = true;
    return;
  }
  *made = (kept){ value, cache->release, 1 };
  int i = cache->count < cache->most ? cache->count++ : make_room(cache), *head = chain_of(cache, key);
  cache->slots[i] = (slot){ .kept = made, .used = ++cache->clock, .next = *head };
  memcpy(key_at(cache, i), key, cache->key_bytes);
  *head = i;
  keep(made);
}
