/* Built for AVX2 and F16C; run only where the processor has them. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif
#define GRADCENT_F16C 1
#define ENGINE gradcent_engine_avx2
#define ENGINE_NAME "avx2"
#include "engine.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
