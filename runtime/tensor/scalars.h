/* tensor/scalars.h - a few numbers in a device's memory. Kernels read and write them; the host reads them only when
 * asked.
 *
 * On the CPU scalars are plain memory, so that reading costs nothing. */
#ifndef GB_TENSOR_SCALARS_H
#define GB_TENSOR_SCALARS_H

#include "base/pool.h"

typedef struct gb_scalars {
  gb_context *context;       /* not counted: the owner holds it */
  gb_device device;
  void *data;                /* in the device's memory; NULL: not open */
  size_t bytes;
  gb_block *block;           /* NULL on the CPU */
} gb_scalars;

/* Scalars on a device that start as `initial` (NULL: zeros). On failure they are not open. */
gb_status gb_scalars_open(gb_scalars *scalars, gb_context *context, gb_device device, const void *initial,
                          size_t bytes);
void gb_scalars_close(gb_scalars *scalars);
/* Bring them to another device; nothing where they are there already. Waits for the device they leave. */
gb_status gb_scalars_move(gb_scalars *scalars, gb_device device);

gb_status gb_scalars_read(const gb_scalars *scalars, void *host);    /* waits for the device */
/* These do not wait. */
gb_status gb_scalars_write(gb_scalars *scalars, size_t offset, const void *host, size_t bytes);
gb_status gb_scalars_clear(gb_scalars *scalars);                     /* zeros; nothing where they are not open */
gb_status gb_scalars_clear_part(gb_scalars *scalars, size_t offset, size_t bytes);

static inline bool gb_scalars_on_host(const gb_scalars *scalars) { return scalars->device.type == GB_CPU; }

#endif
