/* plugin.c - opens backends at run time: shared libraries that export gb_backend_open (tensor/backend.h). The CUDA
 * backend is looked for when somebody asks for its device, that of MPI when a job of processes is joined: in the
 * folders that the context was opened with, beside the executable, and in lib/gibbous of the tree that the executable
 * or the library was installed in, wherever that tree was moved to. */
#define _GNU_SOURCE /* dladdr */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph/ops.h"
#include "tensor/context.h"

#define CUDA_PLUGIN "gibbous_cuda.so"

static const char *op_name(int op) {
  static const char *const names[GB_OP_COUNT] = {
#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc) #name,
#include "graph/ops.def"
  };
  return op >= 0 && op < GB_OP_COUNT ? names[op] : NULL;
}

static void free_block(gb_context *context, gb_device device,
                       gb_block *block) { gb_pool_free(gb_context_pool(context, device), block); }

/* Ask the plugin's entrance for a device's table. */
static gb_status open_plugin(gb_context *context, void *handle, const char *path, gb_backend *backend) {
  static const gb_engine_table engine = { sizeof engine, gb_op_table_hash, op_name, gb_fail, gb_dtype_bytes,
                                          gb_result_type, gb_context_alloc, free_block,
                                          gb_block_data };
  gb_backend_open_fn open;
  *(void **)&open = dlsym(handle, "gb_backend_open");
  if (!open) return gb_fail(context, GB_EDEVICE, "%s is not a backend: it does not export gb_backend_open", path);
  backend->context = context;
  gb_status status = open(&engine, GB_BACKEND_ABI, backend);
  if (status == GB_EDEVICE) return status; /* the plugin has said why */
  if (status != GB_OK)
    return gb_fail(context, status, "%s is not available: %s (engine ABI %u)", path, gb_status_text(status),
                   GB_BACKEND_ABI);
  if (!backend->name || !backend->alloc || !backend->free || !backend->read || !backend->write)
    return gb_fail(context, GB_EDEVICE, "%s is not a backend: its table lacks a name or memory", path);
  return GB_OK;
}

static void close_backend(gb_backend *backend) {
  if (backend->close) backend->close(backend->state);
  free(backend);
}

/* Put an open backend and its pool into their slot; the context owns the backend from now on. */
static gb_status install(gb_context *context, int slot, gb_backend *backend) {
  context->backend[slot] = backend;
  context->pool[slot] = gb_pool_open(backend->alloc, backend->free, backend->state, &context->budget);
  if (context->pool[slot]) {
    if (!context->ranges && backend->range_push && backend->range_pop) context->ranges = backend;
    return GB_OK;
  }
  context->backend[slot] = NULL; /* a device without a pool is none */
  close_backend(backend);
  return gb_fail_memory(context, 0);
}

/* Open a plugin with its device of that number, and keep both. */
static gb_status load(gb_context *context, const char *path, int index) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!handle) return gb_fail(context, GB_EDEVICE, "cannot open the backend: %s", dlerror());
  gb_backend *backend = calloc(1, sizeof *backend);
  if (backend) backend->index = index;
  gb_status status = backend ? open_plugin(context, handle, path, backend) : gb_fail_memory(context, sizeof *backend);
  if (status != GB_OK) {
    free(backend);
    dlclose(handle);
    return status;
  }
  bool is_cuda = !strcmp(backend->name, "cuda");
  gb_device device = { is_cuda ? GB_CUDA : GB_PLUGIN, (int16_t)(is_cuda ? index : 0) };
  int there = backend->devices > 1 ? backend->devices : 1;
  if (context->plugin[device.type]) {
    status = gb_fail(context, GB_ESTATE, "a backend for '%s' is loaded already", backend->name);
    close_backend(backend);
  } else status = install(context, gb_device_slot(device), backend);
  if (status == GB_OK) context->plugin[device.type] = handle, context->devices[device.type] = there;
  else dlclose(handle);
  return status;
}

gb_status gb_context_load_backend(gb_context *context, const char *path) {
  if (!context || !path) return gb_refuse(context, "load_backend: path is NULL");
  return load(context, path, 0);
}

gb_status gb_context_open_device(gb_context *context, gb_device device) {
  if (!gb_is_device(device))
    return gb_fail(context, GB_EDEVICE, "the device number is too large: there are at most %d devices of a kind",
                   GB_DEVICES_MOST);
  if (gb_context_backend(context, device)) return GB_OK;
  gb_backend *backend = calloc(1, sizeof *backend);
  if (!backend) return gb_fail_memory(context, sizeof *backend);
  backend->index = device.index;
  gb_status status = open_plugin(context, context->plugin[device.type], CUDA_PLUGIN, backend);
  if (status == GB_OK) return install(context, gb_device_slot(device), backend);
  free(backend);
  return status;
}

/* {==== Looking for a plugin ==== */

/* "folder/name" if it is there. */
static bool is_in(const char *folder, size_t length, const char *name, char *path, size_t size) {
  int used = snprintf(path, size, "%.*s/%s", (int)length, folder, name);
  return length > 0 && used > 0 && (size_t)used < size && access(path, R_OK) == 0;
}

/* In one of the folders that `steps` (a list that ends with NULL) lead to from the folder of `file`, a full path. */
static bool is_near(const char *file, const char *const *steps, const char *name, char *path, size_t size) {
  char folder[4096];
  const char *slash = strrchr(file, '/');
  if (*file != '/') return false;
  for (; *steps; steps++) {
    int used = snprintf(folder, sizeof folder, "%.*s%s", (int)(slash - file), file, *steps);
    if (used > 0 && (size_t)used < sizeof folder && is_in(folder, (size_t)used, name, path, size)) return true;
  }
  return false;
}

/* Beside the executable, and in lib/gibbous of the tree that it was installed in. */
static bool is_near_executable(const char *name, char *path, size_t size) {
  static const char *const steps[] = { "", "/../lib/gibbous", NULL };
  char self[4096];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length <= 0) return false;
  self[length] = 0;
  return is_near(self, steps, name, path, size);
}

/* The same for an engine inside a shared library: lib/libgibbous.so, with or without a folder for the architecture, or
 * lib/lua/5.4/gibbous.so. */
static bool is_near_library(const char *name, char *path, size_t size) {
  static const char *const steps[] = { "/gibbous", "/../gibbous", "/../../gibbous", NULL };
  static const char here = 0; /* an address of ours */
  Dl_info library;
  return dladdr(&here, &library) && library.dli_fname && is_near(library.dli_fname, steps, name, path, size);
}

bool gb_plugin_find(const gb_context *context, const char *name, char *path, size_t size) {
  for (const char *at = context->plugin_folders; at && *at;) {
    size_t length = strcspn(at, ":");
    if (is_in(at, length, name, path, size)) return true;
    at += length + (at[length] == ':');
  }
  return is_near_executable(name, path, size) || is_near_library(name, path, size);
}

/* Open the CUDA backend, or keep the reason why not. The failure is not an error of the caller. */
static void open_cuda(gb_context *context) {
  char path[4096];
  gb_failure before;
  gb_failure_keep(context, &before);
  const char *op = context->op;
  context->op = NULL;
  if (!gb_plugin_find(context, CUDA_PLUGIN, path, sizeof path))
    context->no_cuda = strdup("the CUDA backend (" CUDA_PLUGIN ") is not installed");
  else {
    gb_device own = gb_context_own_cuda(context);
    gb_status status = gb_is_device(own) ? load(context, path, own.index) : GB_EDEVICE;
    /* there may be fewer, which whoever names a device is told */
    if (status == GB_EDEVICE && context->own_cuda) status = load(context, path, 0);
    /* memory may be there the next time */
    if (status != GB_OK && status != GB_EMEMORY) context->no_cuda = strdup(context->error);
  }
  context->op = op;
  gb_failure_bring_back(context, &before);
}

bool gb_context_has_device(gb_context *context, int type, const char **why) {
  if (type == GB_CUDA && !context->plugin[type] && !context->no_cuda) open_cuda(context);
  *why = type != GB_CUDA ? "no plugin of that name is loaded" : context->no_cuda ? context->no_cuda : "out of memory";
  return type == GB_CPU || context->plugin[type] != NULL;
}

/* ====} */
