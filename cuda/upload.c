/* cuda/upload.c - the ring of upload.h: segments that are filled one after another, and used again only after an event
 * says that the compute stream has passed all that came from them. The ring grows while the device is behind, to MOST
 * segments; then the host waits. */
#include "cuda/upload.h"

#include <stdlib.h>
#include <string.h>

#define SEGMENT ((size_t)4 << 20)
#define MOST 16
#define LITTLE ((size_t)64 << 10)  /* bytes up to which two events cost more than a copy that kernels wait for */
#define ALIGNED(bytes) (((bytes) + 255) & ~(size_t)255)

typedef struct segment {
  char *pinned, *landing;          /* SEGMENT bytes of the host, and of the device */
  gb_event arrived, passed;        /* the last piece is in the landing zone; the compute stream is done with the
                                      segment */
} segment;

struct gb_uploads {
  gb_stream compute, copies;
  segment segments[MOST];
  int count, now;                  /* segments there are; the one that is filled */
  size_t used;                     /* bytes of it */
};

gb_uploads *gb_uploads_open(gb_stream compute) {
  gb_uploads *uploads = calloc(1, sizeof *uploads);
  if (!uploads) return NULL;
  uploads->compute = compute;
  if (gb_rt_stream_open(&uploads->copies)) {
    free(uploads);
    return NULL;
  }
  return uploads;
}

static void close_segment(segment *s) {
  if (s->arrived) gb_rt_event_close(s->arrived);
  if (s->passed) gb_rt_event_close(s->passed);
  if (s->landing) gb_rt_free(s->landing, SEGMENT);
  if (s->pinned) gb_rt_host_free(s->pinned);
}

void gb_uploads_close(gb_uploads *uploads) {
  if (!uploads) return;
  gb_rt_synchronize(uploads->copies);
  for (int i = 0; i < uploads->count; i++) close_segment(&uploads->segments[i]);
  gb_rt_stream_close(uploads->copies);
  free(uploads);
}

size_t gb_uploads_bytes(const gb_uploads *uploads) { return uploads ? (size_t)uploads->count * SEGMENT : 0; }

/* One more segment at the end; false: no memory for it. */
static bool grow(gb_uploads *uploads) {
  segment made = { .pinned = gb_rt_host_alloc(SEGMENT), .landing = gb_rt_alloc(SEGMENT) };
  if (uploads->count < MOST && made.pinned && made.landing && !gb_rt_event_open(&made.arrived) &&
      !gb_rt_event_open(&made.passed)) {
    uploads->segments[uploads->count++] = made;
    return true;
  }
  close_segment(&made);
  return false;
}

/* Go on to a segment that nothing reads any more. */
static int turn(gb_uploads *uploads) {
  bool passed = true;
  int code = gb_rt_event_record(uploads->segments[uploads->now].passed, uploads->compute),
      next = (uploads->now + 1) % uploads->count;
  if (code) return code;
  if (next == 0 && uploads->count < MOST) { /* the oldest one is the first: rather one more than a wait */
    code = gb_rt_event_done(uploads->segments[0].passed, &passed);
    if (code) return code;
    if (!passed && grow(uploads)) next = uploads->count - 1;
  }
  uploads->now = next;
  uploads->used = 0;
  return gb_rt_event_synchronize(uploads->segments[next].passed);
}

/* Pinned bytes, by way of the landing zone of the segment from `used` on, to their place on the device. */
static int send(gb_uploads *uploads, void *device, const void *pinned, size_t bytes, bool little) {
  segment *s = &uploads->segments[uploads->now];
  char *landing = s->landing + uploads->used;
  uploads->used += ALIGNED(bytes);
  if (little) return gb_rt_copy(uploads->compute, device, pinned, bytes, GB_COPY_TO_DEVICE);
  int code = gb_rt_copy(uploads->copies, landing, pinned, bytes, GB_COPY_TO_DEVICE);
  if (!code) code = gb_rt_event_record(s->arrived, uploads->copies);
  if (!code) code = gb_rt_event_wait(uploads->compute, s->arrived);
  return code ? code : gb_rt_copy(uploads->compute, device, landing, bytes, GB_COPY_ON_DEVICE);
}

int gb_uploads_write(gb_uploads *uploads, void *device, const void *host, size_t bytes) {
  bool little = bytes <= LITTLE, direct = !little && gb_rt_is_pinned(host);
  if (!uploads->count && !grow(uploads)) { /* which takes its time */
    int code = gb_rt_copy(uploads->compute, device, host, bytes, GB_COPY_TO_DEVICE);
    return code || !gb_rt_is_pinned(host) ? code : gb_rt_synchronize(uploads->compute);
  }
  while (bytes) {
    size_t room = SEGMENT - uploads->used, piece = bytes < room ? bytes : room;
    int code = room < (little ? bytes : LITTLE) ? turn(uploads) : 0;
    if (code) return code;
    if (uploads->used == 0) piece = bytes < SEGMENT ? bytes : SEGMENT;
    const void *pinned = direct ? host : memcpy(uploads->segments[uploads->now].pinned + uploads->used, host, piece);
    code = send(uploads, device, pinned, piece, little);
    if (code) return code;
    device = (char *)device + piece;
    host = (const char *)host + piece;
    bytes -= piece;
  }
  /* the caller's memory is free again; pieces cross one after the other */
  return direct ? gb_rt_event_synchronize(uploads->segments[uploads->now].arrived) : 0;
}
