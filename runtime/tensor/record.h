/* tensor/record.h - a few numbers in a device's memory. Kernels read and write them; the host reads them only when
 * asked.
 *
 * On the CPU a record is plain memory, so that reading costs nothing. */
#ifndef GB_TENSOR_RECORD_H
#define GB_TENSOR_RECORD_H

#include "base/pool.h"

typedef struct gb_record {
  gb_context *context;       /* not counted: the owner holds it */
  gb_device device;
  void *data;                /* in the device's memory; NULL: not open */
  size_t bytes;
  gb_block *block;           /* NULL on the CPU */
} gb_record;

/* A record on a device that starts as `initial` (NULL: zeros). On failure it is not open. */
gb_status gb_record_open(gb_record *record, gb_context *context, gb_device device, const void *initial, size_t bytes);
void gb_record_close(gb_record *record);
/* Bring it to another device; nothing where it is there already. Waits for the device it leaves. */
gb_status gb_record_move(gb_record *record, gb_device device);

gb_status gb_record_read(const gb_record *record, void *host);    /* waits for the device */
/* These do not wait. */
gb_status gb_record_write(gb_record *record, size_t offset, const void *host, size_t bytes);
gb_status gb_record_clear(gb_record *record);                     /* zeros; nothing where it is not open */
gb_status gb_record_clear_part(gb_record *record, size_t offset, size_t bytes);

static inline bool gb_record_on_host(const gb_record *record) { return record->device.type == GB_CPU; }

#endif
