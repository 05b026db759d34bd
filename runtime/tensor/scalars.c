/* tensor/scalars.c - scalars in the memory of a device; see scalars.h. */
#include "tensor/scalars.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/context.h"

gb_status gb_scalars_open(gb_scalars *scalars, gb_context *context, gb_device device, const void *initial,
                          size_t bytes) {
  gb_scalars made = { .context = context, .device = device, .bytes = bytes };
  if (device.type == GB_CPU) {
    made.data = calloc(1, bytes);
    if (!made.data) return gb_fail_memory(context, bytes);
  } else {
    made.block = gb_context_alloc(context, device, bytes, GB_MEM_OPTIMIZER);
    if (!made.block) return GB_EMEMORY;
    made.data = gb_block_data(made.block);
  }
  gb_status status = initial ? gb_scalars_write(&made, 0, initial, bytes) : gb_scalars_clear(&made);
  if (status == GB_OK) *scalars = made;
  else gb_scalars_close(&made);
  return status;
}

void gb_scalars_close(gb_scalars *scalars) {
  if (scalars->block) gb_pool_free(gb_context_pool(scalars->context, scalars->device), scalars->block);
  else free(scalars->data);
  *scalars = (gb_scalars){ .context = scalars->context };
}

gb_status gb_scalars_move(gb_scalars *scalars, gb_device device) {
  if (scalars->device.type == device.type && scalars->device.index == device.index) return GB_OK;
  gb_scalars moved;
  void *host = malloc(scalars->bytes);
  if (!host) return gb_fail_memory(scalars->context, scalars->bytes);
  gb_status status = gb_scalars_read(scalars, host);
  if (status == GB_OK) status = gb_scalars_open(&moved, scalars->context, device, host, scalars->bytes);
  free(host);
  if (status != GB_OK) return status;
  gb_scalars_close(scalars);
  *scalars = moved;
  return GB_OK;
}

static gb_backend *backend_of(const gb_scalars *scalars) { return gb_context_backend(scalars->context, scalars->device);
                                                           }

gb_status gb_scalars_read(const gb_scalars *scalars, void *host) {
  gb_backend *backend = backend_of(scalars);
  return backend->read(backend->state, host, scalars->data, scalars->bytes);
}

gb_status gb_scalars_write(gb_scalars *scalars, size_t offset, const void *host, size_t bytes) {
  gb_backend *backend = backend_of(scalars);
  return backend->write(backend->state, (char *)scalars->data + offset, host, bytes);
}

gb_status gb_scalars_clear_part(gb_scalars *scalars, size_t offset, size_t bytes) {
  gb_backend *backend = backend_of(scalars);
  if (!backend->clear)
    return gb_fail(scalars->context, GB_EUNSUPPORTED, "%s cannot hold an optimizer's scalars", backend->name);
  return backend->clear(backend->state, (char *)scalars->data + offset, bytes);
}

gb_status gb_scalars_clear(gb_scalars *scalars) { return scalars->data
                                                  ? gb_scalars_clear_part(scalars, 0, scalars->bytes) : GB_OK; }
