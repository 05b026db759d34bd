/* fake_nvidia.c - stands in for NVIDIA's driver and libraries where the doctor asks them for versions. Under each of
 * their names a link to this one library is put; numbers come from the environment. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int *out);
int cuDeviceGetCount(int *out);
int cuGetErrorString(int code, const char **out);
int cuDeviceGet(int *out, int index);
int cuDeviceGetName(char *out, int size, int device);
int cuDeviceTotalMem_v2(size_t *out, int device);
int cuDeviceGetAttribute(int *out, int attribute, int device);
int cudaRuntimeGetVersion(int *out);
int cusolverGetVersion(int *out);
int ncclGetVersion(int *out);
size_t cublasLtGetVersion(void);
size_t cudnnGetVersion(void);

/* A number from the environment. */
static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

int cuInit(unsigned flags) { return number("FAKE_INIT", (int)flags); }
int cuGetErrorString(int code, const char **out) { return *out = code == 803 ? "system has unsupported display "
                                                                               "driver / cuda driver combination"
    : NULL, 0; }
int cuDriverGetVersion(int *out) { return *out = number("FAKE_DRIVER", 12040), 0; }
int cuDeviceGetCount(int *out) { return *out = number("FAKE_DEVICES", 1), number("FAKE_COUNT", 0); }
int cuDeviceGet(int *out, int index) { return *out = index, 0; }
int cuDeviceGetName(char *out, int size, int device) { return snprintf(out, (size_t)size, "Fake %d", device), 0; }
int cuDeviceTotalMem_v2(size_t *out, int device) { return *out = (size_t)(device + 8) << 30, 0; }
int cuDeviceGetAttribute(int *out, int attribute, int device) {
  int capability = number("FAKE_CAPABILITY", 90);
  (void)device;
  return *out = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : 0, 0;
}
int cudaRuntimeGetVersion(int *out) { return *out = number("FAKE_RUNTIME", 12040), 0; }
int cusolverGetVersion(int *out) { return *out = 11604, 0; }
int ncclGetVersion(int *out) { return *out = 22005, 0; }
size_t cublasLtGetVersion(void) { return (size_t)number("FAKE_CUBLAS", 120403); }
size_t cudnnGetVersion(void) { return (size_t)number("FAKE_CUDNN", 90100); }
