/* cuda/conv_graph.h - the graph of conv.c, so that a test can build it without a device. */
#ifndef GB_CUDA_CONV_GRAPH_H
#define GB_CUDA_CONV_GRAPH_H

#include "cuda/conv.h"
#include "cuda/dnn.h"

/* what: a gb_conv, of which no address is looked at but whether bias is NULL. */
void gb_conv_graph(gb_dnn_graph *g, const void *what);

#endif
