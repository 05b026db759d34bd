/* watch/audit.h - the precision audit: what every op of a step ran in, and what its numbers were.
 *
 * While an audit runs, an observer adds a row for each op (a composite's parts instead of the composite; views move
 * nothing and have none), and asks the op `numerics` about its results. Equal calls in a row are one row with a count.
 * On a device nothing waits: what was counted there is read when the audit ends, or when many have gathered. What the
 * audit itself runs appears nowhere and changes nothing of the step: not its graph, its random stream, its versions,
 * nor a bit of its results. Backward ops belong to the module and the line that made their node, found by the node's
 * number. */
#ifndef GB_WATCH_AUDIT_H
#define GB_WATCH_AUDIT_H

#include "watch/products.h"
#include "base/numerics.h"

/* recompute: forward ops that run again because gradients need what they made. */
typedef enum gb_audit_phase { GB_AUDIT_FORWARD, GB_AUDIT_BACKWARD, GB_AUDIT_RECOMPUTE, GB_AUDIT_STEP,
                              GB_AUDIT_PHASES } gb_audit_phase;

/* A tensor of a call. before: of what the caller gave; after: as the kernel saw it. */
typedef struct gb_audit_tensor {
  int8_t before, after, ndim;
  bool weight;               /* a float32 parameter, whose 16-bit copy is kept */
  int64_t shape[GB_MAX_NDIM];
} gb_audit_tensor;

/* What must be equal for two calls to share a row. Compared byte by byte, so zero it first. */
typedef struct gb_audit_key {
  gb_audit_phase phase;
  int32_t op, scale;         /* op: in the phase GB_AUDIT_STEP a gb_step; scale: the number of what its gradients are
                                multiplied by, from 1; 0: nothing */
  int32_t module;            /* as gb_audit_set_module was told; 0: none */
  char line[96];             /* of the recipe; "" where nobody knows */
  char of[32];               /* the composite that it is part of; in backward the op of the node; else "" */
  int8_t lower;              /* dtype of the scope that was open; GB_DTYPE_NONE: none */
  bool named;                /* the caller named the dtype of the result */
  bool in_place, tf32, settling, hook;
  int n_in, n_out;           /* of a list, the first GB_MAX_IN */
  gb_audit_tensor in[GB_MAX_IN], out[GB_MAX_OUT];
  gb_product_list products;
} gb_audit_key;

/* Numbers of one result, or of a cast operand, over all calls of a row. They say what `format` would round to nothing,
 * and so on. */
typedef struct gb_audit_numbers {
  int8_t dtype, format;
  bool plus;                 /* NaN, or infinity above: in forward, minus infinity is what masks are made of */
  int64_t numel, counts[GB_NUMERICS_COUNTS];
  double range[GB_NUMERICS_RANGE];
} gb_audit_numbers;

typedef struct gb_audit_row {
  gb_audit_key key;
  int64_t calls, casts, reused; /* inputs that were cast, and those that a kept copy served */
  int64_t cast_bytes;        /* read and written by the casts */
  int32_t numbers[GB_MAX_OUT], cast_numbers; /* indices of gb_audit_numbers, -1: none; of results, and of inputs before
                                                their casts */
  bool of_source;            /* a cast: numbers[0] are of what is cast, in the format that it is cast to */
} gb_audit_row;

typedef struct gb_audit gb_audit;

/* Watch what the context runs from now on. GB_ESTATE: another audit runs, or a graph is being captured. */
gb_status gb_audit_begin(gb_context *context, gb_audit **out);
/* Watch no longer; the rows stay. Nothing where it has ended. */
void gb_audit_end(gb_audit *audit);
/* The one that runs, or NULL. */
gb_audit *gb_audit_running(const gb_context *context);
/* Wait for what devices counted. After the end; an audit that is not read has rows without numbers. */
gb_status gb_audit_read(gb_audit *audit);
void gb_audit_close(gb_audit *audit);            /* NULL is fine */

/* Ops belong to this module from now on; returns what was before. */
int32_t gb_audit_set_module(gb_audit *audit, int32_t module);

/* Of the op, or the step. */
const char *gb_audit_name(const gb_audit *audit, const gb_audit_key *key);
size_t gb_audit_rows(const gb_audit *audit, const gb_audit_row **out);
const gb_audit_numbers *gb_audit_get_numbers(const gb_audit *audit, int32_t place);
/* What the gradients of rows with this number are multiplied by; 0 where it is not known. After gb_audit_read. */
double gb_audit_scale(const gb_audit *audit, int32_t scale);

#endif
