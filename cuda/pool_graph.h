/* cuda/pool_graph.h - the graph of pool.c, so that a test can build it without a device. */
#ifndef GB_CUDA_POOL_GRAPH_H
#define GB_CUDA_POOL_GRAPH_H

#include "cuda/dnn.h"
#include "cuda/pool.h"

/* what: a gb_pool; its addresses are not read. */
void gb_pool_graph(gb_dnn_graph *g, const void *what);

#endif
