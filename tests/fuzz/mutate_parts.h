/* mutate_parts.h - changes to a safetensors file that leave the length of its header right, so that what lies behind
 * that check is reached. */
#ifndef GB_TESTS_MUTATE_PARTS_H
#define GB_TESTS_MUTATE_PARTS_H

#include <string.h>

#include "fuzz.h"

enum { LENGTH_BYTES = 8 }; /* little-endian, in front of the header */

static inline void put_length(uint8_t *data, size_t length) {
  for (int i = 0; i < LENGTH_BYTES; i++) data[i] = (uint8_t)((uint64_t)length >> 8 * i);
}

/* Another digit in the place of one: shapes, offsets and counters change, and the JSON stays JSON. */
static inline void change_digit(uint8_t *header, size_t length, unsigned seed) {
  for (size_t i = 0; i < length; i++) {
    uint8_t *at = header + (seed / 16 + i) % length;
    if (*at < '0' || *at > '9') continue;
    *at = (uint8_t)('0' + (*at - '0' + 1 + seed % 9) % 10);
    return;
  }
}

/* The header by the fuzzer's ways; the data behind it moves with its end. */
static inline size_t mutate_header(uint8_t *data, size_t header, size_t rest, size_t most) {
  uint8_t *tail = malloc(rest + 1);
  CLAIM(tail);
  memcpy(tail, data + LENGTH_BYTES + header, rest);
  header = LLVMFuzzerMutate(data + LENGTH_BYTES, header, most - LENGTH_BYTES - rest);
  memcpy(data + LENGTH_BYTES + header, tail, rest);
  free(tail);
  put_length(data, header);
  return LENGTH_BYTES + header + rest;
}

/* One part of the file changes: a digit, the header or the data; now and then anything. */
static inline size_t mutate_parts(uint8_t *data, size_t size, size_t most, unsigned seed) {
  uint64_t header = 0;
  for (int i = 0; i < LENGTH_BYTES && size > LENGTH_BYTES; i++) header |= (uint64_t)data[i] << 8 * i;
  if (size <= LENGTH_BYTES || size > most || header == 0 || header > size - LENGTH_BYTES || seed % 8 == 0)
    return LLVMFuzzerMutate(data, size, most);
  size_t front = LENGTH_BYTES + (size_t)header;
  if (seed % 8 == 1) return front + LLVMFuzzerMutate(data + front, size - front, most - front);
  if (seed % 8 < 5) return mutate_header(data, (size_t)header, size - front, most);
  change_digit(data + LENGTH_BYTES, (size_t)header, seed / 8);
  return size;
}

#endif
