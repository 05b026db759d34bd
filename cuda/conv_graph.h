/* cuda/conv_graph.h - the graph of conv.c, so that a test can build it without a device. */
#ifndef GB_CUDA_CONV_GRAPH_H
#define GB_CUDA_CONV_GRAPH_H

#include "cuda/conv.h"
#include "cuda/dnn.h"

/* what: a gb_conv. Of its addresses only bias is read, to see whether it is NULL. */
void gb_conv_graph(gb_dnn_graph *g, const void *what);

#endif
