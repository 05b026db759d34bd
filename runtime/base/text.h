/* base/text.h - what is done to texts that people read. */
#ifndef GB_BASE_TEXT_H
#define GB_BASE_TEXT_H

#include <stdbool.h>
#include <string.h>

/* Take the sign from each NaN: C prints that of 0/0 as "-nan", and the sign says nothing. Only where it stands by
 * itself, since a name may have the same letters. */
static inline void gb_text_plain_nan(char *text) {
  for (char *at = text; (at = strstr(at, "-nan"));) {
    bool begins = at == text || strchr(" ([{=", at[-1]), ends = !at[4] || strchr(" ,;:)]}", at[4]);
    if (begins && ends) memmove(at, at + 1, strlen(at));
    else at += 4;
  }
}

#endif
