/* test_launch_errors.c - a launch that meets the fault of earlier work is not blamed for it: of every code that, as the
 * toolkit's own header says, ends the process's use of CUDA, the kernel that was launched last is not named. It is of a
 * code that is the launch's own.
 *
 * This needs no device: the linker puts __wrap_cudaGetLastError in the place of the runtime's. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cuda/runtime.h"

static cudaError_t given;

cudaError_t __wrap_cudaGetLastError(void);
cudaError_t __wrap_cudaGetLastError(void) { return given; }

/* Is a kernel named for a launch after which the runtime gives this code? */
static bool names(int code) {
  const char *kernel = NULL;
  given = (cudaError_t)code;
  gb_rt_launched("some_kernel");
  CHECK(gb_rt_launch_error(&kernel) == code);
  return kernel != NULL;
}

/* A line without the frame of a comment, behind what was collected of the one it belongs to. */
static void collect(char *text, size_t room, const char *line) {
  size_t length = strlen(text);
  line += strspn(line, " \t*/");
  snprintf(text + length, room - length, "%.*s ", (int)strcspn(line, "\r\n"), line);
}

/* Look at every code of the header whose description says that nothing runs after it; gives how many there are. */
static int check_header(FILE *header) {
  char line[512], text[4096] = "";
  int found = 0;
  while (fgets(line, sizeof line, header)) {
    const char *name = strstr(line, "cudaError"), *number = name ? strchr(name, '=') : NULL;
    if (strstr(line, "/**")) *text = 0;
    if (!number || strchr(line, '*')) {
      collect(text, sizeof text, line);
      continue;
    }
    if (strstr(text, "must be terminated and relaunched")) {
      int code = (int)strtol(number + 1, NULL, 10);
      found++;
      if (names(code)) fprintf(stderr, "%.*s\n", (int)(number - name), name);
      CHECK(!names(code));
    }
    *text = 0;
  }
  return found;
}

int main(int argc, char **argv) {
  FILE *header = argc == 2 ? fopen(argv[1], "r") : NULL;
  CHECK(header != NULL);
  if (header) {
    CHECK(check_header(header) >= 10); /* of CUDA 12; less would be another way of saying it */
    fclose(header);
  }
  CHECK(names(cudaErrorInvalidConfiguration) && names(cudaErrorLaunchOutOfResources));
  return check_report();
}
