/* Built for AVX-512 (F, BW, DQ, VL); run only where the processor has them. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif
#define GRADCENT_F16C 1
#define ENGINE gradcent_engine_avx512
#define ENGINE_NAME "avx512"
#include "engine.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
