// Noise that depends on (seed, output index, token id) and on nothing else: see sampling/noise.py.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace micro_vllm {

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15, kMix1 = 0xBF58476D1CE4E5B9, kMix2 = 0x94D049BB133111EB;
constexpr float kSmallest = 0x1p-64f, kLargest = 1.0f - 0x1p-24f;

inline uint64_t mix(uint64_t x) {  // SplitMix64's finaliser
  x = (x ^ (x >> 30)) * kMix1;
  x = (x ^ (x >> 27)) * kMix2;
  return x ^ (x >> 31);
}

inline __m512i mix_but_last(__m512i x) {
  x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 30)), _mm512_set1_epi64(kMix1));
  return _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 27)), _mm512_set1_epi64(kMix2));
}

// What the uniform variates of sixteen tokens, times 2^31, are not below: whole numbers without sign. The last step of
// mixing changes none of the bits that are looked at.
inline __m512i least_uniform(__m512i first_eight, __m512i last_eight) {
  const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  const __m512i upper = _mm512_permutex2var_epi32(mix_but_last(first_eight), odd, mix_but_last(last_eight));
  return _mm512_and_si512(upper, _mm512_set1_epi32(0x7ffffffe));
}

inline uint64_t key_of(int64_t seed, int64_t output_index) { return mix(mix(seed + kGamma) + (output_index + 1) * kGamma); }

inline float uniform(uint64_t key, int64_t token) {
  const uint64_t bits = mix(key + (token + 1) * kGamma) & INT64_MAX;
  return std::min(std::max(static_cast<float>(bits) * 0x1p-63f, kSmallest), kLargest);
}

inline float gumbel(float uniform) { return -std::log(-std::log1p(-uniform)); }

}  // namespace micro_vllm
