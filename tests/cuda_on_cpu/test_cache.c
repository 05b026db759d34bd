/* test_cache.c - cuda/cache.h: what was used longest ago makes room, and what a keeper holds outlives that, and the
 * table. */
#include "cuda/cache.h"

#include <stdlib.h>

#include "check.h"

static int alive;

static void *make(void) {
  alive++;
  return malloc(1);
}

static void release(void *value) {
  alive--;
  free(value);
}

int main(void) {
  gb_cache *cache = gb_cache_open(sizeof(int), 4, release);
  for (int key = 0; key < 4; key++) gb_cache_put(cache, &key, make());
  CHECK(alive == 4 && gb_cache_find(cache, &(int){ 9 }) == NULL);

  gb_keeper *graph = gb_keeper_open(), *other = gb_keeper_open();
  gb_keeper_name(graph);
  void *old = gb_cache_find(cache, &(int){ 2 });
  CHECK(old && gb_cache_find(cache, &(int){ 2 }) == old); /* held once */
  gb_cache_put(cache, &(int){ 4 }, make());              /* 0 makes room */
  gb_keeper_name(other);
  CHECK(gb_cache_find(cache, &(int){ 2 }) == old);
  gb_keeper_name(NULL);
  CHECK(alive == 4 && gb_keeper_is_whole(graph));

  for (int key = 10; key < 20; key++) gb_cache_put(cache, &key, make());
  CHECK(alive == 6 && gb_cache_find(cache, &(int){ 2 }) == NULL); /* 4 in the table; 2 and 4, which the graph holds */
  gb_keeper_close(graph);
  CHECK(alive == 5); /* 2 is the other one's too */
  gb_cache_close(cache);
  CHECK(alive == 1);
  gb_keeper_close(other);
  CHECK(alive == 0);
  gb_keeper_close(NULL);
  gb_cache_close(NULL);
  return check_report();
}
