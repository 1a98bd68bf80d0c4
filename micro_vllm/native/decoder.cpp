// The layers of a Llama, Mistral or Qwen3 decoder over one flattened batch, in one parallel region.
//
// The readable reference is micro_vllm/models/decoder.py with its layers; what differs is that weights and the inputs
// of products are int8 (product.h) and that the residual stream stays float32. Structures mirror those of kernels.py.
#include <omp.h>

#include <cstring>
#include <vector>

#include "attention.h"
#include "maxima.h"
#include "product.h"
#include "team.h"

using namespace micro_vllm;

struct Layer {
  Matrix qkv, out, gate_up, down;  // gate and up alternate, 16 rows each
  const float *input_norm, *post_norm, *q_norm, *k_norm;  // the last two may be null
  bf16 *keys, *values;
  int64_t group, window;           // cache group; 0 sees all
};

struct Model {
  int64_t hidden, intermediate, heads, kv_heads, dim, num_layers;
  float eps, scale;
  const Layer* layers;
  const bf16* embedding;  // (vocabulary, hidden)
};

struct Group {
  const int64_t* tables;  // (R, width) block ids
  const int64_t* slots;   // (T) where each token's key and value are written
  int64_t width;
};

struct Batch {
  int64_t num_tokens, num_tasks, num_parts, block_size;
  const int64_t *token_ids, *positions, *request;  // (T); request: row of the tables
  const int64_t* task_start;           // (num_tasks + 1): tokens of a task, of one request, at most kQueries
  const float *cos, *sin;              // (all positions so far, D / 2)
  const Group* groups;
};

namespace {

constexpr int kMaxDim = 128;  // of a head; others are 32 and 64

struct Scratch {  // cut from one piece of memory; sizes for T tokens
  float *qkv, *inner, *parts;  // parts: (parts, T, H, D + 2)
  float* written;              // (T, H, D), what attention wrote
  bf16* queries;
  // Each thread has its own of these where it prepares rows alone (team.h).
  float *normed, *joined;      // joined: (T, H, D), of all parts
  Rows rows;
};

// Returns the bytes it takes. `memory` may be null, then the pointers mean nothing.
int64_t carve(const Model& m, int64_t tokens, int64_t parts, int64_t threads, int64_t thread, char* memory,
              Scratch* s) {
  int64_t at = 0;
  auto take = [&](int64_t bytes, bool is_own = false) {
    const int64_t size = (bytes + 63) / 64 * 64, copies = is_own && tokens <= kAlone ? threads : 1;
    char* p = memory ? memory + at + (copies > 1 ? thread * size : 0) : nullptr;
    at += copies * size;
    return p;
  };
  const int64_t widest = std::max({m.hidden, m.intermediate, m.heads * m.dim}), attended = 4 * tokens * m.heads * m.dim;
  s->qkv = reinterpret_cast<float*>(take(4 * tokens * (m.heads + 2 * m.kv_heads) * m.dim));
  s->inner = reinterpret_cast<float*>(take(4 * tokens * m.intermediate));
  s->parts = reinterpret_cast<float*>(take(parts > 1 ? 4 * parts * tokens * m.heads * (m.dim + 2) : 0));
  s->written = reinterpret_cast<float*>(take(attended));
  s->queries = reinterpret_cast<bf16*>(take(2 * tokens * m.heads * m.dim));
  s->normed = reinterpret_cast<float*>(take(4 * tokens * m.hidden, true));
  s->joined = reinterpret_cast<float*>(take(parts > 1 ? attended : 0, true));
  s->rows.data = reinterpret_cast<int8_t*>(take(tokens * widest, true));
  s->rows.scale = reinterpret_cast<float*>(take(4 * tokens * (widest / kGroup + 1), true));
  s->rows.offset = reinterpret_cast<int32_t*>(take(4 * tokens * (widest / kGroup + 1), true));
  return at;
}

// Turns a head by its position and writes it as bfloat16 (https://arxiv.org/abs/2104.09864).
inline void rotate(const float* x, const float* cos, const float* sin, int64_t dim, bf16* out) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; i += 16) {
    const __m512 c = _mm512_loadu_ps(cos + i), s = _mm512_loadu_ps(sin + i);
    const __m512 a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + half + i);
    store_bf16(out + i, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
    store_bf16(out + half + i, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
  }
}

// A query or key head of token t, normed if the model does that, and turned. `head` counts keys after queries.
void turn_head(const Model& m, const Layer& layer, const Batch& b, const Scratch& s, int64_t t, int64_t head, bf16* out) {
  const float* x = s.qkv + (t * (m.heads + 2 * m.kv_heads) + head) * m.dim;
  const float* norm = head < m.heads ? layer.q_norm : layer.k_norm;
  alignas(64) float normed[kMaxDim];
  if (norm) rms_norm(x, norm, m.dim, m.eps, normed);
  const int64_t at = b.positions[t] * (m.dim / 2);
  rotate(norm ? normed : x, b.cos + at, b.sin + at, m.dim, out);
}

// Key and value of token t, kv head `head`, into the cache.
void write_cache(const Model& m, const Layer& layer, const Batch& b, const Scratch& s, int64_t t, int64_t head) {
  const int64_t at = (b.groups[layer.group].slots[t] * m.kv_heads + head) * m.dim;
  const float* value = s.qkv + (t * (m.heads + 2 * m.kv_heads) + m.heads + m.kv_heads + head) * m.dim;
  turn_head(m, layer, b, s, t, m.heads + head, layer.keys + at);
  for (int64_t i = 0; i < m.dim; i += 16) store_bf16(layer.values + at + i, _mm512_loadu_ps(value + i));
}

void write_queries_and_cache(Team& team, const Model& m, const Layer& layer, const Batch& b, const Scratch& s) {
  team.share(b.num_tokens, [&](int64_t t) {
    for (int64_t h = 0; h < m.heads; ++h) turn_head(m, layer, b, s, t, h, s.queries + (t * m.heads + h) * m.dim);
    for (int64_t h = 0; h < m.kv_heads; ++h) write_cache(m, layer, b, s, t, h);
  });
}

// One part of the keys of one task and kv head. In a batch of single tokens nobody else reads the key of the last
// position, so it is written here, and queries are turned here: that saves a meeting.
template <int D>
void attend_item(const Model& m, const Layer& layer, const Batch& b, const Scratch& s, int64_t item) {
  const Group& group = b.groups[layer.group];
  const Cache cache{layer.keys, layer.values, b.block_size, m.kv_heads, D};
  const int64_t per_head = m.heads / m.kv_heads, parts = b.num_parts;
  const bool is_single = b.num_tasks == b.num_tokens;
  const int64_t part = item % parts, task = item / parts % b.num_tasks, head = item / parts / b.num_tasks;
  const int64_t start = b.task_start[task], stop = b.task_start[task + 1];
  const int64_t* table = group.tables + b.request[start] * group.width;
  Row rows[kMaxRows];
  alignas(64) bf16 turned[kMaxRows * D];
  for (int64_t from = 0; from < (stop - start) * per_head; from += kMaxRows) {
    const int n = static_cast<int>(std::min<int64_t>(kMaxRows, (stop - start) * per_head - from));
    int64_t begin = INT64_MAX, end = 0;
    for (int r = 0; r < n; ++r) {
      const int64_t t = start + (from + r) / per_head, h = head * per_head + (from + r) % per_head;
      Row& row = rows[r];
      if (is_single) turn_head(m, layer, b, s, t, h, turned + r * D);
      row.query = is_single ? turned + r * D : s.queries + (t * m.heads + h) * D;
      row.last = b.positions[t] + 1;
      row.first = layer.window ? std::max<int64_t>(0, row.last - layer.window) : 0;
      row.out = parts > 1 ? s.parts + ((part * b.num_tokens + t) * m.heads + h) * (D + 2) : s.written + (t * m.heads + h) * D;
      row.max = -INFINITY;
      row.sum = 0;
      std::memset(row.out, 0, D * sizeof(float));
      begin = std::min(begin, row.first);
      end = std::max(end, row.last);
    }
    const int64_t length = ((end - begin + parts - 1) / parts + 15) / 16 * 16;
    const int64_t low = std::min(end, begin + part * length), high = std::min(end, low + length);
    if (is_single && from == 0 && low < end && high == end) write_cache(m, layer, b, s, start, head);
    attend<D>(rows, n, cache, head, table, low, high, m.scale);
    for (int r = 0; r < n; ++r) {
      if (parts > 1) {
        rows[r].out[D] = rows[r].max;
        rows[r].out[D + 1] = rows[r].sum;
        continue;
      }
      const __m512 inverse = _mm512_set1_ps(1.0f / rows[r].sum);
      for (int d = 0; d < D; d += 16)
        _mm512_storeu_ps(rows[r].out + d, _mm512_mul_ps(_mm512_loadu_ps(rows[r].out + d), inverse));
    }
  }
}

// The parts of one token's attention, joined: (H, D).
template <int D>
void join_parts(const Model& m, const Batch& b, const Scratch& s, int64_t t) {
  const int64_t step = b.num_tokens * m.heads * (D + 2);
  for (int64_t row = t * m.heads; row < (t + 1) * m.heads; ++row) {
    const float* x = s.parts + row * (D + 2);
    float* out = s.joined + row * D;
    float top = -INFINITY, sum = 0;
    for (int64_t p = 0; p < b.num_parts; ++p) top = std::max(top, x[p * step + D]);
    std::memset(out, 0, D * sizeof(float));
    for (int64_t p = 0; p < b.num_parts; ++p) {
      if (x[p * step + D + 1] == 0) continue;  // saw nothing
      const float weight = std::exp(x[p * step + D] - top);
      sum += weight * x[p * step + D + 1];
      for (int d = 0; d < D; ++d) out[d] += weight * x[p * step + d];
    }
    for (int d = 0; d < D; ++d) out[d] /= sum;
  }
}

// (T, H, D) of all heads.
template <int D>
const float* attend_all(Team& team, const Model& m, const Layer& layer, const Batch& b, const Scratch& s) {
  if (b.num_tasks != b.num_tokens) write_queries_and_cache(team, m, layer, b, s);
  // Tasks of one kv head follow each other: its keys stay in the cache of the core.
#pragma omp for schedule(dynamic, 1) nowait
  for (int64_t item = 0; item < m.kv_heads * b.num_tasks * b.num_parts; ++item) attend_item<D>(m, layer, b, s, item);
  team.wait();
  if (b.num_parts == 1) return s.written;
  team.prepare(b.num_tokens, [&](int64_t t) { join_parts<D>(m, b, s, t); });
  return s.joined;
}

const float* attend_all(Team& team, const Model& m, const Layer& layer, const Batch& b, const Scratch& s) {
  switch (m.dim) {
    case 32: return attend_all<32>(team, m, layer, b, s);
    case 64: return attend_all<64>(team, m, layer, b, s);
    default: return attend_all<kMaxDim>(team, m, layer, b, s);
  }
}

void embed(Team& team, const Model& m, const Batch& b, float* hidden) {
  team.share(b.num_tokens, [&](int64_t t) {
    const bf16* row = m.embedding + b.token_ids[t] * m.hidden;
    for (int64_t i = 0; i < m.hidden; i += 16) _mm512_storeu_ps(hidden + t * m.hidden + i, load_bf16(row + i));
  });
}

void run_layer(Team& team, const Model& m, const Layer& layer, const Batch& b, const Scratch& s, float* hidden) {
  const int64_t tokens = b.num_tokens, width = (m.heads + 2 * m.kv_heads) * m.dim;
  auto add_to_hidden = [=](int64_t t, int64_t column, __m512 x, __m512 y) {
    float* p = hidden + t * m.hidden + column;
    _mm512_storeu_ps(p, _mm512_add_ps(_mm512_loadu_ps(p), x));
    _mm512_storeu_ps(p + 16, _mm512_add_ps(_mm512_loadu_ps(p + 16), y));
  };
  norm_and_quantize(team, hidden, layer.input_norm, tokens, m.hidden, m.eps, s.normed, s.rows);
  product(team, layer.qkv, s.rows, tokens, [=](int64_t t, int64_t column, __m512 x, __m512 y) {
    _mm512_storeu_ps(s.qkv + t * width + column, x);
    _mm512_storeu_ps(s.qkv + t * width + column + 16, y);
  });
  quantize(team, attend_all(team, m, layer, b, s), tokens, m.heads * m.dim, s.rows);
  product(team, layer.out, s.rows, tokens, add_to_hidden);

  norm_and_quantize(team, hidden, layer.post_norm, tokens, m.hidden, m.eps, s.normed, s.rows);
  product(team, layer.gate_up, s.rows, tokens, [=](int64_t t, int64_t column, __m512 gate, __m512 up) {
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 silu = _mm512_div_ps(gate, _mm512_add_ps(one, exp16(_mm512_sub_ps(_mm512_setzero_ps(), gate))));
    _mm512_storeu_ps(s.inner + t * m.intermediate + column / 2, _mm512_mul_ps(silu, up));
  });
  quantize(team, s.inner, tokens, m.intermediate, s.rows);
  product(team, layer.down, s.rows, tokens, add_to_hidden);
}

}  // namespace

extern "C" {

int64_t mv_scratch_bytes(const Model* model, int64_t tokens, int64_t parts, int64_t threads) {
  Scratch s;
  return carve(*model, tokens, parts, threads, 0, nullptr, &s);
}

// hidden (T, hidden) float32 is what the last layer puts out.
void mv_decode(const Model* model, const Batch* batch, float* hidden, char* scratch, int64_t threads) {
  Meeting meeting;
#pragma omp parallel num_threads(threads)
  {
    Team team(meeting, omp_get_thread_num(), omp_get_num_threads(), batch->num_tokens <= kAlone);
    Scratch s;
    carve(*model, batch->num_tokens, batch->num_parts, threads, team.id, scratch, &s);
    embed(team, *model, *batch, hidden);
    for (int64_t l = 0; l < model->num_layers; ++l) run_layer(team, *model, model->layers[l], *batch, s, hidden);
  }
}

// Final norm and head of R rows: logits (R, head->rows) float32, and of their first `valid` columns the maximum and its
// first id, (R) each. The scratch holds R tokens.
void mv_logits(const Model* model, const Matrix* head, const float* norm, const float* hidden, int64_t count,
               int64_t valid, float* logits, float* maxima, int64_t* ids, char* scratch, int64_t threads) {
  Meeting meeting;
  std::vector<Best> found(count * threads, Best{-INFINITY, 0});
#pragma omp parallel num_threads(threads)
  {
    Team team(meeting, omp_get_thread_num(), omp_get_num_threads(), count <= kAlone);
    Scratch s;
    carve(*model, count, 1, threads, team.id, scratch, &s);
    norm_and_quantize(team, hidden, norm, count, model->hidden, model->eps, s.normed, s.rows);
    std::vector<RunningMaximum> tops(count);
    product(team, *head, s.rows, count, [&](int64_t row, int64_t column, __m512 x, __m512 y) {
      _mm512_storeu_ps(logits + row * head->rows + column, x);
      _mm512_storeu_ps(logits + row * head->rows + column + 16, y);
      tops[row].take(column, x, y, valid);
    });
    const auto [first, last] = team.part(head->rows / kColumns);
    for (int64_t row = 0; row < count; ++row)
      found[row * threads + team.id] =
          tops[row].result(logits + row * head->rows, first * kColumns, std::min(last * kColumns, valid));
  }
  join_maxima(found, threads, maxima, ids);
}

}  // extern "C"
