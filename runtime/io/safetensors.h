/* io/safetensors.h - named tensors and string metadata in one file (https://github.com/huggingface/safetensors, README,
 * "Format").
 *
 * An unsigned 64-bit length, that many bytes of JSON, then the tensors: row-major, little-endian, sorted, without
 * holes. The reader trusts nothing: whatever breaks the format is GB_EFORMAT before any tensor is made, and it reads,
 * never maps. Tensors that share storage are for the caller to name once. A dtype of the format that the engine does
 * not have can be listed, not loaded. */
#ifndef GB_IO_SAFETENSORS_H
#define GB_IO_SAFETENSORS_H

#include "tensor/context.h"
#include "tensor/tensor.h"

typedef struct gb_safetensors gb_safetensors;

/* Write tensors of any strides and devices, and metadata, to path (atomically: io/file.h). Names, keys and values are
 * UTF-8; names and keys are different among themselves. */
gb_status gb_safetensors_save(gb_context *context, const char *path, const char *const *names,
                              gb_tensor *const *tensors, int64_t count,
                              const char *const *keys, const char *const *values, int64_t metadata_count);

gb_status gb_safetensors_open(gb_context *context, const char *path, gb_safetensors **out);
void gb_safetensors_close(gb_safetensors *file);                       /* NULL is fine */

/* Tensors are listed in the order of the file, from 0. */
int64_t gb_safetensors_count(const gb_safetensors *file);
const char *gb_safetensors_name(const gb_safetensors *file, int64_t i);
const char *gb_safetensors_dtype_name(const gb_safetensors *file, int64_t i); /* the file's: "F32" */
gb_dtype gb_safetensors_dtype(const gb_safetensors *file, int64_t i);  /* GB_DTYPE_NONE: the engine has no such dtype */
const int64_t *gb_safetensors_shape(const gb_safetensors *file, int64_t i, int *ndim);
int64_t gb_safetensors_find(const gb_safetensors *file, const char *name); /* -1: there is none */
/* Read one tensor into a new one on the CPU. */
gb_status gb_safetensors_load(gb_safetensors *file, int64_t i, gb_tensor **out);

int64_t gb_safetensors_metadata_count(const gb_safetensors *file);
const char *gb_safetensors_metadata_key(const gb_safetensors *file, int64_t i);
const char *gb_safetensors_metadata_value(const gb_safetensors *file, int64_t i);
/* The value of a key, or NULL. */
const char *gb_safetensors_metadata(const gb_safetensors *file, const char *key);

#endif
