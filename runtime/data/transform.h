/* data/transform.h - what is done to images before they are samples: a list of steps, some of them random.
 *
 * A transform does not change once it is made, so any thread may apply it. What a random step draws is a function of
 * (seed, epoch, index of the sample, place of the step) alone: neither threads nor other samples change it. A mask goes
 * through the same geometry as its image, taking nearest pixels; what changes colours leaves it alone. */
#ifndef GB_DATA_TRANSFORM_H
#define GB_DATA_TRANSFORM_H

#include "base/workroom.h"
#include "tensor/context.h"

/* An image on its way: bytes [height, width, channels], or after to_float floats [channels, height, width]. */
typedef struct gb_picture {
  int64_t height, width;
  int channels;                        /* 1 or 3 */
  bool is_float;
  void *data;                          /* in the room, or what was given */
} gb_picture;

typedef enum gb_augment_kind {
  GB_AUGMENT_TO_FLOAT, GB_AUGMENT_NORMALIZE, GB_AUGMENT_RANDOM_CROP, GB_AUGMENT_CENTER_CROP, GB_AUGMENT_RESIZE,
  GB_AUGMENT_RESIZED_CROP, GB_AUGMENT_FLIP, GB_AUGMENT_ROTATE, GB_AUGMENT_AFFINE, GB_AUGMENT_COLOR_JITTER,
  GB_AUGMENT_GRAYSCALE, GB_AUGMENT_CUTOUT, GB_AUGMENT_ERASE, GB_AUGMENT_ELASTIC, GB_AUGMENT_RAND_AUGMENT,
  GB_AUGMENT_POSTERIZE, GB_AUGMENT_SOLARIZE, GB_AUGMENT_SHARPNESS, GB_AUGMENT_AUTOCONTRAST, GB_AUGMENT_EQUALIZE,
  GB_AUGMENT_KINDS
} gb_augment_kind;

typedef struct gb_range { double low, high; } gb_range;

/* One step; a kind has some of these. */
typedef struct gb_augment {
  gb_augment_kind kind;
  double p;                            /* how likely it is to be done */
  int64_t height, width;               /* of the result; width 0 (resize): the shorter side becomes height */
  int64_t padding;
  bool reflect, bilinear, vertical;
  double fill;
  gb_range degrees, scale, ratio;
  gb_range shear_x, shear_y;           /* degrees */
  gb_range move_x, move_y;             /* shares of the width and the height */
  gb_range brightness, contrast, saturation, hue, factor;
  double alpha, sigma, magnitude, threshold;
  int64_t count, bits;
  int channels;                        /* of mean and std */
  double mean[4], std[4];
} gb_augment;

typedef struct gb_transform gb_transform;   /* counted */

/* One step, or those of several transforms, one after the other. */
gb_status gb_transform_new(gb_context *context, const gb_augment *step, gb_transform **out);
gb_status gb_transform_compose(gb_context *context, gb_transform *const *parts, int64_t count, gb_transform **out);
void gb_transform_retain(gb_transform *transform);
void gb_transform_release(gb_transform *transform);   /* NULL is fine; any thread */
int64_t gb_transform_count(const gb_transform *transform);
const char *gb_augment_name(gb_augment_kind kind);
gb_augment_kind gb_transform_kind(const gb_transform *transform, int64_t i);

/* What is applied to. image and mask are replaced by results that lie in the room until it is used again. */
typedef struct gb_applying {
  gb_workroom *room;
  const gb_context *stop;              /* NULL, or whose wish to stop ends the work */
  uint64_t seed, epoch, index;
  gb_picture image, mask;              /* mask.data NULL: there is none; else bytes, one channel */
  char *error;
  size_t error_size;
  uint32_t step, drawn;                /* for the draws; 0 at first */
  void *out;                           /* NULL, or where floats of the last step may be written, if they are so many: */
  size_t out_bytes;
  bool is_last;                        /* the step that runs is the last */
} gb_applying;

gb_status gb_transform_apply(const gb_transform *transform, gb_applying *a);

/* The same of tensors: image uint8 [height, width, 1 or 3] or float32 [channels, height, width]; mask NULL, or uint8
 * [height, width]. */
gb_status gb_transform_tensor(gb_context *context, const gb_transform *transform, uint64_t seed, uint64_t epoch,
                              gb_tensor *image, gb_tensor *mask, gb_tensor **out_image, gb_tensor **out_mask);

#endif
