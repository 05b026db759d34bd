/* cuda/upload.h - bytes of the host on their way to the device, through a ring of pinned memory.
 *
 * What is written is copied into the ring at once, so the caller's memory is free again and nothing waits for the
 * device, until the ring is full of what has not arrived. Little goes from there on the compute stream. Much crosses
 * the bus on a stream of its own, into a landing zone on the device, while kernels run; the compute stream waits for it
 * there and moves it to its place in order, at the speed of device memory. Much that lies in pinned memory already
 * (batches of a loader with pin_memory) crosses from there, and only that crossing is waited for. */
#ifndef GB_CUDA_UPLOAD_H
#define GB_CUDA_UPLOAD_H

#include "cuda/runtime.h"

typedef struct gb_uploads gb_uploads;

/* Open a ring for a compute stream of the selected device. NULL: out of memory, or the runtime has no stream. */
gb_uploads *gb_uploads_open(gb_stream compute);
void gb_uploads_close(gb_uploads *uploads);        /* waits; NULL is fine */
/* Returns 0 or a code of the runtime. Must not be called during a capture. */
int gb_uploads_write(gb_uploads *uploads, void *device, const void *host, size_t bytes);
size_t gb_uploads_bytes(const gb_uploads *uploads); /* pinned; the same again lies on the device. NULL: 0 */

#endif
