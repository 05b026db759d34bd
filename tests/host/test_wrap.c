/* test_wrap.c - memory of the host's as tensors: loans and their end, release callbacks, DLPack both ways. */
#include <stdlib.h>

#include "open_host.h"
#include "tensor/dlpack.h"

static const gb_device cpu = { GB_CPU, 0 };

static void note_release(void *user) { ++*(int *)user; }

static void test_release(void) {
  gb_host *host = open_host(NULL);
  gb_context *context = gb_host_context(host);
  float memory[4] = { 1, 2, 3, 4 };
  int released = 0;
  gb_tensor *x = NULL;
  CHECK(gb_tensor_wrap(context, (char *)memory + 1, GB_FLOAT32, 1, (int64_t[]){ 2 }, note_release, &released, &x) ==
        GB_EINVAL && !x);
  CHECK(gb_tensor_wrap(context, NULL, GB_FLOAT32, 1, (int64_t[]){ 2 }, note_release, &released, &x) == GB_EINVAL && !x);
  CHECK(gb_tensor_wrap(context, memory, GB_FLOAT32, 1, (int64_t[]){ -2 }, note_release, &released, &x) == GB_ESHAPE &&
        !x && released == 0);
  CHECK(gb_tensor_wrap(context, memory, GB_FLOAT32, 2, (int64_t[]){ 2, 2 }, note_release, &released, &x) == GB_OK);
  CHECK(gb_tensor_revoke(x) == GB_EINVAL); /* it is no loan */
  gb_value v = gb_value_tensor(x);
  CHECK(gb_host_set(host, "x", &v) == GB_OK);
  gb_tensor_release(x);
  CHECK(runs(host, "x:mul_(10) y = x:t()") && memory[3] == 40 && released == 0); /* written in place, no copy */
  CHECK(fails(host, "gb.optim.SGD({ x }, { lr = 1 })", GB_EINVAL, "memory of the host"));
  CHECK(runs(host, "x = nil collectgarbage()") && released == 0);
  CHECK(runs(host, "assert(y[2][1]:item() == 20) y = nil collectgarbage()") && released == 1);
  CHECK(gb_tensor_wrap(context, memory, GB_FLOAT32, 1, (int64_t[]){ 4 }, note_release, &released, &x) == GB_OK);
  gb_host_close(host); /* the tensor keeps the engine */
  gb_tensor_release(x);
  CHECK(released == 2);
}

static void test_loan(void) {
  gb_host *host = open_host(NULL);
  gb_context *context = gb_host_context(host);
  float *ring = malloc(4 * sizeof *ring);
  for (int i = 0; i < 4; i++) ring[i] = (float)i;
  gb_tensor *x = NULL;
  CHECK(gb_tensor_wrap(context, ring, GB_FLOAT32, 2, (int64_t[]){ 2, 2 }, NULL, NULL, &x) == GB_OK);
  gb_value v = gb_value_tensor(x);
  CHECK(gb_host_set(host, "x", &v) == GB_OK);
  CHECK(runs(host, "view = x[2] w = gb.ones(2, 2):requires_grad_() loss = (x * w):sum() kept = x:clone()"));
  CHECK(fails(host, "gb.data.TensorDataset(x)", GB_ESTATE, "clone"));
  struct DLManagedTensorVersioned *managed = NULL;
  CHECK(gb_tensor_to_dlpack(x, &managed) == GB_ESTATE && !managed);
  CHECK(gb_tensor_revoke(x) == GB_OK);
  free(ring); /* whoever reads it now is seen by the address sanitizer */

  static const char *const uses[] = {
    "local y = x + 1", "x:add_(1)", "local y = view:sum()", "loss:backward()", "local s = tostring(x)", "x:tolist()",
        "local y = x:t()",
    "gb.save('/tmp/gibbous-never', { x = x })", "local y = x:clone()", "x[1] = 2", "gb.tensor({ x, x })",
        "local y = gb.stack({ x, x })",
    "gb.optim.SGD({ x }, { lr = 1 })", "x:item()", "local y = x:to('float64')",
    "for i in gb.data.DataLoader({ get = function() return view end }, { batch_size = 2 }):iter() do end x:fill_(1)",
  };
  for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) CHECK(gb_host_run_string(host, uses[i], NULL) != GB_OK);
  CHECK(fails(host, "local y = view * 2", GB_ESTATE, "taken its memory back"));
  CHECK(runs(host, "assert(kept[2][2]:item() == 3 and x.shape[1] == 2)"));
  float out[4];
  CHECK(gb_tensor_read(x, out, sizeof out) == GB_ESTATE && gb_tensor_write(x, out, sizeof out) == GB_ESTATE);
  CHECK(gb_tensor_revoke(x) == GB_OK);
  gb_tensor_release(x);
  gb_host_close(host);
}

/* A struct as another library would make it. */
typedef struct foreign { struct DLManagedTensorVersioned managed; int64_t shape[2], strides[2]; int deleted; } foreign;
static void delete_foreign(struct DLManagedTensorVersioned *managed) { ((foreign *)managed->manager_ctx)->deleted++; }

static foreign foreign_of(float *data) {
  return (foreign){ .managed = { .version = { 1, 3 }, .deleter = delete_foreign,
                                 .dl_tensor = { .data = data, .device = { GB_DLPACK_CPU, 0 }, .ndim = 2,
                                                .dtype = { GB_DLPACK_FLOAT, 32, 1 } } },
                    .shape = { 2, 3 }, .strides = { 1, 2 } };
}

static void test_import(void) {
  gb_host *host = open_host(NULL);
  gb_context *context = gb_host_context(host);
  float data[7] = { -1, 1, 2, 3, 4, 5, 6 };
  foreign f = foreign_of(data);
  gb_tensor *x = NULL;
  gb_dlpack_tensor *t = &f.managed.dl_tensor;
  f.managed.manager_ctx = &f;
  t->shape = f.shape;
  t->strides = f.strides;
  t->byte_offset = 4;
  f.managed.version.major = 2;
  CHECK(gb_tensor_from_dlpack(context, &f.managed, &x) == GB_EUNSUPPORTED);
  f.managed.version.major = 1;
  f.managed.flags = GB_DLPACK_READ_ONLY;
  CHECK(gb_tensor_from_dlpack(context, &f.managed, &x) == GB_EUNSUPPORTED);
  f.managed.flags = 0;
  t->dtype.lanes = 4;
  CHECK(gb_tensor_from_dlpack(context, &f.managed, &x) == GB_EDTYPE);
  t->dtype.lanes = 1;
  t->device.device_type = 2;
  CHECK(gb_tensor_from_dlpack(context, &f.managed, &x) == GB_EDEVICE);
  t->device.device_type = GB_DLPACK_CPU;
  f.strides[0] = -1;
  CHECK(gb_tensor_from_dlpack(context, &f.managed, &x) == GB_EUNSUPPORTED);
  f.strides[0] = INT64_MAX;
  CHECK(gb_tensor_from_dlpack(context, &f.managed, &x) == GB_ESHAPE);
  f.strides[0] = 1;
  t->ndim = 9;
  CHECK(gb_tensor_from_dlpack(context, &f.managed, &x) == GB_ESHAPE && !x && f.deleted == 0);
  t->ndim = 2;
  CHECK(gb_tensor_from_dlpack(context, &f.managed, &x) == GB_OK); /* columns first */
  gb_value v = gb_value_tensor(x);
  CHECK(gb_host_set(host, "x", &v) == GB_OK);
  CHECK(runs(host, "assert(x[2][1]:item() == 2 and x[1][3]:item() == 5 and x:sum():item() == 21) x:add_(1)") &&
        data[1] == 2 && data[0] == -1);
  gb_tensor_release(x);
  CHECK(runs(host, "x = nil collectgarbage()") && f.deleted == 1);
  t->strides = NULL; /* row-major */
  CHECK(gb_tensor_from_dlpack(context, &f.managed, &x) == GB_OK && ((float *)gb_tensor_data(x))[5] == 7 &&
        gb_tensor_is_contiguous(x));
  gb_tensor_release(x);
  CHECK(f.deleted == 2);
  gb_host_close(host);
}

static void test_export(void) {
  gb_host *host = open_host(NULL);
  gb_value v;
  struct DLManagedTensorVersioned *managed = NULL;
  CHECK(runs(host, "x = gb.arange(6):to('float32'):reshape(2, 3)"));
  CHECK(gb_host_get(host, "x", &v) == GB_OK && gb_tensor_to_dlpack(v.as.tensor, &managed) == GB_OK);
  gb_value_release(host, &v);
  const gb_dlpack_tensor *t = &managed->dl_tensor;
  CHECK(managed->version.major == 1 && t->ndim == 2 && t->shape[1] == 3 && t->strides[0] == 3 && t->dtype.bits == 32 &&
        t->dtype.code == GB_DLPACK_FLOAT);
  CHECK(((float *)t->data)[4] == 4);
  CHECK(fails(host, "gb.optim.SGD({ x }, { lr = 1 })", GB_EINVAL, "clone")); /* it would move */
  gb_tensor *back = NULL;
  CHECK(gb_tensor_from_dlpack(gb_host_context(host), managed, &back) == GB_OK); /* through their struct and in again */
  CHECK(runs(host, "x:fill_(9) x = nil collectgarbage()"));
  CHECK(((float *)gb_tensor_data(back))[4] == 9);
  gb_tensor_release(back);

  static const struct { const char *name; gb_dlpack_dtype dtype; } dtypes[] = { /* the codes as DLPack numbers them */
    { "float64", { 2, 64, 1 } }, { "float32", { 2, 32, 1 } }, { "float16", { 2, 16, 1 } }, { "bfloat16", { 4, 16, 1 } },
    { "int64", { 0, 64, 1 } },   { "int32", { 0, 32, 1 } },   { "uint8", { 1, 8, 1 } },    { "bool", { 6, 8, 1 } },
    { "int16", { 0, 16, 1 } },   { "int8", { 0, 8, 1 } },
  };
  CHECK(sizeof dtypes / sizeof *dtypes == GB_DTYPE_COUNT);
  for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
    gb_tensor *one = NULL, *again = NULL;
    CHECK(gb_tensor_new(gb_host_context(host), gb_dtype_from_name(dtypes[i].name), 0, NULL, cpu, &one) == GB_OK);
    CHECK(gb_tensor_to_dlpack(one, &managed) == GB_OK);
    CHECK(!memcmp(&managed->dl_tensor.dtype, &dtypes[i].dtype, sizeof dtypes[i].dtype));
    CHECK(gb_tensor_from_dlpack(gb_host_context(host), managed, &again) == GB_OK);
    CHECK(gb_tensor_dtype(again) == gb_tensor_dtype(one) && gb_tensor_data(again) == gb_tensor_data(one) &&
          gb_tensor_ndim(again) == 0);
    gb_tensor_release(again);
    gb_tensor_release(one);
  }
  gb_host_close(host);
}

int main(void) {
  test_release();
  test_loan();
  test_import();
  test_export();
  return check_report();
}
