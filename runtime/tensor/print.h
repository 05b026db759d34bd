/* tensor/print.h - the text of a tensor, as PyTorch prints it. */
#ifndef GB_TENSOR_PRINT_H
#define GB_TENSOR_PRINT_H

#include "tensor/tensor.h"

typedef enum gb_scientific { GB_SCIENTIFIC_AUTO, GB_SCIENTIFIC_NEVER, GB_SCIENTIFIC_ALWAYS } gb_scientific;

typedef struct gb_print_options {
  int precision;            /* digits after the point: 4 */
  int64_t threshold;        /* with more elements a tensor is summarised: 1000 */
  int64_t edge_items;       /* shown at each end of a dimension then: 3 */
  int line_width;           /* 80 */
  gb_scientific scientific; /* AUTO: where the values spread too far for fixed digits */
} gb_print_options;

void gb_print_options_init(gb_print_options *options);

/* "tensor([[1., 2.],\n        [3., 4.]], dtype=float16)": the caller frees *out. options NULL: the usual ones. Reads
 * only what it
 * prints. */
gb_status gb_tensor_text(gb_tensor *tensor, const gb_print_options *options, char **out);

#endif
