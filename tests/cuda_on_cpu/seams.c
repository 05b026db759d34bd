/* seams.c - stands in for what cuBLASLt, cuDNN and CUB do: the CPU backend's kernel runs on the same tensors, whose memory is host memory. */
#include "cuda/cuda.h"
#include "machine.h"

/* The op by the CPU backend of the same context. */
static gb_status on_cpu(gb_cuda_call *call) {
  gb_machine_enter();
  gb_status status = call->call->context->backend[GB_CPU]->run[call->op](call->call);
  gb_machine_leave();
  return status;
}

#define ON_CPU(name) { GB_OP_##name, on_cpu, true }
#define END { GB_OP_COUNT, NULL, false }

const gb_cuda_row gb_cuda_sdpa[] = { ON_CPU(scaled_dot_product_attention), ON_CPU(scaled_dot_product_attention_backward), ON_CPU(topk), ON_CPU(sort),
                                     ON_CPU(linear_cross_entropy), END };
