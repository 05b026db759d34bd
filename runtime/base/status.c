/* base/status.c - the texts of the status codes. */
#include "gibbous.h"

const char *gb_status_text(gb_status status) {
  static const char *const texts[] = {
#define GB_STATUS_TEXT(name, text) text,
    GB_STATUS_LIST(GB_STATUS_TEXT)
#undef GB_STATUS_TEXT
  };
  size_t count = sizeof texts / sizeof *texts, at = (size_t)status;
  return at < count ? texts[at] : "unknown status";
}
