/* watch/profile.h - when each op began and ended, within what, and what lay in memory then.
 *
 * A profile stands in for the tool that ranges are told to (gb_range_push), so it sees ops, modules and phases begin
 * and end, nested; as an observer it learns which op that was, its line, and the node that it made or is the gradient
 * of. On a device with kernels of its own, marks before and after an op give the time of its kernels; nothing waits
 * before the end. Without a profile this costs what it cost before: the branch of an empty list of observers. */
#ifndef GB_WATCH_PROFILE_H
#define GB_WATCH_PROFILE_H

#include "tensor/context.h"

/* range: of a module or a phase. */
typedef enum gb_profile_kind { GB_PROFILE_RANGE, GB_PROFILE_OP, GB_PROFILE_VIEW, GB_PROFILE_COMPOSITE,
                               GB_PROFILE_STEP } gb_profile_kind;
typedef enum gb_profile_phase { GB_PROFILE_FORWARD, GB_PROFILE_BACKWARD, GB_PROFILE_RECOMPUTE, GB_PROFILE_UPDATE,
                                GB_PROFILE_PHASES } gb_profile_phase;

/* Seconds since the profile began. Parents come before what lies within them. */
typedef struct gb_profile_event {
  char name[32], line[96];
  gb_profile_kind kind;
  gb_profile_phase phase;
  int32_t parent;                /* -1: none */
  int32_t module;                /* as gb_profile_set_module was told; 0: none */
  uint64_t node;                 /* in forward that it made, in backward that it is the gradient of, from 1; 0: none */
  double start, end;
  int slot;                      /* of the device whose kernels it ran; 0: the CPU */
  double kernel_start, kernel_end; /* on that device, on the same clock */
  void *marks[2];                /* of the profile */
  int64_t live[GB_MEM_CATEGORIES]; /* bytes in tensors when it ended; of ops and steps */
} gb_profile_event;

enum { GB_PROFILE_MOST = 1 << 24 };

typedef struct gb_profile gb_profile;

/* Watch what the context runs from now on, at most so many events, of which there may be
 * GB_PROFILE_MOST. GB_ESTATE: another profile runs, or a graph is being captured. */
gb_status gb_profile_begin(gb_context *context, size_t most, gb_profile **out);
/* Watch no longer. Nothing where it has ended. */
void gb_profile_end(gb_profile *profile);
gb_profile *gb_profile_running(const gb_context *context); /* or NULL */
/* Wait for the devices, and fill in the times of kernels. After the end. */
gb_status gb_profile_read(gb_profile *profile);
/* The events in the order in which they began; *lost: how many more there were. */
size_t gb_profile_events(const gb_profile *profile, const gb_profile_event **out, size_t *lost);
double gb_profile_seconds(const gb_profile *profile);
void gb_profile_close(gb_profile *profile);      /* NULL is fine */

/* What begins from now on belongs to this module; returns what was before. */
int32_t gb_profile_set_module(gb_profile *profile, int32_t module);

#endif
