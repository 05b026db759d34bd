/* cuda/batch_norm_graph.h - the graph of batch_norm.c, so that a test can build it without a device. */
#ifndef GB_CUDA_BATCH_NORM_GRAPH_H
#define GB_CUDA_BATCH_NORM_GRAPH_H

#include "cuda/batch_norm.h"
#include "cuda/dnn.h"

/* what: a gb_batch_norm; its addresses are not read. */
void gb_batch_norm_graph(gb_dnn_graph *g, const void *what);

#endif
