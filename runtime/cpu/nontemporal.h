/* cpu/nontemporal.h - results too large for any cache are written past the caches: a processor would otherwise read
 * each line before it is overwritten, and throw out what is still wanted. */
#ifndef GB_CPU_NONTEMPORAL_H
#define GB_CPU_NONTEMPORAL_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* Results from this size on: a usual last-level cache holds no more. */
#define GB_NONTEMPORAL_BYTES ((size_t)32 << 20)

/* Copy past the caches where the target is aligned; gb_nontemporal_end must follow on the same thread. */
static inline void gb_stream(char *to, const char *from, size_t bytes) {
  size_t i = 0;
#if defined(__AVX512F__)
  if ((uintptr_t)to % 64 == 0)
    for (; i + 64 <= bytes; i += 64) _mm512_stream_si512((__m512i *)(void *)(to + i), _mm512_loadu_si512(from + i));
#elif defined(__SSE2__)
  if ((uintptr_t)to % 16 == 0)
    for (; i + 16 <= bytes; i += 16)
      _mm_stream_si128((__m128i *)(void *)(to + i), _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
#endif
  memcpy(to + i, from + i, bytes - i);
}

/* Let other threads see what was streamed. */
static inline void gb_nontemporal_end(void) {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

#endif
