/* test_plugin.c - the seam to backends: a plugin of two ops is opened at run time, runs them, and everything else says
 * what it cannot. */
#include "engine.h"
#include "step/optim.h"

#ifndef PLUGIN_PATH
#error "PLUGIN_PATH and PLUGIN_OTHER_ABI_PATH are given by the build"
#endif

static const float left[] = { 1.5f, -2, 0.25f, -8, 3, 0 }, right[] = { -2, 1, 0.5f, 10, -3, -1 };

/* [2, 3] on a device. */
static gb_tensor *tensor_on(gb_context *c, gb_device device, const float *values) {
  gb_tensor *t = NULL;
  CHECK(gb_tensor_new(c, GB_FLOAT32, 2, SHAPE(2, 3), device, &t) == GB_OK);
  CHECK(gb_tensor_write(t, values, 6 * sizeof *values) == GB_OK);
  return t;
}

static void test_runs_its_ops(gb_context *c, gb_device device) {
  float got[6];
  gb_memory_stats before, after;
  gb_memory_get_stats(c, &before);
  gb_tensor *x = tensor_on(c, device, left), *y = tensor_on(c, device, right);
  gb_memory_get_stats(c, &after);
  CHECK(after.current_total == before.current_total + 512); /* memory of every device counts, in blocks of 256 */
  CHECK(gb_tensor_device(x).type == GB_PLUGIN);
  CHECK(memcmp(gb_tensor_data(x), left, sizeof left) != 0); /* device memory is not host memory */
  gb_tensor *sum = run2(GB_OP_add, x, y, NULL), *positive = run1(GB_OP_relu, sum, NULL);
  CHECK(gb_tensor_device(positive).type == GB_PLUGIN && gb_tensor_device(positive).index == 0);
  CHECK(gb_tensor_read(positive, got, sizeof got) == GB_OK);
  for (int i = 0; i < 6; i++) CHECK(got[i] == fmaxf(left[i] + right[i], 0));
  CHECK(gb_tensor_read(x, got, sizeof got) == GB_OK && !memcmp(got, left, sizeof left));

  gb_tensor *number = NULL; /* a number of the calling language lies on the CPU and joins any device */
  CHECK(gb_tensor_wrap_number(c, 10, &number) == GB_OK);
  gb_tensor *more = run2(GB_OP_add, x, number, NULL);
  CHECK(gb_tensor_read(more, got, sizeof got) == GB_OK && got[0] == 11.5f && got[5] == 10);

  CHECK(gb_apply_(c, GB_OP_relu, &x, 1, NULL) == GB_OK); /* in place */
  CHECK(gb_tensor_read(x, got, sizeof got) == GB_OK && got[0] == 1.5f && got[1] == 0);
  gb_tensor *all[] = { x, y, sum, positive, number, more };
  for (int i = 0; i < 6; i++) gb_tensor_release(all[i]);
}

static void test_refuses_the_rest(gb_context *c, gb_device device) {
  gb_tensor *x = tensor_on(c, device, left), *host = tensor_on(c, CPU, right), *out[GB_MAX_OUT] = { NULL };
  CHECK(gb_apply(c, GB_OP_exp, &x, 1, NULL, out) == GB_EUNSUPPORTED);
  CHECK(says(c, "exp") && says(c, "two_ops:0") && says(c, "cpu") && out[0] == NULL);
  CHECK(gb_apply(c, GB_OP_mul, (gb_tensor *[]){ x, x }, 2, NULL, out) == GB_EUNSUPPORTED && says(c, "mul"));
  CHECK(gb_apply(c, GB_OP_sum, &x, 1, NULL, out) == GB_EUNSUPPORTED && says(c, "sum"));
  CHECK(gb_apply_(c, GB_OP_fill, &x, 1, &(gb_attr){ .given = true, .number = 1 }) == GB_EUNSUPPORTED &&
        says(c, "fill"));

  CHECK(gb_apply(c, GB_OP_add, (gb_tensor *[]){ x, host }, 2, NULL, out) == GB_EDEVICE); /* two devices in one op */
  CHECK(says(c, "two_ops:0") && says(c, "cpu") && says(c, "add"));

  gb_tensor *narrow = NULL; /* views need no kernel; their text comes from the plugin */
  CHECK(GB_RUN(c, narrow, &narrow, .x = x, .dim = gb_attr_int(1), .start = gb_attr_int(0), .length = gb_attr_int(1)) ==
        GB_OK);
  CHECK(gb_apply(c, GB_OP_add, (gb_tensor *[]){ x, narrow }, 2, NULL, out) == GB_EUNSUPPORTED &&
        says(c, "two_ops runs on"));
  CHECK(gb_error_code(c) == GB_EUNSUPPORTED && !strcmp(gb_error_op(c), "add"));

  CHECK(gb_tensor_set_requires_grad(x, true) == GB_OK); /* a gradient needs kernels too */
  gb_tensor *y = run1(GB_OP_relu, x, NULL), *up = tensor_on(c, device, right);
  CHECK(gb_backward(y, up, false, false) == GB_EUNSUPPORTED && says(c, "relu_backward"));
  gb_tensor *all[] = { x, host, narrow, y, up };
  for (int i = 0; i < 5; i++) gb_tensor_release(all[i]);
}

/* A backend without steps says so, and names the one that was asked for. */
static void test_refuses_steps(gb_context *c, gb_device device) {
  gb_tensor *weight = tensor_on(c, device, left), *grad = tensor_on(c, device, right);
  CHECK(gb_tensor_set_requires_grad(weight, true) == GB_OK && gb_tensor_set_grad(weight, grad) == GB_OK);
  CHECK(gb_clip_grad_value(c, &weight, 1, 0.5) == GB_EUNSUPPORTED && says(c, "optim_clip") && says(c, "two_ops:0") &&
        says(c, "step"));
  CHECK(gb_clip_grad_norm(c, &weight, 1, 1, 2, NULL) == GB_EUNSUPPORTED && says(c, "two_ops"));
  float got[6];
  CHECK(gb_tensor_read(grad, got, sizeof got) == GB_OK && !memcmp(got, right, sizeof right));
  gb_tensor_release(weight);
  gb_tensor_release(grad);
}

static void test_what_is_no_backend(gb_context *c) {
  gb_device device = CPU;
  CHECK(gb_device_parse(c, "two_ops:0", &device) == GB_EINVAL && says(c, "two_ops:0"));
  CHECK(gb_context_load_backend(c, "/nowhere/at_all.so") == GB_EDEVICE && says(c, "/nowhere/at_all.so"));
  CHECK(gb_context_load_backend(c, "libm.so.6") == GB_EDEVICE && says(c, "gb_backend_open"));
  CHECK(gb_context_load_backend(c, PLUGIN_OTHER_ABI_PATH) == GB_EUNSUPPORTED && says(c, "not available") &&
        says(c, "ABI"));
  CHECK(gb_device_parse(c, "cuda", &device) == GB_EDEVICE && says(c, "cpu") && says(c, "gibbous_cuda.so"));
}

int main(void) {
  gb_context *c = open_context(1, NULL);
  gb_device device = CPU;
  test_what_is_no_backend(c);
  CHECK(gb_context_load_backend(c, PLUGIN_PATH) == GB_OK);
  CHECK(gb_device_parse(c, "two_ops:0", &device) == GB_OK && device.type == GB_PLUGIN && device.index == 0);
  CHECK(gb_device_parse(c, "two_ops", &device) == GB_OK && device.type == GB_PLUGIN);
  CHECK(gb_device_parse(c, "two_ops:1", &device) == GB_EDEVICE && says(c, "two_ops:0"));
  device = (gb_device){ GB_PLUGIN, 0 };
  test_runs_its_ops(c, device);
  test_refuses_the_rest(c, device);
  test_refuses_steps(c, device);
  CHECK(gb_context_load_backend(c, PLUGIN_PATH) == GB_ESTATE && says(c, "two_ops"));
  gb_tensor *kept = tensor_on(c, device, left);
  gb_context_close(c); /* the plugin stays open for as long as a tensor lies there */
  float got[6];
  CHECK(gb_tensor_read(kept, got, sizeof got) == GB_OK && !memcmp(got, left, sizeof left));
  gb_tensor_release(kept);
  return check_report();
}
