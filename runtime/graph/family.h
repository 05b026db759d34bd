/* graph/family.h - reading one family's rows out of ops.def.
 *
 *   #define GB_FAMILY_elementwise GB_THIS_FAMILY
 *   #define GB_OP(name, family, ...) GB_OF_FAMILY(family, TAKE)(name)
 *   #include "graph/ops.def"
 *
 * becomes TAKE(name) for each row of elementwise, and nothing for the rows of other families. */
#ifndef GB_GRAPH_FAMILY_H
#define GB_GRAPH_FAMILY_H

#define GB_THIS_FAMILY ,
#define GB_OF_FAMILY(family, take) GB_FAMILY_CHOICE(GB_FAMILY_##family, take, GB_FAMILY_SKIP)
#define GB_FAMILY_CHOICE(...) GB_FAMILY_THIRD(__VA_ARGS__, ~)
#define GB_FAMILY_THIRD(a, b, c, ...) c
#define GB_FAMILY_SKIP(name)

#endif
