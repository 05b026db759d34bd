/* test_close.c - what is left of a host that was closed: tensors that somebody still holds, and none of its threads. */
#include "open_host.h"
#include "process.h"

int main(void) {
  gb_host_options options;
  gb_host_options_init(&options, sizeof options);
  options.threads = 4;
  gb_host *host = open_host(&options);
  gb_value y = gb_value_nil();
  int before = count_threads();
  CHECK(runs(host, "local x = gb.eye(512)\ny = gb.matmul(x, x)"));
  CHECK(count_threads() > before);
  CHECK(gb_host_get(host, "y", &y) == GB_OK && y.type == GB_VALUE_TENSOR);
  gb_host_close(host);
  CHECK(threads_become(before));
  float *values = gb_tensor_data(y.as.tensor);
  CHECK(values[0] == 1 && values[1] == 0 && values[513] == 1);
  gb_tensor_release(y.as.tensor);
  return check_report();
}
