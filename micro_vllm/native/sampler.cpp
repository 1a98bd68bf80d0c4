// What drawing a token needs of whole rows of logits: their maxima, a draw, and log-probabilities.
//
// A draw is one from softmax(logits / temperature), by the race that sampling/noise.py describes: every token's score is
// its logit plus noise that a hash of (seed, output index, token id) gives, and the highest score wins.
//
// Most tokens are out of the race before their noise is known to the last digit: a token that is t below the best score
// so far needs an exponential variate below e^-t, and that is never below its uniform one. So thirty bits of the hash are
// made for all and compared with a power of two above e^-t; the rest, and two logarithms, for a handful. The race begins
// with the likeliest token, which makes the handful small.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "draws.h"
#include "maxima.h"
#include "noise.h"
#include "simd.h"

using namespace micro_vllm;

struct Listing {  // n of N rows
  const float* logits;
  int64_t stride, vocabulary, valid;  // ids from `valid` on only count in the sum
  const int64_t *rows, *sampled;      // (n), (N)
  int64_t count, most;                // most: how many of the likeliest are listed
};

namespace {

struct Race {
  const float* logits;
  float top, temperature;  // logit of the likeliest token
  uint64_t key;

  float scaled(int64_t token) const { return (logits[token] - top) / temperature; }

  void enter(int64_t token, float uniform, Best& best) const {
    const float score = scaled(token) + gumbel(uniform);
    if (score > best.score || (score == best.score && token < best.token)) best = {score, token};
  }

  // Among the tokens first .. last - 1, and the likeliest one.
  Best run(int64_t likeliest, int64_t first, int64_t last) const {
    Best best{-INFINITY, likeliest};
    enter(likeliest, uniform(key, likeliest), best);
    const __m512i lanes = _mm512_mullo_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi64(kGamma));
    constexpr float kLog2e = 1.44269504f;
    const __m512 shift = _mm512_set1_ps(top), slope = _mm512_set1_ps(kLog2e / temperature);
    // 31 for the scale of what the power is compared with, 1 since only whole powers are taken, and a little against the
    // rounding of what `enter` computes.
    auto offset_of = [](const Best& best) { return _mm512_set1_ps(32 + 2e-3f - best.score * kLog2e); };
    __m512 offset = offset_of(best);
    __m512i base = _mm512_add_epi64(_mm512_set1_epi64(key + (first + 1) * kGamma), lanes);
    for (int64_t at = first; at < last; at += 16) {
      const __mmask16 here = last - at >= 16 ? 0xffff : (1u << (last - at)) - 1;
      _mm_prefetch(logits + at + kAhead, _MM_HINT_T0);
      const __m512 x = _mm512_maskz_loadu_ps(here, logits + at);
      const __m512 power = _mm512_fmadd_ps(_mm512_sub_ps(x, shift), slope, offset);
      const __m512i limit = _mm512_cvttps_epu32(_mm512_scalef_ps(_mm512_set1_ps(1.0f), power));
      const __m512i least = least_uniform(base, _mm512_add_epi64(base, _mm512_set1_epi64(8 * kGamma)));
      base = _mm512_add_epi64(base, _mm512_set1_epi64(16 * kGamma));
      __mmask16 open = _mm512_mask_cmp_epu32_mask(here, least, limit, _MM_CMPINT_LE);
      if (!open) continue;
      for (; open; open &= open - 1) {
        const int64_t token = at + __builtin_ctz(open);
        enter(token, uniform(key, token), best);
      }
      offset = offset_of(best);
    }
    return best;
  }
};

inline float maximum(const float* x, int64_t size) {
  __m512 most = _mm512_set1_ps(-INFINITY);
  for (int64_t at = 0; at < size; at += 16) {
    const __mmask16 here = size - at >= 16 ? 0xffff : (1u << (size - at)) - 1;
    most = _mm512_mask_max_ps(most, here, most, _mm512_maskz_loadu_ps(here, x + at));
  }
  return _mm512_reduce_max_ps(most);
}

struct Likeliest {  // the best so far, equals by id
  int64_t* ids;
  float* values;
  int64_t most, size;

  bool has_room() const { return size < most; }
  float least() const { return values[most - 1]; }

  void insert(int64_t id, float value) {  // ids come in ascending order
    int64_t at = has_room() ? size++ : most - 1;
    for (; at > 0 && values[at - 1] < value; --at) {
      values[at] = values[at - 1];
      ids[at] = ids[at - 1];
    }
    values[at] = value;
    ids[at] = id;
  }
};

// (log-probability of the sampled token, its rank from 1); `likeliest` gets logits.
std::pair<float, int64_t> list_row(const Listing& l, const float* x, int64_t sampled, float top, float& log_sum,
                                   Likeliest likeliest) {
  const __m512 shift = _mm512_set1_ps(top), mine = _mm512_set1_ps(x[sampled]);
  double sum = 0;
  int64_t rank = 1;
  for (int64_t block = 0; block < l.vocabulary; block += 1024) {  // short sums, so that little is rounded away
    const int64_t stop = std::min(block + 1024, l.vocabulary);
    __m512 part = _mm512_setzero_ps();
    for (int64_t at = block; at < stop; at += 16) {
      const __mmask16 here = stop - at >= 16 ? 0xffff : (1u << (stop - at)) - 1;
      const __m512 v = _mm512_maskz_loadu_ps(here, x + at);
      part = _mm512_add_ps(part, _mm512_maskz_mov_ps(here, exp16(_mm512_sub_ps(v, shift))));
      const int64_t left = l.valid - at;
      if (left <= 0) continue;
      const __mmask16 valid = left >= 16 ? here : here & ((1u << left) - 1);
      rank += __builtin_popcount(_mm512_mask_cmp_ps_mask(valid, v, mine, _CMP_GT_OQ));
      if (at < sampled) {
        const __mmask16 before = sampled - at >= 16 ? valid : valid & ((1u << (sampled - at)) - 1);
        rank += __builtin_popcount(_mm512_mask_cmp_ps_mask(before, v, mine, _CMP_EQ_OQ));
      }
      if (l.most == 0) continue;
      __mmask16 better = valid;
      if (!likeliest.has_room()) better = _mm512_mask_cmp_ps_mask(valid, v, _mm512_set1_ps(likeliest.least()), _CMP_GT_OQ);
      for (; better; better &= better - 1) {
        const int64_t id = at + __builtin_ctz(better);
        if (likeliest.has_room() || x[id] > likeliest.least()) likeliest.insert(id, x[id]);
      }
    }
    sum += _mm512_reduce_add_ps(part);
  }
  log_sum = static_cast<float>(std::log(sum));
  return {x[sampled] - top - log_sum, rank};
}

}  // namespace

// Log-softmax of n rows at the sampled token, its rank among the valid ids, and the likeliest `most` valid ones.
// ids and values: (n, most); of_sampled and ranks: (n). `most` is at most `valid`.
extern "C" void mv_logprobs(const Listing* listing, int64_t* ids, float* values, float* of_sampled, int64_t* ranks,
                            int64_t threads) {
  const Listing& l = *listing;
#pragma omp parallel for num_threads(l.count > 1 ? threads : 1) schedule(static)
  for (int64_t i = 0; i < l.count; ++i) {
    const float* x = l.logits + l.rows[i] * l.stride;
    const float top = maximum(x, l.vocabulary);
    float log_sum = 0;
    const Likeliest likeliest{ids + i * l.most, values + i * l.most, l.most, 0};
    std::tie(of_sampled[i], ranks[i]) = list_row(l, x, l.sampled[l.rows[i]], top, log_sum, likeliest);
    for (int64_t k = 0; k < l.most; ++k) values[i * l.most + k] = values[i * l.most + k] - top - log_sum;
  }
}

// Of each of N rows that mv_logits has not computed, or that were changed since: what it says of its own.
extern "C" void mv_maxima(const float* logits, int64_t stride, int64_t vocabulary, int64_t count, float* maxima,
                          int64_t* ids, int64_t threads) {
  std::vector<Best> found(count * threads);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t part = 0; part < threads; ++part) {
    const int64_t first = vocabulary * part / threads, last = vocabulary * (part + 1) / threads;
    for (int64_t row = 0; row < count; ++row) {
      found[row * threads + part] = first_maximum(logits + row * stride, first, last);
    }
  }
  join_maxima(found, threads, maxima, ids);
}

// Few rows are cut into parts, so that all threads have work; equals go to the smaller id.
extern "C" void mv_draw(const Draws* draws, int64_t threads) {
  const Draws& d = *draws;
  const int64_t parts = d.count < threads ? threads : 1, length = (d.vocabulary + parts - 1) / parts;
  std::vector<Best> found(d.count * parts);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t item = 0; item < d.count * parts; ++item) {
    const int64_t i = item / parts, first = item % parts * length, r = d.rows[i], likeliest = d.tokens[r];
    const float* logits = d.logits + r * d.stride;
    const Race race{logits, logits[likeliest], d.temperature[i], key_of(d.seeds[i], d.output_index[r])};
    found[item] = race.run(likeliest, first, std::min(first + length, d.vocabulary));
  }
  for (int64_t i = 0; i < d.count; ++i) {
    Best best = found[i * parts];
    for (int64_t p = 1; p < parts; ++p) {
      const Best& other = found[i * parts + p];
      if (other.score > best.score || (other.score == best.score && other.token < best.token)) best = other;
    }
    d.tokens[d.rows[i]] = best.token;
  }
}
