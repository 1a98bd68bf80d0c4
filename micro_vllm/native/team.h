// The threads of one parallel region: how they share work, and how they wait for each other.
//
// A layer needs several meetings, and a step has hundreds. A thread that sleeps takes tens of microseconds to wake up; one
// that spins holds a core that the page, or another program, may want. So a wait spins for as long as that has paid
// lately and sleeps when it has not: alone on the machine threads meet within a microsecond, beside others they soon
// sleep at once. That does not depend on OMP_WAIT_POLICY, which knows only the two extremes.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

namespace micro_vllm {

constexpr int64_t kAlone = 2;    // so few rows are prepared by every thread for itself, sooner than a meeting is held
constexpr int kPatience = 2048;  // most turns of a spin: some tens of microseconds
constexpr int kImpatience = 32;  // least

struct Meeting {  // what all threads share
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<int> round{0};
};

class Team {  // one thread's view
 public:
  Team(Meeting& meeting, int id, int size, bool alone)
      : id(id), size(size), alone(alone), meeting_(meeting) {}

  const int id, size;
  const bool alone;  // rows are prepared by every thread, into memory of its own

  // Until all threads are here. What they wrote before is seen after.
  void wait() {
    if (size == 1) return;
    const int round = meeting_.round.load(std::memory_order_relaxed);
    if (meeting_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      meeting_.arrived.store(0, std::memory_order_relaxed);
      meeting_.round.store(round + 1, std::memory_order_release);
      meeting_.round.notify_all();
      return;
    }
    for (int turn = 0; turn < patience_; ++turn) {
      if (meeting_.round.load(std::memory_order_acquire) != round) {
        patience_ = std::min(2 * patience_, kPatience);
        return;
      }
      _mm_pause();
    }
    patience_ = std::max(patience_ / 2, kImpatience);
    meeting_.round.wait(round, std::memory_order_acquire);
  }

  // What this thread does of `count` pieces of work: from the first to before the last.
  std::pair<int64_t, int64_t> part(int64_t count) const { return {count * id / size, count * (id + 1) / size}; }

  // f(0) .. f(count - 1), each by one thread; done when all are.
  template <class F>
  void share(int64_t count, F&& f) {
    const auto [first, last] = part(count);
    for (int64_t i = first; i < last; ++i) f(i);
    wait();
  }

  // The same over rows that only need preparing: shared, or done by every thread for itself.
  template <class F>
  void prepare(int64_t rows, F&& f) {
    if (!alone) return share(rows, f);
    for (int64_t i = 0; i < rows; ++i) f(i);
  }

 private:
  Meeting& meeting_;
  int patience_ = kPatience;
};

}  // namespace micro_vllm
