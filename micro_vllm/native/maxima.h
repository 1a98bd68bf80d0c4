// The maximum of each row of logits and the first id that has it, NaN if there is one: of rows in memory, or while they
// are computed, by several threads that have a part of the columns each.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "simd.h"

namespace micro_vllm {

constexpr int64_t kBlock = 1024;  // columns: only so many are looked through once more, for the place

struct Best {
  float score;
  int64_t token;
};

// x[first] .. x[last - 1], whose maximum `top` is not before `begin`. -inf and `first` of none.
inline Best place(const float* x, int64_t first, int64_t last, int64_t begin, float top, bool may_hold_nan) {
  if (may_hold_nan) {
    const float* nan = std::find_if(x + first, x + last, [](float v) { return std::isnan(v); });
    if (nan < x + last) return {*nan, nan - x};
  }
  return {top, std::find(x + begin, x + last, top) - x};
}

// Of x[first] .. x[last - 1].
inline Best first_maximum(const float* x, int64_t first, int64_t last) {
  float top = -INFINITY;
  int64_t begin = first;
  __m512 sum = _mm512_setzero_ps();
  for (int64_t block = first; block < last; block += kBlock) {
    const int64_t stop = std::min(block + kBlock, last);
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (int64_t at = block; at < stop; at += 16) {
      const __mmask16 here = stop - at >= 16 ? 0xffff : (1u << (stop - at)) - 1;
      const __m512 v = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), here, x + at);
      most = _mm512_max_ps(v, most);  // of NaN and another the other
      sum = _mm512_mask_add_ps(sum, here, sum, _mm512_sub_ps(v, v));  // NaN from NaN, and from infinities
    }
    const float its_top = _mm512_reduce_max_ps(most);
    if (its_top > top) {
      top = its_top;
      begin = block;
    }
  }
  return place(x, first, last, begin, top, !(_mm512_reduce_add_ps(sum) == 0));
}

// The same of a row that is being computed, from left to right.
class RunningMaximum {
 public:
  // 32 columns; those from `valid` on do not count.
  void take(int64_t column, __m512 x, __m512 y, int64_t valid) {
    if (column - start_ >= kBlock) settle(column);
    if (column + 32 > valid) {
      x = among(x, valid - column);
      y = among(y, valid - column - 16);
    }
    nan_ |= _mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q);
    most_ = _mm512_max_ps(most_, _mm512_max_ps(x, y));
  }

  // x: the row, of which first .. last - 1 were taken, as far as they count.
  Best result(const float* x, int64_t first, int64_t last) {
    if (last <= first) return {-INFINITY, first};
    settle(last);
    return place(x, first, last, std::max(begin_, first), top_, nan_);
  }

 private:
  static __m512 among(__m512 x, int64_t count) {
    const __mmask16 here = count >= 16 ? 0xffff : count > 0 ? (1u << count) - 1 : 0;
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), here, x);
  }

  void settle(int64_t column) {
    const float its_top = _mm512_reduce_max_ps(most_);
    if (its_top > top_) {
      top_ = its_top;
      begin_ = start_;
    }
    most_ = _mm512_set1_ps(-INFINITY);
    start_ = column;
  }

  __m512 most_ = _mm512_set1_ps(-INFINITY);  // since `start_`
  int64_t start_ = 0, begin_ = 0;
  float top_ = -INFINITY;
  __mmask16 nan_ = 0;
};

// What each of `parts` threads has found in its columns, (N, parts), to what is true of the N rows.
inline void join_maxima(const std::vector<Best>& found, int64_t parts, float* maxima, int64_t* ids) {
  for (size_t row = 0; row * parts < found.size(); ++row) {
    Best best = found[row * parts];
    for (int64_t part = 1; part < parts && !std::isnan(best.score); ++part) {
      const Best& other = found[row * parts + part];
      if (other.score > best.score || std::isnan(other.score)) best = other;
    }
    maxima[row] = best.score;
    ids[row] = best.token;
  }
}

}  // namespace micro_vllm
