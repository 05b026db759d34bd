/* recipes.c - --recipes: the scripts in ../share/gibbous/recipes of an installed program, or in ../recipes of a built
 * one. */
#include "recipes.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* For scandir: names that end in .lua. */
static int is_recipe(const struct dirent *entry) {
  size_t length = strlen(entry->d_name);
  return length > 4 && !strcmp(entry->d_name + length - 4, ".lua");
}

/* The path of a recipe, and what its first line says: "-- name.lua - text". */
static void show(const char *folder, const char *name) {
  char path[4600], line[512] = "";
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "r");
  if (file && !fgets(line, sizeof line, file)) *line = '\0';
  if (file) fclose(file);
  line[strcspn(line, "\n")] = '\0';
  const char *text = strstr(line, " - ");
  printf("%s\n    %s\n", path, !strncmp(line, "--", 2) ? text ? text + 3 : line + 2 : "");
}

/* List a folder; false: it has no recipes. */
static bool list(const char *folder) {
  struct dirent **entries;
  int count = scandir(folder, &entries, is_recipe, alphasort);
  for (int i = 0; i < count; i++) {
    show(folder, entries[i]->d_name);
    free(entries[i]);
  }
  if (count >= 0) free(entries);
  return count > 0;
}

/* Take the last part off a path. */
static bool go_up(char *path) {
  char *slash = strrchr(path, '/');
  if (slash) *slash = '\0';
  return slash != NULL;
}

bool recipes_list(void) {
  char program[4096], folder[4200];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  program[length < 0 ? 0 : length] = '\0';
  if (go_up(program) && go_up(program)) {
    static const char *const places[] = { "share/gibbous/recipes", "recipes" };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
      snprintf(folder, sizeof folder, "%s/%s", program, places[i]);
      if (list(folder)) return true;
    }
  }
  fprintf(stderr, "gibbous: there are no recipes in %s/share/gibbous/recipes, where an installed gibbous has them\n",
          program);
  return false;
}
