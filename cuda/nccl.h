/* cuda/nccl.h - what is used of libnccl.so.2, declared here: it is opened at run time, and its headers are not needed
 * to build. Names and values are those of NCCL 2.14 and later, which keep them. */
#ifndef GB_CUDA_NCCL_H
#define GB_CUDA_NCCL_H

#include "cuda/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclComm *ncclComm_t;
typedef struct ncclUniqueId { char internal[128]; } ncclUniqueId;
typedef enum ncclResult_t { ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclInternalError,
                            ncclInvalidArgument, ncclInvalidUsage, ncclRemoteError, ncclInProgress } ncclResult_t;
typedef enum ncclDataType_t { ncclUint8 = 1, ncclInt64 = 4, ncclFloat32 = 7, ncclFloat64 = 8 } ncclDataType_t;
typedef enum ncclRedOp_t { ncclSum } ncclRedOp_t;

/* As version 2.14 had it: later ones take what is not there as not given. blocking 0: calls return at once. */
typedef struct ncclConfig_t { size_t size; unsigned int magic, version; int blocking; } ncclConfig_t;
enum { GB_NCCL_LEAST = 21400 };
#define GB_NCCL_CONFIG { sizeof(ncclConfig_t), 0xcafebeefu, GB_NCCL_LEAST, 0 }

/* {result name(arguments)}; a communicator's functions are of one device. */
#define GB_NCCL_FUNCTIONS(X)                                                                                         \
  X(ncclResult_t, GetVersion, (int *version))                                                                        \
  X(const char *, GetErrorString, (ncclResult_t result))                                                             \
  X(const char *, GetLastError, (ncclComm_t comm))                                                                   \
  X(ncclResult_t, GetUniqueId, (ncclUniqueId *id))                                                                   \
  X(ncclResult_t, CommInitRankConfig, (ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)) \
  X(ncclResult_t, CommGetAsyncError, (ncclComm_t comm, ncclResult_t *state))                                         \
  X(ncclResult_t, CommFinalize, (ncclComm_t comm))                                                                   \
  X(ncclResult_t, CommDestroy, (ncclComm_t comm))                                                                    \
  X(ncclResult_t, CommAbort, (ncclComm_t comm))                                                                      \
  X(ncclResult_t, GroupStart, (void))                                                                                \
  X(ncclResult_t, GroupEnd, (void))                                                                                  \
  X(ncclResult_t, Send, (const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,             \
                         gb_stream stream))                                                                          \
  X(ncclResult_t, Recv, (void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,                   \
                         gb_stream stream))                                                                          \
  X(ncclResult_t, AllReduce, (const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,         \
                              ncclComm_t comm, gb_stream stream))

#ifdef __cplusplus
}
#endif
#endif
