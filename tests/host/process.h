/* process.h - the threads of this process, for tests of what stays behind. */
#ifndef GB_TESTS_PROCESS_H
#define GB_TESTS_PROCESS_H

#include <dirent.h>
#include <stdbool.h>
#include <time.h>

static inline int count_threads(void) {
  DIR *tasks = opendir("/proc/self/task");
  int count = 0;
  if (!tasks) return -1;
  for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) count += entry->d_name[0] != '.';
  closedir(tasks);
  return count;
}

/* Does the process come to have so many threads? One that was joined may be listed for a moment longer, so this looks
 * for up to ten seconds. */
static inline bool threads_become(int count) {
  const struct timespec pause = { 0, 1000000 };
  for (int i = 0; i < 10000 && count_threads() != count; i++) nanosleep(&pause, NULL);
  return count_threads() == count;
}

#endif
