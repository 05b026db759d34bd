/* io/events.h - event files as TensorBoard reads them: scalars, histograms, pictures, texts and hyperparameters.
 *
 * A file is a row of records: length (8 bytes), masked crc32c of the length, data, masked crc32c of the data; all
 * little-endian. The data is a protocol buffer (Event, with a Summary of values), written here by hand: fields of the
 * messages stand in events.c. Each record goes to the system at once (append.h). Times are the clock's, never NaN. */
#ifndef GB_IO_EVENTS_H
#define GB_IO_EVENTS_H

#include "tensor/context.h"

typedef struct gb_events gb_events;

/* A new file events.out.tfevents.<seconds>.<host>.<process>.<n> in the folder, which is made where it is missing. */
gb_status gb_events_open(gb_context *context, const char *folder, gb_events **out);
const char *gb_events_path(const gb_events *events);
gb_status gb_events_flush(gb_events *events);
void gb_events_close(gb_events *events);       /* NULL is fine */

/* Several numbers of one step, in one record. */
gb_status gb_events_scalars(gb_events *events, int64_t step, const char *const *tags, const double *values, int count);
/* The finite ones of `values`, in the buckets that TensorFlow has: edges grow by a tenth, from 1e-12. */
gb_status gb_events_histogram(gb_events *events, int64_t step, const char *tag, const double *values, size_t count);
/* Whole numbers from `least` on, `counts[i]` times each: a bucket for each. */
gb_status gb_events_counts(gb_events *events, int64_t step, const char *tag, int64_t least, const int64_t *counts,
                           size_t count);
/* A PNG. */
gb_status gb_events_image(gb_events *events, int64_t step, const char *tag, int64_t width, int64_t height, int channels,
                          const void *png, size_t bytes);
gb_status gb_events_text(gb_events *events, int64_t step, const char *tag, const char *text, size_t length);

/* One hyperparameter: a number, a text or a truth. */
typedef struct gb_hparam {
  const char *name;
  enum { GB_HPARAM_TEXT = 1, GB_HPARAM_BOOL = 2, GB_HPARAM_NUMBER = 3 } type; /* as the plugin numbers them */
  double number;                 /* of a truth 0 or 1 */
  const char *text;
  size_t length;
} gb_hparam;
/* What the run was made with, and the tags of the scalars to compare runs by. */
gb_status gb_events_hparams(gb_events *events, const gb_hparam *params, int n_params, const char *const *metrics,
                            int n_metrics);

/* The checksum of records: crc32c, reflected; and as a record has it. */
uint32_t gb_crc32c(const void *data, size_t bytes);
uint32_t gb_crc32c_masked(const void *data, size_t bytes);

#endif
