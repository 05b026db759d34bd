/* no_driver.c - stands in for libcuda.so.1 where cuDNN prepares plans for a device that is only described.
 *
 * Loading kernels succeeds and gives handles of nothing; every other call of the driver fails. So a plan can be made
 * and nothing can run. */
#define _GNU_SOURCE
#include <dlfcn.h>

enum { SUCCESS, NOT_FOUND = 500, NOT_SUPPORTED = 801, DRIVER = 13000 };

static char nothing[64];

static int fails(void) { return NOT_SUPPORTED; }

/* {==== what succeeds ==== */

int cuInit(unsigned flags);
int cuInit(unsigned flags) {
  (void)flags;
  return SUCCESS;
}

/* One number is asked for. */
#define NUMBER(name, value)   \
  int name(int *out);         \
  int name(int *out) {        \
    *out = (value);           \
    return SUCCESS;           \
  }
NUMBER(cuDriverGetVersion, DRIVER)
NUMBER(cuDeviceGetCount, 1)

/* A handle is asked for, whatever the other arguments: callers clean up the stack. */
#define HANDLE(name)        \
  int name(void **out);     \
  int name(void **out) {    \
    *out = nothing;         \
    return SUCCESS;         \
  }
HANDLE(cuLibraryLoadData)
HANDLE(cuLibraryGetKernel)
HANDLE(cuKernelGetFunction)
HANDLE(cuLibraryGetModule)
HANDLE(cuModuleGetFunction)
HANDLE(cuModuleLoadData)
HANDLE(cuModuleLoadDataEx)

/* The text of an error. */
#define TEXT(name)                            \
  int name(int code, const char **text);      \
  int name(int code, const char **text) {     \
    (void)code;                               \
    *text = "there is no driver";             \
    return SUCCESS;                           \
  }
TEXT(cuGetErrorString)
TEXT(cuGetErrorName)

/* A function by its name. */
int cuGetProcAddress_v2(const char *name, void **out);
int cuGetProcAddress_v2(const char *name, void **out) {
  *out = dlsym(RTLD_DEFAULT, name);
  return *out ? SUCCESS : NOT_FOUND;
}

int cuGetProcAddress(const char *name, void **out);
int cuGetProcAddress(const char *name, void **out) { return cuGetProcAddress_v2(name, out); }

/* ====} */

/* What is looked for by name, and fails. */
#define FAILS(name) \
  int name(void);   \
  int name(void) { return fails(); }
FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuCtxSetCurrent)
FAILS(cuStreamGetCtx)
FAILS(cuLinkCreate)
FAILS(cuLinkAddData)
FAILS(cuLinkComplete)
FAILS(cuLinkDestroy)
FAILS(cuLaunchKernel)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuDeviceGet)
FAILS(cuLibraryLoadFromFile)
FAILS(cuLibraryUnload)
FAILS(cuKernelSetAttribute)
FAILS(cuKernelGetAttribute)
FAILS(cuOccupancyMaxPotentialClusterSize)
FAILS(cuCtxGetDevice)
FAILS(cuDeviceGetAttribute)
FAILS(cuDevicePrimaryCtxRelease)
FAILS(cuDevicePrimaryCtxReset)
FAILS(cuDevicePrimaryCtxRetain)
FAILS(cuFuncGetAttribute)
FAILS(cuFuncSetAttribute)
FAILS(cuGetExportTable)
FAILS(cuLinkAddData_v2)
FAILS(cuLinkAddFile_v2)
FAILS(cuLinkCreate_v2)
FAILS(cuMemcpyDtoH_v2)
FAILS(cuModuleGetGlobal_v2)
FAILS(cuModuleLoadFatBinary)
FAILS(cuModuleUnload)
FAILS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
FAILS(cuStreamSynchronize)
FAILS(cuTensorMapEncodeTiled)
