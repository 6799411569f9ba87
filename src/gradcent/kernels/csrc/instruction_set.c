/* The instruction set: one source (engine.h) compiled for several, chosen when the module is first used. */
#include <string.h>

#include "gradcent.h"

static const engine_t *chosen;

static int runs_here(const engine_t *engine) {
#if defined(__x86_64__)
    if (engine == &gradcent_engine_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx2");
    /* Every processor with AVX2 has F16C, which older compilers cannot test for. */
    if (engine == &gradcent_engine_avx2) return __builtin_cpu_supports("avx2");
#endif
    return engine == &gradcent_engine_baseline;
}

int gradcent_choose_engine(const char *name) {
    const engine_t *all[] = {
#if defined(__x86_64__)
        &gradcent_engine_avx512, &gradcent_engine_avx2,
#endif
        &gradcent_engine_baseline,
    };
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if ((!name || !strcmp(name, all[k]->name)) && runs_here(all[k])) {
            chosen = all[k];
            return 0;
        }
    return -1;
}

const engine_t *gradcent_engine(void) {
    if (!chosen) gradcent_choose_engine(NULL);
    return chosen;
}
