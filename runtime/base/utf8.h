/* base/utf8.h - UTF-8, strict: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef GB_BASE_UTF8_H
#define GB_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The code point that starts at text, of which `left` bytes are there; its length in bytes, or 0 when it is
 * malformed. */
static inline int gb_utf8_decode(const char *text, size_t left, uint32_t *code) {
  static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
  const unsigned char *s = (const unsigned char *)text;
  if (!left) return 0;
  int length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
  if (!length || (size_t)length > left) return 0;
  uint32_t c = length == 1 ? s[0] : s[0] & (0x7fu >> length);
  for (int i = 1; i < length; i++) {
    if ((s[i] & 0xc0) != 0x80) return 0;
    c = c << 6 | (s[i] & 0x3fu);
  }
  if (c < least[length] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
  *code = c;
  return length;
}

/* Write a valid code point; gives its length, 1 .. 4. */
static inline int gb_utf8_encode(uint32_t code, char out[4]) {
  static const unsigned char lead[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
  int length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  for (int i = length - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80u | (code & 0x3fu));
  out[0] = (char)(lead[length] | code);
  return length;
}

#endif
