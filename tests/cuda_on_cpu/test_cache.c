/* test_cache.c - cuda/cache.h: what was used longest ago makes room when nothing uses it any more, and what a keeper
 * holds outlives that, and the table. While a keeper is named nothing is released, and nobody waits. */
#include "cuda/cache.h"

#include <stdlib.h>

#include "check.h"

static int alive, waits, alive_then;

static void *make(void) {
  alive++;
  return malloc(1);
}

static void release(void *value) {
  alive--;
  free(value);
}

static void wait_for_all(void *state) {
  (*(int *)state)++;
  alive_then = alive;
}

static void test_kept(void) {
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
  CHECK(alive == 5 && gb_keeper_is_whole(graph)); /* 4 in the table; 0, which the graph took over */

  for (int key = 10; key < 20; key++) gb_cache_put(cache, &key, make());
  CHECK(alive == 7 && gb_cache_find(cache, &(int){ 2 }) == NULL); /* 4 in the table; the graph's 0, 2 and 4 */
  gb_keeper_close(graph);
  CHECK(alive == 5); /* 2 is the other one's too */
  gb_cache_close(cache);
  CHECK(alive == 1);
  gb_keeper_close(other);
  CHECK(alive == 0);
  gb_keeper_close(NULL);
  gb_cache_close(NULL);
}

/* What is released may be used by what still runs. */
static void test_waits(void) {
  gb_cache *cache = gb_cache_open(sizeof(int), 2, release);
  gb_cache_wait_by(cache, wait_for_all, &waits);
  for (int key = 0; key < 2; key++) gb_cache_put(cache, &key, make());
  CHECK(waits == 0);
  gb_cache_put(cache, &(int){ 2 }, make()); /* 0 makes room, */
  CHECK(waits == 1 && alive_then == 3);     /* which was there until then */

  gb_keeper *first = gb_keeper_open(), *second = gb_keeper_open();
  gb_keeper_name(first);
  gb_cache_put(cache, &(int){ 3 }, make()); /* 1 does, in a capture */
  CHECK(waits == 1 && alive == 3);
  gb_keeper_name(second); /* in another one, the graph of the first is closed: its 1 goes over */
  gb_keeper_close(first);
  CHECK(alive == 3);
  gb_keeper_name(NULL);
  gb_cache_put(cache, &(int){ 4 }, make()); /* 2 */
  CHECK(waits == 2 && alive == 3);
  gb_keeper_close(second);
  CHECK(alive == 2 && gb_cache_find(cache, &(int){ 3 }));
  gb_cache_close(cache);
  CHECK(alive == 0 && waits == 2);
}

int main(void) {
  test_kept();
  test_waits();
  return check_report();
}
