/* base/gates.h - the arithmetic of recurrent cells for one unit of one step, forward and backward: gb_lstm_f32,
 * gb_lstm_f64 and so on, for all backends. */
#ifndef GB_BASE_GATES_H
#define GB_BASE_GATES_H

#include "base/functions.h"

#define T float
#define OF(name) name##_f32
#include "base/gates_of.h"
#undef T
#undef OF

#define T double
#define OF(name) name##_f64
#include "base/gates_of.h"
#undef T
#undef OF

#endif
