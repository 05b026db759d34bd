/* recipes.h - the recipes that came with the program. */
#ifndef GB_REPL_RECIPES_H
#define GB_REPL_RECIPES_H

#include <stdbool.h>

/* List them with what their first line says. False: none were found, which has been said. */
bool recipes_list(void);

#endif
