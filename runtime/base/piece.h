/* base/piece.h - how much is done between two looks for a stop, at most.
 *
 * A limit on seconds, an interrupt and a stop are heeded where work looks for them: before every op, and within ops,
 * reads of files and loops of the bindings after at most a piece. A pass over elements takes 0.3 to 2.5 nanoseconds
 * each, so a piece is about 10 milliseconds at the worst; work that takes longer for an element counts as more than
 * one. Products are counted apart, since one multiply-add of a vector takes less than a tenth of that: a piece of them
 * is 5 to 50 milliseconds, by the level of the CPU. How results are cut into pieces depends on shapes alone, so bits do
 * not depend on limits. tests/c/pieces.c counts what really runs between two looks. */
#ifndef GB_BASE_PIECE_H
#define GB_BASE_PIECE_H

#include <stdint.h>

#ifndef GB_PIECE
#define GB_PIECE ((int64_t)1 << 22) /* elements, or bytes */
#endif
#define GB_PIECE_PRODUCTS (128 * GB_PIECE) /* multiply-adds */

#endif
