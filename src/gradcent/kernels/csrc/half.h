/* bfloat16 and float16 to and from float32, a block at a time. Half precision is only ever stored:
 * all arithmetic is in float32 and each value is rounded once, to nearest even. */
#include <string.h>
#if defined(GRADCENT_F16C)
#include <immintrin.h>
#endif

static inline float bits_to_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void widen_bf16(int n, const uint16_t *restrict from, float *restrict to) {
    for (int i = 0; i < n; i++) to[i] = bits_to_float((uint32_t)from[i] << 16);
}

static void narrow_bf16(int n, const float *restrict from, uint16_t *restrict to) {
    for (int i = 0; i < n; i++) {
        uint32_t bits = float_to_bits(from[i]);
        uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        uint32_t is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
        to[i] = (uint16_t)(is_nan ? 0x7fc0u : rounded);
    }
}

/* Portable float16: exact in both directions, subnormals and NaN included. */
static inline float half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, body = half & 0x7fffu;
    /* Put exponent and mantissa where float32 has them; the multiplication by 2^112 corrects the bias and
     * makes subnormals normal on the way. */
    float scaled = bits_to_float(body << 13) * 0x1p112f;
    uint32_t bits = float_to_bits(scaled);
    if (body >= 0x7c00u) bits |= 0x7f800000u; /* infinity and NaN */
    return bits_to_float(bits | sign);
}

static inline uint16_t float_to_half(float value) {
    uint32_t bits = float_to_bits(value), sign = (bits >> 16) & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (bits >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* 65536 and more */
    if (bits < 0x38800000u) {                                   /* below 2^-14: let an addition round */
        float shifted = bits_to_float(bits) + 0.5f;
        return (uint16_t)(sign | (float_to_bits(shifted) - 0x3f000000u));
    }
    bits += 0xc8000fffu + ((bits >> 13) & 1u); /* rebias, then round; a carry may reach infinity */
    return (uint16_t)(sign | (bits >> 13));
}

static void widen_f16(int n, const uint16_t *restrict from, float *restrict to) {
    int i = 0;
#if defined(GRADCENT_F16C)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
#endif
    for (; i < n; i++) to[i] = half_to_float(from[i]);
}

static void narrow_f16(int n, const float *restrict from, uint16_t *restrict to) {
    int i = 0;
#if defined(GRADCENT_F16C)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++) to[i] = float_to_half(from[i]);
}
