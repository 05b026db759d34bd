/* images.c - what decoding and augmenting images costs: microseconds an image on one thread beside libjpeg-turbo alone,
 * medians of processor time. Files lie in memory, but for the last rows. Never a test.
 *
 *   bench_images FOLDER      CIFAR-10's test images as class folders of JPEG files; without it only the large image */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "data/loader.h"
#include "data/readers.h"
#include "data/transform.h"
#include "io/folder.h"
#include "io/image.h"

#include <jpeglib.h>

enum { MOST = 2000, RUNS = 15 };

typedef struct file { unsigned char *data; size_t bytes; } file;
extern const gb_reader gb_reader_images;

static file files[MOST];
static int count;
static gb_context *context;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* What is measured: run(arg) does it for n images. */
typedef struct measured { const char *name; void (*run)(void *arg); void *arg; int n; } measured;

/* Measure the rows in turn, so that what else the machine does falls on all of them; print medians beside the first
 * row's. */
static void report(const measured *rows, int n, double *medians) {
  double times[8][RUNS];
  for (int run = -1; run < RUNS; run++)
    for (int i = 0; i < n; i++) {
      double before = now();
      rows[i].run(rows[i].arg);
      if (run >= 0) times[i][run] = (now() - before) / rows[i].n;
    }
  for (int i = 0; i < n; i++) {
    qsort(times[i], RUNS, sizeof *times[i], compare);
    medians[i] = times[i][RUNS / 2];
    printf("%-50s %8.1f us %6.2f\n", rows[i].name, medians[i], medians[i] / medians[0]);
  }
}

/* libjpeg-turbo alone, its struct made once, several rows a call. off: bytes before the rows, which begin at a multiple
 * of 64 without them: that, with vectors, the library writes past the caches, and is slower (io/image.c). */
static void run_alone(void *off) {
  static _Alignas(64) unsigned char room[4][3 * 4096 + 64];
  struct jpeg_decompress_struct c;
  struct jpeg_error_mgr errors;
  c.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&c);
  for (int i = 0; i < count; i++) {
    JSAMPROW rows[4];
    for (int k = 0; k < 4; k++) rows[k] = room[k] + *(const int *)off;
    jpeg_mem_src(&c, files[i].data, files[i].bytes);
    jpeg_read_header(&c, TRUE);
    c.out_color_space = JCS_RGB;
    jpeg_start_decompress(&c);
    while (c.output_scanline < c.output_height) jpeg_read_scanlines(&c, rows, 4);
    jpeg_finish_decompress(&c);
  }
  jpeg_destroy_decompress(&c);
}

/* Ours: decoding, and a transform where there is one. */
static void run_ours(void *arg) {
  gb_transform *t = arg;
  gb_image_decoder *decoder = gb_image_decoder_open(&context->budget);
  gb_workroom room = { .budget = &context->budget };
  char error[256];
  for (int i = 0; i < count; i++) {
    gb_image image;
    if (gb_image_decode(decoder, NULL, files[i].data, files[i].bytes, GB_IMAGE_RGB, &image, error, sizeof error)
        != GB_OK) {
      printf("%s\n", error);
      break;
    }
    gb_applying a = { .room = &room, .index = (uint64_t)i, .error = error, .error_size = sizeof error,
                      .image = { image.height, image.width, image.channels, false, image.pixels } };
    if (t && gb_transform_apply(t, &a) != GB_OK) printf("%s\n", error);
  }
  gb_workroom_clear(&room);
  gb_image_decoder_close(decoder);
}

/* Batches of a dataset, without prefetching. */
static void run_loader(void *arg) {
  gb_tensor *out[GB_MAX_COLUMNS] = { NULL };
  gb_loader *loader = arg;
  while (gb_loader_next(loader, out) == GB_OK && out[0])
    for (int c = 0; c < 2; c++) gb_tensor_release(out[c]);
}

/* One after the other. */
static gb_transform *composed(const gb_augment *steps, int n) {
  gb_transform *parts[8], *all = NULL;
  for (int i = 0; i < n; i++)
    if (gb_transform_new(context, &steps[i], &parts[i]) != GB_OK) return NULL;
  gb_transform_compose(context, parts, n, &all);
  for (int i = 0; i < n; i++) gb_transform_release(parts[i]);
  return all;
}

/* A JPEG of noise that was smoothed, as photographs are. */
static file large_image(int width, int height) {
  struct jpeg_compress_struct c;
  struct jpeg_error_mgr errors;
  unsigned char *data = NULL, *row = malloc((size_t)width * 3);
  unsigned long bytes = 0;
  unsigned state = 1;
  c.err = jpeg_std_error(&errors);
  jpeg_create_compress(&c);
  jpeg_mem_dest(&c, &data, &bytes);
  c.image_width = (JDIMENSION)width, c.image_height = (JDIMENSION)height;
  c.input_components = 3, c.in_color_space = JCS_RGB;
  jpeg_set_defaults(&c);
  jpeg_set_quality(&c, 90, TRUE);
  jpeg_start_compress(&c, TRUE);
  for (int y = 0; y < height; y++) {
    for (int x = 0; x < 3 * width; x++) {
      state = state * 1664525u + 1013904223u;
      row[x] = (unsigned char)(110 + (x / 40 * 7 + y / 9 * 5) % 90 + (int)(state >> 27));
    }
    JSAMPROW rows[1] = { row };
    jpeg_write_scanlines(&c, rows, 1);
  }
  jpeg_finish_compress(&c);
  jpeg_destroy_compress(&c);
  free(row);
  return (file){ data, bytes };
}

/* Read the files of every class. */
static void read_files(const char *path) {
  gb_folder folder;
  gb_names classes = { NULL }, names = { NULL };
  gb_workroom room = { .budget = &context->budget };
  char error[256];
  if (gb_folder_open(context, path, &folder) != GB_OK) return;
  gb_folder_list(context, &folder, NULL, GB_FOLDER_FOLDERS, NULL, &classes);
  for (int64_t k = 0; k < classes.count; k++)
    gb_folder_list(context, &folder, gb_name(&classes, k), GB_FOLDER_FILES, NULL, &names);
  for (int64_t i = 0; i < names.count && count < MOST; i++) {
    void *data;
    size_t bytes;
    if (gb_folder_read(&folder, gb_name(&names, i), &room, 0, &data, &bytes, error, sizeof error) != GB_OK) continue;
    files[count] = (file){ malloc(bytes), bytes };
    memcpy(files[count++].data, data, bytes);
  }
  gb_workroom_clear(&room);
  gb_names_free(&classes);
  gb_names_free(&names);
  gb_folder_close(&folder);
}

static int on_vectors = 0, off_vectors = 8;
static const gb_augment to_float = { .kind = GB_AUGMENT_TO_FLOAT, .p = 1 };
static const gb_augment normalize = { .kind = GB_AUGMENT_NORMALIZE, .p = 1, .channels = 3, .mean = { 0.49, 0.48, 0.45 },
                                      .std = { 0.25, 0.24, 0.26 } };

/* CIFAR-10: crop with padding, flip, float, normalise. */
static void bench_cifar(const char *path) {
  const gb_augment steps[] = {
    { .kind = GB_AUGMENT_RANDOM_CROP, .p = 1, .height = 32, .width = 32, .padding = 4 },
    { .kind = GB_AUGMENT_FLIP, .p = 0.5 }, to_float, normalize,
  };
  gb_transform *t = composed(steps, 4);
  read_files(path);
  if (!count) { printf("no images in %s\n", path); return; }
  gb_option options[] = {
    { .name = "mode", .kind = GB_OPTION_STRING, .string = "rgb", .length = 3 },
    { .name = "transform", .kind = GB_OPTION_TRANSFORM, .transform = t },
    { .name = "keep", .kind = GB_OPTION_NUMBER, .number = 1 << 30 },
  };
  gb_loader *loader[2] = { NULL, NULL };
  gb_loader_options how = { .batch_size = 100 };
  double medians[6];
  for (int kept = 0; kept < 2; kept++) {
    gb_reading given = { .path = { path }, .options = { .kind = GB_OPTION_LIST, .list = options, .count = 2 + kept } };
    gb_dataset *set = NULL, *part = NULL;
    if (gb_reader_images.open(context, &given, &set) != GB_OK
        || gb_dataset_range(context, set, 0, count, &part) != GB_OK
        || gb_loader_open(context, part, &how, &loader[kept]) != GB_OK) printf("%s\n", gb_error(context));
    gb_dataset_release(part);
    gb_dataset_release(set);
  }
  if (loader[0] && loader[1])
    report((const measured[]){ { "32 x 32: libjpeg-turbo alone", run_alone, &on_vectors, count },
                          { "32 x 32: libjpeg-turbo alone, rows off its vectors", run_alone, &off_vectors, count },
                          { "32 x 32: decode", run_ours, NULL, count },
                          { "32 x 32: decode, crop, flip, float, normalise", run_ours, t, count },
                          { "32 x 32: the same from files, as batches", run_loader, loader[0], count },
                          { "32 x 32: the same from files that it keeps", run_loader, loader[1], count } }, 6, medians);
  for (int kept = 0; kept < 2; kept++) gb_loader_close(loader[kept]);
  gb_transform_release(t);
}

/* 500 x 375 to 224 x 224. */
static void bench_large(void) {
  const gb_augment resize = { .kind = GB_AUGMENT_RESIZE, .p = 1, .height = 224, .width = 224 };
  const gb_augment steps[] = { resize, to_float, normalize };
  gb_transform *alone = composed(steps, 1), *all = composed(steps, 3);
  double medians[4];
  for (int i = 0; i < count; i++) free(files[i].data);
  files[0] = large_image(500, 375);
  count = 1;
  report((const measured[]){ { "500 x 375: libjpeg-turbo alone", run_alone, &on_vectors, 1 },
                        { "500 x 375: decode", run_ours, NULL, 1 },
                        { "500 x 375: decode, resize to 224 x 224", run_ours, alone, 1 },
                        { "500 x 375: decode, resize, float, normalise", run_ours, all, 1 } }, 4, medians);
  printf("%-50s %8.1f us\n", "500 x 375: resize to 224 x 224 alone", medians[2] - medians[1]);
  gb_transform_release(alone);
  gb_transform_release(all);
  free(files[0].data);
}

int main(int argc, char **argv) {
  gb_context_options options;
  gb_context_options_init(&options, sizeof options);
  options.threads = 1;
  if (gb_context_open(&options, &context) != GB_OK) return 1;
  if (argc > 1) bench_cifar(argv[1]);
  bench_large();
  gb_context_close(context);
  return 0;
}
