/* test_events.c - the checksum of event files, against the vectors of RFC 3720 and of TensorFlow's records. */
#include "check.h"

#include <string.h>

#include "io/events.h"

int main(void) {
  const unsigned char zeros[32] = { 0 };
  const unsigned char masked[] = "\x1a\x11" "CRC test, one two";
  CHECK(gb_crc32c("123456789", 9) == 0xe3069283u);
  CHECK(gb_crc32c(zeros, sizeof zeros) == 0x8a9136aau);
  CHECK(gb_crc32c_masked(masked, sizeof masked - 1) == 0x5794d08au);
  CHECK(gb_crc32c("", 0) == 0);
  return check_report();
}
