// Products with int8 weights: x (M, K) float32 is cut into int8 as well, 64 inputs to a scale, and multiplied exactly.
//
// A weight (N, K) lies as [N / 16][K / 4][16][4]: one vector holds 4 inputs of 16 outputs, the form that vpdpbusd
// takes. That instruction wants one factor unsigned, so weights carry + 128, and what this adds to a product, 128 times
// the sum of a group of x, is taken back: a number for each row and group, where the other way round it would be one for
// each output and group, to be read from memory. Rounding is the only error: products are exact.
// Functions that take a Team are called by all its threads, which share the work and meet at the end (team.h).
#pragma once

#include <algorithm>
#include <cmath>

#include "simd.h"
#include "team.h"

namespace micro_vllm {

constexpr int64_t kGroup = 64;    // inputs that share one scale
constexpr int64_t kColumns = 32;  // outputs of one tile

struct Matrix {
  const uint8_t* data;  // [N / 16][K / 4][16][4], + 128
  const fp16* scale;    // [N / 16][K / 64][16]
  const float* bias;    // (N), or null
  int64_t rows, cols;   // N, K
};

struct Rows {       // quantised activations
  int8_t* data;     // (M, K)
  float* scale;     // (M, K / 64)
  int32_t* offset;  // (M, K / 64): -128 times the sum of a group
};

// Row `row` of `rows`.
inline void quantize_row(const float* x, int64_t k, Rows rows, int64_t row) {
  int8_t* out = rows.data + row * k;
  for (int64_t g = row * (k / kGroup); g < (row + 1) * (k / kGroup); ++g, x += kGroup, out += kGroup) {
    __m512 v[4], top = _mm512_setzero_ps();
    each<4>(EACH(i) {
      v[i] = _mm512_loadu_ps(x + 16 * i);
      top = _mm512_max_ps(top, _mm512_abs_ps(v[i]));
    });
    const float most = _mm512_reduce_max_ps(top);
    const __m512 inverse = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
    __m512i sum = _mm512_setzero_si512();
    each<4>(EACH(i) {
      const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], inverse));
      sum = _mm512_add_epi32(sum, q);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16 * i), _mm512_cvtsepi32_epi8(q));
    });
    rows.scale[g] = most / 127.0f;
    rows.offset[g] = -128 * _mm512_reduce_add_epi32(sum);
  }
}

inline void quantize(Team& team, const float* x, int64_t m, int64_t k, Rows rows) {
  team.prepare(m, [=](int64_t i) { quantize_row(x + i * k, k, rows, i); });
}

// x / sqrt(mean(x^2) + eps) * weight; in place where out == x.
inline void rms_norm(const float* x, const float* weight, int64_t k, float eps, float* out) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < k; i += 16) {
    const __m512 v = _mm512_loadu_ps(x + i);
    sum = _mm512_fmadd_ps(v, v, sum);
  }
  const __m512 r = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(sum) / k + eps));
  for (int64_t i = 0; i < k; i += 16)
    _mm512_storeu_ps(out + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), r), _mm512_loadu_ps(weight + i)));
}

// normed: (M, K) of scratch.
inline void norm_and_quantize(Team& team, const float* x, const float* weight, int64_t m, int64_t k, float eps,
                              float* normed, Rows rows) {
  team.prepare(m, [=](int64_t i) {
    rms_norm(x + i * k, weight, k, eps, normed + i * k);
    quantize_row(normed + i * k, k, rows, i);
  });
}

// MR rows of x times 32 outputs; store(row, column, first 16 outputs, last 16 outputs).
//
// The first rows of a pair also ask for the weights of the next: the processor's own look-ahead ends with a page. They are
// read once a step, so the hint tells the caches not to keep them for long (behind the last pair it asks in vain).
template <int MR, class Store>
inline void tile(const Matrix& w, int64_t pair, Rows x, int64_t row, Store&& store) {
  const int64_t groups = w.cols / kGroup;
  const uint8_t *w0 = w.data + 2 * pair * w.cols * 16, *w1 = w0 + w.cols * 16;
  const uint8_t* next = w0 + kColumns * w.cols;
  const int64_t first = 2 * pair * groups * 16, second = first + groups * 16;
  const int8_t* rows[MR];
  __m512 sum0[MR], sum1[MR];
  each<MR>(EACH(i) {
    rows[i] = x.data + (row + i) * w.cols;
    sum0[i] = sum1[i] = _mm512_setzero_ps();
  });
  for (int64_t g = 0; g < groups; ++g) {
    __m512i dot0[MR], dot1[MR];
    each<MR>(EACH(i) { dot0[i] = dot1[i] = _mm512_set1_epi32(x.offset[(row + i) * groups + g]); });
    for (int64_t k = g * kGroup; k < (g + 1) * kGroup; k += 4) {
      if (row == 0) {
        _mm_prefetch(next + k * kColumns, _MM_HINT_NTA);
        _mm_prefetch(next + k * kColumns + 64, _MM_HINT_NTA);
      }
      const __m512i a0 = _mm512_loadu_si512(w0 + k * 16), a1 = _mm512_loadu_si512(w1 + k * 16);
      each<MR>(EACH(i) {
        const __m512i b = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(rows[i] + k));
        dot_u8s8(dot0[i], a0, b);
        dot_u8s8(dot1[i], a1, b);
      });
    }
    const __m512 scale0 = load_fp16(w.scale + first + 16 * g), scale1 = load_fp16(w.scale + second + 16 * g);
    each<MR>(EACH(i) {
      const __m512 s = _mm512_set1_ps(x.scale[(row + i) * groups + g]);
      sum0[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot0[i]), _mm512_mul_ps(scale0, s), sum0[i]);
      sum1[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot1[i]), _mm512_mul_ps(scale1, s), sum1[i]);
    });
  }
  if (w.bias) {
    const __m512 b0 = _mm512_loadu_ps(w.bias + pair * kColumns), b1 = _mm512_loadu_ps(w.bias + pair * kColumns + 16);
    each<MR>(EACH(i) {
      sum0[i] = _mm512_add_ps(sum0[i], b0);
      sum1[i] = _mm512_add_ps(sum1[i], b1);
    });
  }
  each<MR>(EACH(i) { store(row + i, pair * kColumns, sum0[i], sum1[i]); });
}

// x (M, K) times the weight: store is called once for every row and 32 columns.
template <class Store>
inline void product(Team& team, const Matrix& w, Rows x, int64_t m, Store&& store) {
  team.share(w.rows / kColumns, [&](int64_t pair) {
    int64_t row = 0;
    for (; row + 6 <= m; row += 6) tile<6>(w, pair, x, row, store);
    switch (m - row) {
      case 5: tile<5>(w, pair, x, row, store); break;
      case 4: tile<4>(w, pair, x, row, store); break;
      case 3: tile<3>(w, pair, x, row, store); break;
      case 2: tile<2>(w, pair, x, row, store); break;
      case 1: tile<1>(w, pair, x, row, store); break;
    }
  });
}

}  // namespace micro_vllm
