/* tensor/dlpack.h - the structs of DLPack, ABI version 1, as published (dmlc/dlpack, "DLPack C API"): tensors between
 * libraries, no copy. */
#ifndef GB_TENSOR_DLPACK_H
#define GB_TENSOR_DLPACK_H

#include <stdint.h>

#define GB_DLPACK_MAJOR 1u
#define GB_DLPACK_MINOR 0u
#define GB_DLPACK_READ_ONLY ((uint64_t)1)

enum { GB_DLPACK_CPU = 1 };                                                              /* device_type */
/* code */
enum { GB_DLPACK_INT = 0, GB_DLPACK_UINT = 1, GB_DLPACK_FLOAT = 2, GB_DLPACK_BFLOAT = 4, GB_DLPACK_BOOL = 6 };

typedef struct gb_dlpack_version { uint32_t major, minor; } gb_dlpack_version;
typedef struct gb_dlpack_device { int32_t device_type, device_id; } gb_dlpack_device;
typedef struct gb_dlpack_dtype { uint8_t code, bits; uint16_t lanes; } gb_dlpack_dtype;

typedef struct gb_dlpack_tensor {
  void *data;
  gb_dlpack_device device;
  int32_t ndim;
  gb_dlpack_dtype dtype;
  int64_t *shape;
  int64_t *strides;              /* in elements; NULL: row-major */
  uint64_t byte_offset;
} gb_dlpack_tensor;

/* Tagged as everybody tags it, so that pointers to it need no cast between libraries. */
struct DLManagedTensorVersioned {
  gb_dlpack_version version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  gb_dlpack_tensor dl_tensor;
};

#endif
