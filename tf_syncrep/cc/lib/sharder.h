// How cc/lib splits work over the threads that its caller brings.

#ifndef TF_SYNCREP_CC_LIB_SHARDER_H_
#define TF_SYNCREP_CC_LIB_SHARDER_H_

#include <cstdint>
#include <functional>

namespace tf_syncrep {

// Where shard `shard` begins when `total` units are split as evenly as
// possible. Shard `num_shards` begins at `total`.
constexpr int64_t ShardBegin(int64_t shard, int64_t num_shards, int64_t total) {
  const int64_t larger_shards = total % num_shards;
  return total / num_shards * shard +
         (shard < larger_shards ? shard : larger_shards);
}

// Splits pieces of work into shards, and runs these on a thread pool and on the
// calling thread. The caller takes shards like any other thread, and never
// waits for a pool thread to become free. So a piece of work ends even on a
// pool that is busy for ever.
class Sharder {
 public:
  virtual ~Sharder() = default;

  // How many shards to make of `total` units, at least 1, if fewer than
  // `min_per_shard` units are not worth the hand-over to another thread.
  int64_t NumShards(int64_t total, int64_t min_per_shard) const;

  // Calls `shard(i)` once for each i in [0, num_shards), some of them at the
  // same time, and returns when all calls have returned. `shard` must not
  // throw.
  void Run(int64_t num_shards, const std::function<void(int64_t)>& shard);

  // The same for parts of [0, total): calls `part(begin, end)`. Each part
  // begins at a multiple of `multiple`, and if there are several, none is
  // smaller than `min_per_part`.
  void RunParts(int64_t total, int64_t min_per_part, int64_t multiple,
                const std::function<void(int64_t, int64_t)>& part);

 protected:
  // How many threads there are for one piece of work, the caller included.
  virtual int num_threads() const = 0;

  // Lets another thread run `task`, sooner or later.
  virtual void Schedule(std::function<void()> task) = 0;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_SHARDER_H_
