/* data/images.c - folders of images as a dataset: a class for each folder, or masks in a second folder.
 *
 * The folder is listed when the dataset is opened; files are read, decoded and transformed when their samples are
 * wanted, by whatever thread wants them. Each thread works in a worker of its own, which is kept for the next. All
 * samples have one shape, that of the first: transforms see to it, and an image that comes out otherwise is an error.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "data/readers.h"
#include "data/transform.h"
#include "io/folder.h"
#include "io/image.h"
#include "tensor/counted.h"

enum { FILE_BLOCK = 7, AHEAD_BLOCK = 8 }; /* of a worker's room; the transform has those before */
enum { AHEAD = 16, AHEAD_ROOM = 8 << 10 }; /* how many little files are read ahead, and what each ends before */

/* What one thread needs. */
typedef struct worker {
  struct worker *next;
  gb_image_decoder *image, *mask;
  gb_workroom room;
  struct { int64_t i; uint8_t *data; size_t bytes; } ahead[AHEAD]; /* images that were read already */
  int ahead_count;
} worker;

/* What a mask's pixels become: -1: they may not be. */
typedef struct levels { bool given; int64_t id[256]; } levels;

/* A file that stays in memory. */
typedef struct kept { size_t bytes; uint8_t data[]; } kept;

typedef struct images {
  gb_context *context;               /* its budget; never its text */
  gb_folder folder, masks;
  gb_names names, mask_names;
  int64_t *label;                    /* of each sample; NULL: there are none */
  gb_transform *transform;
  gb_image_mode mode;
  levels levels;
  gb_picture shape;                  /* of every sample; data unused */
  atomic_bool large;                 /* some file is no little one: none is read ahead */
  bool skip_bad;
  _Atomic uint8_t *bad;              /* of each sample, where skip_bad: it could not be read */
  _Atomic int64_t skipped;
  _Atomic(kept *) *kept;             /* counted; of each image, then of each mask; NULL: no file is kept */
  _Atomic int64_t keep_left;         /* bytes that may still be kept */
  pthread_mutex_t mutex;             /* guards: */
  worker *spare;
} images;

/* {==== Workers ==== */

static void worker_free(worker *w) {
  gb_image_decoder_close(w->image);
  gb_image_decoder_close(w->mask);
  gb_workroom_clear(&w->room);
  free(w);
}

/* A worker of this thread until it is given back; NULL: no memory. */
static worker *worker_take(images *set) {
  pthread_mutex_lock(&set->mutex);
  worker *w = set->spare;
  if (w) set->spare = w->next;
  pthread_mutex_unlock(&set->mutex);
  if (w) return w;
  w = calloc(1, sizeof *w);
  if (!w) return NULL;
  w->room.budget = &set->context->budget;
  w->image = gb_image_decoder_open(w->room.budget);
  w->mask = set->masks.fd >= 0 ? gb_image_decoder_open(w->room.budget) : NULL;
  if (w->image && (w->mask || set->masks.fd < 0)) return w;
  worker_free(w);
  return NULL;
}

static void worker_give(images *set, worker *w) {
  pthread_mutex_lock(&set->mutex);
  w->next = set->spare;
  set->spare = w;
  pthread_mutex_unlock(&set->mutex);
}

static void images_release(void *user) {
  images *set = user;
  for (worker *w = set->spare, *next; w; w = next) {
    next = w->next;
    worker_free(w);
  }
  pthread_mutex_destroy(&set->mutex);
  gb_folder_close(&set->folder);
  gb_folder_close(&set->masks);
  for (int64_t i = 0, n = set->kept ? set->names.count + set->mask_names.count : 0; i < n; i++)
    gb_counted_free(set->kept[i]);
  gb_counted_free((void *)set->kept);
  gb_names_free(&set->names);
  gb_names_free(&set->mask_names);
  gb_transform_release(set->transform);
  gb_counted_free(set->label);
  gb_counted_free((void *)set->bad);
  gb_counted_free(set);
}

/* ====} */

/* {==== Samples ==== */

/* The name of a file for errors, of which the end says most. */
static gb_status bad_file(const gb_folder *folder, const char *name, gb_status status, const char *text, char *error,
                          size_t error_size) {
  size_t length = strlen(name), root = strlen(folder->path);
  snprintf(error, error_size, "'%s%s/%s%s': %s", root > 100 ? "..." : "", folder->path + (root > 100 ? root - 100 : 0),
           length > 120 ? "..." : "", name + (length > 120 ? length - 120 : 0), text);
  return status;
}

/* Keep a file that was read, if there is room for it and no other thread was first. */
static void keep(images *set, _Atomic(kept *) *place, const void *data, size_t bytes) {
  int64_t size = (int64_t)(sizeof(kept) + bytes);
  bool fits = atomic_fetch_sub(&set->keep_left, size) >= size;
  kept *made = fits ? gb_counted_try(set->context, (size_t)size) : NULL, *none = NULL;
  if (made) {
    made->bytes = bytes;
    memcpy(made->data, data, bytes);
    if (atomic_compare_exchange_strong(place, &none, made)) return;
    gb_counted_free(made);
  }
  atomic_fetch_add(&set->keep_left, size);
}

/* Read the little files of the next n samples, at most AHEAD. What the processor knows of the decoder is gone after
 * each look into the kernel, and comes back once for all of them (2 of 14 us an image of 32 x 32). A file that cannot
 * be read, and one for which there is no memory, is left to its turn. */
static void read_ahead(images *set, worker *w, const int64_t *indices, int64_t n) {
  w->ahead_count = 0;
  if (n < 2 || set->masks.fd >= 0 || atomic_load(&set->large)) return;
  uint8_t *to = gb_workroom_get(&w->room, AHEAD_BLOCK, AHEAD * AHEAD_ROOM);
  for (int64_t k = 0; to && k < n && k < AHEAD; k++) {
    int64_t i = indices[k];
    if ((set->kept && atomic_load(&set->kept[i])) || (set->bad && atomic_load(&set->bad[i]))) continue;
    size_t bytes = gb_folder_read_little(&set->folder, gb_name(&set->names, i), to, AHEAD_ROOM);
    if (bytes == AHEAD_ROOM) return atomic_store(&set->large, true);
    if (!bytes) continue;
    w->ahead[w->ahead_count].i = i;
    w->ahead[w->ahead_count].data = to;
    w->ahead[w->ahead_count++].bytes = bytes;
    to += AHEAD_ROOM;
  }
}

/* The bytes of an image that was read ahead; false: it was not. */
static bool find_ahead(const worker *w, int64_t i, void **data, size_t *bytes) {
  for (int k = 0; k < w->ahead_count; k++)
    if (w->ahead[k].i == i) return *data = w->ahead[k].data, *bytes = w->ahead[k].bytes, true;
  return false;
}

/* The bytes of a file: kept ones, those that were read ahead, or those on the disk. */
static gb_status read_file(images *set, worker *w, bool is_mask, int64_t i, void **data, size_t *bytes, char *error,
                           size_t error_size) {
  _Atomic(kept *) *place = set->kept ? &set->kept[i + (is_mask ? set->names.count : 0)] : NULL;
  kept *there = place ? atomic_load(place) : NULL;
  if (there) return *data = there->data, *bytes = there->bytes, GB_OK;
  if (is_mask || !find_ahead(w, i, data, bytes))
    GB_TRY(gb_folder_read(is_mask ? &set->masks : &set->folder, gb_name(is_mask ? &set->mask_names : &set->names, i),
                          &w->room, FILE_BLOCK, data, bytes, error, error_size));
  if (place) keep(set, place, *data, *bytes);
  return GB_OK;
}

/* One file as a picture. */
static gb_status read_picture(images *set, worker *w, const gb_draw *draw, bool is_mask, int64_t i,
                              gb_picture *out, char *error, size_t error_size) {
  const gb_folder *folder = is_mask ? &set->masks : &set->folder;
  const char *name = gb_name(is_mask ? &set->mask_names : &set->names, i);
  char text[256] = "";
  void *data;
  size_t bytes;
  gb_image image;
  gb_status status = read_file(set, w, is_mask, i, &data, &bytes, text, sizeof text);
  if (status == GB_OK)
    status = gb_image_decode(is_mask ? w->mask : w->image, draw->stop, data, bytes, is_mask ? GB_IMAGE_INDEX :
                             set->mode, &image, text, sizeof text);
  if (status != GB_OK) return bad_file(folder, name, status, text, error, error_size);
  *out = (gb_picture){ image.height, image.width, image.channels, false, image.pixels };
  return GB_OK;
}

/* Sample i in the worker's room. */
static gb_status make_sample(images *set, worker *w, const gb_draw *draw, int64_t i, gb_applying *a) {
  char text[256] = "";
  GB_TRY(read_picture(set, w, draw, false, i, &a->image, a->error, a->error_size));
  if (set->masks.fd >= 0) {
    GB_TRY(read_picture(set, w, draw, true, i, &a->mask, a->error, a->error_size));
    if (a->mask.height != a->image.height || a->mask.width != a->image.width) {
      snprintf(text, sizeof text, "the mask has %" PRId64 " x %" PRId64 " pixels, its image %" PRId64 " x %" PRId64
               "; make them alike", a->mask.width, a->mask.height, a->image.width, a->image.height);
      return bad_file(&set->masks, gb_name(&set->mask_names, i), GB_EFORMAT, text, a->error, a->error_size);
    }
  }
  if (!set->transform) return GB_OK;
  char *error = a->error;
  size_t error_size = a->error_size;
  a->error = text, a->error_size = sizeof text;
  gb_status status = gb_transform_apply(set->transform, a);
  a->error = error, a->error_size = error_size;
  return status == GB_OK ? GB_OK : bad_file(&set->folder, gb_name(&set->names, i), status, text, error, error_size);
}

static size_t picture_bytes(const gb_picture *p) {
  return (size_t)(p->height * p->width) * (size_t)p->channels * (p->is_float ? sizeof(float) : 1);
}

/* The ids of a mask's pixels. */
static gb_status write_mask(const images *set, const gb_applying *a, int64_t i, int64_t *to) {
  const uint8_t *from = a->mask.data;
  for (int64_t k = 0, n = a->mask.height * a->mask.width; k < n; k++) {
    to[k] = set->levels.given ? set->levels.id[from[k]] : from[k];
    if (to[k] >= 0) continue;
    char text[128];
    snprintf(text, sizeof text, "a pixel of the mask is %d, which 'levels' does not list", from[k]);
    return bad_file(&set->masks, gb_name(&set->mask_names, i), GB_EFORMAT, text, a->error, a->error_size);
  }
  return GB_OK;
}

/* Sample i as place k of a batch. */
static gb_status write_sample(images *set, worker *w, const gb_draw *draw, int64_t i, void *const *out, int64_t k,
                              char *error, size_t error_size) {
  gb_applying a = { .room = &w->room, .stop = draw->stop, .seed = draw->seed, .epoch = draw->epoch,
                    .index = (uint64_t)i, .error = error, .error_size = error_size };
  const gb_picture *p = &a.image, *want = &set->shape;
  a.out_bytes = picture_bytes(want);
  a.out = (char *)out[0] + (size_t)k * a.out_bytes;
  GB_TRY(make_sample(set, w, draw, i, &a));
  if (p->height != want->height || p->width != want->width) {
    char text[200];
    snprintf(text, sizeof text, "it comes out as %" PRId64 " x %" PRId64 " pixels, the first image as %" PRId64 " x %"
             PRId64 "; give size = { height, width }, or a transform that crops or resizes", p->width, p->height,
             want->width, want->height);
    return bad_file(&set->folder, gb_name(&set->names, i), GB_ESHAPE, text, error, error_size);
  }
  if (p->data != a.out) memcpy(a.out, p->data, a.out_bytes);
  if (set->label) ((int64_t *)out[1])[k] = set->label[i];
  if (!a.mask.data) return GB_OK;
  return write_mask(set, &a, i, (int64_t *)out[1] + k * p->height * p->width);
}

/* A file that cannot be read or has another form; other failures are not the file's. */
static bool is_bad_file(gb_status status) { return status == GB_EFORMAT || status == GB_EIO; }

/* The same, or where it is bad and that is allowed, the next that is good. */
static gb_status write_good_sample(images *set, worker *w, const gb_draw *draw, int64_t i, void *const *out, int64_t k,
                                   char *error, size_t error_size) {
  if (!set->skip_bad) return write_sample(set, w, draw, i, out, k, error, error_size);
  for (int64_t tried = 0; tried < set->names.count; tried++, i = (i + 1) % set->names.count) {
    if (atomic_load(&set->bad[i])) continue;
    gb_status status = write_sample(set, w, draw, i, out, k, error, error_size);
    if (!is_bad_file(status)) return status;
    if (!atomic_exchange(&set->bad[i], 1)) atomic_fetch_add(&set->skipped, 1);
  }
  return snprintf(error, error_size, "no image of '%.100s' can be read", set->folder.path), GB_EFORMAT;
}

static gb_status images_drawn(void *user, const gb_draw *draw, const int64_t *indices, int64_t n, void *const *out,
                              char *error, size_t error_size) {
  images *set = user;
  worker *w = worker_take(set);
  gb_status status = GB_OK;
  if (!w) return snprintf(error, error_size, "out of memory for a decoder of images"), GB_EMEMORY;
  for (int64_t k = 0; k < n && status == GB_OK; k++) {
    if (k % AHEAD == 0) read_ahead(set, w, indices + k, n - k);
    status = write_good_sample(set, w, draw, indices[k], out, k, error, error_size);
  }
  w->ahead_count = 0;
  worker_give(set, w);
  return status;
}

static gb_status images_get(void *user, const int64_t *indices, int64_t n, void *const *out, char *error,
                            size_t error_size) {
  return images_drawn(user, &(gb_draw){ 0 }, indices, n, out, error, error_size);
}

static int64_t images_skipped(void *user) { return atomic_load(&((images *)user)->skipped); }

/* ====} */

/* {==== Listing ==== */

static bool is_image_name(const char *name) {
  static const char *const endings[] = { ".jpg", ".jpeg", ".png" };
  size_t length = strlen(name);
  for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
    size_t n = strlen(endings[i]);
    if (length > n && !strcasecmp(name + length - n, endings[i])) return true;
  }
  return false;
}

/* What is known of the labels: the names of classes. */
typedef struct classes { gb_fields fields; gb_field field; gb_names names; const char **words; } classes;

static void release_classes(gb_fields *fields) {
  classes *c = (classes *)fields;
  gb_names_free(&c->names);
  gb_counted_free(c->words);
  gb_counted_free(c);
}

/* The folders of a folder as classes; without any, *out stays NULL. */
static gb_status find_classes(gb_context *context, const images *set, classes **out) {
  classes *c = gb_counted_alloc(context, sizeof *c);
  if (!c) return context->error_code;
  atomic_init(&c->fields.refs, 1);
  c->fields.release = release_classes;
  gb_status status = gb_folder_list(context, &set->folder, NULL, GB_FOLDER_FOLDERS, NULL, &c->names);
  if (status == GB_OK && c->names.count) {
    c->words = gb_counted_alloc(context, (size_t)c->names.count * sizeof *c->words);
    if (!c->words) status = context->error_code;
  }
  if (status != GB_OK || !c->names.count) return release_classes(&c->fields), status;
  for (int64_t i = 0; i < c->names.count; i++) c->words[i] = gb_name(&c->names, i);
  c->field = (gb_field){ .name = "class", .tensor = "y", .is_category = true, .count = c->names.count,
                         .words = c->words };
  c->fields.count = 1;
  c->fields.field = &c->field;
  *out = c;
  return GB_OK;
}

/* A class without images: often its folders are the classes, of one part of the data. */
static gb_status refuse_class(gb_context *context, const images *set, const char *class) {
  gb_names inside = { NULL };
  const char *root = set->folder.path;
  gb_status status = gb_folder_list(context, &set->folder, class, GB_FOLDER_FOLDERS, NULL, &inside);
  if (status == GB_OK && inside.count)
    status = gb_fail(context, GB_EFORMAT, "images: the class folder '%s/%s' holds folders and no images; if these are "
                     "the classes, read '%s/%s'", root, class, root, class);
  else if (status == GB_OK)
    status = gb_fail(context, GB_EFORMAT, "images: the class folder '%s/%s' holds no .jpg, .jpeg or .png file; fill it "
                     "or remove it", root, class);
  gb_names_free(&inside);
  return status;
}

/* The images of every class, one class behind the other. */
static gb_status list_classes(gb_context *context, images *set, const classes *c) {
  int64_t room = 0;
  for (int64_t k = 0; k < c->field.count; k++) {
    int64_t before = set->names.count;
    GB_TRY(gb_folder_list(context, &set->folder, c->words[k], GB_FOLDER_FILES, is_image_name, &set->names));
    if (set->names.count == before) return refuse_class(context, set, c->words[k]);
    if (set->names.count > room) {
      room = 2 * set->names.count;
      int64_t *grown = gb_counted_resize(context, set->label, (size_t)room * sizeof *grown);
      if (!grown) return context->error_code;
      set->label = grown;
    }
    for (int64_t i = before; i < set->names.count; i++) set->label[i] = k;
  }
  return GB_OK;
}

/* How long a name is without its ending. */
static size_t stem(const char *name) { return (size_t)(strrchr(name, '.') - name); }

/* Masks have the names of their images, up to the ending. */
static gb_status list_masks(gb_context *context, images *set) {
  GB_TRY(gb_folder_list(context, &set->masks, NULL, GB_FOLDER_FILES, is_image_name, &set->mask_names));
  int64_t n = set->names.count, m = set->mask_names.count;
  for (int64_t i = 0; i < n || i < m; i++) {
    const char *image = i < n ? gb_name(&set->names, i) : NULL, *mask = i < m ? gb_name(&set->mask_names, i) : NULL;
    if (image && mask && stem(image) == stem(mask) && !strncmp(image, mask, stem(image))) continue;
    return gb_fail(context, GB_EFORMAT, "images: '%s' has %" PRId64 " images and '%s' %" PRId64 " masks, and they do "
                   "not go together at '%s' and '%s'; a mask has the name of its image, but for the ending",
                   set->folder.path, n, set->masks.path, m, image ? image : "(none)", mask ? mask : "(none)");
  }
  return GB_OK;
}

/* All files, and what is known of the labels. */
static gb_status list_files(gb_context *context, images *set, bool masked, classes **found) {
  if (!masked) GB_TRY(find_classes(context, set, found));
  if (*found) return list_classes(context, set, *found);
  GB_TRY(gb_folder_list(context, &set->folder, NULL, GB_FOLDER_FILES, is_image_name, &set->names));
  if (!set->names.count)
    return gb_fail(context, GB_EFORMAT, "images: '%s' holds no folders and no .jpg, .jpeg or .png files",
                   set->folder.path);
  return masked ? list_masks(context, set) : GB_OK;
}

/* ====} */

/* {==== Opening ==== */

/* levels = { 0, 255 }: the values that pixels of masks have, in the order of their ids. */
static gb_status read_levels(gb_context *context, const gb_option *option, bool masked, levels *out) {
  if (option->kind == GB_OPTION_NONE) return GB_OK;
  if (!masked) return gb_fail(context, GB_EINVAL, "images: 'levels' is for masks; give masks = folder");
  out->given = true;
  for (int v = 0; v < 256; v++) out->id[v] = -1;
  for (int i = 0; i < option->count; i++) {
    const gb_option *o = &option->list[i];
    if (o->kind != GB_OPTION_NUMBER || !(o->number >= 0 && o->number <= 255) || o->number != (int)o->number
        || o->position < 1 || out->id[(int)o->number] >= 0)
      return gb_fail(context, GB_EINVAL, "images: 'levels' lists different whole numbers from 0 to 255");
    out->id[(int)o->number] = o->position - 1;
  }
  return GB_OK;
}

/* size = n or { height, width }, before the transform; without a transform to_float. */
static gb_status make_transform(gb_context *context, const gb_reading *given, gb_transform **out) {
  const gb_option *size = gb_reading_option(given, "size"), *own = gb_reading_option(given, "transform");
  gb_augment resize = { .kind = GB_AUGMENT_RESIZE, .p = 1 }, to_float = { .kind = GB_AUGMENT_TO_FLOAT, .p = 1 };
  gb_transform *parts[2] = { NULL, NULL };
  gb_status status = GB_OK;
  if (size->kind == GB_OPTION_NUMBER) resize.height = resize.width = size->number >= 1 && size->number <= 1 << 16 ?
    (int64_t)size->number : 0;
  else if (size->kind == GB_OPTION_LIST && size->count == 2)
    for (int i = 0; i < 2; i++) {
      const gb_option *o = &size->list[i];
      int64_t value = o->kind == GB_OPTION_NUMBER && o->number >= 1 && o->number <= 1 << 16 ? (int64_t)o->number : 0;
      if (o->position == 1) resize.height = value;
      else resize.width = value;
    }
  if (size->kind != GB_OPTION_NONE && (!resize.height || !resize.width))
    return gb_fail(context, GB_EINVAL, "images: 'size' is a number of pixels or { height, width }, from 1 to %d",
                   1 << 16);
  if (own->kind == GB_OPTION_TRANSFORM) gb_transform_retain(parts[1] = own->transform);
  else status = gb_transform_new(context, &to_float, &parts[1]);
  if (status == GB_OK && resize.height) {
    status = gb_transform_new(context, &resize, &parts[0]);
    if (status == GB_OK) status = gb_transform_compose(context, parts, 2, out);
  } else if (status == GB_OK) gb_transform_retain(*out = parts[1]);
  gb_transform_release(parts[0]);
  gb_transform_release(parts[1]);
  return status;
}

/* The shape of samples, from the first that can be read. */
static gb_status find_shape(gb_context *context, images *set) {
  char error[512] = "";
  gb_draw draw = { 0, 0, context };
  worker *w = worker_take(set);
  if (!w) return gb_fail_memory(context, sizeof *w);
  gb_status status = GB_EFORMAT;
  for (int64_t i = 0; i < set->names.count && is_bad_file(status) && (i == 0 || set->skip_bad); i++) {
    gb_applying a = { .room = &w->room, .stop = context, .index = (uint64_t)i, .error = error,
                      .error_size = sizeof error };
    status = make_sample(set, w, &draw, i, &a);
    if (is_bad_file(status) && set->skip_bad && !atomic_exchange(&set->bad[i], 1)) atomic_fetch_add(&set->skipped, 1);
    set->shape = a.image;
  }
  worker_give(set, w);
  return status == GB_OK ? GB_OK : gb_fail(context, status, "images: %s", error);
}

/* Fill in all that is known; on failure the set is released by the caller. */
static gb_status prepare(gb_context *context, const gb_reading *given, images *set, classes **found) {
  const gb_option *masks = gb_reading_option(given, "masks");
  bool masked = masks->kind == GB_OPTION_STRING;
  set->mode = strcmp(gb_reading_option(given, "mode")->string, "gray") ? GB_IMAGE_RGB : GB_IMAGE_GRAY;
  set->skip_bad = gb_reading_bool(given, "skip_bad");
  GB_TRY(read_levels(context, gb_reading_option(given, "levels"), masked, &set->levels));
  GB_TRY(make_transform(context, given, &set->transform));
  GB_TRY(gb_folder_open(context, given->path[0], &set->folder));
  if (masked && (strlen(masks->string) != masks->length || !masks->length))
    return gb_fail(context, GB_EINVAL, "images: 'masks' is the path of a folder");
  if (masked) GB_TRY(gb_folder_open(context, masks->string, &set->masks));
  GB_TRY(list_files(context, set, masked, found));
  if (set->skip_bad) {
    set->bad = gb_counted_alloc(context, (size_t)set->names.count);
    if (!set->bad) return context->error_code;
  }
  double most = gb_reading_number(given, "keep");
  atomic_init(&set->keep_left, most < 1e15 ? (int64_t)most : (int64_t)1e15);
  if (most > 0) {
    set->kept = gb_counted_alloc(context, (size_t)(set->names.count + set->mask_names.count) * sizeof *set->kept);
    if (!set->kept) return context->error_code;
  }
  return find_shape(context, set);
}

static gb_status open_images(gb_context *context, const gb_reading *given, gb_dataset **out) {
  images *set = gb_counted_alloc(context, sizeof *set);
  classes *found = NULL;
  if (!set) return context->error_code;
  set->context = context;
  set->folder.fd = set->masks.fd = -1;
  if (pthread_mutex_init(&set->mutex, NULL)) return gb_counted_free(set), gb_fail_memory(context, sizeof *set);
  gb_status status = prepare(context, given, set, &found);
  if (status != GB_OK) images_release(set);
  else {
    const gb_picture *p = &set->shape;
    gb_dataset table = { .count = set->names.count, .columns = set->label || set->masks.fd >= 0 ? 2 : 1,
                         .column = { { .dtype = GB_UINT8, .ndim = 3, .shape = { p->height, p->width, p->channels } },
                                     { .dtype = GB_INT64 } },
                         .get_batch = images_get, .get_drawn = images_drawn, .skipped = images_skipped,
                         .release = images_release, .user = set };
    if (p->is_float)
      table.column[0] = (gb_column){ .dtype = GB_FLOAT32, .ndim = 3, .shape = { p->channels, p->height, p->width } };
    if (set->masks.fd >= 0)
      table.column[1] = (gb_column){ .dtype = GB_INT64, .ndim = 2, .shape = { p->height, p->width } };
    status = gb_dataset_new(context, &table, out);
  }
  if (status == GB_OK) gb_fields_retain((*out)->fields = found ? &found->fields : NULL);
  if (found) gb_fields_release(&found->fields);
  return status;
}

const gb_reader gb_reader_images = {
  "gb.data.images(folder: path; size?: int|shape, transform?: transform, masks?: path, levels?: list, "
  "mode: \"rgb\"|\"gray\" = \"rgb\", skip_bad: bool = false, keep: count = 0) -> dataset: JPEG and PNG files, decoded "
  "and transformed when their samples are wanted, by as many threads as the DataLoader has workers. Folders in the "
  "folder are classes, "
  "sorted by name (dataset:classes()): samples are an image and its class, int64. Without such folders they are "
  "images alone. masks: a second folder with a mask for each image, of the same name but for the ending: samples are "
  "an image and int64 [height, width], the palette index or gray value of each pixel, or its place from 0 in levels = "
  "{ 0, 255 }; both go through the same random geometry. size: every image is resized to n x n or { height, width } "
  "first. transform: one of gb.data.transforms, to_float() where none is given; without to_float images stay uint8 "
  "[height, width, channels]. skip_bad: where a file is damaged, the next good one takes its place, and "
  "dataset:skipped() counts. keep: so many bytes of files stay in memory once they were read, and are not opened again "
  "in later epochs. Errors: a folder that is not there or empty, files that are damaged (with the place), "
  "images that do not all come out in one size.",
  open_images,
};

/* ====} */
