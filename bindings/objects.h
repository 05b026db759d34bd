/* objects.h - the kinds of objects that more than one file of bindings/ takes as an argument. */
#ifndef GB_BINDINGS_OBJECTS_H
#define GB_BINDINGS_OBJECTS_H

#include "step/scaler.h"
#include "binding.h"
#include "step/optim.h"

extern const gbl_type gbl_optimizer_type, gbl_scaler_type, gbl_transform_type;

/* data.c: the dataset at arg, or an error; push one that is not there as yet. */
struct gb_dataset *gbl_check_dataset(lua_State *L, int arg);
void **gbl_new_dataset(lua_State *L);

/* native.c: what the Lua half needs and recipes do not see; fills gb._native, which is taken away once the Lua half has
 * run. */
void gbl_open_native(lua_State *L);
/* Push { numel, dtype, format, amax, amin, counts = { by name }, exponents = { [e] = elements } }, from what the op
 * numerics gives. */
void gbl_push_numerics(lua_State *L, gb_dtype dtype, gb_dtype format, int64_t numel, const int64_t *counts,
                       const double *range);
/* settings.c: what is asked of the engine as a whole. */
void gbl_open_settings(lua_State *L);
void gbl_open_capture(lua_State *L);
void gbl_open_audit(lua_State *L);
void gbl_open_canvas(lua_State *L);
void gbl_open_logger(lua_State *L);
void gbl_open_profile(lua_State *L);

#endif
