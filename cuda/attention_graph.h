/* cuda/attention_graph.h - the graphs of attention.c, so that a test can build them without a device. */
#ifndef GB_CUDA_ATTENTION_GRAPH_H
#define GB_CUDA_ATTENTION_GRAPH_H

#include "cuda/attention.h"
#include "cuda/dnn.h"

/* what: a gb_attention. Of its addresses only lse is read, to see whether it is NULL. */
void gb_attention_forward_graph(gb_dnn_graph *g, const void *what);
void gb_attention_backward_graph(gb_dnn_graph *g, const void *what);

#endif
