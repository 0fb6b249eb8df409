// HB_HD marks a function that the host and, under nvcc, the device may call.
#pragma once

#ifdef __CUDACC__
#define HB_HD __host__ __device__
#else
#define HB_HD
#endif
