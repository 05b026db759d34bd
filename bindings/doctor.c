/* doctor.c - what gb.doctor asks of the machine that Lua cannot: versions of libraries, which are opened for that
 * alone, and CUDA's devices.
 *
 * No header of theirs is used: the functions are few, and have kept their types since the first version that is looked
 * for. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "binding.h"
#include "cpu/conv_onednn.h"
#include "cpu/cpu.h"

/* How a library is asked for its version. */
typedef enum asking { INT_OUT, SIZE_RETURNED } asking;
typedef struct library { const char *key, *function; asking how; const char *files[4]; } library;

static const library libraries[] = {
  { "cudart", "cudaRuntimeGetVersion", INT_OUT, { "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", NULL } },
  { "cublaslt", "cublasLtGetVersion", SIZE_RETURNED,
    { "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11", NULL } },
  { "cusolver", "cusolverGetVersion", INT_OUT, { "libcusolver.so.12", "libcusolver.so.11", NULL } },
  { "cudnn", "cudnnGetVersion", SIZE_RETURNED, { "libcudnn.so.9", "libcudnn.so.8", NULL } },
  { "nccl", "ncclGetVersion", INT_OUT, { "libnccl.so.2", NULL } },
};

/* The address of a function in a handle, as whatever pointer `out` points to; false: there is none. */
static bool find(void *handle, const char *name, void *out) { return (*(void **)out = dlsym(handle, name)) != NULL; }

/* The version that the library in this file gives, or 0. */
static int64_t ask_file(const library *l, const char *file) {
  int64_t version = 0;
  int (*by_out)(int *), number = 0;
  size_t (*by_return)(void);
  void *handle = dlopen(file, RTLD_LAZY | RTLD_LOCAL);
  if (!handle) return 0;
  if (l->how == INT_OUT && find(handle, l->function, &by_out) && by_out(&number) == 0) version = number;
  if (l->how == SIZE_RETURNED && find(handle, l->function, &by_return)) version = (int64_t)by_return();
  dlclose(handle);
  return version;
}

/* The version of the newest file whose number is at most `most`; of the newest one where there is none; or 0. */
static int64_t ask(const library *l, long most) {
  int64_t version = 0;
  for (int any = 0; any < 2; any++)
    for (const char *const *file = l->files; *file && !version; file++)
      if (any || strtol(strstr(*file, ".so.") + 4, NULL, 10) <= most) version = ask_file(l, *file);
  return version;
}

/* The version of oneDNN; or nil and why it does not serve, nil where the build has no part for it. */
static int push_onednn(lua_State *L) {
  const char *why = NULL;
  lua_pushstring(L, gb_onednn_version(&why));
  lua_pushstring(L, why);
  return 2;
}

/* onednn_trouble(): why convolutions went without oneDNN, or nothing. */
static int onednn_trouble(lua_State *L) { return lua_pushstring(L, gb_onednn_trouble()), 1; }

/* One of CUDA's devices: { name, memory, major, minor }. */
static void push_device(lua_State *L, void *driver, int index) {
  int (*get)(int *, int), (*name)(char *, int, int), (*bytes)(size_t *, int), (*attribute)(int *, int, int);
  enum { MAJOR = 75, MINOR = 76 };
  char text[128] = "unknown";
  size_t memory = 0;
  int device = 0, major = 0, minor = 0;
  if (find(driver, "cuDeviceGet", &get) && get(&device, index) == 0) {
    if (find(driver, "cuDeviceGetName", &name)) name(text, sizeof text, device);
    if (find(driver, "cuDeviceTotalMem_v2", &bytes)) bytes(&memory, device);
    if (find(driver, "cuDeviceGetAttribute", &attribute))
      attribute(&major, MAJOR, device), attribute(&minor, MINOR, device);
  }
  lua_createtable(L, 0, 4);
  lua_pushstring(L, text), gbl_set_raw(L, -2, "name");
  lua_pushinteger(L, (lua_Integer)memory), gbl_set_raw(L, -2, "memory");
  lua_pushinteger(L, major), gbl_set_raw(L, -2, "major");
  lua_pushinteger(L, minor), gbl_set_raw(L, -2, "minor");
}

/* Push what the driver says of an error code. */
static void push_reason(lua_State *L, void *driver, int code) {
  int (*text_of)(int, const char **);
  const char *text = NULL;
  if (find(driver, "cuGetErrorString", &text_of)) text_of(code, &text);
  lua_pushfstring(L, "error %d%s%s", code, text ? ", " : "", text ? text : "");
}

/* The driver's version, the list of devices, and why there are none if the driver says; nothing where there is no
 * driver. It stays open: it does not like to be closed. */
static int push_driver(lua_State *L) {
  int (*version)(int *), (*init)(unsigned), (*count)(int *);
  int number = 0, devices = 0, code = 0;
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (!driver || !find(driver, "cuDriverGetVersion", &version) || version(&number) != 0) return 0;
  if (find(driver, "cuInit", &init) && (code = init(0)) == 0 && find(driver, "cuDeviceGetCount", &count) &&
      (code = count(&devices)) != 0) devices = 0;
  lua_pushinteger(L, number);
  lua_newtable(L);
  for (int i = 0; i < devices; i++) {
    push_device(L, driver, i);
    lua_rawseti(L, -2, i + 1);
  }
  if (code == 0) return 2;
  push_reason(L, driver, code);
  return 3;
}

/* library(key, most): the version of a library that can be opened, or nothing; of several that of CUDA `most` at the
 * latest, if there is one. */
static int library_version(lua_State *L) {
  static const char *const others[] = { "driver", "onednn", "cudart", "cublaslt", "cusolver", "cudnn", "nccl", NULL };
  int which = luaL_checkoption(L, 1, NULL, others);
  if (which == 0) return push_driver(L);
  if (which == 1) return push_onednn(L);
  int64_t version = ask(&libraries[which - 2], (long)luaL_optinteger(L, 2, INT16_MAX));
  if (!version) return 0;
  lua_pushinteger(L, version);
  return 1;
}

/* engine(): { level, cores }. */
static int engine(lua_State *L) {
  const gb_context *context = gbl_context(L);
  lua_createtable(L, 0, 2);
  lua_pushstring(L, gb_cpu(context)->level), gbl_set_raw(L, -2, "level");
  lua_pushinteger(L, sysconf(_SC_NPROCESSORS_ONLN)), gbl_set_raw(L, -2, "cores");
  return 1;
}

void gbl_open_doctor(lua_State *L) {
  static const luaL_Reg functions[] = { { "library", library_version }, { "engine", engine },
                                         { "onednn_trouble", onednn_trouble }, { NULL, NULL } };
  gbl_push_module(L, "_native");
  gbl_set_functions(L, functions);
  lua_pop(L, 1);
}
