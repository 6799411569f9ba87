/* What every machine of this architecture can run: SSE2 on x86-64, NEON on 64-bit ARM. */
#define ENGINE gradcent_engine_baseline
#if defined(__x86_64__)
#define ENGINE_NAME "sse2"
#elif defined(__aarch64__)
#define ENGINE_NAME "neon"
#else
#define ENGINE_NAME "baseline"
#endif
#include "engine.h"
