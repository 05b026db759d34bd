/* tensor/record.c - records in the memory of a device; see record.h. */
#include "tensor/record.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/context.h"

gb_status gb_record_open(gb_record *record, gb_context *context, gb_device device, const void *initial, size_t bytes) {
  gb_record made = { .context = context, .device = device, .bytes = bytes };
  if (device.type == GB_CPU) {
    made.data = calloc(1, bytes);
    if (!made.data) return gb_fail_memory(context, bytes);
  } else {
    made.block = gb_context_alloc(context, device, bytes, GB_MEM_OPTIMIZER);
    if (!made.block) return GB_EMEMORY;
    made.data = gb_block_data(made.block);
  }
  gb_status status = initial ? gb_record_write(&made, 0, initial, bytes) : gb_record_clear(&made);
  if (status == GB_OK) *record = made;
  else gb_record_close(&made);
  return status;
}

void gb_record_close(gb_record *record) {
  if (record->block) gb_pool_free(gb_context_pool(record->context, record->device), record->block);
  else free(record->data);
  *record = (gb_record){ .context = record->context };
}

gb_status gb_record_move(gb_record *record, gb_device device) {
  if (record->device.type == device.type && record->device.index == device.index) return GB_OK;
  gb_record moved;
  void *host = malloc(record->bytes);
  if (!host) return gb_fail_memory(record->context, record->bytes);
  gb_status status = gb_record_read(record, host);
  if (status == GB_OK) status = gb_record_open(&moved, record->context, device, host, record->bytes);
  free(host);
  if (status != GB_OK) return status;
  gb_record_close(record);
  *record = moved;
  return GB_OK;
}

static gb_backend *backend_of(const gb_record *record) { return gb_context_backend(record->context, record->device); }

gb_status gb_record_read(const gb_record *record, void *host) {
  gb_backend *backend = backend_of(record);
  return backend->read(backend->state, host, record->data, record->bytes);
}

gb_status gb_record_write(gb_record *record, size_t offset, const void *host, size_t bytes) {
  gb_backend *backend = backend_of(record);
  return backend->write(backend->state, (char *)record->data + offset, host, bytes);
}

gb_status gb_record_clear_part(gb_record *record, size_t offset, size_t bytes) {
  gb_backend *backend = backend_of(record);
  if (!backend->clear) return gb_fail(record->context, GB_EUNSUPPORTED, "%s cannot hold an optimizer's records", backend->name);
  return backend->clear(backend->state, (char *)record->data + offset, bytes);
}

gb_status gb_record_clear(gb_record *record) { return record->data ? gb_record_clear_part(record, 0, record->bytes) : GB_OK; }
