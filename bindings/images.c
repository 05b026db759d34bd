/* images.c - gb.io.image, and gb.data.transforms as Lua objects: each public function reads the arguments of one
 * step. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "data/transform.h"
#include "io/file.h"
#include "io/image.h"
#include "objects.h"
#include "reader.h"

/* {==== gb.io.image ==== */

static gb_image_mode mode_of(const gbl_call *call) {
  const char *mode = gbl_string(call, "mode");
  return !strcmp(mode, "rgb") ? GB_IMAGE_RGB : !strcmp(mode, "gray") ? GB_IMAGE_GRAY : GB_IMAGE_INDEX;
}

static int io_image(lua_State *L, gbl_call *call) {
  gb_context *context = call->state->context;
  const char *path = gbl_string(call, "path");
  char *data = NULL;
  size_t bytes = 0;
  const char *name = lua_pushfstring(L, "'%s'", path);
  gbl_box *box = gbl_new_tensor(L);
  gb_status status = gb_file_load(context, path, &data, &bytes); /* until data is freed nothing raises */
  if (status == GB_OK) status = gb_image_read(context, data, bytes, name, mode_of(call), &box->tensor);
  gb_counted_free(data);
  gbl_check_status(L, status);
  gbl_finish_tensor(L);
  return 1;
}

static int io_decode_image(lua_State *L, gbl_call *call) {
  const gbl_value *bytes = gbl_argument(call, "bytes");
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_image_read(call->state->context, bytes->string, bytes->length, "decode_image", mode_of(call),
                                    &box->tensor));
  gbl_finish_tensor(L);
  return 1;
}

/* ====} */

/* {==== Arguments of steps ==== */

enum { MOST_NUMBERS = 4 };

/* A number, or the numbers of a list: how many there are. */
static int numbers_of(lua_State *L, const gbl_call *call, const char *name, double *out) {
  const gbl_value *v = gbl_argument(call, name);
  int n = !v->given ? 0 : !strcmp(v->kind, "list") ? v->count : 1;
  if (n > MOST_NUMBERS) gbl_refuse(call, "'%s' has at most %d numbers, not %d", name, MOST_NUMBERS, n);
  for (int i = 0; i < n; i++) {
    out[i] = v->number;
    if (!strcmp(v->kind, "list")) {
      lua_rawgeti(L, v->index, i + 1);
      if (lua_type(L, -1) != LUA_TNUMBER) gbl_refuse(call, "'%s' holds numbers, but [%d] is %s", name, i + 1,
                                                     gbl_type_name(L, -1));
      out[i] = lua_tonumber(L, -1);
      lua_pop(L, 1);
    }
    if (!isfinite(out[i])) gbl_refuse(call, "'%s' must be finite, got %g", name, out[i]);
  }
  return n;
}

/* A range within least .. most: { low, high }, or a number that is made one by the caller. */
static gb_range checked(const gbl_call *call, const char *name, gb_range r, double least, double most) {
  if (!(r.low <= r.high && r.low >= least && r.high <= most))
    gbl_refuse(call, "'%s' is a range { low, high } from %g to %g, got { %g, %g }", name, least, most, r.low, r.high);
  return r;
}

static gb_range range_of(lua_State *L, const gbl_call *call, const char *name, gb_range otherwise, double least,
                         double most) {
  double x[MOST_NUMBERS];
  int n = numbers_of(L, call, name, x);
  if (!n) return otherwise;
  if (n != 2) gbl_refuse(call, "'%s' is a range { low, high }, got %d numbers", name, n);
  return checked(call, name, (gb_range){ x[0], x[1] }, least, most);
}

/* A number d is { middle - d, middle + d }, but no less than least; nothing is { middle, middle }. */
static gb_range around(lua_State *L, const gbl_call *call, const char *name, double middle, double least,
                       double most) {
  double x[MOST_NUMBERS];
  int n = numbers_of(L, call, name, x);
  if (!n) return (gb_range){ middle, middle };
  if (n > 2) gbl_refuse(call, "'%s' is a number or a range { low, high }, got %d numbers", name, n);
  if (n == 2) return checked(call, name, (gb_range){ x[0], x[1] }, least, most);
  if (x[0] < 0) gbl_refuse(call, "'%s' must not be below 0, got %g", name, x[0]);
  gb_range r = { middle - x[0], middle + x[0] };
  if (middle == 1 && r.low < least) r.low = least;
  return checked(call, name, r, least, most);
}

/* Height and width, of one number or two. */
static void size_of(const gbl_call *call, gb_augment *s, bool one_is_both) {
  const gbl_value *v = gbl_argument(call, "size");
  if (v->count < 1 || v->count > 2) gbl_refuse(call, "'size' is a number or { height, width }, got %d numbers",
                                               v->count);
  for (int i = 0; i < v->count; i++)
    if (v->ints[i] < 1 || v->ints[i] > 1 << 16)
      gbl_refuse(call, "'size' is a number of pixels from 1 to %d, got %" PRId64, 1 << 16, v->ints[i]);
  s->height = v->ints[0];
  s->width = v->count == 2 ? v->ints[1] : one_is_both ? v->ints[0] : 0;
}

static double share_of(const gbl_call *call, const char *name) {
  double p = gbl_number(call, name);
  if (!(p >= 0 && p <= 1)) gbl_refuse(call, "'%s' is a probability from 0 to 1, got %g", name, p);
  return p;
}

static double byte_of(const gbl_call *call, const char *name) {
  double value = gbl_number(call, name);
  if (!(value >= 0 && value <= 255)) gbl_refuse(call, "'%s' is a byte from 0 to 255, got %g", name, value);
  return value;
}

/* ====} */

/* {==== Steps ==== */

static void release_transform(void *transform) { gb_transform_release(transform); }

/* Push the transform of one step. */
static int push_step(lua_State *L, gbl_call *call, gb_augment step) {
  void **slot = gbl_new_object(L, &gbl_transform_type, 0);
  gb_transform *made = NULL;
  gb_status status = gb_transform_new(call->state->context, &step, &made);
  *slot = made;
  gbl_check_status(L, status);
  return 1;
}

static int to_float(lua_State *L, gbl_call *call) {
  return push_step(L, call, (gb_augment){ .kind = GB_AUGMENT_TO_FLOAT, .p = 1 });
}

static int normalize(lua_State *L, gbl_call *call) {
  gb_augment s = { .kind = GB_AUGMENT_NORMALIZE, .p = 1 };
  s.channels = numbers_of(L, call, "mean", s.mean);
  if (numbers_of(L, call, "std", s.std) != s.channels || (s.channels != 1 && s.channels != 3))
    return gbl_refuse(call, "mean and std have a number for each channel, 1 or 3; got %d and %d", s.channels,
                      numbers_of(L, call, "std", s.std));
  for (int c = 0; c < s.channels; c++)
    if (!(s.std[c] > 0)) return gbl_refuse(call, "'std' must be above 0, got %g", s.std[c]);
  return push_step(L, call, s);
}

static int random_crop(lua_State *L, gbl_call *call) {
  gb_augment s = { .kind = GB_AUGMENT_RANDOM_CROP, .p = 1, .padding = gbl_integer(call, "padding"),
                   .fill = byte_of(call, "fill"), .reflect = !strcmp(gbl_string(call, "mode"), "reflect") };
  size_of(call, &s, true);
  if (s.padding > 1 << 16) return gbl_refuse(call, "'padding' is at most %d", 1 << 16);
  return push_step(L, call, s);
}

static int center_crop(lua_State *L, gbl_call *call) {
  gb_augment s = { .kind = GB_AUGMENT_CENTER_CROP, .p = 1 };
  size_of(call, &s, true);
  return push_step(L, call, s);
}

static int resize(lua_State *L, gbl_call *call) {
  gb_augment s = { .kind = GB_AUGMENT_RESIZE, .p = 1 };
  size_of(call, &s, false);
  return push_step(L, call, s);
}

static int resized_crop(lua_State *L, gbl_call *call) {
  gb_augment s = { .kind = GB_AUGMENT_RESIZED_CROP, .p = 1 };
  size_of(call, &s, true);
  s.scale = range_of(L, call, "scale", (gb_range){ 0.08, 1 }, 1e-6, 1);
  s.ratio = range_of(L, call, "ratio", (gb_range){ 3.0 / 4, 4.0 / 3 }, 1e-3, 1e3);
  return push_step(L, call, s);
}

static int flip(lua_State *L, gbl_call *call) {
  return push_step(L, call, (gb_augment){ .kind = GB_AUGMENT_FLIP, .p = share_of(call, "p"),
                                          .vertical = !strcmp(gbl_string(call, "direction"), "vertical") });
}

/* What warps have in common. */
static gb_augment warp(const gbl_call *call, gb_augment_kind kind) {
  return (gb_augment){ .kind = kind, .p = share_of(call, "p"), .fill = byte_of(call, "fill"),
                       .bilinear = !strcmp(gbl_string(call, "mode"), "bilinear") };
}

static int rotate(lua_State *L, gbl_call *call) {
  gb_augment s = warp(call, GB_AUGMENT_ROTATE);
  s.degrees = around(L, call, "degrees", 0, -3600, 3600);
  return push_step(L, call, s);
}

/* Two numbers are +- x and +- y; four are the ranges themselves. */
static void two_ranges(lua_State *L, const gbl_call *call, const char *name, double most, gb_range *x, gb_range *y) {
  double v[MOST_NUMBERS];
  int n = numbers_of(L, call, name, v);
  if (!n) return;
  if (n != 2 && n != 4) gbl_refuse(call, "'%s' is { x, y } or { x low, x high, y low, y high }, got %d numbers", name,
                                   n);
  *x = checked(call, name, n == 4 ? (gb_range){ v[0], v[1] } : (gb_range){ -v[0], v[0] }, -most, most);
  *y = checked(call, name, n == 4 ? (gb_range){ v[2], v[3] } : (gb_range){ -v[1], v[1] }, -most, most);
}

static int affine(lua_State *L, gbl_call *call) {
  gb_augment s = warp(call, GB_AUGMENT_AFFINE);
  double shear[MOST_NUMBERS];
  int n = numbers_of(L, call, "shear", shear);
  s.degrees = around(L, call, "degrees", 0, -3600, 3600);
  s.scale = range_of(L, call, "scale", (gb_range){ 1, 1 }, 1e-3, 1e3);
  two_ranges(L, call, "translate", 1, &s.move_x, &s.move_y);
  if (n == 4) two_ranges(L, call, "shear", 89, &s.shear_x, &s.shear_y);
  else if (n) s.shear_x = around(L, call, "shear", 0, -89, 89);
  return push_step(L, call, s);
}

static int color_jitter(lua_State *L, gbl_call *call) {
  gb_augment s = { .kind = GB_AUGMENT_COLOR_JITTER, .p = share_of(call, "p") };
  s.brightness = around(L, call, "brightness", 1, 0, 100);
  s.contrast = around(L, call, "contrast", 1, 0, 100);
  s.saturation = around(L, call, "saturation", 1, 0, 100);
  s.hue = around(L, call, "hue", 0, -0.5, 0.5);
  return push_step(L, call, s);
}

static int cutout(lua_State *L, gbl_call *call) {
  gb_augment s = { .kind = GB_AUGMENT_CUTOUT, .p = share_of(call, "p"), .fill = gbl_number(call, "fill") };
  if (!isfinite(s.fill)) return gbl_refuse(call, "'fill' must be finite, got %g", s.fill);
  size_of(call, &s, true);
  return push_step(L, call, s);
}

static int random_erasing(lua_State *L, gbl_call *call) {
  gb_augment s = { .kind = GB_AUGMENT_ERASE, .p = share_of(call, "p"), .fill = gbl_number(call, "fill") };
  if (!isfinite(s.fill)) return gbl_refuse(call, "'fill' must be finite, got %g", s.fill);
  s.scale = range_of(L, call, "scale", (gb_range){ 0.02, 0.33 }, 0, 1);
  s.ratio = range_of(L, call, "ratio", (gb_range){ 0.3, 3.3 }, 1e-3, 1e3);
  return push_step(L, call, s);
}

static int elastic(lua_State *L, gbl_call *call) {
  gb_augment s = warp(call, GB_AUGMENT_ELASTIC);
  s.alpha = gbl_number(call, "alpha");
  s.sigma = gbl_number(call, "sigma");
  if (!(s.alpha >= 0 && s.alpha <= 1e4)) return gbl_refuse(call, "'alpha' lies between 0 and 10000, got %g", s.alpha);
  if (!(s.sigma >= 0.1 && s.sigma <= 100)) return gbl_refuse(call, "'sigma' lies between 0.1 and 100, got %g",
                                                             s.sigma);
  return push_step(L, call, s);
}

static int rand_augment(lua_State *L, gbl_call *call) {
  gb_augment s = { .kind = GB_AUGMENT_RAND_AUGMENT, .p = 1, .count = gbl_integer(call, "n"),
                   .magnitude = gbl_number(call, "magnitude"), .fill = byte_of(call, "fill") };
  if (s.count < 1 || s.count > 14) return gbl_refuse(call, "'n' lies between 1 and 14, got %" PRId64, s.count);
  if (!(s.magnitude >= 0 && s.magnitude <= 30))
    return gbl_refuse(call, "'magnitude' lies between 0 and 30, got %g", s.magnitude);
  return push_step(L, call, s);
}

/* A step that has nothing but its probability. */
static int plain_step(lua_State *L, gbl_call *call, gb_augment_kind kind) {
  return push_step(L, call, (gb_augment){ .kind = kind, .p = share_of(call, "p") });
}

static int grayscale(lua_State *L, gbl_call *call) { return plain_step(L, call, GB_AUGMENT_GRAYSCALE); }
static int autocontrast(lua_State *L, gbl_call *call) { return plain_step(L, call, GB_AUGMENT_AUTOCONTRAST); }
static int equalize(lua_State *L, gbl_call *call) { return plain_step(L, call, GB_AUGMENT_EQUALIZE); }

static int posterize(lua_State *L, gbl_call *call) {
  gb_augment s = { .kind = GB_AUGMENT_POSTERIZE, .p = share_of(call, "p"), .bits = gbl_integer(call, "bits") };
  if (s.bits < 1 || s.bits > 8) return gbl_refuse(call, "'bits' lies between 1 and 8, got %" PRId64, s.bits);
  return push_step(L, call, s);
}

static int solarize(lua_State *L, gbl_call *call) {
  double threshold = gbl_number(call, "threshold");
  if (!isfinite(threshold)) return gbl_refuse(call, "'threshold' must be finite, got %g", threshold);
  return push_step(L, call, (gb_augment){ .kind = GB_AUGMENT_SOLARIZE, .p = share_of(call, "p"),
                                          .threshold = threshold });
}

static int sharpness(lua_State *L, gbl_call *call) {
  gb_augment s = { .kind = GB_AUGMENT_SHARPNESS, .p = share_of(call, "p") };
  double factor = gbl_number(call, "factor");
  if (!(factor >= 0 && factor <= 100)) return gbl_refuse(call, "'factor' lies between 0 and 100, got %g", factor);
  s.factor = (gb_range){ factor, factor };
  return push_step(L, call, s);
}

static int compose(lua_State *L, gbl_call *call) {
  const gbl_value *list = gbl_argument(call, "transforms");
  gb_transform **parts = lua_newuserdatauv(L, sizeof *parts * ((size_t)list->count + 1), 0), *made = NULL;
  for (int i = 0; i < list->count; i++) {
    lua_rawgeti(L, list->index, i + 1);
    parts[i] = gbl_test_object(L, lua_gettop(L), &gbl_transform_type);
    if (!parts[i]) return gbl_refuse(call, "[%d] of the list is %s, no transform", i + 1, gbl_type_name(L, -1));
    lua_pop(L, 1);
  }
  void **slot = gbl_new_object(L, &gbl_transform_type, 0);
  gb_status status = gb_transform_compose(call->state->context, parts, list->count, &made);
  *slot = made;
  gbl_check_status(L, status);
  return 1;
}

/* ====} */

/* {==== transform ==== */

static int apply(lua_State *L, gbl_call *call) {
  gb_context *context = call->state->context;
  gb_transform *t = gbl_object(call, "self");
  const gbl_value *mask = gbl_argument(call, "mask");
  gb_tensor *from[2] = { gbl_tensor(call, "image"), mask->given ? mask->tensor : NULL };
  gbl_box *whole[2], *made[2];
  for (int i = 0; i < 2; i++) {
    whole[i] = gbl_new_tensor(L);
    if (from[i]) gbl_check_status(L, gb_op_contiguous(context, from[i], &whole[i]->tensor));
    if (from[i] && whole[i]->tensor->storage->device.type != GB_CPU)
      return gbl_refuse(call, "images are transformed on the cpu; use :cpu()");
  }
  for (int i = 0; i < 2; i++) made[i] = gbl_new_tensor(L);
  bool seeded = gbl_given(call, "seed");
  uint64_t seed = seeded ? (uint64_t)gbl_integer(call, "seed") : context->seed, epoch = seeded ? 0
      : gb_rng_take(context);
  gbl_check_status(L, gb_transform_tensor(context, t, seed, epoch, whole[0]->tensor, whole[1]->tensor,
                                          &made[0]->tensor, &made[1]->tensor));
  if (!from[1]) lua_pop(L, 1);
  return from[1] ? 2 : 1;
}

/* t(image, options): t:apply(image, options). */
static int transform_call(lua_State *L) {
  int top = lua_gettop(L);
  luaL_checkstack(L, 4, GBL_NO_STACK);
  luaL_getmetafield(L, 1, "__index");
  gbl_raw_field(L, -1, "apply");
  lua_remove(L, -2);
  lua_insert(L, 1);
  lua_call(L, top, LUA_MULTRET);
  return lua_gettop(L);
}

static int transform_text(lua_State *L) {
  const gb_transform *t = gbl_test_object(L, 1, &gbl_transform_type);
  if (!t) return lua_pushliteral(L, "transform (closed)"), 1;
  luaL_Buffer text;
  luaL_buffinit(L, &text);
  for (int64_t i = 0; i < gb_transform_count(t); i++) {
    if (i) luaL_addstring(&text, ", ");
    luaL_addstring(&text, gb_augment_name(gb_transform_kind(t, i)));
  }
  luaL_pushresult(&text);
  lua_pushfstring(L, "transform (%s)", lua_tostring(L, -1));
  return 1;
}

static const gbl_function transform_functions[] = {
  { apply, GB_SANDBOX_STRICT,
    "transform:apply(image: tensor; seed?: int, mask?: tensor) -> tensor, tensor: The image, uint8 [height, width, 1 "
    "or 3] or after to_float float32 [channels, height, width], transformed; and the mask, uint8 [height, width], by "
    "the same geometry. transform(image, ...) is the same. What is random depends on seed alone; without one it is "
    "drawn from gb's random stream. Errors: a step that takes bytes and gets floats, or the other way round. Example: "
    "local t = gb.data.transforms.flip { p = 1 } print(t:apply(gb.zeros(4, 4, 3):to(\"uint8\"), { seed = 1 }).shape)" },
  { NULL, 0, NULL },
};

static const luaL_Reg transform_events[] = { { "__call", transform_call }, { "__tostring", transform_text },
                                             { NULL, NULL } };
const gbl_type gbl_transform_type = {
  "gibbous.transform", release_transform, transform_events, transform_functions,
  "transform:close(): Release the transform now instead of when it is collected. Example: "
  "gb.data.transforms.to_float():close()",
};

/* ====} */

static const gbl_function io_functions[] = {
  { io_image, GB_SANDBOX_FILES,
    "gb.io.image(path: path; mode: \"rgb\"|\"gray\"|\"index\" = \"rgb\") -> tensor: A JPEG or PNG file as uint8 "
    "[height, width, 3], or [height, width, 1] for gray (luma) and index (the number in the palette, luma where there "
    "is none). The bytes are those of Pillow's Image.convert after ImageOps.exif_transpose: the image is upright, "
    "alpha is left out. Errors: a file that is damaged (with the place) or of another format." },
  { io_decode_image, GB_SANDBOX_STRICT,
    "gb.io.decode_image(bytes: string; mode: \"rgb\"|\"gray\"|\"index\" = \"rgb\") -> tensor: What gb.io.image makes "
    "of a file with these bytes. Errors: bytes that are no JPEG or PNG file. Example: local fine, why = "
    "pcall(gb.io.decode_image, \"no image\") print(why)" },
  { NULL, 0, NULL },
};

#define MAKE "local t = gb.data.transforms."
static const gbl_function transform_makers[] = {
  { to_float, GB_SANDBOX_STRICT,
    "gb.data.transforms.to_float() -> transform: Bytes [height, width, channels] become float32 [channels, height, "
    "width] from 0 to 1. Example: " MAKE "to_float()" },
  { normalize, GB_SANDBOX_STRICT,
    "gb.data.transforms.normalize(mean: number|list, std: number|list) -> transform: (x - mean) / std of each "
    "channel, after to_float. Example: " MAKE "normalize({ 0.5, 0.5, 0.5 }, { 0.2, 0.2, 0.2 })" },
  { random_crop, GB_SANDBOX_STRICT,
    "gb.data.transforms.random_crop(size: ints; padding: count = 0, mode: \"constant\"|\"reflect\" = \"constant\", "
    "fill: number = 0) -> transform: A part of size n x n, or { height, width }, from a random place of the image "
    "with so much padding around it. Example: " MAKE "random_crop(32, { padding = 4 })" },
  { center_crop, GB_SANDBOX_STRICT,
    "gb.data.transforms.center_crop(size: ints) -> transform: The middle, of size n x n or { height, width }; with "
    "zeros around an image that is smaller. Example: " MAKE "center_crop(224)" },
  { resize, GB_SANDBOX_STRICT,
    "gb.data.transforms.resize(size: ints) -> transform: { height, width }, or n for the shorter side: bilinear with "
    "antialiasing, as Pillow does it; masks by the nearest pixel. Example: " MAKE "resize(256)" },
  { resized_crop, GB_SANDBOX_STRICT,
    "gb.data.transforms.resized_crop(size: ints; scale?: list, ratio?: list) -> transform: A part of random area "
    "(scale, { 0.08, 1 }) and shape (ratio, { 3/4, 4/3 }), resized. Example: " MAKE "resized_crop(224)" },
  { flip, GB_SANDBOX_STRICT,
    "gb.data.transforms.flip(; direction: \"horizontal\"|\"vertical\" = \"horizontal\", p: number = 0.5) -> "
    "transform: Left and right, or top and bottom, change places with probability p. Example: " MAKE "flip()" },
  { rotate, GB_SANDBOX_STRICT,
    "gb.data.transforms.rotate(degrees: number|list; mode: \"nearest\"|\"bilinear\" = \"nearest\", fill: number = 0, "
    "p: number = 1) -> transform: Counterclockwise by an angle from -degrees to degrees, or { low, high }. Example: "
    MAKE "rotate(15)" },
  { affine, GB_SANDBOX_STRICT,
    "gb.data.transforms.affine(degrees: number|list; translate?: list, scale?: list, shear?: number|list, "
    "mode: \"nearest\"|\"bilinear\" = \"nearest\", fill: number = 0, p: number = 1) -> transform: torchvision's "
    "RandomAffine: clockwise by degrees; moved by up to translate = { x, y } of the width and height, or { x low, x "
    "high, y low, y high }; scale = { low, high }; shear in degrees, a number or { low, high } along x, four numbers "
    "for both. Example: " MAKE "affine(10, { translate = { 0.1, 0.1 }, scale = { 0.9, 1.1 } })" },
  { color_jitter, GB_SANDBOX_STRICT,
    "gb.data.transforms.color_jitter(; brightness?: number|list, contrast?: number|list, saturation?: number|list, "
    "hue?: number|list, p: number = 1) -> transform: Each by a random factor from 1 - x to 1 + x (hue: turned by -x "
    "to x, at most 0.5), or { low, high }, in random order. Example: " MAKE "color_jitter { brightness = 0.4 }" },
  { grayscale, GB_SANDBOX_STRICT,
    "gb.data.transforms.grayscale(; p: number = 0.1) -> transform: Colours become gray with probability p; there are "
    "still three channels. Example: " MAKE "grayscale { p = 0.2 }" },
  { cutout, GB_SANDBOX_STRICT,
    "gb.data.transforms.cutout(size: ints; p: number = 1, fill: number = 0) -> transform: A square around a random "
    "pixel is filled (DeVries, Taylor 2017). Example: " MAKE "cutout(8)" },
  { random_erasing, GB_SANDBOX_STRICT,
    "gb.data.transforms.random_erasing(; p: number = 0.5, scale?: list, ratio?: list, fill: number = 0) -> transform: "
    "A part of random area (scale, { 0.02, 0.33 }) and shape (ratio, { 0.3, 3.3 }) is filled. Example: " MAKE
    "random_erasing()" },
  { elastic, GB_SANDBOX_STRICT,
    "gb.data.transforms.elastic(; alpha: number = 50, sigma: number = 5, mode: \"bilinear\"|\"nearest\" = "
    "\"bilinear\", fill: number = 0, p: number = 1) -> transform: Random displacements, smoothed over sigma pixels "
    "and alpha strong (Simard et al. 2003). Example: " MAKE "elastic { alpha = 30, sigma = 4 }" },
  { rand_augment, GB_SANDBOX_STRICT,
    "gb.data.transforms.rand_augment(; n: count = 2, magnitude: number = 9, fill: number = 0) -> transform: n of "
    "fourteen changes of geometry and colour, each with strength magnitude of 30 (Cubuk et al. 2019, with "
    "torchvision's ranges). Example: " MAKE "rand_augment()" },
  { posterize, GB_SANDBOX_STRICT,
    "gb.data.transforms.posterize(bits: int; p: number = 0.5) -> transform: Only the upper bits of each byte stay. "
    "Example: " MAKE "posterize(4)" },
  { solarize, GB_SANDBOX_STRICT,
    "gb.data.transforms.solarize(threshold: number; p: number = 0.5) -> transform: Bytes from threshold on are "
    "inverted. Example: " MAKE "solarize(128)" },
  { sharpness, GB_SANDBOX_STRICT,
    "gb.data.transforms.sharpness(factor: number; p: number = 0.5) -> transform: 0 blurs, 1 changes nothing, 2 "
    "sharpens. Example: " MAKE "sharpness(2)" },
  { autocontrast, GB_SANDBOX_STRICT,
    "gb.data.transforms.autocontrast(; p: number = 0.5) -> transform: Each channel is stretched to 0 .. 255. Example: "
    MAKE "autocontrast()" },
  { equalize, GB_SANDBOX_STRICT,
    "gb.data.transforms.equalize(; p: number = 0.5) -> transform: The histogram of each channel becomes flat. "
    "Example: " MAKE "equalize()" },
  { compose, GB_SANDBOX_STRICT,
    "gb.data.transforms.compose(transforms: list) -> transform: One after the other. Errors: a step for bytes behind "
    "to_float, more than 64 steps. Example: " MAKE "compose { gb.data.transforms.flip(), "
    "gb.data.transforms.to_float() }" },
  { NULL, 0, NULL },
};

void gbl_open_images(lua_State *L) {
  gbl_new_type(L, &gbl_transform_type);
  gbl_push_module(L, "io");
  gbl_define(L, io_functions);
  lua_pop(L, 1);
  gbl_push_module(L, "data");
  gbl_push_module(L, "transforms");
  gbl_define(L, transform_makers);
  lua_pop(L, 2);
}
