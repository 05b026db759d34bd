/* io/npy.h - arrays as NumPy writes them: one in a .npy file (numpy.lib.format, versions 1 to 3), several by name in a
 * .npz archive.
 *
 * Reading gives contiguous tensors on the CPU, whatever the order of bytes and dimensions in the file: unsigned 16-bit
 * integers become int32, 32-bit and 64-bit ones int64. Objects (pickles), structures, text, dates and complex numbers
 * are refused; no file can make the runtime run code. A header is checked against the size of the file before memory is
 * taken. Writing gives what numpy.load reads. */
#ifndef GB_IO_NPY_H
#define GB_IO_NPY_H

#include "io/zip.h"
#include "tensor/tensor.h"

gb_status gb_npy_load(gb_context *context, const char *path, gb_tensor **out);
/* Of any strides and device; the file appears whole or not at all. NumPy has no bfloat16. */
gb_status gb_npy_save(gb_context *context, const char *path, gb_tensor *tensor);

/* The array of a member. */
gb_status gb_npy_load_member(gb_context *context, const char *path, gb_zip *zip, int64_t i, gb_tensor **out);
/* names are without ".npy" and different. */
gb_status gb_npz_save(gb_context *context, const char *path, const char *const *names, gb_tensor *const *tensors,
                      int64_t count);

#endif
