/* cuda/lanes.cuh - a few neighbouring elements of float32, a 16-bit float, uint8 or bool, moved by a thread in one
 * access.
 *
 * W elements (4, or 8 of at most 2 bytes) are loaded as the bits they are, at once where all are wanted and memory is
 * aligned to them, else one by one: so a row that begins anywhere costs its head and tail alone. Loading and converting
 * are apart, so that a thread has all of its loads under way before it waits for the first. */
#ifndef GB_CUDA_LANES_CUH
#define GB_CUDA_LANES_CUH

#include <string.h>

#include "cuda/device.cuh"

enum { GB_LANES = 4 }; /* of a thread, unless all its elements have 2 bytes or 1 */

/* Bytes of an element of a dtype that lanes know, or 0. */
static GB_DEVICE int gb_lane_bytes(int dtype) {
  return dtype == GB_FLOAT32 ? 4 : gb_is_16bit(dtype) ? 2 : gb_is_byte(dtype) ? 1 : 0;
}

/* At most 16 bytes, the first element in the lowest bits of the first word. */
struct gb_bits { uint32_t word[4]; };

template <int words> struct alignas(4 * words) gb_words { uint32_t word[words]; };

/* Aligned words in one store; of an assignment nvcc makes several, to share the first with the branches for fewer
 * words. */
template <int words> static GB_DEVICE void gb_words_store(void *to, const gb_bits &bits) {
#if defined(__CUDA_ARCH__)
  if constexpr (words == 4) __stwb((uint4 *)to, make_uint4(bits.word[0], bits.word[1], bits.word[2], bits.word[3]));
  else if constexpr (words == 2) __stwb((uint2 *)to, make_uint2(bits.word[0], bits.word[1]));
  else __stwb((uint32_t *)to, bits.word[0]);
#else
  memcpy(to, bits.word, 4 * words);
#endif
}

/* Elements first .. last - 1 of the W at p, stored as S; the others are 0 bits. */
template <typename S, int W> static GB_DEVICE gb_bits gb_bits_fetch(const S *p, int first, int last) {
  const int words = W * (int)sizeof(S) / 4;
  gb_bits bits = { { 0, 0, 0, 0 } };
  if (first <= 0 && last >= W && ((uintptr_t)p & (4 * words - 1)) == 0) {
    gb_words<words> all = *(const gb_words<words> *)(const void *)p;
    GB_UNROLL for (int k = 0; k < words; k++) bits.word[k] = all.word[k];
    return bits;
  }
  GB_UNROLL for (int l = 0; l < W; l++)
    if (l >= first && l < last) {
      S lane = p[l];
      uint32_t value = 0;
      memcpy(&value, &lane, sizeof lane);
      bits.word[l * (int)sizeof(S) / 4] |= value << (l * (int)sizeof(S) % 4 * 8);
    }
  return bits;
}

template <typename S, int W> static GB_DEVICE void gb_bits_put(S *p, int first, int last, gb_bits bits) {
  const int words = W * (int)sizeof(S) / 4;
  if (first <= 0 && last >= W && ((uintptr_t)p & (4 * words - 1)) == 0) {
    gb_words_store<words>(p, bits);
    return;
  }
  GB_UNROLL for (int l = 0; l < W; l++)
    if (l >= first && l < last) {
      uint32_t value = bits.word[l * (int)sizeof(S) / 4] >> (l * (int)sizeof(S) % 4 * 8);
      S lane;
      memcpy(&lane, &value, sizeof lane);
      p[l] = lane;
    }
}

/* The W elements from `at` on, those that lie between first and last of them. 8 lanes are for 2 bytes and less. */
template <int W> static GB_DEVICE gb_bits gb_lanes_load(const void *data, int bytes, int64_t at, int first, int last) {
  if constexpr (W == 4)
    if (bytes == 4) return gb_bits_fetch<uint32_t, W>((const uint32_t *)data + at, first, last);
  if (bytes == 2) return gb_bits_fetch<uint16_t, W>((const uint16_t *)data + at, first, last);
  return gb_bits_fetch<uint8_t, W>((const uint8_t *)data + at, first, last);
}

template <int W> static GB_DEVICE void gb_lanes_store(void *data, int bytes, int64_t at, int first, int last,
                                                      gb_bits bits) {
  if constexpr (W == 4)
    if (bytes == 4) return gb_bits_put<uint32_t, W>((uint32_t *)data + at, first, last, bits);
  if (bytes == 2) return gb_bits_put<uint16_t, W>((uint16_t *)data + at, first, last, bits);
  gb_bits_put<uint8_t, W>((uint8_t *)data + at, first, last, bits);
}

/* What bits of a dtype stand for. */
template <typename T, int W> static GB_DEVICE void gb_lanes_unpack(const gb_bits &bits, int dtype, T *v) {
  if (W == 4 && dtype == GB_FLOAT32) {
    GB_UNROLL for (int l = 0; l < W; l++) v[l] = gb_as<T>::from(gb_bits_float(bits.word[l % 4]));
  } else if (dtype == GB_BFLOAT16) {
    GB_UNROLL for (int l = 0; l < W; l++) v[l] =
        gb_as<T>::from(gb_bits_float(l % 2 ? bits.word[l / 2] & 0xffff0000u : bits.word[l / 2] << 16));
  } else if (dtype == GB_FLOAT16) {
    GB_UNROLL for (int l = 0; l < W; l++) v[l] =
        gb_as<T>::from(gb_half_value((uint16_t)(bits.word[l / 2] >> (l % 2 * 16))));
  } else {
    uint32_t most = dtype == GB_BOOL ? 1u : 255u; /* a bool's byte is anything but 0 */
    GB_UNROLL for (int l = 0; l < W; l++) {
      uint32_t byte = bits.word[l / 4] >> (l % 4 * 8) & 255u;
      v[l] = (T)(byte < most ? byte : most);
    }
  }
}

template <typename T, int W> static GB_DEVICE gb_bits gb_lanes_pack(const T *v, int dtype) {
  gb_bits bits = { { 0, 0, 0, 0 } };
  if (W == 4 && dtype == GB_FLOAT32) {
    GB_UNROLL for (int l = 0; l < W; l++) bits.word[l % 4] = gb_float_bits(gb_as<T>::f32(v[l]));
  } else if (dtype == GB_BFLOAT16) {
    GB_UNROLL for (int l = 0; l < W; l++) bits.word[l / 2] |= (uint32_t)gb_as<T>::bfloat(v[l]) << (l % 2 * 16);
  } else if (dtype == GB_FLOAT16) {
    GB_UNROLL for (int l = 0; l < W; l++) bits.word[l / 2] |= (uint32_t)gb_as<T>::half(v[l]) << (l % 2 * 16);
  } else {
    bool test = dtype == GB_BOOL;
    GB_UNROLL for (int l = 0; l < W; l++) bits.word[l / 4] |= (test ? (uint32_t)(v[l] != 0)
                                                               : (uint32_t)(uint8_t)gb_as<T>::i64(v[l])) << (l % 4 * 8);
  }
  return bits;
}

/* i / n, and what is left; by 32-bit numbers where they hold both. */
static GB_DEVICE int64_t gb_divide(int64_t i, int64_t n, bool narrow, int64_t *rest) {
  int64_t quotient = narrow ? (int64_t)((uint32_t)i / (uint32_t)n) : i / n;
  *rest = i - quotient * n;
  return quotient;
}

#endif
