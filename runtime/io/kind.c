/* io/kind.c - a table of first bytes. See kind.h. A row is here because people hand such a file to a loader of weights,
 * or because a download that failed looks so. */
#include "io/kind.h"

#include <stdbool.h>
#include <string.h>

#define SAVE "save a dict of tensors by safetensors.torch.save_file"
#define IMAGE "open it in Python (PIL), and " SAVE

/* The bytes of `first` begin the file. They may begin a safetensors file too, as the length of its header: ask only
 * when it is none. */
static const struct { const char *first; size_t size; gb_kind kind; } kinds[] = {
#define BEGINS(text) text, sizeof text - 1
  { BEGINS("PK\3\4"), { "a zip archive, as torch.save (.pt, .pth, .bin) and numpy.savez (.npz) write",
                        "load it in Python, by torch.load(path, weights_only=True) or numpy.load, and " SAVE } },
  { BEGINS("PK\5\6"), { "an empty zip archive", "look where it came from" } },
  { BEGINS("\200\2"), { "a Python pickle, as torch.save (.pt, .pth) wrote before PyTorch 1.6",
                        "load it in Python, by torch.load(path, weights_only=True), and " SAVE } },
  { BEGINS("\200\3"), { "a Python pickle", "load it in Python, by torch.load or pickle.load, and " SAVE } },
  { BEGINS("\200\4"), { "a Python pickle", "load it in Python, by torch.load or pickle.load, and " SAVE } },
  { BEGINS("\200\5"), { "a Python pickle", "load it in Python, by torch.load or pickle.load, and " SAVE } },
  { BEGINS("\223NUMPY"), { "a NumPy array (.npy)", "load it in Python, by numpy.load, and save a dict of arrays by "
                                                   "safetensors.numpy.save_file" } },
  { BEGINS("GGUF"), { "a GGUF model", "read it in Python with the package gguf, which dequantizes, and " SAVE } },
  { BEGINS("\211HDF\r\n\032\n"), { "an HDF5 file, as Keras writes (.h5)", "read it in Python with h5py, and save a "
                                                                          "dict of arrays by "
                                                                           "safetensors.numpy.save_file" } },
  { BEGINS("\037\213"), { "a gzip file", "unpack it with gunzip; gb.data.idx reads packed IDX files as they are" } },
  { BEGINS("BZh"), { "a bzip2 file", "unpack it with bunzip2" } },
  { BEGINS("\3757zXZ"), { "an xz file", "unpack it with unxz" } },
  { BEGINS("(\265/\375"), { "a Zstandard file", "unpack it with unzstd" } },
  { BEGINS("\211PNG\r\n\032\n"), { "a PNG image", IMAGE } },
  { BEGINS("\377\330\377"), { "a JPEG image", IMAGE } },
  { BEGINS("GIF8"), { "a GIF image", IMAGE } },
  { BEGINS("%PDF-"), { "a PDF document", "look where it came from" } },
  { BEGINS("\0\0\10\1"), { "an IDX file of labels, as MNIST has", "gb.data.idx and gb.data.mnist read it" } },
  { BEGINS("\0\0\10\3"), { "an IDX file of images, as MNIST has", "gb.data.idx and gb.data.mnist read it" } },
  { BEGINS("PAR1"), { "a Parquet table", "read it in Python with pandas, and save a dict of arrays by "
                                         "safetensors.numpy.save_file" } },
  { BEGINS("ARROW1"), { "an Arrow table", "read it in Python with pyarrow, and save a dict of arrays by "
                                          "safetensors.numpy.save_file" } },
  { BEGINS("version https://"), { "what Git LFS keeps in the place of a large file",
                                  "fetch the file itself: git lfs pull" } },
  { BEGINS("<!DOCTYPE"),
    { "a page of HTML", "the download failed, or the address was that of the page about the file" } },
  { BEGINS("<!doctype"),
    { "a page of HTML", "the download failed, or the address was that of the page about the file" } },
  { BEGINS("<html"), { "a page of HTML", "the download failed, or the address was that of the page about the file" } },
#undef BEGINS
};

const gb_kind *gb_kind_of(const unsigned char *bytes, size_t size) {
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (kinds[i].size <= size && !memcmp(kinds[i].first, bytes, kinds[i].size)) return &kinds[i].kind;
  return NULL;
}
