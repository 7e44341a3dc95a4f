#include "tf_syncrep/cc/lib/sharder.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {
namespace {

// One call of Run(), which the pool tasks that it scheduled share. A task that
// starts after all shards are taken finds nothing to do, and does not touch
// `shard`, which no longer exists.
class Work {
 public:
  Work(int64_t num_shards, const std::function<void(int64_t)>* shard)
      : num_shards_(num_shards), shard_(shard), unfinished_(num_shards) {}

  void TakeShards() {
    int64_t finished = 0;
    for (int64_t i = next_.fetch_add(1); i < num_shards_;
         i = next_.fetch_add(1)) {
      (*shard_)(i);
      ++finished;
    }
    if (finished == 0) {
      return;
    }
    const MutexLock lock(mu_);
    unfinished_ -= finished;
    if (unfinished_ == 0) {
      all_finished_.NotifyAll();
    }
  }

  // The thread that finishes the last shard ends the wait. After TakeShards()
  // every shard is either finished or running.
  void WaitUntilFinished() {
    const MutexLock lock(mu_);
    while (unfinished_ != 0) {
      all_finished_.Wait(mu_);
    }
  }

 private:
  const int64_t num_shards_;
  const std::function<void(int64_t)>* const shard_;
  std::atomic<int64_t> next_{0};  // the first shard that nobody has taken
  Mutex mu_;
  int64_t unfinished_ TF_SYNCREP_GUARDED_BY(mu_);
  CondVar all_finished_;
};

}  // namespace

int64_t Sharder::NumShards(int64_t total, int64_t min_per_shard) const {
  const int64_t threads = num_threads();
  if (threads <= 1) {
    return 1;
  }
  // There are several shards for each thread, so that fast threads take over
  // from slow ones.
  constexpr int64_t kShardsPerThread = 4;
  return std::clamp<int64_t>(total / std::max<int64_t>(min_per_shard, 1), 1,
                             kShardsPerThread * threads);
}

void Sharder::Run(int64_t num_shards,
                  const std::function<void(int64_t)>& shard) {
  const int64_t helpers = std::min<int64_t>(num_threads(), num_shards) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < num_shards; ++i) {
      shard(i);
    }
    return;
  }
  const auto work = std::make_shared<Work>(num_shards, &shard);
  for (int64_t i = 0; i < helpers; ++i) {
    Schedule([work] { work->TakeShards(); });
  }
  work->TakeShards();
  work->WaitUntilFinished();
}

void Sharder::RunParts(int64_t total, int64_t min_per_part, int64_t multiple,
                       const std::function<void(int64_t, int64_t)>& part) {
  const int64_t num_parts = NumShards(total, min_per_part);
  const int64_t num_units = (total + multiple - 1) / multiple;
  const auto begin = [&](int64_t i) {
    return std::min(ShardBegin(i, num_parts, num_units) * multiple, total);
  };
  Run(num_parts, [&](int64_t i) { part(begin(i), begin(i + 1)); });
}

}  // namespace tf_syncrep
